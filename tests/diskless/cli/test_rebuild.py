"""`diskless rebuild` end to end: a broker's metadata are deleted, and everything comes back."""

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from diskless.cli.cli import main
from metadata.rules.rewriting.merges import RUN_MAX
from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.clients.stock_clients import CODECS, TIMEOUT_S, confluent_consumer
from tests.support.tiers.rolled import merge_everything, roll_everything

SETTINGS = {
    "wal.commit.interval.ms": "5",
    "diskless.file.delete.grace.ms": "0",
    "diskless.file.cleaner.interval.ms": "100",
}
TOPICS = {"flights": 3, "radar": 1, "quiet": 2}

Seen = Mapping[tuple[str, int], Sequence[tuple[int, bytes | None, bytes | None]]]
"""(offset, key, value) of every record, by topic and partition."""


def create_topics(broker: LiveBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    created = admin.create_topics(
        [
            NewTopic(name, num_partitions=count, config={"retention.ms": "900000000"})
            for name, count in TOPICS.items()
        ]
    )
    for future in created.values():
        future.result(TIMEOUT_S)


def produce(broker: LiveBroker, seed: int, *, rounds: int = 6) -> None:
    """To several partitions in all codecs, half of it by idempotent producers."""
    rng = random.Random(seed)
    for number in range(rounds):
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "enable.idempotence": number % 2 == 0,
                "compression.codec": CODECS[number % len(CODECS)],
                "linger.ms": 1,
            }
        )
        for _ in range(40):
            topic = rng.choice(["flights", "radar"])
            producer.produce(
                topic,
                value=rng.randbytes(rng.randrange(200)),
                key=rng.choice([None, b"", b"key"]),
                partition=rng.randrange(TOPICS[topic]),
            )
            if rng.random() < 0.2:
                producer.flush(TIMEOUT_S)
        assert producer.flush(TIMEOUT_S) == 0


def read_all(broker: LiveBroker, *topics: str) -> Seen:
    """Of "flights" and "radar", or of the `topics` named."""
    seen: dict[tuple[str, int], list[tuple[int, bytes | None, bytes | None]]] = {}
    with confluent_consumer(broker.bootstrap) as consumer:
        for topic in topics or ("flights", "radar"):
            for partition in range(TOPICS[topic]):
                place = TopicPartition(topic, partition)
                low, high = consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)
                found = seen[topic, partition] = []
                consumer.assign([TopicPartition(topic, partition, low)])
                while low < high:
                    # Fewer than asked for come where there are holes, at the end of the time.
                    for message in consumer.consume(min(high - low, 500), timeout=0.2):
                        assert message.error() is None, message.error()
                        offset = message.offset()
                        assert offset is not None
                        low = offset + 1
                        found.append((offset, message.key(), message.value()))
    return seen


def written(data: Path, seed: int = 1, *, rounds: int = 6) -> Seen:
    """What a broker has that was new, and has stopped."""
    with LiveBroker(data, SETTINGS) as broker:
        create_topics(broker)
        produce(broker, seed, rounds=rounds)
        return read_all(broker)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def forget_metadata(data: Path) -> None:
    shutil.rmtree(data / "metadata")
    shutil.rmtree(data / "objects" / "meta", ignore_errors=True)


def rebuild(data: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, object]:
    """The report of a rebuild without doubts."""
    capsys.readouterr()
    status = main(["rebuild", "--data", str(data), "--json", *options])
    report: dict[str, object] = json.loads(capsys.readouterr().out)
    assert report["doubts"] == []
    assert status == 0
    return report


