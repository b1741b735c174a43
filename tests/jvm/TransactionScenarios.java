import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * What a transactional producer does, and what readers see of it.
 *
 * <p>As {@link ClientScenarios}: arguments are the name of a scenario, the broker, and what the
 * scenario asks for; it prints one line of JSON that says what happened.
 */
public final class TransactionScenarios {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration PATIENCE = Duration.ofSeconds(30);
    private static final int PARTITIONS = 2;

    private final String bootstrap;
    private final String topic;
    private final Map<String, String> settings = new HashMap<>();

    private TransactionScenarios(String[] arguments) {
        bootstrap = arguments[1];
        topic = arguments[2];
        for (String argument : List.of(arguments).subList(3, arguments.length)) {
            String[] parts = argument.split("=", 2);
            settings.put(parts[0], parts[1]);
        }
    }

    public static void main(String[] arguments) throws Exception {
        TransactionScenarios scenarios = new TransactionScenarios(arguments);
        System.out.println(JSON.writeValueAsString(scenarios.run(arguments[0])));
    }

    private Object run(String scenario) throws Exception {
        switch (scenario) {
            case "ends": return ends();
            case "offsets": return offsets();
            case "fenced": return fenced();
            case "timed out": return timedOut();
            default: throw new IllegalArgumentException(scenario);
        }
    }

