"""What objects note of others outlives them: it is kept before they are deleted, and no longer."""

import random
from collections.abc import Sequence
from uuid import UUID

import pytest

from metadata.metadata_settings import CoordinatorSettings
from metadata.workers.note_keeper import NoteKeeper
from metadata.workers.notes_sweep import MERGED_AT, SCHEMA_KEPT_MS, NotesSweep
from wal.chunks import object_notes
from wal.chunks.chunk import ChunkIdentity
from wal.chunks.chunk_batches import ChunkEntry
from wal.chunks.kept_notes import (
    NOTES_PREFIX,
    KeptNotes,
    NotedSink,
    StagedNote,
    StagedRun,
    decode_kept_notes,
    encode_kept_notes,
    merged,
    notes_key,
)
from wal.chunks.wal_object import plan_wal_object
from wal.clock import ManualClock
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import ObjectStoreUnavailable
from wal.failpoint import FailpointError, arm
from wal.staging.staged_keys import staged_key
from wal.stores.memory_store import MemoryStore
from wal.stores.object_store import BytesBody, ObjectBody, ObjectStat
from wal.ulid import mint_ulid, wal_object_key

TOPIC = UUID(int=0xA)
PLACE = TopicIdPartition(TOPIC, 0)
FACTS = object_notes.TopicFacts("flights", 1)


class WatchedStore(MemoryStore):
    """Counts what it is asked for, and fails puts when told."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.puts_fail = False

    async def put(self, key: ObjectKey, body: ObjectBody) -> None:
        if self.puts_fail:
            raise ObjectStoreUnavailable("503")
        await super().put(key, body)

    async def keys(self, prefix: str = "") -> Sequence[ObjectKey]:
        return [stat.key async for stat in self.list(prefix)]


class Scene:
    """One broker's objects, each with a note about the one before."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.rng = random.Random(1)
        self.store = WatchedStore(self.clock)
        self.floors: dict[TopicIdPartition, object_notes.Floor] = {}
        self.topics = {TOPIC: FACTS}
        self.log_began_ms: int | None = 0
        self.schemas: set[str] = set()
        self.keeper = self.new_keeper()
        self.sweep = NotesSweep(
            self.store,
            topics=self.topics.get,
            log_began_ms=lambda: self.log_began_ms,
            steady_ms=self.clock.now_ms,
            schemas=lambda: self.schemas,
            settings=CoordinatorSettings(),
            rng=self.rng,
        )
        self._last: str | None = None
        self._count = 0

    def new_keeper(self) -> NoteKeeper:
        return NoteKeeper(
            self.store,
            clock=self.clock,
            rng=self.rng,
            floors=self.floors.get,
            topics=self.topics.get,
        )

    async def write(self) -> ObjectKey:
        before = self._last
        self._last = mint_ulid(self.clock, self.rng, before)
        commits = [] if before is None else [note_of(before, self._count - 1)]
        notes = object_notes.ObjectNotes(
            {TOPIC: FACTS}, commits, [object_notes.Floor(self._count, 0)]
        )
        self._count += 1
        entry = ChunkEntry(PLACE, 0, 100, 1, 1, 0, 0, -1, -1, -1, 0)
        identity = ChunkIdentity(ulid=self._last, salt=0, broker_id=0, opened_at_ms=0)
        plan = plan_wal_object(identity, [entry], notes=object_notes.encode_notes(notes))
        await self.store.put(plan.object_key, BytesBody(plan.header, bytes(100), plan.footer))
        return plan.object_key

    async def delete(self, *keys: ObjectKey, keeper: NoteKeeper | None = None) -> None:
        """As the workers do it."""
        keeper = keeper or self.keeper
        lengths = [(await self.stat(key)).length_bytes for key in keys]
        await keeper.keep(dict(zip(keys, lengths, strict=True)))
        keeper.were_deleted(await self.store.delete(keys))

    async def stat(self, key: ObjectKey) -> ObjectStat:
        return await self.store.head(key)

    async def notes_objects(self) -> Sequence[ObjectKey]:
        return await self.store.keys(NOTES_PREFIX)

    async def kept(self) -> KeptNotes:
        return merged(
            [
                decode_kept_notes(await self.store.get(key), key)
                for key in await self.notes_objects()
            ]
        )

    async def noted(self) -> Sequence[ObjectKey]:
        return [wal_object_key(note.ulid) for note in (await self.kept()).commits]


