"""What sinks committed, after the metadata were lost and rebuilt: there once, and known."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tiered_topics import TieredTopics
from tiering_samples import SampleBatch, SampleRecord

from metadata.messages.commit_file import pack_files
from metadata.sink_operations import CommitShare, Sink, SinkCommit, SinkRange
from wal.coordinates import TopicIdPartition
from wal.errors import CommitOutcomeUnknown, NotCoordinator, ObjectStoreUnavailable, Rejected
from wal.failpoint import FailpointError, arm
from wal.staging.staged_keys import STAGED_PREFIX
from wal.stores.object_store import BytesBody


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[TieredTopics]:
    async with TieredTopics(tmp_path, 1) as made:
        yield made


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    arm("")


def records(*values: bytes) -> SampleBatch:
    return SampleBatch([SampleRecord(b"key", value, 1_000) for value in values])


async def write(
    world: TieredTopics, place: TopicIdPartition, batch_id: int, *objects: tuple[bytes, ...]
) -> SinkCommit:
    """Commit a batch of the sink; each object has a record batch for each of its values."""
    files = [
        await world.stage("sink", [(place, records(value)) for value in values])
        for values in objects
    ]
    return await world.commit_sink("sink", batch_id, files)


async def commit_share(
    world: TieredTopics, place: TopicIdPartition, decided_at_ms: int, value: bytes
) -> None:
    """Of batch 1 of the sink, whose home is another coordinator."""
    file = await world.stage("sink", [(place, records(value))])
    await world.coordinator.sinks.commit_share(
        CommitShare(3, "sink", "User:spark", 1, bytes(16), decided_at_ms, pack_files([file]))
    )


async def values(world: TieredTopics, place: TopicIdPartition) -> list[bytes | None]:
    return [one.value for one in await world.read(place)]


async def test_what_was_committed_is_there_once_and_in_its_order(world: TieredTopics) -> None:
    place = await world.create("flights", retention_ms="-1")
    await write(world, place, 0, (b"a", b"b"), (b"c",))
    await world.produce([(place, records(b"d"))])
    last = await write(world, place, 5, (b"e",), (b"f", b"g"))
    for _ in range(2):
        report = await world.rebuild()
        assert report.is_certain
        assert report.sinks == {"sink": 5}
        assert await values(world, place) == [b"a", b"b", b"c", b"d", b"e", b"f", b"g"]
        again = await write(world, place, 5, (b"other",))
        assert again == last._replace(is_repeated=True)
        assert again.ranges == (SinkRange(place, 4, 6),)
        with pytest.raises(Rejected, match="batch 4 comes after batch 5"):
            await write(world, place, 4, (b"other",))
    assert world.coordinator.replica.topic_configs(place.topic_id) == {"retention.ms": "-1"}
    await write(world, place, 6, (b"h",))
    assert (await values(world, place))[-1] == b"h"


async def test_what_segments_have_of_it_comes_from_there(world: TieredTopics) -> None:
    place = await world.create("flights")
    await write(world, place, 0, (b"a", b"b"))
    await world.roll()
    await write(world, place, 1, (b"c",), (b"d",))
    await world.restart(keeps_state=False)  # it notes what is left of the last batch
    await world.rebuild()
    assert await values(world, place) == [b"a", b"b", b"c", b"d"]
    assert len(await world.live_segments(place)) == 1
    # What has nothing left is known all the same, and so it is deleted.
    await world.roll()
    await world.clean()
    assert [stat async for stat in world.store.list(STAGED_PREFIX)] == []
    await world.sweep_notes()
    report = await world.rebuild()
    assert report.is_certain
    assert report.sinks == {"sink": 1}
    assert await values(world, place) == [b"a", b"b", b"c", b"d"]


async def test_what_nobody_committed_stays_out_and_may_be_committed_later(
    world: TieredTopics,
) -> None:
    place = await world.create("flights")
    await write(world, place, 0, (b"a",))
    file = await world.stage("sink", [(place, records(b"b"))])
    report = await world.rebuild()
    assert report.is_certain
    assert report.uncommitted == {"sink": 1}
    assert await values(world, place) == [b"a"]
    answer = await world.commit_sink("sink", 1, [file])
    assert not answer.is_repeated
    assert await values(world, place) == [b"a", b"b"]


async def test_a_deleted_topic_does_not_come_back(world: TieredTopics) -> None:
    place = await world.create("flights")
    await write(world, place, 0, (b"a",))
    other = await world.create("gates")
    last = await write(world, other, 1, (b"b",))
    assert await world.coordinator.delete_topics([place.topic_id]) == [None]
    await world.clean()
    await world.sweep_notes()
    report = await world.rebuild()
    assert report.topics == ["gates"]
    assert await values(world, other) == [b"b"]
    assert await write(world, other, 1, (b"b",)) == last._replace(is_repeated=True)


async def test_offsets_of_deleted_records_are_not_given_again(world: TieredTopics) -> None:
    place = await world.create("flights")
    await write(world, place, 0, (b"a", b"b"))
    await world.delete_records(place, 2)
    await world.clean()
    await world.rebuild()
    assert (await write(world, place, 1, (b"c",))).ranges == (SinkRange(place, 2, 2),)


@pytest.mark.parametrize("point", ["sink.before_note", "sink.after_note"])
async def test_a_coordinator_that_dies_before_the_answer_loses_nothing(
    world: TieredTopics, point: str
) -> None:
    place = await world.create("flights")
    arm(f"{point}=raise")
    with pytest.raises(FailpointError):
        await write(world, place, 0, (b"a",))
    arm("")
    await world.restart(keeps_state=False)
    if point == "sink.before_note":
        # The next leader notes it by itself, whether its driver comes again or not.
        await world.coordinator.sink_notes.run()
    await world.rebuild()
    assert await values(world, place) == [b"a"]
    assert (await write(world, place, 0, (b"a",))).is_repeated
    assert await values(world, place) == [b"a"]


async def test_a_batch_that_nobody_noted_is_written_again_and_there_once(
    world: TieredTopics,
) -> None:
    place = await world.create("flights")
    await write(world, place, 0, (b"a",))
    arm("sink.before_note=raise")
    with pytest.raises(FailpointError):
        await write(world, place, 1, (b"b",))
    arm("")
    await world.rebuild()
    assert await values(world, place) == [b"a"]
    assert not (await write(world, place, 1, (b"b",))).is_repeated
    assert await values(world, place) == [b"a", b"b"]


async def test_nothing_is_answered_before_it_is_noted(
    world: TieredTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = await world.create("flights")
    files = [await world.stage("sink", [(place, records(b"a"))])]

    async def unavailable(*_: object) -> None:
        raise ObjectStoreUnavailable("503")

    with monkeypatch.context() as patched:
        patched.setattr(world.store, "put", unavailable)
        with pytest.raises(CommitOutcomeUnknown, match="not noted yet"):
            await world.commit_sink("sink", 0, files)
        with pytest.raises(ObjectStoreUnavailable):
            await world.coordinator.sinks.find("sink")
        with pytest.raises(ObjectStoreUnavailable):
            await world.commit_sink("sink", 1, [])
    assert (await world.commit_sink("sink", 0, files)).is_repeated
    await world.rebuild()
    assert await values(world, place) == [b"a"]


async def test_an_object_that_was_replaced_after_its_commit_is_left_out(
    world: TieredTopics,
) -> None:
    place, other = await world.create("flights"), await world.create("gates")
    await world.produce([(other, records(b"mine"))])
    file = await world.stage("sink", [(place, records(b"a"))])
    await world.commit_sink("sink", 0, [file])
    forged = await world.stage("sink", [(other, records(b"x"))])
    data = world.blocking.get(forged.object_key)
    old, new = (one.object_key.rpartition("/")[2] for one in (forged, file))
    header = data[:64].replace(old.encode(), new.encode())
    world.blocking.delete([file.object_key])
    world.blocking.put(file.object_key, BytesBody(header + data[64:]))
    report = await world.rebuild()
    assert [key for key, _ in report.unreadable] == [file.object_key]
    assert await values(world, other) == [b"mine"]


async def test_the_types_of_timestamps_come_back(world: TieredTopics) -> None:
    place = await world.create("flights")
    file = await world.stage("sink", [(place, records(b"a"))])
    stamped = [extent._replace(timestamp_type=1) for extent in file.batches]
    await world.commit_sink("sink", 0, [replace(file, batches=stamped)])
    before = (await world.bench.find(place, 0)).extents
    world.clock.advance(60)
    await world.rebuild()
    assert (await world.bench.find(place, 0)).extents == before


async def test_a_batch_that_was_not_complete_is_left_out(world: TieredTopics) -> None:
    """Of two coordinators that have shares one has noted its own, and then everything is lost."""
    place = await world.create("flights", retention_ms="-1")
    await write(world, place, 0, (b"a",))
    (known,) = world.coordinator.replica.image.sinks.values()
    await commit_share(world, place, known.committed_at_ms, b"b")
    await world.produce([(place, records(b"c"))])
    await commit_share(world, place, known.committed_at_ms + 1, b"d")
    assert await values(world, place) == [b"a", b"b", b"c", b"d"]
    for _ in range(2):
        await world.sweep_notes()
        report = await world.rebuild()
        assert report.sinks == {"sink": 0}
        assert report.uncommitted == {"sink": 1}
        assert await values(world, place) == [b"a", b"b", b"c"]
    # Its driver was not answered, and writes it again.
    await write(world, place, 1, (b"d",))
    assert await values(world, place) == [b"a", b"b", b"c", b"d"]


async def test_nothing_of_a_batch_is_rolled_before_it_is_known_as_complete(
    world: TieredTopics,
) -> None:
    """Else its driver would write again what segments have already."""
    place = await world.create("flights", retention_ms="-1")
    await write(world, place, 0, (b"a",))
    (known,) = world.coordinator.replica.image.sinks.values()
    await world.produce([(place, records(b"b"))])
    await commit_share(world, place, known.committed_at_ms + 1, b"c")
    await world.produce([(place, records(b"d"))])

    async def nobody(home: int, sink_id: str) -> Sink | None:
        return None

    async def the_one_before(home: int, sink_id: str) -> Sink | None:
        assert (home, sink_id) == (3, "sink")
        return known

    async def out_of_reach(home: int, sink_id: str) -> Sink | None:
        raise NotCoordinator("3")

    for ask in (nobody, the_one_before, out_of_reach):
        world.coordinator.sinks.unsettled.ask_homes(ask)
        await world.roll()
        assert [one.last_offset for one in await world.live_segments(place)] == [1]
    await world.rebuild()
    await write(world, place, 1, (b"c",))
    found = await values(world, place)
    # What was left out is a hole, with a filler in it.
    assert [value for value in found if value in {b"a", b"b", b"c", b"d"}] == [
        b"a",
        b"b",
        b"d",
        b"c",
    ]


async def test_a_share_is_rolled_when_its_home_names_the_batch(world: TieredTopics) -> None:
    place = await world.create("flights", retention_ms="-1")
    await commit_share(world, place, 5, b"a")
    (share,) = world.coordinator.replica.image.sinks.values()
    await world.roll()
    assert await world.live_segments(place) == []
    asked = []

    async def home(index: int, sink_id: str) -> Sink | None:
        asked.append((index, sink_id))
        return replace(share, sink_id=sink_id, committed_at_ms=7)

    world.coordinator.sinks.unsettled.ask_homes(home)
    for _ in range(2):
        await world.roll()
        assert [one.last_offset for one in await world.live_segments(place)] == [0]
    assert asked == [(3, "sink")]


async def test_what_cannot_be_noted_is_not_rolled_and_noted_by_the_next_roll(
    world: TieredTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = await world.create("flights", retention_ms="-1")

    async def unavailable(*_: object) -> None:
        raise ObjectStoreUnavailable("503")

    file = await world.stage("sink", [(place, records(b"a"))])
    with monkeypatch.context() as patched:
        patched.setattr(world.store, "put", unavailable)
        with pytest.raises(CommitOutcomeUnknown, match="not noted yet"):
            await world.commit_sink("sink", 0, [file])
        await world.roll()
        assert await world.live_segments(place) == []
    # Its driver does not come again.
    await world.roll()
    assert len(await world.live_segments(place)) == 1
    assert (await world.rebuild()).sinks == {"sink": 0}
    assert (await write(world, place, 0, (b"a",))).is_repeated
    assert await values(world, place) == [b"a"]
