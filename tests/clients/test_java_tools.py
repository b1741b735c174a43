"""Kafka's own command line tools, of both lines that are in use, against a whole broker.

Skipped where Java, its compiler or Maven are missing, or the jars cannot be had.
"""

import itertools
import json
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.clients.jvm import Finished, JavaProcess, KafkaTools
from tests.support.clients.kafka_commands import KafkaCommands, check_quiet, table
from tests.support.clients.stock_clients import ConfluentKafka, Record

pytestmark = [pytest.mark.clients, pytest.mark.jvm]

SETTINGS: Final = {
    "wal.commit.interval.ms": "5",
    "num.partitions": "2",
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "100",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.session.timeout.ms": "100",
    "group.consumer.session.timeout.ms": "5000",
    "quota.window.num": "2",
}

NEEDED: Final = {
    *("Produce", "Fetch", "ListOffsets", "Metadata", "ApiVersions", "InitProducerId"),
    *("OffsetCommit", "OffsetFetch", "FindCoordinator", "JoinGroup", "SyncGroup", "Heartbeat"),
    *("LeaveGroup", "DescribeGroups", "ListGroups", "DeleteGroups", "OffsetDelete"),
    *("CreateTopics", "DeleteTopics", "CreatePartitions", "DeleteRecords", "DescribeConfigs"),
    *("IncrementalAlterConfigs", "AlterConfigs", "DescribeCluster", "DescribeLogDirs"),
    *("DescribeProducers", "DescribeTopicPartitions", "OffsetForLeaderEpoch"),
}
"""What a Java client of any kind asks for, apart from transactions, ACLs and share groups."""


@pytest.fixture
def kafka(tools: KafkaTools, broker: LiveBroker) -> KafkaCommands:
    return KafkaCommands(tools, broker.bootstrap)


def offsets(kafka: KafkaCommands, topic: str, *arguments: str) -> dict[int, int]:
    """What GetOffsetShell prints, by partition."""
    lines = kafka("GetOffsetShell", "--topic", topic, *arguments).lines
    split = [line.split(":") for line in lines]
    assert {name for name, *_ in split} <= {topic}
    return {int(partition): int(offset) for _, partition, offset in split}


def committed(kafka: KafkaCommands, group: str) -> dict[tuple[str, int], tuple[int, int]]:
    """(offset, lag) by place, of an empty group."""
    rows = table(kafka("ConsumerGroupCommand", "--describe", "--group", group, "--offsets"))
    return {
        (row["TOPIC"], int(row["PARTITION"])): (int(row["CURRENT-OFFSET"]), int(row["LAG"]))
        for row in rows
    }


# The cluster


def test_every_api_that_a_client_needs_has_a_version_in_common(kafka: KafkaCommands) -> None:
    listed = kafka("BrokerApiVersionsCommand").stdout
    usable = set(re.findall(r"^\s*(\w+)\(\d+\): .*\[usable: \d+\]", listed, re.MULTILINE))
    assert usable >= NEEDED


def test_the_cluster_has_an_id_and_endpoints(kafka: KafkaCommands, broker: LiveBroker) -> None:
    (line,) = kafka("ClusterTool", "cluster-id").lines
    assert re.fullmatch(r"Cluster ID: \S{20,36}", line)
    if kafka.tools.is_4:
        (endpoint,) = table(kafka("ClusterTool", "list-endpoints"))
        assert (endpoint["HOST"], endpoint["PORT"]) == ("127.0.0.1", str(broker.port))


def test_the_protocol_of_transactions_is_a_feature(kafka: KafkaCommands) -> None:
    """Java's producers go by it, not by API versions."""
    (line,) = kafka("FeatureCommand", "describe").lines
    assert re.sub(r"\s+", " ", line).startswith("Feature: transaction.version ")
    assert re.search(r"FinalizedVersionLevel: 2\b", line)
    asked = ("--feature", "transaction.version=2")
    assert "upgraded to 2" in kafka("FeatureCommand", "upgrade", *asked).stdout
    refused = kafka.refused("FeatureCommand", "downgrade", "--feature", "transaction.version=1")
    assert "only supports version 2" in refused


# Topics and configs