def note_of(ulid: str, offset: int) -> object_notes.CommitNote:
    return object_notes.CommitNote(ulid, (object_notes.NotedRun(offset, 5, 0),))


@pytest.fixture
def scene() -> Scene:
    return Scene()


# --- keeping --------------------------------------------------------------------------------------


async def test_the_note_of_an_object_that_stays_outlives_the_one_that_carried_it(
    scene: Scene,
) -> None:
    stays, goes = await scene.write(), await scene.write()
    await scene.delete(goes)
    assert (await scene.kept()).commits == (note_of(stays.rpartition("/")[2], 0),)
    assert scene.keeper.notes_kept == 1


async def test_nothing_is_written_where_objects_go_in_the_order_in_which_they_came(
    scene: Scene,
) -> None:
    del scene.topics[TOPIC]
    keys = [await scene.write() for _ in range(8)]
    before = scene.store.statistics()
    await scene.delete(*keys[:3])
    await scene.delete(*keys[3:5])
    await scene.delete(keys[5], keeper=scene.new_keeper())
    after = scene.store.statistics()
    # A read of each footer and of nothing else; who deleted the one before knows that it is gone.
    assert (after.puts - before.puts, after.gets - before.gets) == (0, 6)
    assert after.heads - before.heads == 6 + 1
    assert not await scene.notes_objects()


async def test_nothing_is_deleted_when_the_notes_cannot_be_written(scene: Scene) -> None:
    await scene.write()
    goes = await scene.write()
    scene.store.puts_fail = True
    with pytest.raises(ObjectStoreUnavailable):
        await scene.delete(goes)
    assert goes in await scene.store.keys()
    scene.store.puts_fail = False
    await scene.delete(goes)
    assert len(await scene.noted()) == 1


@pytest.mark.parametrize("point", ["notes.before_put", "notes.after_put"])
async def test_a_crash_in_between_costs_a_repetition(scene: Scene, point: str) -> None:
    stays, goes = await scene.write(), await scene.write()
    arm(f"{point}=raise")
    try:
        with pytest.raises(FailpointError):
            await scene.delete(goes)
    finally:
        arm("")
    await scene.delete(goes, keeper=scene.new_keeper())
    assert await scene.noted() == [stays]


async def test_a_damaged_object_is_deleted_all_the_same(scene: Scene) -> None:
    stays, goes = await scene.write(), await scene.write()
    damaged = wal_object_key(mint_ulid(scene.clock, scene.rng))
    await scene.store.put(damaged, BytesBody(b"not a WAL object" * 20))
    await scene.delete(goes, damaged)
    assert await scene.noted() == [stays]
    assert scene.keeper.unreadable == 1


async def test_a_length_that_is_wrong_is_asked_for(scene: Scene) -> None:
    stays, goes = await scene.write(), await scene.write()
    await scene.keeper.keep({goes: 1_000_000})
    assert await scene.noted() == [stays]
    await scene.new_keeper().keep({goes: 0})
    assert await scene.noted() == [stays]
    assert scene.keeper.unreadable == 0


async def test_of_what_is_gone_already_nothing_is_kept(scene: Scene) -> None:
    await scene.write()
    goes = await scene.write()
    await scene.store.delete([goes])
    await scene.keeper.keep({goes: 500, ObjectKey("segments/x"): 5})
    assert not await scene.notes_objects()


async def test_where_a_partition_begins_is_kept_when_that_moved(scene: Scene) -> None:
    keys = [await scene.write() for _ in range(3)]
    scene.floors[PLACE] = object_notes.Floor(3, 1)
    await scene.delete(keys[0])
    assert await scene.kept() == KeptNotes({TOPIC: FACTS}, floors=scene.floors)
    scene.floors[PLACE] = object_notes.Floor(4, 1)
    await scene.delete(keys[1])
    assert len(await scene.notes_objects()) == 1


