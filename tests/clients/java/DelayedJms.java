import com.rabbitmq.jms.admin.RMQConnectionFactory;
import com.rabbitmq.jms.admin.RMQDestination;
import jakarta.jms.Connection;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;

/** With RabbitMQ's JMS client and its delivery delay; see delayed_pika.py. */
public class DelayedJms {
    static void show(String row) {
        System.out.println("{" + row + ", \"atMs\": " + System.currentTimeMillis() + "}");
    }

    public static void main(String[] arguments) throws Exception {
        RMQConnectionFactory factory = new RMQConnectionFactory();
        factory.setUri(arguments[0]);
        try (Connection connection = factory.createConnection();
            Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE)) {
            connection.start();
            RMQDestination queue = (RMQDestination) session.createQueue(arguments[1]);
            MessageConsumer consumer = session.createConsumer(queue);
            MessageProducer producer = session.createProducer(queue);
            for (int number = 0; number < arguments.length - 2; number++) {
                String delay = arguments[number + 2];
                TextMessage message = session.createTextMessage("body m" + number);
                message.setStringProperty("own", "kept");
                message.setStringProperty("id", "m" + number);
                producer.setDeliveryDelay(delay.equals("-") ? 0 : Long.parseLong(delay));
                show("\"sent\": \"m" + number + "\"");
                producer.send(message);
            }
            for (int left = arguments.length - 2; left > 0; left--) {
                TextMessage message = (TextMessage) consumer.receive(60_000);
                show(String.format(
                    "\"received\": \"%s\", \"own\": \"%s\", \"body\": \"%s\"",
                    message.getStringProperty("id"), message.getStringProperty("own"),
                    message.getText()));
                message.acknowledge();
            }
        }
        System.exit(0);
    }
}
