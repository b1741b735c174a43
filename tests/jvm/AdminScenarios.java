import java.time.Duration;
import java.util.Collection;
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
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.stream.Collectors;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.ConsumerGroupListing;
import org.apache.kafka.clients.admin.CreatePartitionsOptions;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.CreateTopicsResult;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.DescribeConsumerGroupsOptions;
import org.apache.kafka.clients.admin.ListConsumerGroupsOptions;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.ConsumerGroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.quota.ClientQuotaFilterComponent;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * What the admin client can do and Kafka's own tools do not show.
 *
 * <p>Arguments are the name of a scenario, the broker, and what the scenario asks for. It prints one
 * line of JSON that says what happened; whether that is right is decided by the test that ran it.
 */
public final class AdminScenarios {
    private final Admin admin;
    private final String bootstrap;
    private final List<String> arguments;
    private final Map<String, Object> found = new LinkedHashMap<>();

    private AdminScenarios(Admin admin, String bootstrap, List<String> arguments) {
        this.admin = admin;
        this.bootstrap = bootstrap;
        this.arguments = arguments;
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[1]);
        settings.put("request.timeout.ms", "20000");
        settings.put("default.api.timeout.ms", "20000");
        try (Admin admin = Admin.create(settings)) {
            List<String> rest = List.of(arguments).subList(2, arguments.length);
            AdminScenarios scenarios = new AdminScenarios(admin, arguments[1], rest);
            scenarios.run(arguments[0]);
            System.out.println(ClientScenarios.JSON.writeValueAsString(scenarios.found));
        }
    }

    private void run(String scenario) throws Exception {
        switch (scenario) {
            case "topics": topics(); break;
            case "refused topics": refusedTopics(); break;
            case "configs": configs(); break;
            case "records": records(); break;
            case "cluster": cluster(); break;
            case "groups": groups(); break;
            case "quotas": quotas(); break;
            case "unserved": unserved(); break;
            default: throw new IllegalArgumentException(scenario);
        }
    }

    /** TOPIC: its life by name and by id. */
    private void topics() throws Exception {
        String topic = arguments.get(0);
        NewTopic asked = new NewTopic(topic, Optional.empty(), Optional.empty())
                .configs(Map.of("retention.ms", "1234567"));
        CreateTopicsResult tried = admin.createTopics(List.of(asked),
                new CreateTopicsOptions().validateOnly(true));
        found.put("tried", List.of(get(tried.numPartitions(topic)),
                get(tried.replicationFactor(topic))));
        found.put("exists after the trial", names().contains(topic));
        CreateTopicsResult created = admin.createTopics(List.of(asked));
        Uuid id = get(created.topicId(topic));
        found.put("created", List.of(get(created.numPartitions(topic)),
                get(created.replicationFactor(topic)),
                get(created.config(topic)).get("retention.ms").value(),
                get(created.config(topic)).entries().size() > 20));
        found.put("by name", asJson(get(admin.describeTopics(List.of(topic))
                .topicNameValues().get(topic))));
        found.put("by id has the same name", get(admin
                .describeTopics(TopicCollection.ofTopicIds(List.of(id))).topicIdValues().get(id))
                .name().equals(topic));
        found.put("listed under its id",
                get(admin.listTopics().listings()).stream().anyMatch(listing ->
                        listing.name().equals(topic) && listing.topicId().equals(id)));
        Map<String, NewPartitions> five = Map.of(topic, NewPartitions.increaseTo(5));
        get(admin.createPartitions(five, new CreatePartitionsOptions().validateOnly(true)).all());
        found.put("after a trial", partitions(topic));
        get(admin.createPartitions(five).all());
        found.put("after more partitions", partitions(topic));
        get(admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all());
        found.put("deleted by name again", error(admin.deleteTopics(List.of(topic)).all()));
        found.put("deleted by id again", error(admin
                .deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all()));
        found.put("described by its old id", error(admin
                .describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds()));
        Uuid next = get(admin.createTopics(List.of(new NewTopic(topic, Map.of(
                0, List.of(0), 1, List.of(0))))).topicId(topic));
        found.put("has another id when it comes back", !next.equals(id));
        found.put("partitions by assignment", partitions(topic));
    }

    /** TOPIC: it exists. */
    private void refusedTopics() throws Exception {
        String topic = arguments.get(0);
        Map<String, NewTopic> wrong = new LinkedHashMap<>();
        wrong.put("exists", new NewTopic(topic, 1, (short) 1));
        wrong.put("bad name", new NewTopic("no/slash", 1, (short) 1));
        wrong.put("long name", new NewTopic("x".repeat(250), 1, (short) 1));
        wrong.put("no partitions", new NewTopic(topic + "-0", 0, (short) 1));
        wrong.put("no replicas", new NewTopic(topic + "-0", 1, (short) 0));
        wrong.put("unknown config", new NewTopic(topic + "-0", 1, (short) 1)
                .configs(Map.of("no.such.config", "1")));
        wrong.put("bad config", new NewTopic(topic + "-0", 1, (short) 1)
                .configs(Map.of("segment.bytes", "-3")));
        wrong.put("gap in the assignment",
                new NewTopic(topic + "-0", Map.of(0, List.of(0), 2, List.of(0))));
        for (Map.Entry<String, NewTopic> each : wrong.entrySet()) {
            found.put(each.getKey(), error(admin.createTopics(List.of(each.getValue())).all()));
        }
        found.put("fewer partitions", error(admin.createPartitions(
                Map.of(topic, NewPartitions.increaseTo(1))).all()));
        found.put("partitions of nobody", error(admin.createPartitions(
                Map.of("nobody", NewPartitions.increaseTo(3))).all()));
        found.put("description of nobody",
                error(admin.describeTopics(List.of("nobody")).allTopicNames()));
        found.put("configs of nobody", error(admin.describeConfigs(
                List.of(new ConfigResource(ConfigResource.Type.TOPIC, "nobody"))).all()));
        // A good one beside a bad one is done all the same.
        CreateTopicsResult both = admin.createTopics(List.of(
                new NewTopic(topic, 1, (short) 1), new NewTopic(topic + "-1", 1, (short) 1)));
        found.put("both", List.of(error(both.values().get(topic)),
                error(both.values().get(topic + "-1"))));
    }

    /** TOPIC: every operation on configs. */
    private void configs() throws Exception {
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, arguments.get(0));
        Map<String, ConfigEntry> entries = entries(topic);
        found.put("without a type", entries.values().stream()
                .filter(entry -> entry.type() == ConfigEntry.ConfigType.UNKNOWN)
                .map(ConfigEntry::name).sorted().collect(Collectors.toList()));
        found.put("without documentation", entries.values().stream()
                .filter(entry -> entry.documentation() == null || entry.documentation().isEmpty())
                .map(ConfigEntry::name).sorted().collect(Collectors.toList()));
        found.put("cleanup.policy", asJson(entries.get("cleanup.policy")));
        AlterConfigOp.OpType set = AlterConfigOp.OpType.SET;
        AlterConfigOp.OpType append = AlterConfigOp.OpType.APPEND;
        AlterConfigOp.OpType subtract = AlterConfigOp.OpType.SUBTRACT;
        AlterConfigOp.OpType delete = AlterConfigOp.OpType.DELETE;
        found.put("append", altered(topic, "cleanup.policy", "compact", append));
        found.put("subtract", altered(topic, "cleanup.policy", "delete", subtract));
        found.put("set", altered(topic, "max.message.bytes", "4321", set));
        found.put("delete", altered(topic, "max.message.bytes", "", delete));
        found.put("append to a number", altered(topic, "max.message.bytes", "1", append));
        found.put("bad value", altered(topic, "retention.ms", "soon", set));
        found.put("unknown", altered(topic, "no.such.config", "1", set));
        found.put("of nobody", altered(
                new ConfigResource(ConfigResource.Type.TOPIC, "nobody"), "retention.ms", "1", set));
        found.put("of a broker", altered(
                new ConfigResource(ConfigResource.Type.BROKER, "0"), "num.partitions", "9", set));
        found.put("after all", asJson(entries(topic).get("cleanup.policy")));
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "0");
        found.put("of the broker", asJson(entries(broker).get("num.partitions")));
        found.put("of all brokers", entries(
                new ConfigResource(ConfigResource.Type.BROKER, "")).size());
    }

    /** TOPIC: its first partition has five records, at 1000, 3000, 2000, 5000 and 4000 ms. */
    private void records() throws Exception {
        TopicPartition place = new TopicPartition(arguments.get(0), 0);
        Map<String, OffsetSpec> questions = new LinkedHashMap<>();
        questions.put("earliest", OffsetSpec.earliest());
        questions.put("latest", OffsetSpec.latest());
        questions.put("max timestamp", OffsetSpec.maxTimestamp());
        questions.put("at 2001", OffsetSpec.forTimestamp(2001));
        questions.put("at 5001", OffsetSpec.forTimestamp(5001));
        questions.put("earliest local", OffsetSpec.earliestLocal());
        questions.put("latest tiered", OffsetSpec.latestTiered());
        for (Map.Entry<String, OffsetSpec> each : questions.entrySet()) {
            found.put(each.getKey(), outcome(admin.listOffsets(Map.of(place, each.getValue()))
                    .partitionResult(place), at -> List.of(at.offset(), at.timestamp())));
        }
        found.put("producers", outcome(admin.describeProducers(List.of(place))
                .partitionResult(place), state -> state.activeProducers().stream()
                .map(AdminScenarios::asJson).collect(Collectors.toList())));
        found.put("size", get(admin.describeLogDirs(List.of(0)).allDescriptions())
                .get(0).values().iterator().next().replicaInfos().get(place).size());
        found.put("delete two", deleteBefore(place, 2));
        found.put("delete one again", deleteBefore(place, 1));
        found.put("delete too many", deleteBefore(place, 99));
        found.put("delete everything", deleteBefore(place, -1));
    }

    private void cluster() throws Exception {
        DescribeClusterResult cluster = admin.describeCluster(
                new DescribeClusterOptions().includeAuthorizedOperations(true));
        found.put("id", get(cluster.clusterId()));
        found.put("controller", get(cluster.controller()).id());
        found.put("nodes", get(cluster.nodes()).stream().map(node -> node.host() + ":" + node.port())
                .collect(Collectors.toList()));
        found.put("operations", get(cluster.authorizedOperations()).stream().map(Enum::name)
                .sorted().collect(Collectors.toList()));
        found.put("features", get(admin.describeFeatures().featureMetadata())
                .finalizedFeatures().keySet());
    }

    /** GROUP TOPIC: the topic has four partitions; the members are made here. */
    private void groups() throws Exception {
        String group = arguments.get(0);
        String topic = arguments.get(1);
        TopicPartition place = new TopicPartition(topic, 0);
        found.put("nobody", outcome(admin.describeConsumerGroups(List.of("nobody"))
                .describedGroups().get("nobody"), described -> described.state().toString()));
        found.put("offsets of nobody", outcome(admin.listConsumerGroupOffsets("nobody")
                .partitionsToOffsetAndMetadata(), offsets -> offsets.size()));
        found.put("altered without members", outcome(admin.alterConsumerGroupOffsets(group,
                Map.of(place, new OffsetAndMetadata(3, "three"))).all(), done -> "done"));
        try (KafkaConsumer<byte[], byte[]> one = member(group, "one");
                KafkaConsumer<byte[], byte[]> two = member(group, "two")) {
            one.subscribe(List.of(topic));
            two.subscribe(List.of(topic));
            ClientScenarios.await(() -> {
                one.poll(Duration.ofMillis(20));
                two.poll(Duration.ofMillis(20));
                return one.assignment().size() == 2 && two.assignment().size() == 2;
            }, "two partitions each");
            found.put("known to a member", one.committed(Set.of(place)).get(place).offset());
            found.put("listed", listed(new ListConsumerGroupsOptions()).get(group));
            found.put("among the stable", listed(new ListConsumerGroupsOptions()
                    .inStates(Set.of(ConsumerGroupState.STABLE))).containsKey(group));
            found.put("among the empty", listed(new ListConsumerGroupsOptions()
                    .inStates(Set.of(ConsumerGroupState.EMPTY))).containsKey(group));
            found.put("among the classic", listed(new ListConsumerGroupsOptions()
                    .withTypes(Set.of(GroupType.CLASSIC))).containsKey(group));
            found.put("among the new", listed(new ListConsumerGroupsOptions()
                    .withTypes(Set.of(GroupType.CONSUMER))).containsKey(group));
            found.put("described", asJson(get(admin.describeConsumerGroups(List.of(group),
                    new DescribeConsumerGroupsOptions().includeAuthorizedOperations(true))
                    .describedGroups().get(group))));
            found.put("altered with members", error(admin.alterConsumerGroupOffsets(group,
                    Map.of(place, new OffsetAndMetadata(1))).all()));
            found.put("offsets deleted under a member", error(admin.deleteConsumerGroupOffsets(
                    group, Set.of(place)).partitionResult(place)));
            found.put("deleted with members",
                    error(admin.deleteConsumerGroups(List.of(group)).all()));
            found.put("unknown member removed", error(admin.removeMembersFromConsumerGroup(group,
                    new RemoveMembersFromConsumerGroupOptions(
                            Set.of(new MemberToRemove("nobody")))).all()));
            found.put("member removed", error(admin.removeMembersFromConsumerGroup(group,
                    new RemoveMembersFromConsumerGroupOptions(
                            Set.of(new MemberToRemove("two")))).all()));
            found.put("all removed", error(admin.removeMembersFromConsumerGroup(group,
                    new RemoveMembersFromConsumerGroupOptions()).all()));
            found.put("state then", get(admin.describeConsumerGroups(List.of(group))
                    .describedGroups().get(group)).state().toString());
        }
        Map<TopicPartition, OffsetAndMetadata> new0 = new HashMap<>();
        new0.put(place, new OffsetAndMetadata(1, "one"));
        new0.put(new TopicPartition(topic, 1), new OffsetAndMetadata(2));
        found.put("altered", error(admin.alterConsumerGroupOffsets(group, new0).all()));
        found.put("altered of nobody's topic", error(admin.alterConsumerGroupOffsets(group,
                Map.of(new TopicPartition("nobody", 0), new OffsetAndMetadata(1))).all()));
        found.put("offsets", offsets(group));
        found.put("offset deleted", error(admin.deleteConsumerGroupOffsets(
                group, Set.of(place)).all()));
        found.put("offsets left", offsets(group));
        found.put("deleted", error(admin.deleteConsumerGroups(List.of(group)).all()));
        found.put("deleted again", error(admin.deleteConsumerGroups(List.of(group)).all()));
        found.put("offsets after it", offsets(group));
    }

    /** CLIENT USER: quotas of clients, users, both, and of everybody else. */
    private void quotas() throws Exception {
        ClientQuotaEntity client = entity(ClientQuotaEntity.CLIENT_ID, arguments.get(0));
        ClientQuotaEntity user = entity(ClientQuotaEntity.USER, arguments.get(1));
        ClientQuotaEntity both = new ClientQuotaEntity(Map.of(
                ClientQuotaEntity.CLIENT_ID, arguments.get(0),
                ClientQuotaEntity.USER, arguments.get(1)));
        ClientQuotaEntity others = entity(ClientQuotaEntity.CLIENT_ID, null);
        double rate = 1_000_000;
        for (ClientQuotaEntity each : List.of(client, user, both, others)) {
            rate += 500_000;
            get(admin.alterClientQuotas(List.of(new ClientQuotaAlteration(each, List.of(
                    new ClientQuotaAlteration.Op("producer_byte_rate", rate),
                    new ClientQuotaAlteration.Op("consumer_byte_rate", rate * 2))))).all());
        }
        found.put("of the client", quotas(ClientQuotaFilter.containsOnly(List.of(
                ClientQuotaFilterComponent.ofEntity(ClientQuotaEntity.CLIENT_ID,
                        arguments.get(0))))));
        found.put("with the client", quotas(ClientQuotaFilter.contains(List.of(
                ClientQuotaFilterComponent.ofEntity(ClientQuotaEntity.CLIENT_ID,
                        arguments.get(0))))));
        found.put("of all others", quotas(ClientQuotaFilter.containsOnly(List.of(
                ClientQuotaFilterComponent.ofDefaultEntity(ClientQuotaEntity.CLIENT_ID)))));
        found.put("unknown key", error(admin.alterClientQuotas(List.of(new ClientQuotaAlteration(
                client, List.of(new ClientQuotaAlteration.Op("no_such_rate", 1.0))))).all()));
        found.put("bad value", error(admin.alterClientQuotas(List.of(new ClientQuotaAlteration(
                client, List.of(new ClientQuotaAlteration.Op("producer_byte_rate", -1.0)))))
                .all()));
        for (ClientQuotaEntity each : List.of(client, user, both, others)) {
            get(admin.alterClientQuotas(List.of(new ClientQuotaAlteration(each, List.of(
                    new ClientQuotaAlteration.Op("producer_byte_rate", null),
                    new ClientQuotaAlteration.Op("consumer_byte_rate", null))))).all());
        }
        found.put("at the end", quotas(ClientQuotaFilter.contains(List.of(
                ClientQuotaFilterComponent.ofEntity(ClientQuotaEntity.CLIENT_ID,
                        arguments.get(0))))));
    }

    /** What this broker does not serve is refused at once and by name. */
    private void unserved() throws Exception {
        found.put("acls", error(admin.describeAcls(AclBindingFilter.ANY).values()));
        found.put("quorum", error(admin.describeMetadataQuorum().quorumInfo()));
        found.put("tokens", error(admin.describeDelegationToken().delegationTokens()));
    }

    // Parts

    private Map<String, Object> listed(ListConsumerGroupsOptions options) throws Exception {
        Map<String, Object> groups = new TreeMap<>();
        for (ConsumerGroupListing group : get(admin.listConsumerGroups(options).all())) {
            groups.put(group.groupId(), List.of(
                    group.state().map(Object::toString).orElse("?"),
                    group.type().map(Object::toString).orElse("?"),
                    group.isSimpleConsumerGroup()));
        }
        return groups;
    }

    private Object offsets(String group) throws Exception {
        Map<Integer, Object> offsets = new TreeMap<>();
        get(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()).forEach(
                (place, at) -> offsets.put(place.partition(), List.of(at.offset(), at.metadata())));
        return offsets;
    }

    private Object quotas(ClientQuotaFilter filter) throws Exception {
        Map<String, Object> quotas = new TreeMap<>();
        get(admin.describeClientQuotas(filter).entities()).forEach((entity, rates) ->
                quotas.put(new TreeMap<>(entity.entries()).toString(), new TreeMap<>(rates)));
        return quotas;
    }

    private static ClientQuotaEntity entity(String type, String name) {
        Map<String, String> entries = new HashMap<>();
        entries.put(type, name);
        return new ClientQuotaEntity(entries);
    }

    private KafkaConsumer<byte[], byte[]> member(String group, String instance) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("group.instance.id", instance);
        settings.put("client.id", "client-" + instance);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG, "300");
        settings.put(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, "6000");
        return new KafkaConsumer<>(
                settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private Object deleteBefore(TopicPartition place, long offset) throws Exception {
        return outcome(admin.deleteRecords(Map.of(place, RecordsToDelete.beforeOffset(offset)))
                .lowWatermarks().get(place), deleted -> deleted.lowWatermark());
    }

    private Map<String, ConfigEntry> entries(ConfigResource resource) throws Exception {
        DescribeConfigsOptions everything = new DescribeConfigsOptions()
                .includeSynonyms(true).includeDocumentation(true);
        return get(admin.describeConfigs(List.of(resource), everything).values().get(resource))
                .entries().stream().collect(Collectors.toMap(ConfigEntry::name, entry -> entry));
    }

    /** The value of a config after an operation, or what the operation was refused with. */
    private Object altered(
            ConfigResource resource, String name, String value, AlterConfigOp.OpType operation)
            throws Exception {
        String refused = error(admin.incrementalAlterConfigs(Map.of(resource, List.of(
                new AlterConfigOp(new ConfigEntry(name, value), operation)))).all());
        return refused.equals("done") ? entries(resource).get(name).value() : refused;
    }

    private Collection<String> names() throws Exception {
        return get(admin.listTopics().names());
    }

    private int partitions(String topic) throws Exception {
        return get(admin.describeTopics(List.of(topic)).topicNameValues().get(topic))
                .partitions().size();
    }

    private static Object asJson(TopicDescription topic) {
        return topic.partitions().stream().map(partition -> List.of(partition.partition(),
                partition.leader().id(), partition.replicas().size(), partition.isr().size()))
                .collect(Collectors.toList());
    }

    private static Object asJson(ConfigEntry entry) {
        Map<String, Object> all = new LinkedHashMap<>();
        all.put("value", entry.value());
        all.put("source", entry.source().name());
        all.put("type", entry.type().name());
        all.put("read only", entry.isReadOnly());
        all.put("synonyms", entry.synonyms().stream().map(synonym -> synonym.source() + " "
                + synonym.name() + "=" + synonym.value()).collect(Collectors.toList()));
        return all;
    }

    private static Object asJson(ProducerState producer) {
        return List.of(producer.producerEpoch(), producer.lastSequence(),
                producer.currentTransactionStartOffset().orElse(-1));
    }

    private static Object asJson(ConsumerGroupDescription group) {
        Map<String, Object> all = new LinkedHashMap<>();
        all.put("state", group.state().toString());
        all.put("assignor", group.partitionAssignor());
        all.put("coordinator", group.coordinator().id());
        all.put("operations", group.authorizedOperations() == null ? null
                : group.authorizedOperations().stream().map(Enum::name).sorted()
                        .collect(Collectors.toList()));
        Map<String, Object> members = new TreeMap<>();
        group.members().forEach(member -> members.put(member.groupInstanceId().orElse("?"),
                List.of(member.clientId(), member.host(),
                        member.assignment().topicPartitions().stream()
                                .map(TopicPartition::partition)
                                .collect(Collectors.toCollection(TreeSet::new)))));
        all.put("members", members);
        return all;
    }

    private static <T> T get(KafkaFuture<T> future) throws Exception {
        return future.get(ClientScenarios.PATIENCE.toSeconds(), TimeUnit.SECONDS);
    }

    private static String error(KafkaFuture<?> future) throws Exception {
        return outcome(future, done -> "done").toString();
    }

    /** What became of it: a value as JSON, or the name of an exception. */
    private static <T> Object outcome(KafkaFuture<T> future, Function<T, Object> asJson)
            throws Exception {
        try {
            return asJson.apply(get(future));
        } catch (ExecutionException failed) {
            Throwable cause = failed.getCause();
            return cause.getClass().getSimpleName();
        }
    }
}