async def test_where_a_partition_was_is_kept_when_its_last_records_go(scene: Scene) -> None:
    keys = [await scene.write() for _ in range(3)]
    scene.floors[PLACE] = object_notes.Floor(3, 0)
    await scene.delete(keys[0])
    assert await scene.kept() == KeptNotes({TOPIC: FACTS})
    scene.floors[PLACE] = object_notes.Floor(3, 3)
    await scene.delete(keys[1])
    assert await scene.kept() == KeptNotes({TOPIC: FACTS}, (), {PLACE: object_notes.Floor(3, 3)})
    await scene.delete(keys[2])
    assert len(await scene.notes_objects()) == 2


async def test_how_a_topic_is_configured_is_kept_once_and_when_it_is_new(scene: Scene) -> None:
    keys = [await scene.write() for _ in range(4)]
    await scene.delete(keys[0])
    await scene.delete(keys[1])
    (one,) = await scene.notes_objects()
    scene.topics[TOPIC] = FACTS._replace(configs=(("cleanup.policy", "compact"),))
    scene.clock.advance(1)
    await scene.delete(keys[2])
    assert await scene.kept() == KeptNotes(scene.topics)
    assert (await scene.notes_objects())[0] == one


async def test_of_a_deleted_topic_nothing_is_kept(scene: Scene) -> None:
    del scene.topics[TOPIC]
    key = await scene.write()
    await scene.delete(key)
    assert not await scene.notes_objects()


# --- sweeping -------------------------------------------------------------------------------------


async def several_notes(scene: Scene, count: int) -> Sequence[ObjectKey]:
    """The objects that are noted in as many notes objects."""
    stay = []
    for _ in range(count):
        stay.append(await scene.write())
        scene.clock.advance(1)
        await scene.delete(await scene.write())
    return stay


async def test_many_notes_objects_become_one(scene: Scene) -> None:
    stay = await several_notes(scene, MERGED_AT)
    youngest = max(await scene.notes_objects())
    await scene.sweep.sweep_once(everything=False)
    (one,) = await scene.notes_objects()
    assert await scene.noted() == stay
    # Its age is that of what is in it.
    assert one[:16] == youngest[:16]
    await scene.sweep.sweep_once(everything=True)
    assert await scene.notes_objects() == [one]


async def test_a_few_notes_objects_cost_a_listing_and_no_more(scene: Scene) -> None:
    await several_notes(scene, MERGED_AT - 1)
    before = scene.store.statistics()
    await scene.sweep.sweep_once(everything=False)
    after = scene.store.statistics()
    assert after._replace(lists=before.lists) == before


async def test_notes_go_with_the_objects_that_they_are_about(scene: Scene) -> None:
    stay = await several_notes(scene, 4)
    await scene.store.delete(stay[:3])
    await scene.sweep.sweep_once(everything=True)
    assert await scene.noted() == stay[3:]
    await scene.store.delete(stay)
    await scene.sweep.sweep_once(everything=True)
    assert await scene.kept() == KeptNotes({TOPIC: FACTS})
    assert scene.sweep.notes_dropped == 4
    del scene.topics[TOPIC]
    await scene.sweep.sweep_once(everything=True)
    assert not await scene.notes_objects()


async def test_a_crash_between_writing_and_deleting_loses_no_note(scene: Scene) -> None:
    stay = await several_notes(scene, 3)
    arm("notes.after_merge=raise")
    try:
        with pytest.raises(FailpointError):
            await scene.sweep.sweep_once(everything=True)
    finally:
        arm("")
    assert await scene.noted() == stay
    await scene.sweep.sweep_once(everything=True)
    assert await scene.noted() == stay
    assert len(await scene.notes_objects()) == 1


async def test_floors_go_with_their_topic_unless_the_log_is_younger_than_they(
    scene: Scene,
) -> None:
    scene.floors[PLACE] = object_notes.Floor(1, 1)
    await scene.delete(await scene.write())
    del scene.topics[TOPIC]
    for began_ms in (None, scene.clock.now_ms() + 1):
        scene.log_began_ms = began_ms
        await scene.sweep.sweep_once(everything=True)
        assert (await scene.kept()).floors == {PLACE: object_notes.Floor(1, 1)}
    scene.log_began_ms = 0
    await scene.sweep.sweep_once(everything=True)
    assert not await scene.notes_objects()