def test_topics_are_created_altered_described_and_deleted(kafka: KafkaCommands, topic: str) -> None:
    sizes = ("--partitions", "2", "--replication-factor", "3")
    kafka(
        *("TopicCommand", "--create", "--topic", topic, *sizes),
        *("--config", "retention.ms=100000", "--config", "cleanup.policy=compact"),
    )
    kafka("TopicCommand", "--alter", "--topic", topic, "--partitions", "3")
    head, *partitions = kafka("TopicCommand", "--describe", "--topic", topic).lines
    assert "PartitionCount: 3" in head
    settings = re.search(r"Configs: (\S+)", head)
    assert settings is not None
    assert set(settings.group(1).split(",")) == {"cleanup.policy=compact", "retention.ms=100000"}
    assert [re.findall(r"(Partition|Leader|Isr): (\d+)", line) for line in partitions] == [
        [("Partition", str(number)), ("Leader", "0"), ("Isr", "0")] for number in range(3)
    ]
    assert topic in kafka("TopicCommand", "--list").lines
    for unhealthy in ("under-replicated", "unavailable", "under-min-isr"):
        assert kafka("TopicCommand", "--describe", f"--{unhealthy}-partitions").lines == []
    kafka("TopicCommand", "--delete", "--topic", topic)
    assert topic not in kafka("TopicCommand", "--list").lines


def test_what_is_wrong_with_a_topic_is_said_in_kafkas_words(
    kafka: KafkaCommands, topic: str
) -> None:
    kafka("TopicCommand", "--create", "--topic", topic, "--partitions", "3")
    kafka("TopicCommand", "--create", "--topic", topic, "--if-not-exists")
    again = kafka.refused("TopicCommand", "--create", "--topic", topic)
    assert "TopicExistsException" in again
    fewer = kafka.refused("TopicCommand", "--alter", "--topic", topic, "--partitions", "2")
    assert "InvalidPartitionsException" in fewer
    assert "currently has 3 partition(s)" in fewer
    bad = kafka.refused("TopicCommand", "--create", "--topic", "no/slash")
    assert "InvalidTopicException" in bad
    assert "does not exist" in kafka.refused("TopicCommand", "--delete", "--topic", "nobody")


def test_a_description_in_many_pages_is_whole(kafka: KafkaCommands, topic: str) -> None:
    """DescribeTopicPartitions answers as many partitions at once as it was told, and a cursor."""
    kafka("TopicCommand", "--create", "--topic", topic, "--partitions", "7")
    paged = ("--partition-size-limit-per-response", "3")
    described = kafka("TopicCommand", "--describe", "--topic", topic, *paged).lines
    assert [int(number) for number in re.findall(r"Partition: (\d+)", "\n".join(described))] == [
        *range(7)
    ]


def test_topic_configs_are_altered_reset_and_explained(kafka: KafkaCommands, topic: str) -> None:
    kafka("TopicCommand", "--create", "--topic", topic)
    entity = ("--entity-type", "topics", "--entity-name", topic)

    def described(*arguments: str) -> dict[str, str]:
        lines = kafka("ConfigCommand", "--describe", *entity, *arguments).lines[1:]
        return dict(line.split(" sensitive=")[0].strip().split("=", 1) for line in lines)

    assert described() == {}
    every = described("--all")
    assert every["max.message.bytes"] == "1048588"
    assert every["retention.ms"] == "604800000"
    assert len(every) > 25

    changes = "max.message.bytes=20000,cleanup.policy=[compact,delete]"
    kafka("ConfigCommand", "--alter", *entity, "--add-config", changes)
    assert described() == {"cleanup.policy": "compact,delete", "max.message.bytes": "20000"}
    synonyms = kafka("ConfigCommand", "--describe", *entity).stdout
    assert (
        "synonyms={DYNAMIC_TOPIC_CONFIG:max.message.bytes=20000,"
        " DEFAULT_CONFIG:message.max.bytes=1048588}"
    ) in synonyms
    kafka("ConfigCommand", "--alter", *entity, "--delete-config", "cleanup.policy")
    assert described() == {"max.message.bytes": "20000"}

    for wrong in ("max.message.bytes=-7", "no.such.config=1", "cleanup.policy=burn"):
        said = kafka.refused("ConfigCommand", "--alter", *entity, "--add-config", wrong)
        assert "InvalidConfigurationException" in said, wrong
    assert described() == {"max.message.bytes": "20000"}