    /** TOPIC. Commits, aborts, commits; gives what each kind of reader finds in each partition. */
    private Object ends() throws Exception {
        try (KafkaProducer<String, String> producer = producer(topic)) {
            producer.initTransactions();
            for (String value : List.of("committed", "aborted", "committed again")) {
                producer.beginTransaction();
                for (int partition = 0; partition < PARTITIONS; partition++) {
                    for (int number = 0; number < 3; number++) {
                        producer.send(new ProducerRecord<>(topic, partition, null, value));
                    }
                    producer.flush();
                }
                if (value.equals("aborted")) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
            // An empty one, and one that is left open.
            producer.beginTransaction();
            producer.commitTransaction();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, null, "open")).get();
            Map<String, Object> found = new LinkedHashMap<>();
            for (String level : List.of("read_committed", "read_uncommitted")) {
                found.put(level, read(level));
            }
            producer.abortTransaction();
            found.put("at last", read("read_committed"));
            return found;
        }
    }

    /**
     * TOPIC. Reads, writes what it read again, and commits where it has read to with it; then the
     * same, aborted. Gives the group's offsets and what was written after each.
     */
    private Object offsets() throws Exception {
        List<Object> found = new ArrayList<>();
        String group = topic + "-group";
        try (KafkaProducer<String, String> producer = producer(topic);
                KafkaConsumer<String, String> consumer = consumer(group, "read_committed")) {
            producer.initTransactions();
            producer.beginTransaction();
            for (int number = 0; number < 4; number++) {
                producer.send(new ProducerRecord<>(topic, 0, null, "in " + number));
            }
            producer.commitTransaction();
            consumer.subscribe(List.of(topic));
            TopicPartition place = new TopicPartition(topic, 0);
            for (boolean isCommitted : new boolean[] {true, false}) {
                List<ConsumerRecord<String, String>> records = new ArrayList<>();
                long endsAt = System.nanoTime() + PATIENCE.toNanos();
                while (records.size() < (isCommitted ? 2 : 1)) {
                    if (System.nanoTime() > endsAt) {
                        throw new IllegalStateException("read no more than " + records);
                    }
                    consumer.poll(Duration.ofMillis(50)).records(place).forEach(records::add);
                }
                producer.beginTransaction();
                for (ConsumerRecord<String, String> record : records) {
                    producer.send(
                        new ProducerRecord<>(topic, 1, null, record.value().replace("in", "out")));
                }
                long next = records.get(records.size() - 1).offset() + 1;
                producer.sendOffsetsToTransaction(
                    Map.of(place, new OffsetAndMetadata(next)), consumer.groupMetadata());
                if (isCommitted) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
                OffsetAndMetadata committed = consumer.committed(Set.of(place)).get(place);
                found.add(committed == null ? -1 : committed.offset());
                consumer.seek(place, isCommitted ? 2 : next);
            }
        }
        found.add(read("read_committed").get(1));
        return found;
    }

    /** TOPIC. What a producer is told at each call after another of its name has begun. */
    private Object fenced() throws Exception {
        Map<String, Object> told = new LinkedHashMap<>();
        for (String call : List.of("send", "offsets", "commit", "abort", "begin and send")) {
            String id = topic + " " + call;
            try (KafkaProducer<String, String> zombie = producer(id)) {
                zombie.initTransactions();
                boolean isBetween = call.equals("begin and send");
                if (!isBetween) {
                    zombie.beginTransaction();
                    zombie.send(new ProducerRecord<>(topic, 0, null, "of a zombie")).get();
                }
                try (KafkaProducer<String, String> successor = producer(id)) {
                    successor.initTransactions();
                    told.put(call, failure(zombie, call));
                    successor.beginTransaction();
                    successor.send(new ProducerRecord<>(topic, 0, null, "of its successor"));
                    successor.commitTransaction();
                }
            }
        }
        told.put("read", read("read_committed").get(0));
        return told;
    }

    private String failure(KafkaProducer<String, String> zombie, String call) throws Exception {
        try {
            switch (call) {
                case "begin and send":
                    zombie.beginTransaction();
                    zombie.send(new ProducerRecord<>(topic, 0, null, "too late")).get();
                    break;
                case "send":
                    zombie.send(new ProducerRecord<>(topic, 0, null, "too late")).get();
                    break;
                case "offsets":
                    zombie.sendOffsetsToTransaction(
                        Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(1)),
                        new ConsumerGroupMetadata(topic + "-group"));
                    zombie.commitTransaction();
                    break;
                case "commit":
                    zombie.commitTransaction();
                    break;
                default:
                    zombie.abortTransaction();
            }
            return "nothing";
        } catch (ExecutionException failed) {
            return failed.getCause().getClass().getSimpleName();
        } catch (RuntimeException refused) {
            return refused.getClass().getSimpleName();
        }
    }

    /** TOPIC. What a producer is told, whose transaction was open for longer than it may be. */
    private Object timedOut() throws Exception {
        settings.put("transaction.timeout.ms", "1000");
        settings.put("delivery.timeout.ms", "1000");
        settings.put("request.timeout.ms", "900");
        settings.put("linger.ms", "0");
        try (KafkaProducer<String, String> producer = producer(topic)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, null, "too slow")).get();
            try (KafkaConsumer<String, String> reader = consumer(null, "read_committed")) {
                TopicPartition place = new TopicPartition(topic, 0);
                long endsAt = System.nanoTime() + PATIENCE.toNanos();
                while (reader.endOffsets(Set.of(place)).get(place) == 0) {
                    if (System.nanoTime() > endsAt) {
                        throw new IllegalStateException("it stays open");
                    }
                    Thread.sleep(50);
                }
            }
            return List.of(failure(producer, "commit"), read("read_committed").get(0));
        }
    }

    /** The values of all records to the end that a reader of this kind has, by partition. */
    private List<List<String>> read(String level) {
        List<List<String>> found =
            IntStream.range(0, PARTITIONS)
                .mapToObj(partition -> (List<String>) new ArrayList<String>())
                .collect(Collectors.toList());
        try (KafkaConsumer<String, String> reader = consumer(null, level)) {
            Collection<TopicPartition> places =
                IntStream.range(0, PARTITIONS)
                    .mapToObj(partition -> new TopicPartition(topic, partition))
                    .collect(Collectors.toList());
            reader.assign(places);
            reader.seekToBeginning(places);
            Map<TopicPartition, Long> ends = reader.endOffsets(places);
            long endsAt = System.nanoTime() + PATIENCE.toNanos();
            while (places.stream().anyMatch(place -> reader.position(place) < ends.get(place))) {
                if (System.nanoTime() > endsAt) {
                    throw new IllegalStateException("read no more than " + found);
                }
                for (ConsumerRecord<String, String> record : reader.poll(Duration.ofMillis(50))) {
                    found.get(record.partition()).add(record.value());
                }
            }
        }
        return found;
    }

    private KafkaProducer<String, String> producer(String id) {
        Properties all = new Properties();
        all.put("bootstrap.servers", bootstrap);
        all.put("transactional.id", id);
        all.put("retry.backoff.ms", "20");
        all.put("max.block.ms", Long.toString(PATIENCE.toMillis()));
        all.putAll(settings);
        return new KafkaProducer<>(all, new StringSerializer(), new StringSerializer());
    }

    private KafkaConsumer<String, String> consumer(String group, String level) {
        Properties all = new Properties();
        all.put("bootstrap.servers", bootstrap);
        if (group != null) {
            all.put("group.id", group);
        }
        all.put("enable.auto.commit", "false");
        all.put("auto.offset.reset", "earliest");
        all.put("isolation.level", level);
        all.put("max.poll.records", "2");
        return new KafkaConsumer<>(all, new StringDeserializer(), new StringDeserializer());
    }
}
