import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.PulsarVersion;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionType;

/** Pulsar for bench/peers/pulsar.py: java Pulsar URL TOPIC */
class Pulsar {
    static volatile Throwable failure;

    public static void main(String[] arguments) throws Exception {
        Lines.alone();
        PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build();
        Lines.eventually(() -> client.newConsumer().topic(arguments[1]).subscriptionName("bench")
            .subscriptionType(SubscriptionType.Shared)
            .receiverQueueSize(Lines.WINDOW)
            .acknowledgmentGroupTime(10, TimeUnit.MILLISECONDS)
            .messageListener((consumer, message) -> {
                Lines.received(Long.parseLong(message.getProperty("due")));
                consumer.acknowledgeAsync(message);
            })
            .subscribe());
        Producer<byte[]> producer = client.newProducer().topic(arguments[1])
            .blockIfQueueFull(true).maxPendingMessages(Lines.WINDOW)
            .enableBatching(false) // delayed messages are never batched
            .sendTimeout(60, TimeUnit.SECONDS).create();
        Lines.serve(PulsarVersion.getVersion(), (count, due) -> add(producer, count, due));
    }

    static void add(Producer<byte[]> producer, int count, Lines.Due due) throws Exception {
        Semaphore window = new Semaphore(Lines.WINDOW);
        for (int number = 0; number < count; number++) {
            long dueMs = due.ms(number, System.currentTimeMillis());
            window.acquire();
            producer.newMessage().value(Lines.BODY).property("due", Long.toString(dueMs))
                .deliverAt(dueMs).sendAsync()
                .whenComplete((id, why) -> {
                    if (why != null) failure = why;
                    window.release();
                });
        }
        window.acquire(Lines.WINDOW);
        if (failure != null) throw new IllegalStateException(failure);
    }
}