def test_a_brokers_configs_are_shown_and_cannot_be_altered(kafka: KafkaCommands) -> None:
    entity = ("--entity-type", "brokers", "--entity-name", "0")
    shown = kafka("ConfigCommand", "--describe", *entity, "--all").stdout
    assert "  num.partitions=2 " in shown
    change = ("--add-config", "log.retention.ms=1")
    said = kafka.refused("ConfigCommand", "--alter", *entity, *change)
    assert "InvalidRequestException" in said


def test_quotas_of_clients_are_set_shown_and_removed(kafka: KafkaCommands, topic: str) -> None:
    entity = ("--entity-type", "clients", "--entity-name", topic)
    rates = "producer_byte_rate=1000000,consumer_byte_rate=2000000"
    kafka("ConfigCommand", "--alter", *entity, "--add-config", rates)
    shown = kafka("ConfigCommand", "--describe", *entity).stdout
    assert re.search(r"producer_byte_rate=1000000(\.0)?\b", shown)
    assert re.search(r"consumer_byte_rate=2000000(\.0)?\b", shown)
    kafka("ConfigCommand", "--alter", *entity, "--delete-config", "producer_byte_rate")
    shown = kafka("ConfigCommand", "--describe", *entity).stdout
    assert "producer_byte_rate" not in shown
    assert "consumer_byte_rate" in shown


# Leaders and replicas


def test_leaders_are_elected_and_nothing_moves(
    kafka: KafkaCommands, topic: str, tmp_path: Path
) -> None:
    kafka("TopicCommand", "--create", "--topic", topic, "--partitions", "2")
    preferred = ("--election-type", "preferred")
    for wanted in (("--topic", topic, "--partition", "1"), ("--all-topic-partitions",)):
        said = kafka("LeaderElectionCommand", *preferred, *wanted).stdout
        assert ("Valid replica already elected" in said) == ("--topic" in wanted)
    unknown = kafka.refused(
        "LeaderElectionCommand", *preferred, "--topic", "nobody", "--partition", "0"
    )
    assert "UnknownTopicOrPartitionException" in unknown

    plan = tmp_path / "plan.json"
    moves = [{"topic": topic, "partition": number, "replicas": [0]} for number in range(2)]
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    reassigned = ("ReassignPartitionsCommand", "--reassignment-json-file", str(plan))
    assert "Successfully started" in kafka(*reassigned, "--execute").stdout
    verified = kafka(*reassigned, "--verify").stdout
    assert verified.count("is completed.") == 2
    assert "No partition reassignments found" in kafka("ReassignPartitionsCommand", "--list").stdout
    moves[0]["replicas"] = [7]
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    assert "7" in kafka.refused(*reassigned, "--execute")


# Records


def perform(kafka: KafkaCommands, topic: str, count: int, *settings: str) -> Finished:
    """ProducerPerformance with records of 200 bytes."""
    finished = kafka.tools.run(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(count), "--record-size", "200"),
        *("--throughput", "-1", "--print-metrics"),
        *("--producer-props", f"bootstrap.servers={kafka.bootstrap}", *settings),
    )
    assert finished.status == 0, finished
    check_quiet(finished.stderr)
    return finished


def test_the_performance_tools_write_and_read(kafka: KafkaCommands, topic: str) -> None:
    kafka("TopicCommand", "--create", "--topic", topic, "--partitions", "3")
    settings = ("compression.type=zstd", "batch.size=4096")
    assert "5000 records sent" in perform(kafka, topic, 5000, *settings).stdout
    assert sum(offsets(kafka, topic).values()) == 5000
    consumer = kafka("ConsumerPerformance", "--topic", topic, "--messages", "5000")
    titles, values = (line.split(", ") for line in consumer.lines[-2:])
    assert dict(zip(titles, values, strict=True))["data.consumed.in.nMsg"] == "5000"


