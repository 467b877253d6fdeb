import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's own producer without any code of delaybridge: COUNT records with keys to TOPIC, each with
 * a delay, and the same keys to PLAIN without one. Prints what it sent: key, and the partition in PLAIN.
 *
 * <p>java -cp 'LIBS/*' Producer.java SERVERS TOPIC PLAIN COUNT DELAY_MS
 */
public class Producer {
    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        String plain = arguments[2];
        int count = Integer.parseInt(arguments[3]);
        byte[] delay = (arguments[4] + "ms").getBytes(StandardCharsets.UTF_8);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("acks", "all");
        settings.put("key.serializer", ByteArraySerializer.class);
        settings.put("value.serializer", ByteArraySerializer.class);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            for (int number = 0; number < count; number++) {
                byte[] key = ("key-" + number).getBytes(StandardCharsets.UTF_8);
                byte[] value = ("value-" + number).getBytes(StandardCharsets.UTF_8);
                ProducerRecord<byte[], byte[]> delayed = new ProducerRecord<>(topic, key, value);
                delayed.headers().add("own", new byte[] {0, (byte) 0xff}).add("nothing", null);
                delayed.headers().add("delaybridge-delay", delay);
                producer.send(delayed).get();
                sent.add(producer.send(new ProducerRecord<>(plain, key, value)));
            }
            for (int number = 0; number < count; number++) {
                System.out.println("key-" + number + " " + sent.get(number).get().partition());
            }
        }
    }
}