async def test_what_is_older_than_the_log_is_merged_with_nothing_younger(scene: Scene) -> None:
    await several_notes(scene, 3)
    scene.log_began_ms = scene.clock.now_ms() + 500
    scene.clock.advance(1)
    await several_notes(scene, 3)
    await scene.sweep.sweep_once(everything=True)
    assert len(await scene.notes_objects()) == 2


async def test_what_cannot_be_read_is_left_alone(scene: Scene) -> None:
    stay = await several_notes(scene, 2)
    damaged = bytearray(encode_kept_notes(await scene.kept()))
    damaged[-1] ^= 1
    key = ObjectKey(NOTES_PREFIX + mint_ulid(scene.clock, scene.rng))
    strange = ObjectKey(NOTES_PREFIX + "readme")
    await scene.store.put(key, BytesBody(bytes(damaged)))
    await scene.store.put(strange, BytesBody(b"somebody else's"))
    await scene.sweep.sweep_once(everything=True)
    left = await scene.notes_objects()
    assert {key, strange} < set(left)
    assert len(left) == 3
    await scene.store.delete([key, strange])
    assert await scene.noted() == stay


# --- notes of sinks -------------------------------------------------------------------------------

RUN = StagedRun(PLACE, 16, 100, 0, 1, 0, 0, 0, 0)


def sink_noted(batch_id: int, committed_at_ms: int, sink_id: str = "s") -> NotedSink:
    return NotedSink(sink_id, "User:u", batch_id, bytes(16), committed_at_ms, [(PLACE, 0, 0)])


async def note_sinks(scene: Scene, *sinks: NotedSink, staged: Sequence[str] = ()) -> None:
    notes = KeptNotes(
        topics={TOPIC: FACTS},
        staged=[StagedNote("s", ulid, [RUN]) for ulid in staged],
        sinks=sinks,
    )
    key = notes_key(mint_ulid(scene.clock, scene.rng))
    await scene.store.put(key, BytesBody(encode_kept_notes(notes)))


async def test_notes_of_sinks_are_merged_and_go_when_nobody_needs_them() -> None:
    scene = Scene()
    now_ms = scene.clock.now_ms()
    old_ms = now_ms - CoordinatorSettings().sink_expiration_ms - 1
    here, gone = (mint_ulid(scene.clock, scene.rng) for _ in range(2))
    await scene.store.put(staged_key("s", here), BytesBody(b"x"))
    for batch_id in range(MERGED_AT):
        await note_sinks(scene, sink_noted(batch_id, now_ms), staged=[here, gone])
    await note_sinks(scene, sink_noted(3, old_ms, "expired"))
    await scene.sweep.sweep_once(everything=False)
    assert len(await scene.notes_objects()) == 1
    kept = await scene.kept()
    assert [(sink.sink_id, sink.batch_id) for sink in kept.sinks] == [("s", MERGED_AT - 1)]
    assert [note.ulid for note in kept.staged] == [here]
    await scene.store.delete([staged_key("s", here)])
    await scene.sweep.sweep_once(everything=True)
    assert (await scene.kept()).staged == ()
    assert len((await scene.kept()).sinks) == 1


async def test_schemas_go_when_no_topic_has_them_and_nobody_is_about_to_set_them() -> None:
    scene = Scene()
    scene.schemas = {object_notes.schema_reference("in use")}
    for text in ("in use", "of old"):
        key = notes_key(mint_ulid(scene.clock, scene.rng))
        await scene.store.put(key, BytesBody(encode_kept_notes(KeptNotes(schemas=(text,)))))
    await scene.sweep.sweep_once(everything=True)
    assert (await scene.kept()).schemas == ("in use", "of old")
    scene.clock.advance(SCHEMA_KEPT_MS / 1000 + 1)
    await scene.sweep.sweep_once(everything=True)
    assert (await scene.kept()).schemas == ("in use",)


async def test_sinks_stay_noted_that_are_older_than_the_metadata_log() -> None:
    scene = Scene()
    await note_sinks(scene, sink_noted(3, 0))
    scene.log_began_ms = None
    await scene.sweep.sweep_once(everything=True)
    assert len((await scene.kept()).sinks) == 1
    scene.log_began_ms = 0
    await scene.sweep.sweep_once(everything=True)
    assert (await scene.kept()).sinks == ()