def test_a_producer_over_its_quota_is_throttled_and_loses_nothing(
    kafka: KafkaCommands, topic: str
) -> None:
    """A second's worth may come at once; what is sent here is more than two."""
    kafka("TopicCommand", "--create", "--topic", topic, "--partitions", "1")
    entity = ("--entity-type", "clients", "--entity-name", f"client-{topic}")
    change = ("--add-config", "producer_byte_rate=200000")
    kafka("ConfigCommand", "--alter", *entity, *change)

    def throttled_ms(client_id: str) -> float:
        finished = perform(kafka, topic, 2500, f"client.id={client_id}", "batch.size=20000")
        times = re.findall(r"produce-throttle-time-max:.*:\s*([\d.]+)", finished.stdout)
        return max(map(float, times))

    assert throttled_ms(f"client-{topic}") > 0
    assert throttled_ms(f"other-{topic}") == 0
    assert offsets(kafka, topic) == {0: 5000}


def test_the_latency_from_end_to_end_is_measured(kafka: KafkaCommands, topic: str) -> None:
    kafka("TopicCommand", "--create", "--topic", topic, "--partitions", "1")
    finished = kafka.tools.run(
        "org.apache.kafka.tools.EndToEndLatency", kafka.bootstrap, topic, "50", "all", "100"
    )
    assert finished.status == 0, finished
    check_quiet(finished.stderr)
    assert "Avg latency:" in finished.stdout
    assert offsets(kafka, topic) == {0: 50}


def test_offsets_are_found_by_every_kind_of_question(
    kafka: KafkaCommands, topic: str, broker: LiveBroker, tmp_path: Path
) -> None:
    kafka("TopicCommand", "--create", "--topic", topic, "--partitions", "2")
    times = [1000, 3000, 2000, 5000, 4000]
    ConfluentKafka().produce(broker.bootstrap, topic, [Record(timestamp_ms=t) for t in times])
    assert offsets(kafka, topic) == {0: 5, 1: 0}
    assert offsets(kafka, topic, "--time", "earliest") == {0: 0, 1: 0}
    assert offsets(kafka, topic, "--time", "max-timestamp") == {0: 3}
    assert offsets(kafka, topic, "--time", "2001") == {0: 1}
    assert offsets(kafka, topic, "--time", "5001") == {}
    assert offsets(kafka, topic, "--time", "earliest-local") == {0: 0, 1: 0}

    wanted = tmp_path / "delete.json"
    places = [{"topic": topic, "partition": 0, "offset": 2}]
    wanted.write_text(json.dumps({"version": 1, "partitions": places}))
    deleted = kafka("DeleteRecordsCommand", "--offset-json-file", str(wanted)).stdout
    assert re.search(rf"{topic}-0\s+low_watermark: 2", deleted)
    assert offsets(kafka, topic, "--time", "earliest") == {0: 2, 1: 0}
    assert offsets(kafka, topic, "--time", "1000") == {0: 2}
    wanted.write_text(json.dumps({"version": 1, "partitions": [{**places[0], "offset": 9}]}))
    said = kafka.run("DeleteRecordsCommand", "--offset-json-file", str(wanted))
    assert "OffsetOutOfRange" in said.stdout + said.stderr


def test_log_directories_show_how_much_a_partition_holds(
    kafka: KafkaCommands, topic: str, broker: LiveBroker
) -> None:
    kafka("TopicCommand", "--create", "--topic", topic, "--partitions", "2")
    ConfluentKafka().produce(broker.bootstrap, topic, [Record(value=b"x" * 10_000)] * 3)
    *_, answer = kafka("LogDirsCommand", "--describe", "--topic-list", topic).lines
    (of_broker,) = json.loads(answer)["brokers"]
    (directory,) = of_broker["logDirs"]
    assert directory["error"] is None
    sizes = {entry["partition"]: entry["size"] for entry in directory["partitions"]}
    assert set(sizes) == {f"{topic}-0", f"{topic}-1"}
    assert 30_000 < sizes[f"{topic}-0"] < 35_000
    assert sizes[f"{topic}-1"] == 0


def test_the_producers_of_a_partition_are_listed(kafka: KafkaCommands, topic: str) -> None:
    kafka("TopicCommand", "--create", "--topic", topic, "--partitions", "1")
    kafka("ConsoleProducer", "--topic", topic, stdin=b"one\ntwo\nthree\n")
    place = ("--topic", topic, "--partition", "0")
    (producer,) = table(kafka("TransactionsCommand", "describe-producers", *place))
    assert (producer["ProducerEpoch"], producer["LastSequence"]) == ("0", "2")