def test_a_broker_without_metadata_gets_everything_back_from_its_bucket(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LiveBroker(data, SETTINGS) as broker:
        create_topics(broker)
        produce(broker, 1)
        roll_everything(broker)
        produce(broker, 2)
        before = read_all(broker)
    forget_metadata(data)
    report = rebuild(data, capsys)
    assert report["segments"]
    with LiveBroker(data, SETTINGS) as broker:
        assert read_all(broker) == before
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        topics = admin.list_topics(timeout=TIMEOUT_S).topics
        # Nothing was ever written to "quiet", so nothing in the bucket knows of it.
        assert {name: len(topics[name].partitions) for name in ("flights", "radar")} == {
            name: TOPICS[name] for name in ("flights", "radar")
        }
        produce(broker, 3)
        after = read_all(broker)
        roll_everything(broker)
        assert read_all(broker) == after
    for place, records in before.items():
        assert list(after[place][: len(records)]) == list(records)
        offsets = [offset for offset, _, _ in after[place]]
        assert offsets == list(range(len(offsets)))
    assert main(["verify", "--data", str(data)]) == 0


def test_a_lost_object_is_a_hole_that_consumers_step_over(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = written(data)
    forget_metadata(data)
    objects = sorted((data / "objects" / "wal").rglob("*/*"), key=lambda path: path.name)
    objects[len(objects) // 2].unlink()
    capsys.readouterr()
    assert main(["rebuild", "--data", str(data)]) == 3
    told = capsys.readouterr().out
    assert "DOUBT: " in told
    assert "are missing" in told
    with LiveBroker(data, SETTINGS) as broker:
        after = read_all(broker)
        # Also from Parquet, where the fillers become gaps.
        roll_everything(broker)
        assert read_all(broker) == after
        produce(broker, 2)
    lost = 0
    for place, records in before.items():
        kept = set(after[place])
        lost += sum(record not in kept for record in records)
        assert kept <= set(records)
    assert 0 < lost < 60
    assert main(["verify", "--data", str(data)]) == 0


def test_a_dry_run_writes_nothing(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(data, rounds=1)
    before = {path: path.stat().st_mtime_ns for path in data.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(["rebuild", "--data", str(data), "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "flights" in told
    assert "nothing was written" in told
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*") if path.is_file()} == before


def test_metadata_that_are_there_are_set_aside_only_when_told(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LiveBroker(data, SETTINGS) as broker:
        create_topics(broker)
        produce(broker, 1, rounds=2)
        before = read_all(broker)
        capsys.readouterr()
        assert main(["rebuild", "--data", str(data)]) == 1
        assert "stop the broker" in capsys.readouterr().err
    assert main(["rebuild", "--data", str(data)]) == 1
    assert "--force" in capsys.readouterr().err
    rebuild(data, capsys, "--force")
    assert (data / "metadata.before-rebuild-1" / "0" / "log").is_dir()
    with LiveBroker(data, SETTINGS) as broker:
        assert read_all(broker) == before


def test_snapshots_in_the_bucket_are_metadata_too(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(data, rounds=1)
    forget_metadata(data)
    snapshot = data / "objects" / "meta" / "0" / "snapshots" / "something"
    snapshot.parent.mkdir(parents=True)
    snapshot.write_bytes(b"a snapshot")
    capsys.readouterr()
    assert main(["rebuild", "--data", str(data)]) == 1
    assert "the bucket holds metadata" in capsys.readouterr().err
    rebuild(data, capsys, "--force")
    assert not snapshot.exists()
    (aside,) = (data / "objects" / "set-aside").rglob("something")
    assert aside.read_bytes() == b"a snapshot"


def test_damaged_objects_are_named_and_the_others_used(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LiveBroker(data, SETTINGS) as broker:
        create_topics(broker)
        produce(broker, 1, rounds=2)
        roll_everything(broker)
        produce(broker, 2, rounds=2)
    forget_metadata(data)
    objects = sorted((data / "objects" / "wal").rglob("*/*"), key=lambda path: path.name)
    segments = sorted((data / "objects" / "segments").rglob("*.parquet"))
    stranger = data / "objects" / "wal" / "readme"
    for path in (objects[-1], segments[0]):
        content = bytearray(path.read_bytes())
        content[-40] ^= 1
        path.chmod(0o644)
        path.write_bytes(content)
    stranger.write_bytes(b"not ours")
    capsys.readouterr()
    assert main(["rebuild", "--data", str(data), "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    unreadable = {key for key, _ in (item.values() for item in report["unreadable"])}
    root = data / "objects"
    assert unreadable == {
        str(path.relative_to(root)) for path in (objects[-1], segments[0], stranger)
    }
    with LiveBroker(data, SETTINGS) as broker:
        assert any(read_all(broker).values())


def test_a_rebuild_that_was_interrupted_is_repeated(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = written(data, rounds=2)
    forget_metadata(data)

    def fail(*_: object) -> None:
        raise OSError("the machine stops here")

    with monkeypatch.context() as stopped:
        stopped.setattr("diskless.cli.rebuild._set_directory_aside", fail)
        assert main(["rebuild", "--data", str(data)]) == 1
    assert not (data / "metadata").exists()
    rebuild(data, capsys)
    with LiveBroker(data, SETTINGS) as broker:
        assert read_all(broker) == before


@pytest.mark.parametrize(
    ("lost", "metadata_log"),
    [
        ("data directory", "object"),
        ("metadata and cluster id", "local"),
        pytest.param("data directory", "local", marks=pytest.mark.exhaustive),
        pytest.param("metadata and cluster id", "object", marks=pytest.mark.exhaustive),
    ],
)
def test_rebuild_verify_and_serve_follow_each_other_as_the_operations_page_says(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str], metadata_log: str, lost: str
) -> None:
    url = f"file://{tmp_path / 'bucket'}"
    settings = {**SETTINGS, "object.store.url": url, "diskless.metadata.log": metadata_log}
    with LiveBroker(data, settings) as broker:
        create_topics(broker)
        produce(broker, 1, rounds=1)
        before = read_all(broker)
    if lost == "data directory":
        shutil.rmtree(data)
    else:
        shutil.rmtree(data / "metadata")
    for path in (tmp_path / "bucket" / "meta").iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif lost == "metadata and cluster id":
            path.unlink()
    place = ("--data", str(data), "--object-store", url)
    assert main(["rebuild", *place, "--metadata-log", metadata_log]) == 0
    assert main(["verify", *place]) == 0, capsys.readouterr()
    told = capsys.readouterr().out
    assert "metadata partitions" in told
    with LiveBroker(data, settings) as broker:
        assert read_all(broker) == before
        produce(broker, 2, rounds=1)
    assert main(["verify", *place]) == 0, capsys.readouterr()


def test_offsets_stay_known_when_the_objects_that_noted_them_are_deleted(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LiveBroker(data, SETTINGS) as broker:
        create_topics(broker)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
        for number in range(24):
            # Every other object has the note of the one before, and is about to be deleted.
            producer.produce(("flights", "radar")[number % 2], value=b"%d" % number, partition=0)
            assert producer.flush(TIMEOUT_S) == 0
        kept = len(wal_objects(data)) // 2
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.delete_topics(["radar"])["radar"].result(TIMEOUT_S)
        until(lambda: len(wal_objects(data)) <= kept, "the objects of the deleted topic are gone")
        before = read_all(broker, "flights")
    assert (data / "objects" / "notes").is_dir()
    assert main(["verify", "--data", str(data)]) == 0
    assert "notes objects" in capsys.readouterr().out
    forget_metadata(data)
    report = rebuild(data, capsys)
    assert len(report["inferred"]) <= 1  # type: ignore[arg-type]
    with LiveBroker(data, SETTINGS) as broker:
        assert read_all(broker, "flights") == before
    (notes, *_) = (data / "objects" / "notes").iterdir()
    content = bytearray(notes.read_bytes())
    content[-1] ^= 1
    notes.chmod(0o644)
    notes.write_bytes(content)
    assert main(["verify", "--data", str(data)]) == 1
    assert notes.name in capsys.readouterr().out


def wal_objects(data: Path) -> Sequence[Path]:
    return list((data / "objects" / "wal").glob("*/*"))


def test_a_directory_with_neither_metadata_nor_a_bucket_is_not_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "--data", str(tmp_path / "nowhere")]) == 2
    assert "no data directory" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "empty").mkdir()
    assert main(["verify", "--data", str(tmp_path / "empty")]) == 2
    assert "holds metadata" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["flights", "x=flights"])
def test_a_name_needs_a_topic_id(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["rebuild", "--data", str(tmp_path), "--name", name]) == 2
    assert name in capsys.readouterr().err


@pytest.mark.parametrize("is_damaged", [False, True])
def test_merged_segments_beside_their_inputs_count_once_and_the_inputs_where_they_are_damaged(
    data: Path, capsys: pytest.CaptureFixture[str], is_damaged: bool
) -> None:
    settings = {**SETTINGS, "diskless.file.delete.grace.ms": "600000"}
    with LiveBroker(data, settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        config = {"retention.ms": "900000000", "segment.bytes": "1"}
        (created,) = admin.create_topics([NewTopic("radar", 1, config=config)]).values()
        created.result(TIMEOUT_S)
        for number in range(RUN_MAX):
            produce_to_radar(broker, number)
            roll_everything(broker)
        (merged,) = merge_everything(broker).segments
        before = read_all(broker, "radar")
    forget_metadata(data)
    if is_damaged:
        path = data / "objects" / merged.object_key
        content = bytearray(path.read_bytes())
        content[100] ^= 1
        path.chmod(0o644)
        path.write_bytes(content)
    capsys.readouterr()
    main(["rebuild", "--data", str(data), "--json"])
    report = json.loads(capsys.readouterr().out)
    assert bool(report["unreadable"]) == is_damaged
    assert len(report["unused_segments"]) == (0 if is_damaged else RUN_MAX)
    with LiveBroker(data, settings) as broker:
        assert read_all(broker, "radar") == before
        produce_to_radar(broker, RUN_MAX)
        roll_everything(broker)
        merge_everything(broker)
        after = read_all(broker, "radar")
    assert after["radar", 0][: len(before["radar", 0])] == before["radar", 0]
    assert [offset for offset, _, _ in after["radar", 0]] == [*range(len(after["radar", 0]))]


def produce_to_radar(broker: LiveBroker, seed: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for number in range(10):
        producer.produce("radar", value=b"%d of %d" % (number, seed))
    assert producer.flush(TIMEOUT_S) == 0
