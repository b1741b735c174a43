"""Configuration: sources in order, and errors that name the key."""

from pathlib import Path

import pytest

from diskless.config import Config, explain_all, load_config
from wal.errors import InvalidSettings


def test_defaults_are_valid_and_every_key_says_why() -> None:
    config = load_config()
    assert config == Config()
    keys = [key for key, _, _ in explain_all()]
    assert len(keys) == len(set(keys)), "two sections declare the same key"
    assert set(config.values()) == set(keys)
    assert all(why for _, _, why in explain_all())


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.properties"
    file.write_text("# comment\n\nnode.id = 3\nnum.partitions=5\nwal.commit.interval.ms=100\n")
    config = load_config(
        file=file,
        environment={"DISKLESS_NUM_PARTITIONS": "6", "DISKLESS_NODE_ID": "4", "HOME": "/"},
        overrides={"node.id": "7"},
    )
    assert config.broker.node_id == 7
    assert config.broker.default_partitions == 6
    assert config.wal.commit_interval_ms == 100
    assert config.explicit == {"node.id", "num.partitions", "wal.commit.interval.ms"}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"num.partition": "1"}, "num.partition"),
        ({"num.partitions": "zero"}, "num.partitions='zero': must be an integer"),
        ({"num.partitions": "0"}, "num.partitions=0: must be between 1"),
        ({"auto.create.topics.enable": "yes"}, "auto.create.topics.enable='yes': must be true"),
        ({"log.format": "xml"}, "log.format='xml': must be one of console, json"),
    ],
)
def test_a_bad_key_or_value_is_named(overrides: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidSettings, match=message):
        load_config(overrides=overrides)


def test_a_line_that_is_no_setting_is_named_with_its_number(tmp_path: Path) -> None:
    file = tmp_path / "broker.properties"
    file.write_text("node.id=1\nwhat is this\n")
    with pytest.raises(InvalidSettings, match="line 2: 'what is this'"):
        load_config(file=file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"nowhere\.properties"):
        load_config(file=tmp_path / "nowhere.properties")


def test_an_unknown_environment_variable_is_named() -> None:
    with pytest.raises(InvalidSettings, match="DISKLESS_NUM_PARTITION "):
        load_config(environment={"DISKLESS_NUM_PARTITION": "1"})


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        (
            {"wal.chunk.max.batches": "50001"},
            ("wal.chunk.max.batches", "diskless.coordinator.commit.batches.max"),
        ),
        (
            {"diskless.coordinator.commit.batches.max": "300000"},
            ("diskless.coordinator.commit.batches.max", "metadata.log.segment.bytes"),
        ),
        (
            {"wal.chunk.max.bytes": str(1 << 30), "wal.chunk.overflow.bytes": str(1 << 30)},
            ("wal.chunk.max.bytes", "wal.chunk.overflow.bytes"),
        ),
        (
            {"socket.request.max.bytes": str(137 << 20)},
            ("socket.request.max.bytes", "wal.chunk.overflow.bytes"),
        ),
        (
            {"queued.max.request.bytes": str(400 << 20)},
            ("queued.max.request.bytes", "wal.append.queue.max.bytes"),
        ),
    ],
)
def test_limits_that_do_not_go_together_are_refused_and_both_are_named(
    overrides: dict[str, str], names: tuple[str, str]
) -> None:
    with pytest.raises(InvalidSettings) as refused:
        load_config(overrides=overrides)
    for name in names:
        assert name in str(refused.value)


def test_limits_that_were_raised_together_are_taken() -> None:
    config = load_config(
        overrides={
            "diskless.coordinator.commit.batches.max": "300000",
            "metadata.log.segment.bytes": str(128 << 20),
            "queued.max.request.bytes": str(400 << 20),
            "wal.append.queue.max.bytes": str(2 << 30),
        }
    )
    assert config.metadata_log.batch_max_bytes == 64 << 20
