import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;

import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Counts the words of a topic with Kafka Streams, each update a record of the changelog.
 *
 * <p>Arguments are the broker, the topic, the application's id, a directory for its state, and
 * settings of it (key=value). It prints "running" once its state is restored. A line on standard
 * input is answered by one line of JSON, the counts of all words; its end ends the application.
 * With the setting "output", each count is also written to the topic of that name.
 */
public final class WordCount {
    private static final ObjectMapper JSON = new ObjectMapper();

    private WordCount() {}

    public static void main(String[] arguments) throws Exception {
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> lines = builder.stream(arguments[1]);
        KTable<String, Long> counts =
            lines.flatMapValues(line -> Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word)
                .count(Materialized.as(Stores.inMemoryKeyValueStore("counts")));
        Properties settings = settings(arguments);
        if (settings.containsKey("output")) {
            counts.toStream().mapValues(count -> count.toString())
                .to(settings.getProperty("output"));
        }
        CountDownLatch running = new CountDownLatch(1);
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings)) {
            streams.setStateListener(
                (now, before) -> {
                    if (now == KafkaStreams.State.RUNNING) {
                        running.countDown();
                    }
                });
            streams.start();
            running.await();
            System.out.println("running");
            BufferedReader asked = new BufferedReader(new InputStreamReader(System.in));
            while (asked.readLine() != null) {
                System.out.println(JSON.writeValueAsString(counts(streams)));
            }
        }
    }

    private static Properties settings(String[] arguments) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[2]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[3]);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 200);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put("auto.offset.reset", "earliest");
        settings.put("session.timeout.ms", 10_000);
        for (String argument : Arrays.asList(arguments).subList(4, arguments.length)) {
            String[] parts = argument.split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        return settings;
    }

    private static TreeMap<String, Long> counts(KafkaStreams streams) {
        ReadOnlyKeyValueStore<String, Long> store =
            streams.store(
                StoreQueryParameters.fromNameAndType(
                    "counts", QueryableStoreTypes.keyValueStore()));
        TreeMap<String, Long> found = new TreeMap<>();
        try (KeyValueIterator<String, Long> all = store.all()) {
            all.forEachRemaining(entry -> found.put(entry.key, entry.value));
        }
        return found;
    }
}