def test_the_console_tools_write_and_read(kafka: KafkaCommands, topic: str) -> None:
    kafka("TopicCommand", "--create", "--topic", topic, "--partitions", "1")
    of_reader = "--reader-property" if kafka.tools.is_4 else "--property"
    of_formatter = "--formatter-property" if kafka.tools.is_4 else "--property"
    kafka(
        *("ConsoleProducer", "--topic", topic, "--compression-codec", "lz4"),
        *(of_reader, "parse.key=true", of_reader, "parse.headers=true"),
        stdin=b"".join(b"n:%d,same:x,same:y\tkey %d\tvalue %d\n" % (n, n, n) for n in range(300)),
    )
    shown = ("key", "headers", "offset", "partition")
    with kafka.start(
        *("ConsoleConsumer", "--topic", topic, "--from-beginning", "--max-messages", "300"),
        *itertools.chain(*((of_formatter, f"print.{what}=true") for what in shown)),
    ) as consumer:
        finished = consumer.finish()
    assert finished.status == 0, finished
    check_quiet(finished.stderr)
    assert finished.lines == [
        f"Partition:0\tOffset:{n}\tn:{n},same:x,same:y\tkey {n}\tvalue {n}" for n in range(300)
    ]


# Groups


def events(finished_lines: list[str], name: str) -> list[dict[str, Any]]:
    """What VerifiableProducer and VerifiableConsumer print, of one kind."""
    parsed = [json.loads(line) for line in finished_lines if line.startswith("{")]
    return [event for event in parsed if event["name"] == name]


def is_event(name: str, **fields: int) -> Any:
    def matches(line: str) -> bool:
        event = json.loads(line) if line.startswith("{") else {"name": None}
        return event["name"] == name and fields.items() <= event.items()

    return matches


def write_verifiably(kafka: KafkaCommands, topic: str, count: int) -> None:
    """`count` idempotent records over all partitions, each acknowledged."""
    with kafka.start(
        "VerifiableProducer",
        "--topic",
        topic,
        "--max-messages",
        f"{count}",
        "--repeating-keys",
        "50",
    ) as made:
        finished = made.finish()
    assert finished.status == 0, finished
    check_quiet(finished.stderr)
    sent = events(finished.lines, "producer_send_success")
    assert sorted(int(event["value"]) for event in sent) == list(range(count))
    places = {(event["partition"], event["offset"]) for event in sent}
    assert len(places) == count
    assert events(finished.lines, "shutdown_complete")


def join(kafka: KafkaCommands, topic: str, group: str, *arguments: str) -> JavaProcess:
    return kafka.start(
        *("VerifiableConsumer", "--topic", topic, "--group-id", group),
        *("--reset-policy", "earliest", "--verbose", *arguments),
    )


def read_by(member: JavaProcess) -> list[tuple[int, int]]:
    """(partition, offset) of all records that the member was given, as far as it was looked at."""
    read = events(member.seen, "record_data")
    return [(event["partition"], event["offset"]) for event in read]


def write(kafka: KafkaCommands, topic: str) -> None:
    """Fifty records to each of four partitions."""
    for number in range(4):
        ConfluentKafka().produce(kafka.bootstrap, topic, [Record()] * 50, partition=number)


PROTOCOLS: Final = {
    "eager": (),
    "cooperative": (
        "--assignment-strategy",
        "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
    ),
    "consumer": ("--group-protocol", "consumer"),
}


