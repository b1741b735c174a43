"""The table of topic configs: complete, consistent, and strict about values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless.topic_configs import (
    TOPIC_CONFIGS,
    ConfigKind,
    check_topic_configs,
    effective,
    topic_rules,
)
from diskless.topic_names import check_collision, check_topic_name, is_internal
from wal.coordinates import CREATE_TIME, LOG_APPEND_TIME
from wal.errors import InvalidConfig, InvalidTopic


@pytest.mark.parametrize("config", TOPIC_CONFIGS.values(), ids=lambda config: config.name)
def test_a_default_is_a_value_that_may_be_set(config):
    assert check_topic_configs({config.name: config.default}) == {config.name: config.default}
    assert config.documentation


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
    ],
)
def test_a_bad_config_is_refused_by_name(name, value):
    with pytest.raises(InvalidConfig, match=name.replace(".", r"\.")):
        check_topic_configs({"retention.bytes": "5", name: value})


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
        check_collision("a.b_c", ["x", "a_b.c"])
    check_collision("a.b", ["a.b", "a-b"])
    check_collision("ab", ["a.b"])


def test_the_clusters_own_topics_are_internal():
    assert is_internal("__diskless_metadata")
    assert not is_internal("flights")
