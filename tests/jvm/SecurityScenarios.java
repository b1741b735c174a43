import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Base64;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * What clients are told that are not let in, or lose a right while they run.
 *
 * <p>"refusal" BROKER [setting=value ...] prints the exception of a producer that is not let in.
 * "running" BROKER TOPIC [setting=value ...] has a producer and a consumer of partition 0, and does
 * what its input says, a line each: "write BASE64" is answered null or an exception, "read" the next
 * value, or "error" and an exception. Answers are JSON behind "> ".
 */
public final class SecurityScenarios {
    private static final Duration POLL = Duration.ofMillis(50);

    private SecurityScenarios() {
    }

    public static void main(String[] arguments) throws Exception {
        boolean isRunning = arguments[0].equals("running");
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[1]);
        settings.put("max.block.ms", "20000");
        for (String argument : List.of(arguments).subList(isRunning ? 3 : 2, arguments.length)) {
            String[] parts = argument.split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        if (isRunning) {
            run(settings, arguments[2]);
        } else {
            System.out.println(ClientScenarios.JSON.writeValueAsString(refusal(settings)));
        }
    }

    private static String refusal(Properties settings) throws InterruptedException {
        try (KafkaProducer<byte[], byte[]> producer = producer(settings)) {
            String told = write(producer, new ProducerRecord<>("refused", 0, null, new byte[1]));
            if (told == null) {
                throw new IllegalStateException("it was let in");
            }
            return told;
        }
    }

    private static void run(Properties settings, String topic) throws Exception {
        TopicPartition place = new TopicPartition(topic, 0);
        BufferedReader commands = new BufferedReader(
                new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (KafkaProducer<byte[], byte[]> producer = producer(settings);
                KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings,
                        new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(place));
            consumer.seek(place, 0);
            for (String line = commands.readLine(); line != null; line = commands.readLine()) {
                String answer;
                if (line.equals("read")) {
                    answer = read(consumer, place);
                } else {
                    byte[] value = Base64.getDecoder().decode(line.substring("write ".length()));
                    answer = write(producer, new ProducerRecord<>(topic, 0, null, value));
                }
                System.out.println("> " + ClientScenarios.JSON.writeValueAsString(answer));
            }
        }
    }

    private static String write(
            KafkaProducer<byte[], byte[]> producer, ProducerRecord<byte[], byte[]> record)
            throws InterruptedException {
        try {
            producer.send(record).get();
            return null;
        } catch (ExecutionException failed) {
            return failed.getCause().toString();
        } catch (KafkaException refused) {
            return refused.toString();
        }
    }

    private static String read(KafkaConsumer<byte[], byte[]> consumer, TopicPartition place) {
        try {
            long end = System.nanoTime() + ClientScenarios.PATIENCE.toNanos();
            while (System.nanoTime() < end) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL);
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    // One at a time: what came with it is asked for again.
                    consumer.seek(place, record.offset() + 1);
                    return "value " + Base64.getEncoder().encodeToString(record.value());
                }
            }
        } catch (KafkaException refused) {
            return "error " + refused;
        }
        throw new IllegalStateException("nothing to read");
    }

    private static KafkaProducer<byte[], byte[]> producer(Properties settings) {
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }
}