@pytest.mark.parametrize(
    "protocol",
    # The tests of Java's clients have eager members too.
    [pytest.param("eager", marks=pytest.mark.exhaustive), "cooperative", "consumer"],
)
def test_members_share_what_was_written_and_take_over_from_one_that_was_killed(
    kafka: KafkaCommands, topic: str, protocol: str, tmp_path: Path
) -> None:
    """Every record reaches somebody; only what was not committed yet reaches two."""
    arguments = PROTOCOLS[protocol]
    if protocol != "consumer":
        heartbeats = tmp_path / "consumer.properties"
        heartbeats.write_text("heartbeat.interval.ms=300")
        config = ("--consumer.config", str(heartbeats))
        arguments = (*arguments, "--session-timeout", "5000", *config)
    kafka("TopicCommand", "--create", "--topic", topic, "--partitions", "4")
    write(kafka, topic)
    group = f"group-of-{topic}"
    with ExitStack() as stack:
        first = stack.enter_context(join(kafka, topic, group, *arguments))
        read = 0
        while read < 200:
            line = first.wait_for(is_event("records_consumed"))
            read += json.loads(line)["count"]
        second = stack.enter_context(join(kafka, topic, group, *arguments))
        second.wait_for(lambda line: is_event("partitions_assigned")(line) and "[{" in line)
        first.wait_for(is_event("partitions_revoked"))

        def assigned() -> list[list[str]]:
            rows = table(kafka("ConsumerGroupCommand", "--describe", "--group", group))
            members: dict[str, list[str]] = {}
            for row in rows:
                members.setdefault(row["CONSUMER-ID"], []).append(row["PARTITION"])
            return sorted(sorted(places) for places in members.values())

        until(lambda: [len(places) for places in assigned()] == [2, 2], "an even assignment")
        members = table(kafka("ConsumerGroupCommand", "--describe", "--group", group, "--members"))
        assert [row["#PARTITIONS"] for row in members] == ["2", "2"]
        (state,) = table(kafka("ConsumerGroupCommand", "--list", "--state", "Stable"))
        assert state["GROUP"] == group
        in_use = kafka.refused("ConsumerGroupCommand", "--delete", "--group", group)
        assert "GroupNotEmptyException" in in_use
        reset = ("--reset-offsets", "--to-earliest", "--topic", topic, "--execute")
        assert "state is" in kafka.refused("ConsumerGroupCommand", "--group", group, *reset)

        first.kill()
        write(kafka, topic)
        while len(set(read_by(second))) < 200:
            second.wait_for(is_event("records_consumed"))
        ended = second.stop()
        check_quiet(ended.stderr)
        assert events(ended.lines, "shutdown_complete")
        everything = {*read_by(first), *read_by(second)}
    assert len(everything) == 400
    assert len(read_by(second)) == len(set(read_by(second)))
    assert committed(kafka, group) == {(topic, number): (100, 0) for number in range(4)}


def test_offsets_of_an_empty_group_are_reset_and_deleted(kafka: KafkaCommands, topic: str) -> None:
    kafka("TopicCommand", "--create", "--topic", topic, "--partitions", "2")
    write_verifiably(kafka, topic, 40)
    group = f"group-of-{topic}"
    of_group = ("ConsumerGroupCommand", "--group", group)
    kafka(
        *("VerifiableConsumer", "--topic", topic, "--group-id", group),
        *("--reset-policy", "earliest", "--max-messages", "40"),
    )
    ends = offsets(kafka, topic)
    assert sum(ends.values()) == 40
    assert committed(kafka, group) == {(topic, place): (end, 0) for place, end in ends.items()}
    assert " Empty " in kafka(*of_group, "--describe", "--state").stdout

    def reset(*arguments: str) -> dict[int, int]:
        kafka.run(*of_group, "--reset-offsets", "--topic", topic, *arguments, "--execute")
        return {place: offset for (_, place), (offset, _) in committed(kafka, group).items()}

    assert reset("--to-earliest") == dict.fromkeys(ends, 0)
    assert reset("--shift-by", "3") == {place: min(3, end) for place, end in ends.items()}
    assert reset("--to-latest") == ends
    assert reset("--to-datetime", "2020-01-01T00:00:00.000") == dict.fromkeys(ends, 0)
    assert reset("--by-duration", "PT0S") == ends
    assert reset("--to-offset", "1") == {place: min(1, end) for place, end in ends.items()}

    kafka(*of_group, "--delete-offsets", "--topic", f"{topic}:0")
    assert set(committed(kafka, group)) == {(topic, 1)}
    kafka(*of_group, "--delete")
    listed = kafka("ConsumerGroupCommand", "--list").lines
    assert group not in listed
    assert "GroupIdNotFoundException" in kafka.refused(*of_group, "--delete")
    if kafka.tools.is_4:
        assert f"Group {group} not found" in kafka.refused(*of_group, "--describe")
