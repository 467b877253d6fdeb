import java.util.List;
import java.util.concurrent.Semaphore;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** RocketMQ for bench/peers/rocketmq.py: java RocketMQ NAME_SERVER TOPIC */
class RocketMQ {
    static DefaultMQProducer producer;
    static volatile Throwable failure;

    public static void main(String[] arguments) throws Exception {
        Lines.alone();
        String topic = arguments[1];
        producer = new DefaultMQProducer("bench-producer");
        producer.setNamesrvAddr(arguments[0]);
        producer.setSendMsgTimeout(60_000);
        producer.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench-consumer");
        consumer.setNamesrvAddr(arguments[0]);
        consumer.subscribe(topic, "*");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(one -> {
                String due = one.getUserProperty("due");
                if (due != null) Lines.received(Long.parseLong(due));
            });
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        Lines.eventually(() -> producer.send(new Message(topic, Lines.BODY))); // makes the topic
        consumer.start();
        String version = MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION);
        Lines.serve(version, (count, due) -> add(topic, count, due));
    }

    static void add(String topic, int count, Lines.Due due) throws Exception {
        Semaphore window = new Semaphore(Lines.WINDOW);
        SendCallback sent = new SendCallback() {
            @Override public void onSuccess(SendResult result) { window.release(); }
            @Override public void onException(Throwable why) { failure = why; window.release(); }
        };
        for (int number = 0; number < count; number++) {
            long dueMs = due.ms(number, System.currentTimeMillis());
            Message message = new Message(topic, Lines.BODY);
            message.setDeliverTimeMs(dueMs);
            message.putUserProperty("due", Long.toString(dueMs));
            window.acquire();
            producer.send(message, sent);
        }
        window.acquire(Lines.WINDOW);
        if (failure != null) throw new IllegalStateException(failure);
    }
}
