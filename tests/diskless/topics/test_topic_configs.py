"""The table of topic configs: complete, consistent, and strict about values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless.topics.topic_configs import (
    TOPIC_CONFIGS,
    ConfigKind,
    check_topic_configs,
    compression_of,
    effective,
    topic_rules,
)
from diskless.topics.topic_names import TakenNames, check_topic_name, is_internal
from wal.coordinates import CREATE_TIME, LOG_APPEND_TIME
from wal.errors import InvalidConfig, InvalidTopic
from wal.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD
from wal.records.recompression import Compression


@pytest.mark.parametrize("config", TOPIC_CONFIGS.values(), ids=lambda config: config.name)
def test_a_default_is_a_value_that_may_be_set(config):
    assert check_topic_configs({config.name: config.default}) == {config.name: config.default}
    assert config.documentation


@pytest.mark.parametrize(
    "value",
    ["https://127.0.0.1/", "file:///etc/passwd", "com.sun.JndiLoginModule", "${file:/a:b}"],
)
def test_no_config_of_a_topic_names_a_file_a_url_or_a_class(value: str) -> None:
    """A schema is text that stands for itself: it is kept as it is, nothing is looked up."""
    for name in TOPIC_CONFIGS.keys() - {"key.schema", "value.schema"}:
        with pytest.raises(InvalidConfig):
            check_topic_configs({name: value})
    for name in ("key.schema", "value.schema"):
        assert check_topic_configs({name: value}) == {name: value}


def test_the_table_is_in_the_order_it_is_shown():
    assert list(TOPIC_CONFIGS) == sorted(TOPIC_CONFIGS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("no.such.config", "1"),
        ("retention.ms", "-2"),
        ("retention.ms", "soon"),
        ("retention.ms", ""),
        ("retention.ms", "1.5"),
        ("retention.ms", str(2**63)),
        ("max.message.bytes", str(2**31)),
        ("cleanup.policy", "compact,burn"),
        ("cleanup.policy", ""),
        ("cleanup.policy", " , "),
        ("message.timestamp.type", "createtime"),
        ("preallocate", "yes"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "1.01"),
        ("compression.type", "brotli"),
        ("retention.ms", "1_000"),
        ("retention.ms", "\u0661"),
        ("retention.ms", "9" * 100),
        ("min.cleanable.dirty.ratio", "0_1"),
        ("min.cleanable.dirty.ratio", "inf"),
        ("message.format.version", "latest"),
        ("leader.replication.throttled.replicas", "0:1,all"),
    ],
)
def test_a_bad_config_is_refused_by_name(name, value):
    with pytest.raises(InvalidConfig, match=name.replace(".", r"\.")):
        check_topic_configs({"retention.bytes": "5", name: value})


@pytest.mark.parametrize("side", ["key", "value"])
def test_protobuf_is_refused_with_what_is_read(side: str) -> None:
    name = f"{side}.schema.format"
    with pytest.raises(InvalidConfig, match=r"must be one of: none, json, avro$"):
        check_topic_configs({name: "protobuf"})
    assert "Protobuf is not read" in TOPIC_CONFIGS[name].documentation


def test_null_means_the_default_and_is_not_stored():
    assert check_topic_configs({"retention.ms": None, "segment.ms": " 5 "}) == {"segment.ms": "5"}


@given(st.sampled_from(sorted(TOPIC_CONFIGS)), st.text(max_size=30))
def test_any_text_is_a_value_or_an_invalid_config(name, text):
    try:
        stored = check_topic_configs({name: text})
    except InvalidConfig:
        return
    if TOPIC_CONFIGS[name].kind in (ConfigKind.INT, ConfigKind.LONG):
        int(stored[name])


def test_what_is_not_set_comes_from_the_table():
    assert effective({}, "max.message.bytes") == "1048588"
    assert effective({"max.message.bytes": "5"}, "max.message.bytes") == "5"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min.cleanable.dirty.ratio", ".5"),
        ("min.cleanable.dirty.ratio", "1e-1"),
        ("retention.ms", "+5"),
        ("message.format.version", "2.8-IV1"),
        ("leader.replication.throttled.replicas", "0:1,3:22"),
        ("leader.replication.throttled.replicas", "*"),
        ("preallocate", "TRUE"),
    ],
)
def test_a_value_is_taken_however_kafka_lets_it_be_written(name, value):
    stored = value.lower() if value == "TRUE" else value
    assert check_topic_configs({name: value}) == {name: stored}


def test_lags_that_contradict_each_other_are_refused():
    with pytest.raises(InvalidConfig, match=r"min\.compaction\.lag\.ms \(6\) > max"):
        check_topic_configs({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"})


def test_the_older_bound_of_timestamps_stands_in_for_the_newer_ones():
    older = {"message.timestamp.difference.max.ms": "9"}
    assert topic_rules(older)[2:4] == (9, 9)
    assert topic_rules({**older, "message.timestamp.after.max.ms": "5"})[2:4] == (9, 5)
    assert topic_rules({**older, "message.timestamp.before.max.ms": "5"})[2:4] == (5, 9)


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ({}, None),
        ({"compression.type": "producer", "compression.gzip.level": "3"}, None),
        ({"compression.type": "uncompressed"}, Compression(NONE)),
        ({"compression.type": "snappy"}, Compression(SNAPPY)),
        ({"compression.type": "gzip"}, Compression(GZIP, -1)),
        ({"compression.type": "gzip", "compression.gzip.level": "3"}, Compression(GZIP, 3)),
        ({"compression.type": "lz4", "compression.gzip.level": "3"}, Compression(LZ4, 9)),
        ({"compression.type": "zstd"}, Compression(ZSTD, 3)),
    ],
)
def test_the_codec_of_a_topic_comes_with_its_level(configs, expected):
    assert compression_of(configs) == expected


def test_rules_for_batches_follow_the_configs():
    rules = topic_rules({})
    assert (rules.max_message_bytes, rules.timestamp_type) == (1_048_588, CREATE_TIME)
    assert not rules.compacted
    rules = topic_rules(
        {
            "cleanup.policy": "compact, delete",
            "message.timestamp.type": "LogAppendTime",
            "max.message.bytes": "100",
            "message.timestamp.before.max.ms": "1",
            "message.timestamp.after.max.ms": "2",
        }
    )
    assert rules.compacted
    assert rules.timestamp_type == LOG_APPEND_TIME
    assert rules[:1] + rules[2:4] == (100, 1, 2)


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "..."])
def test_a_legal_name_is_accepted(name):
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ü", "a\n"])
def test_an_illegal_name_is_refused(name):
    with pytest.raises(InvalidTopic):
        check_topic_name(name)


def test_names_that_differ_in_dots_and_underscores_alone_collide():
    with pytest.raises(InvalidTopic, match="collides"):
        TakenNames(["x", "a_b.c"]).check_collision("a.b_c")
    TakenNames(["a.b", "a-b"]).check_collision("a.b")
    TakenNames(["a.b"]).check_collision("ab")


def test_the_clusters_own_topics_are_internal():
    assert is_internal("__diskless_metadata")
    assert not is_internal("flights")
