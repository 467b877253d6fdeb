import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.springframework.amqp.core.Binding;
import org.springframework.amqp.core.BindingBuilder;
import org.springframework.amqp.core.Exchange;
import org.springframework.amqp.core.ExchangeBuilder;
import org.springframework.amqp.core.Message;
import org.springframework.amqp.core.MessageBuilder;
import org.springframework.amqp.core.MessageProperties;
import org.springframework.amqp.core.Queue;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory.ConfirmType;
import org.springframework.amqp.rabbit.connection.CorrelationData;
import org.springframework.amqp.rabbit.core.RabbitAdmin;
import org.springframework.amqp.rabbit.core.RabbitTemplate;
import org.springframework.amqp.rabbit.listener.SimpleMessageListenerContainer;

/** With Spring AMQP, whose RabbitAdmin declares an exchange with delayed = true; see delayed_pika.py. */
public class Delayed {
    static synchronized void show(String row) {
        System.out.println("{" + row + ", \"atMs\": " + System.currentTimeMillis() + "}");
    }

    public static void main(String[] arguments) throws Exception {
        String name = arguments[1];
        int count = arguments.length - 2;
        CachingConnectionFactory factory = new CachingConnectionFactory(java.net.URI.create(arguments[0]));
        factory.setPublisherConfirmType(ConfirmType.CORRELATED);
        factory.setPublisherReturns(true);
        Exchange exchange = ExchangeBuilder.topicExchange(name).delayed().build();
        Queue queue = new Queue(name);
        Binding binding = BindingBuilder.bind(queue).to(exchange).with("a.#").noargs();
        RabbitAdmin admin = new RabbitAdmin(factory);
        admin.declareExchange(exchange);
        admin.declareQueue(queue);
        admin.declareBinding(binding);
        RabbitTemplate template = new RabbitTemplate(factory);
        template.setMandatory(true);
        template.setReturnsCallback(returned -> show("\"returned\": " + returned.getReplyCode()));
        for (int number = 0; number < count; number++) {
            String id = "m" + number, delay = arguments[number + 2];
            Message message = MessageBuilder.withBody(("body " + id).getBytes())
                .setMessageId(id).setContentType("text/plain").setHeader("own", "kept").build();
            if (!delay.equals("-")) {
                message.getMessageProperties().setDelayLong(Long.parseLong(delay));
            }
            show("\"sent\": \"" + id + "\"");
            CorrelationData confirm = new CorrelationData(id);
            template.send(name, "a.b", message, confirm);
            if (!confirm.getFuture().get(60, TimeUnit.SECONDS).isAck()) {
                throw new IllegalStateException(id + " was refused");
            }
        }
        CountDownLatch left = new CountDownLatch(count);
        SimpleMessageListenerContainer consumer = new SimpleMessageListenerContainer(factory);
        consumer.setQueueNames(name);
        consumer.setMessageListener(message -> {
            MessageProperties got = message.getMessageProperties();
            show(String.format(
                "\"received\": \"%s\", \"exchange\": \"%s\", \"key\": \"%s\", \"delay\": %s, "
                    + "\"own\": \"%s\", \"type\": \"%s\", \"body\": \"%s\"",
                got.getMessageId(), got.getReceivedExchange(), got.getReceivedRoutingKey(),
                got.getReceivedDelayLong(), (Object) got.getHeader("own"), got.getContentType(),
                new String(message.getBody())));
            left.countDown();
        });
        consumer.start();
        boolean came = left.await(60, TimeUnit.SECONDS);
        consumer.stop();
        factory.destroy();
        System.exit(came ? 0 : 1);
    }
}
