import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.function.BooleanSupplier;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * What the producer and the consumer can do and Kafka's own tools do not show.
 *
 * <p>Arguments are the name of a scenario, the broker, and what the scenario asks for. It prints one
 * line of JSON that says what happened; whether that is right is decided by the test that ran it.
 * Something that does not happen within {@link #PATIENCE} is an exception.
 */
public final class ClientScenarios {
    static final ObjectMapper JSON = new ObjectMapper();
    static final Duration PATIENCE = Duration.ofSeconds(30);
    private static final Duration POLL = Duration.ofMillis(50);

    private final String bootstrap;
    private final List<String> arguments;

    private ClientScenarios(String bootstrap, List<String> arguments) {
        this.bootstrap = bootstrap;
        this.arguments = arguments;
    }

    public static void main(String[] arguments) throws Exception {
        List<String> rest = List.of(arguments).subList(2, arguments.length);
        ClientScenarios scenarios = new ClientScenarios(arguments[1], rest);
        System.out.println(JSON.writeValueAsString(scenarios.run(arguments[0])));
    }

    private Object run(String scenario) throws Exception {
        switch (scenario) {
            case "produce": return produce();
            case "read": return read();
            case "read all": return readAll();
            case "positions": return positions();
            case "pause": return pause();
            case "stop reading": return stopReading();
            case "sessions": return sessions();
            case "recreated": return recreated();
            case "refusals": return refusals();
            case "transactions": return transactions();
            case "commits": return commits();
            case "static": return staticMembership();
            case "cooperative": return cooperative();
            case "pattern": return pattern();
            case "broker's pattern": return brokersPattern();
            case "migration": return migration();
            case "through": return through();
            default: throw new IllegalArgumentException(scenario);
        }
    }

    // One record as JSON: key, value (base64 or null), headers (pairs), timestamp, and as a result
    // its offset.

    /** TOPIC PARTITION [setting=value ...]; records on standard input. Gives the offsets. */
    private Object produce() throws Exception {
        String topic = arguments.get(0);
        int partition = Integer.parseInt(arguments.get(1));
        List<Future<RecordMetadata>> sends = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = producer(settings(2))) {
            for (Map<String, Object> record : input()) {
                ProducerRecord<byte[], byte[]> made = new ProducerRecord<>(topic, partition,
                        ((Number) record.get("timestamp")).longValue(),
                        bytes(record.get("key")), bytes(record.get("value")));
                for (Object header : (List<?>) record.get("headers")) {
                    List<?> pair = (List<?>) header;
                    made.headers().add((String) pair.get(0), bytes(pair.get(1)));
                }
                sends.add(producer.send(made));
            }
        }
        List<Long> offsets = new ArrayList<>();
        for (Future<RecordMetadata> send : sends) {
            RecordMetadata written = send.get();
            offsets.add(written.hasOffset() ? written.offset() : -1);
        }
        return offsets;
    }

    /** TOPIC PARTITION OFFSET COUNT [setting=value ...]. Gives the records. */
    private Object read() {
        TopicPartition place = new TopicPartition(arguments.get(0),
                Integer.parseInt(arguments.get(1)));
        int count = Integer.parseInt(arguments.get(3));
        List<Object> records = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(settings(4))) {
            consumer.assign(List.of(place));
            consumer.seek(place, Long.parseLong(arguments.get(2)));
            await(() -> {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                    records.add(asJson(record));
                }
                return records.size() >= count;
            }, "records");
        }
        return records;
    }

    /**
     * [setting=value ...]; on standard input how many records of partition 0 of which topics, as one
     * JSON object. With a group.id it joins that group. Gives the records by topic.
     */
    private Object readAll() throws IOException {
        Map<String, Object> counts = input().get(0);
        Map<String, List<Object>> found = new HashMap<>();
        Map<String, String> settings = settings(0);
        long missing = 0;
        for (Map.Entry<String, Object> count : counts.entrySet()) {
            found.put(count.getKey(), new ArrayList<>());
            missing += ((Number) count.getValue()).longValue();
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(settings)) {
            if (settings.containsKey("group.id")) {
                consumer.subscribe(counts.keySet());
            } else {
                consumer.assign(counts.keySet().stream()
                        .map(topic -> new TopicPartition(topic, 0)).collect(Collectors.toList()));
            }
            long[] left = {missing};
            await(() -> {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                    found.get(record.topic()).add(asJson(record));
                    left[0]--;
                }
                return left[0] <= 0;
            }, "all records");
        }
        return found;
    }

    /** TOPIC PARTITION TIMESTAMP... Everything a consumer can ask about offsets. */
    private Object positions() {
        TopicPartition place = new TopicPartition(arguments.get(0),
                Integer.parseInt(arguments.get(1)));
        Map<String, Object> found = new LinkedHashMap<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(Map.of())) {
            consumer.assign(List.of(place));
            found.put("beginning", consumer.beginningOffsets(List.of(place)).get(place));
            found.put("end", consumer.endOffsets(List.of(place)).get(place));
            List<Object> times = new ArrayList<>();
            for (String timestamp : arguments.subList(2, arguments.size())) {
                OffsetAndTimestamp at = consumer
                        .offsetsForTimes(Map.of(place, Long.parseLong(timestamp))).get(place);
                times.add(at == null ? null : List.of(at.offset(), at.timestamp(),
                        at.leaderEpoch().orElse(-1)));
            }
            found.put("times", times);
            consumer.seekToEnd(List.of(place));
            found.put("position at the end", consumer.position(place));
            consumer.seekToBeginning(List.of(place));
            found.put("position at the beginning", consumer.position(place));
            consumer.seek(place, 1_000_000);
            consumer.poll(POLL);
            await(() -> {
                consumer.poll(POLL);
                return consumer.position(place) != 1_000_000;
            }, "a reset");
            found.put("reset", consumer.position(place) >= 0);
            found.put("partitions", consumer.partitionsFor(place.topic()).stream()
                    .map(info -> info.partition()).sorted().collect(Collectors.toList()));
        }
        return found;
    }

    /** TOPIC: two partitions with records; one is paused, then resumed. */
    private Object pause() {
        List<TopicPartition> places = List.of(new TopicPartition(arguments.get(0), 0),
                new TopicPartition(arguments.get(0), 1));
        Map<String, Object> found = new LinkedHashMap<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(Map.of("max.poll.records", "7"))) {
            consumer.assign(places);
            consumer.seekToBeginning(places);
            consumer.pause(places.subList(1, 2));
            Map<Integer, Integer> counts = new TreeMap<>();
            long end = consumer.endOffsets(places).get(places.get(0));
            await(() -> count(consumer, counts).getOrDefault(0, 0) == end, "the first partition");
            found.put("while paused", new TreeMap<>(counts));
            consumer.resume(places.subList(1, 2));
            consumer.pause(places.subList(0, 1));
            long other = consumer.endOffsets(places).get(places.get(1));
            await(() -> count(consumer, counts).getOrDefault(1, 0) == other, "the second one");
            found.put("when resumed", counts);
        }
        return found;
    }

    /**
     * TOPIC COUNT: after their first record of partition 0, of COUNT, one consumer, "silent", does
     * not poll, so that its next answer stays in its socket, and another one, "paused", pauses the
     * partition and polls on. Prints "stopped" then, and both go on at the next line of standard
     * input. Gives for each the offsets that it read, and the connections that it made before and
     * altogether.
     */
    private Object stopReading() throws Exception {
        List<TopicPartition> places = List.of(new TopicPartition(arguments.get(0), 0));
        int count = Integer.parseInt(arguments.get(1));
        Map<String, List<Long>> offsets = new LinkedHashMap<>();
        Map<String, List<Long>> connections = new LinkedHashMap<>();
        Map<String, KafkaConsumer<byte[], byte[]>> consumers = new LinkedHashMap<>();
        try {
            for (String name : List.of("silent", "paused")) {
                // A request that is older than this ends its connection: here nobody but the broker
                // is to end one.
                KafkaConsumer<byte[], byte[]> consumer = consumer(
                        Map.of("client.id", name, "request.timeout.ms", "600000"));
                consumers.put(name, consumer);
                consumer.assign(places);
                offsets.put(name, new ArrayList<>());
                readUntil(consumer, offsets.get(name), 1);
                connections.put(name, new ArrayList<>(List.of(connections(consumer))));
            }
            consumers.get("paused").pause(places);
            System.out.println("\"stopped\"");
            while (System.in.available() == 0) {
                readOnce(consumers.get("paused"), offsets.get("paused"));
            }
            consumers.get("paused").resume(places);
            for (String name : consumers.keySet()) {
                readUntil(consumers.get(name), offsets.get(name), count);
                for (int more = 0; more < 3; more++) {
                    readOnce(consumers.get(name), offsets.get(name));
                }
                connections.get(name).add(connections(consumers.get(name)));
            }
        } finally {
            consumers.values().forEach(KafkaConsumer::close);
        }
        return Map.of("offsets", offsets, "connections", connections);
    }

    private static void readUntil(
            KafkaConsumer<byte[], byte[]> consumer, List<Long> offsets, int count) {
        await(() -> {
            readOnce(consumer, offsets);
            return offsets.size() >= count;
        }, count + " records");
    }

    private static void readOnce(KafkaConsumer<byte[], byte[]> consumer, List<Long> offsets) {
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
            offsets.add(record.offset());
        }
    }

    /** How many connections a consumer has made so far. */
    private static long connections(KafkaConsumer<byte[], byte[]> consumer) {
        return consumer.metrics().values().stream()
                .filter(metric -> metric.metricName().name().equals("connection-creation-total")
                        && metric.metricName().group().equals("consumer-metrics"))
                .mapToLong(metric -> ((Double) metric.metricValue()).longValue()).sum();
    }

    /**
     * TOPIC COUNT: what a consumer of all COUNT partitions reads while it pauses, resumes, gives up
     * and takes back some of them. Such a consumer tells the broker only of the changes.
     */
    private Object sessions() throws Exception {
        String topic = arguments.get(0);
        List<TopicPartition> all = new ArrayList<>();
        for (int partition = 0; partition < Integer.parseInt(arguments.get(1)); partition++) {
            all.add(new TopicPartition(topic, partition));
        }
        List<TopicPartition> half = all.subList(0, all.size() / 2);
        List<TopicPartition> other = all.subList(all.size() / 2, all.size());
        Map<Integer, Integer> counts = new TreeMap<>();
        List<Object> found = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(Map.of());
                KafkaProducer<byte[], byte[]> producer = producer(Map.of())) {
            consumer.assign(all);
            found.add(wrote(producer, consumer, all, all.size(), counts));
            consumer.pause(half);
            found.add(wrote(producer, consumer, all, other.size(), counts));
            consumer.resume(half);
            found.add(wrote(producer, consumer, List.of(), half.size(), counts));
            consumer.assign(half);
            found.add(wrote(producer, consumer, all, half.size(), counts));
            consumer.assign(all);
            other.forEach(place -> consumer.seek(place, 2));
            found.add(wrote(producer, consumer, List.of(), other.size(), counts));
            found.add(Set.copyOf(counts.values()));
        }
        return found;
    }

    /** Writes one record to each of `places`; how many of which partitions come, `expected` at least. */
    private Object wrote(
            KafkaProducer<byte[], byte[]> producer, KafkaConsumer<byte[], byte[]> consumer,
            List<TopicPartition> places, int expected, Map<Integer, Integer> counts) {
        Map<Integer, Integer> now = new TreeMap<>();
        places.forEach(place -> producer.send(
                new ProducerRecord<>(place.topic(), place.partition(), null, new byte[10])));
        producer.flush();
        await(() -> count(consumer, now).size() >= expected, expected + " partitions");
        for (int more = 0; more < 3; more++) {
            count(consumer, now);
        }
        now.forEach((partition, number) -> counts.merge(partition, number, Integer::sum));
        return List.of(now.size(), Set.copyOf(now.values()));
    }

    /**
     * TOPIC: a producer and a consumer go on when their topic is deleted and created again, with
     * fewer records each time: a position that exists is one to go on from.
     */
    private Object recreated() throws Exception {
        String topic = arguments.get(0);
        TopicPartition place = new TopicPartition(topic, 0);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        List<Object> found = new ArrayList<>();
        Map<String, String> hurry = Map.of("metadata.max.age.ms", "500");
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(hurry);
                KafkaProducer<byte[], byte[]> producer = producer(hurry);
                Admin admin = Admin.create(settings)) {
            consumer.assign(List.of(place));
            for (int count : List.of(20, 10, 5)) {
                NewTopic again = new NewTopic(topic, 1, (short) 1);
                admin.createTopics(List.of(again)).all().get();
                for (int number = 0; number < count; number++) {
                    producer.send(new ProducerRecord<>(topic, 0, null, new byte[10]));
                }
                producer.flush();
                Map<Integer, Integer> counts = new TreeMap<>();
                await(() -> count(consumer, counts).getOrDefault(0, 0) >= count, "records");
                found.add(List.of(counts.get(0), consumer.position(place)));
                admin.deleteTopics(List.of(topic)).all().get();
            }
        }
        return found;
    }

    /** SMALL_TOPIC: a topic whose max.message.bytes is 2000. Gives what was refused, and how. */
    private Object refusals() throws Exception {
        String small = arguments.get(0);
        Map<String, Object> found = new LinkedHashMap<>();
        Map<String, String> hurry = Map.of("max.block.ms", "2000", "delivery.timeout.ms", "5000",
                "request.timeout.ms", "4000");
        try (KafkaProducer<byte[], byte[]> producer = producer(hurry)) {
            found.put("too large", failure(producer, new ProducerRecord<>(small, new byte[5000])));
            found.put("in between", failure(producer, new ProducerRecord<>(small, new byte[10])));
            found.put("bad name", failure(producer, new ProducerRecord<>("no/slash", new byte[1])));
            found.put("no such partition",
                    failure(producer, new ProducerRecord<>(small, 77, null, new byte[1])));
            found.put("far future", failure(producer, new ProducerRecord<>(small, 0,
                    System.currentTimeMillis() + 10 * 86_400_000L, null, new byte[1])));
            found.put("after all", failure(producer, new ProducerRecord<>(small, new byte[10])));
        }
        return found;
    }

    /** TOPIC; transactions of two producers with one transactional id. Gives how each ended. */
    private Object transactions() {
        String topic = arguments.get(0);
        Map<String, String> settings = Map.of("transactional.id", "id-" + topic);
        Map<String, String> found = new LinkedHashMap<>();
        try (KafkaProducer<byte[], byte[]> first = producer(settings);
                KafkaProducer<byte[], byte[]> second = producer(settings)) {
            first.initTransactions();
            found.put("committed", ended(first, topic, "committed", true));
            found.put("aborted", ended(first, topic, "aborted", false));
            second.initTransactions();
            found.put("second", ended(second, topic, "second", true));
            found.put("first again", ended(first, topic, "first again", true));
        }
        return found;
    }

    private static String ended(KafkaProducer<byte[], byte[]> producer, String topic, String value,
            boolean commits) {
        try {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, null, value.getBytes())).get();
            if (commits) {
                producer.commitTransaction();
                return "committed";
            }
            producer.abortTransaction();
            return "aborted";
        } catch (ExecutionException failed) {
            return failed.getCause().getClass().getSimpleName();
        } catch (InterruptedException | RuntimeException refused) {
            return refused.getClass().getSimpleName();
        }
    }

    private static String failure(
            KafkaProducer<byte[], byte[]> producer, ProducerRecord<byte[], byte[]> record)
            throws InterruptedException {
        try {
            return "written at " + producer.send(record).get().offset();
        } catch (ExecutionException failed) {
            return failed.getCause().getClass().getSimpleName();
        } catch (RuntimeException refused) {
            return refused.getClass().getSimpleName();
        }
    }

    // Groups

    /** One member of a group, and what became of its partitions. */
    private final class Member implements AutoCloseable, ConsumerRebalanceListener {
        final KafkaConsumer<byte[], byte[]> consumer;
        final List<List<Integer>> assigned = new ArrayList<>();
        final List<List<Integer>> revoked = new ArrayList<>();
        final List<List<Integer>> lost = new ArrayList<>();
        final List<List<Object>> read = new ArrayList<>();
        private boolean commitsWhatItGivesUp;

        Member(String group, Map<String, String> settings) {
            Map<String, String> all = new HashMap<>(Map.of("group.id", group,
                    "heartbeat.interval.ms", "300", "session.timeout.ms", "20000"));
            if ("consumer".equals(settings.get("group.protocol"))) {
                all.remove("heartbeat.interval.ms");
                all.remove("session.timeout.ms");
            }
            all.putAll(settings);
            consumer = consumer(all);
        }

        Member subscribe(String topic) {
            consumer.subscribe(List.of(topic), this);
            return this;
        }

        /** Commits what it has read before it gives a partition up, as applications do. */
        Member committing() {
            commitsWhatItGivesUp = true;
            return this;
        }

        void poll() {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                read.add(List.of(record.partition(), record.offset()));
            }
        }

        Set<Integer> owned() {
            return consumer.assignment().stream().map(TopicPartition::partition)
                    .collect(Collectors.toCollection(TreeSet::new));
        }

        /** How many partitions it has, and has been told of: a callback may come a poll later. */
        int held() {
            int told = 0;
            for (List<Integer> places : assigned) {
                told += places.size();
            }
            for (List<List<Integer>> gone : List.of(revoked, lost)) {
                for (List<Integer> places : gone) {
                    told -= places.size();
                }
            }
            return told == consumer.assignment().size() ? told : -1;
        }

        Map<String, Object> told() {
            Map<String, Object> all = new LinkedHashMap<>();
            all.put("assigned", List.copyOf(assigned));
            all.put("revoked", List.copyOf(revoked));
            all.put("lost", List.copyOf(lost));
            all.put("owned", owned());
            all.put("read", List.copyOf(read));
            return all;
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> places) {
            assigned.add(numbers(places));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> places) {
            revoked.add(numbers(places));
            if (commitsWhatItGivesUp) {
                consumer.commitSync();
            }
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> places) {
            lost.add(numbers(places));
        }

        @Override
        public void close() {
            consumer.close();
        }
    }

    /** GROUP TOPIC [setting=value ...]: commits of several kinds, by a member and without one. */
    private Object commits() {
        String group = arguments.get(0);
        TopicPartition place = new TopicPartition(arguments.get(1), 0);
        Map<String, Object> found = new LinkedHashMap<>();
        try (Member member = new Member(group, settings(2)).subscribe(place.topic())) {
            await(() -> {
                member.poll();
                return member.read.size() >= 10;
            }, "ten records");
            member.consumer.commitSync(
                    Map.of(place, new OffsetAndMetadata(4, Optional.of(0), "four")));
            found.put("synchronous", asJson(member.consumer.committed(Set.of(place)).get(place)));
            List<Object> answers = Collections.synchronizedList(new ArrayList<>());
            member.consumer.commitAsync(Map.of(place, new OffsetAndMetadata(6, "six")),
                    (offsets, error) -> answers.add(error == null ? "done" : error.toString()));
            await(() -> {
                member.poll();
                return !answers.isEmpty();
            }, "the asynchronous commit");
            found.put("asynchronous", List.of(answers.get(0),
                    asJson(member.consumer.committed(Set.of(place)).get(place))));
            try {
                member.consumer.commitSync(
                        Map.of(place, new OffsetAndMetadata(5, "x".repeat(5000))));
                found.put("too much metadata", "committed");
            } catch (RuntimeException refused) {
                found.put("too much metadata", refused.getClass().getSimpleName());
            }
            found.put("nobody's", member.consumer
                    .committed(Set.of(new TopicPartition(place.topic(), 1)))
                    .get(new TopicPartition(place.topic(), 1)));
        }
        try (KafkaConsumer<byte[], byte[]> alone = consumer(Map.of("group.id", group))) {
            alone.assign(List.of(place));
            found.put("goes on at", alone.position(place));
            alone.commitSync(Map.of(place, new OffsetAndMetadata(9)));
            found.put("without membership", asJson(alone.committed(Set.of(place)).get(place)));
        }
        return found;
    }

    /** GROUP TOPIC [setting=value ...]: members with instance ids go, return and are replaced. */
    private Object staticMembership() {
        String group = arguments.get(0);
        String topic = arguments.get(1);
        Map<String, String> one = settings(2);
        Map<String, String> two = settings(2);
        one.put("group.instance.id", "one");
        two.put("group.instance.id", "two");
        Map<String, Object> found = new LinkedHashMap<>();
        try (Member first = new Member(group, one).subscribe(topic)) {
            Set<Integer> before;
            try (Member second = new Member(group, two).subscribe(topic)) {
                share(first, second);
                before = second.owned();
                found.put("generation", first.consumer.groupMetadata().generationId());
            }
            first.assigned.clear();
            first.revoked.clear();
            try (Member second = new Member(group, two).subscribe(topic)) {
                await(() -> {
                    first.poll();
                    second.poll();
                    return !second.owned().isEmpty();
                }, "the return of the second member");
                found.put("same partitions", before.equals(second.owned()));
                found.put("generation after the return",
                        second.consumer.groupMetadata().generationId());
                found.put("first was not disturbed",
                        first.assigned.isEmpty() && first.revoked.isEmpty());
                found.put("another of the same name", replaced(group, topic, two, second));
            }
        }
        return found;
    }

    /** What happens to `holder` of an instance id when another member comes with the same. */
    private Object replaced(String group, String topic, Map<String, String> same, Member holder) {
        List<String> errors = new ArrayList<>();
        try (Member other = new Member(group, same).subscribe(topic)) {
            await(() -> {
                for (Member member : List.of(other, holder)) {
                    try {
                        member.poll();
                    } catch (RuntimeException fenced) {
                        errors.add((member == holder ? "holder: " : "other: ")
                                + fenced.getClass().getSimpleName());
                        return true;
                    }
                }
                return false;
            }, "a member that is fenced");
        }
        return errors.get(0);
    }

    /** GROUP TOPIC [setting=value ...]: a second member takes some partitions, and leaves again. */
    private Object cooperative() {
        String group = arguments.get(0);
        String topic = arguments.get(1);
        Map<String, Object> found = new LinkedHashMap<>();
        try (Member first = new Member(group, settings(2)).subscribe(topic)) {
            await(() -> {
                first.poll();
                return first.held() == 4;
            }, "all partitions");
            try (Member second = new Member(group, settings(2)).subscribe(topic)) {
                share(first, second);
                found.put("second", second.told());
            }
            await(() -> {
                first.poll();
                return first.held() == 4;
            }, "all partitions again");
            found.put("first", first.told());
        }
        return found;
    }

    /** GROUP PATTERN COUNT [setting=value ...]: waits until COUNT matching topics are assigned. */
    private Object pattern() {
        int count = Integer.parseInt(arguments.get(2));
        Map<String, String> settings = settings(3);
        settings.put("metadata.max.age.ms", "200");
        try (Member member = new Member(arguments.get(0), settings)) {
            member.consumer.subscribe(Pattern.compile(arguments.get(1)), member);
            await(() -> {
                member.poll();
                return topics(member).size() == count;
            }, count + " topics");
            return topics(member);
        }
    }

    /**
     * GROUP PATTERN COUNT [setting=value ...]: the same with a pattern that the broker looks at, which
     * clients before 4.0 cannot send; hence by reflection.
     */
    private Object brokersPattern() throws Exception {
        int count = Integer.parseInt(arguments.get(2));
        Class<?> type = Class.forName("org.apache.kafka.clients.consumer.SubscriptionPattern");
        Object pattern = type.getConstructor(String.class).newInstance(arguments.get(1));
        try (Member member = new Member(arguments.get(0), settings(3))) {
            KafkaConsumer.class.getMethod("subscribe", type, ConsumerRebalanceListener.class)
                    .invoke(member.consumer, pattern, member);
            await(() -> {
                member.poll();
                return topics(member).size() == count;
            }, count + " topics");
            return topics(member);
        }
    }

    /**
     * GROUP TOPIC: members go over from the classic protocol to the new one and back, one by one.
     * Gives who had how many partitions after each step, and the kind of group it was then.
     */
    private Object migration() throws Exception {
        String group = arguments.get(0);
        String topic = arguments.get(1);
        List<Object> steps = new ArrayList<>();
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        List<Member> members = new ArrayList<>();
        try (Admin admin = Admin.create(settings)) {
            for (String next : List.of("classic", "classic", "-", "consumer", "-", "consumer",
                    "-", "classic", "-", "classic")) {
                if (next.equals("-")) {
                    members.remove(0).close();
                    continue;
                }
                members.add(new Member(group, new HashMap<>(Map.of("group.protocol", next)))
                        .subscribe(topic));
                int share = 4 / members.size();
                await(() -> {
                    members.forEach(Member::poll);
                    return members.stream().allMatch(member -> member.held() == share);
                }, share + " partitions each after " + steps);
                String kind = admin.listConsumerGroups().all().get().stream()
                        .filter(listing -> listing.groupId().equals(group))
                        .map(listing -> listing.type().orElseThrow().toString())
                        .collect(Collectors.joining());
                steps.add(List.of(next, members.size(), kind));
            }
        } finally {
            members.forEach(Member::close);
        }
        return steps;
    }

    private static List<String> topics(Member member) {
        return member.consumer.assignment().stream().map(TopicPartition::topic).distinct().sorted()
                .collect(Collectors.toList());
    }

    /**
     * GROUP TOPIC COUNT [setting=value ...]: an idempotent producer and a member at the same time,
     * while the test does to the broker what it likes. Prints "half" when half is acknowledged, and
     * goes on at the next line of standard input.
     *
     * A classic member of Java 4 that finds no broker at all forgets its metadata
     * (metadata.recovery.strategy=rebootstrap), sees its topic without partitions, and as leader of
     * its group joins again. It commits before that, so it reads nothing twice unless the broker has
     * forgotten it: what is lost, not given up, cannot be committed.
     */
    private Object through() throws Exception {
        int count = Integer.parseInt(arguments.get(2));
        List<Future<RecordMetadata>> sends = new ArrayList<>();
        Map<String, Object> found = new LinkedHashMap<>();
        try (Member member = new Member(arguments.get(0), settings(3)).committing()
                        .subscribe(arguments.get(1));
                KafkaProducer<byte[], byte[]> producer = producer(Map.of("linger.ms", "1"))) {
            for (int number = 0; number < count; number++) {
                if (number == count / 2) {
                    producer.flush();
                    System.out.println("\"half\"");
                    System.in.read();
                }
                byte[] value = Integer.toString(number).getBytes(StandardCharsets.UTF_8);
                sends.add(producer.send(new ProducerRecord<>(arguments.get(1), value)));
                if (number % 10 == 0) {
                    member.poll();
                }
            }
            producer.flush();
            Set<List<Object>> places = new TreeSet<>((a, b) -> a.toString().compareTo(b.toString()));
            for (Future<RecordMetadata> send : sends) {
                RecordMetadata written = send.get();
                places.add(List.of(written.partition(), written.offset()));
            }
            await(() -> {
                member.poll();
                return Set.copyOf(member.read).size() >= count;
            }, "all records");
            for (int more = 0; more < 5; more++) {
                member.poll();
            }
            member.consumer.commitSync();
            found.put("acknowledged places", places.size());
            found.put("read", member.read.size());
            found.put("read places", Set.copyOf(member.read).size());
        }
        return found;
    }

    /** Poll both until they have two partitions each. */
    private static void share(Member first, Member second) {
        await(() -> {
            first.poll();
            second.poll();
            return first.held() == 2 && second.held() == 2;
        }, "two partitions each");
    }

    // Parts

    static void await(BooleanSupplier condition, String what) {
        long end = System.nanoTime() + PATIENCE.toNanos();
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() > end) {
                throw new IllegalStateException("waited in vain for " + what);
            }
        }
    }

    private static Map<Integer, Integer> count(
            KafkaConsumer<byte[], byte[]> consumer, Map<Integer, Integer> counts) {
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
            counts.merge(record.partition(), 1, Integer::sum);
        }
        return counts;
    }

    private static List<Integer> numbers(Collection<TopicPartition> places) {
        return places.stream().map(TopicPartition::partition).sorted()
                .collect(Collectors.toList());
    }

    /** The arguments from `from` on, each a setting and its value. */
    private Map<String, String> settings(int from) {
        Map<String, String> settings = new HashMap<>();
        for (String argument : arguments.subList(from, arguments.size())) {
            String[] parts = argument.split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        return settings;
    }

    private KafkaProducer<byte[], byte[]> producer(Map<String, String> settings) {
        Properties all = new Properties();
        all.put("bootstrap.servers", bootstrap);
        all.putAll(settings);
        return new KafkaProducer<>(all, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private KafkaConsumer<byte[], byte[]> consumer(Map<String, String> settings) {
        Properties all = new Properties();
        all.put("bootstrap.servers", bootstrap);
        all.put("auto.offset.reset", "earliest");
        all.put("enable.auto.commit", "false");
        all.putAll(settings);
        return new KafkaConsumer<>(all, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static Object asJson(OffsetAndMetadata committed) {
        if (committed == null) {
            return null;
        }
        return List.of(committed.offset(), committed.metadata(),
                committed.leaderEpoch().orElse(-1));
    }

    private static Object asJson(ConsumerRecord<byte[], byte[]> record) {
        Map<String, Object> all = new LinkedHashMap<>();
        all.put("offset", record.offset());
        all.put("timestamp", record.timestamp());
        all.put("timestamp type", record.timestampType().toString());
        all.put("key", text(record.key()));
        all.put("value", text(record.value()));
        List<Object> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            List<Object> pair = new ArrayList<>();
            pair.add(header.key());
            pair.add(text(header.value()));
            headers.add(pair);
        }
        all.put("headers", headers);
        return all;
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }

    private static byte[] bytes(Object text) {
        return text == null ? null : Base64.getDecoder().decode((String) text);
    }

    private static List<Map<String, Object>> input() throws IOException {
        List<Map<String, Object>> records = new ArrayList<>();
        BufferedReader lines = new BufferedReader(
                new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            records.add(JSON.readValue(line, new TypeReference<Map<String, Object>>() { }));
        }
        return records;
    }
}
