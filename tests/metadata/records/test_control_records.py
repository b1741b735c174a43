"""Control records: what they do to the state, and entities that no encoder writes.

Their bytes are in test_records.py.
"""

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import select

from metadata.acls import AclBinding
from metadata.apply.apply_control import TOMBSTONES_PER_RECORD_MAX
from metadata.log.log import MetadataRecordBatch
from metadata.metadata_version import METADATA_VERSION
from metadata.operations import TOMBSTONE, Leader, RegisteredBroker
from metadata.records.acls import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from metadata.records.control import (
    BrokerRegisteredRecord,
    BrokerUnregisteredRecord,
    ClientQuotasRecord,
    FileHandedOverRecord,
    FilesTombstonedRecord,
    LeaderChangeRecord,
    PartitionsAssignedRecord,
)
from metadata.records.records import (
    MetadataRecord,
    PartitionCreatedRecord,
    decode_record,
    encode_record,
)
from metadata.replica.state_recovery import apply_batches
from metadata.rules.files import FILES_PER_CALL_MAX
from metadata.state.image import CommittedImage
from metadata.state.schema import FILES
from metadata.state.state import StateDatabase, load_image
from metadata.state.state_check import scan_state_hash
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import CorruptLog, CorruptState

TOPIC = UUID("00112233-4455-6677-8899-aabbccddeeff")
LIFE = UUID(int=7)
KEY = ObjectKey("wal/00/K")


class Replayed:
    """A state that records are applied to, one batch each."""

    def __init__(self, state: StateDatabase, coordinator_id: int) -> None:
        self.state = state
        self.image = CommittedImage(producers_max=10, coordinator_id=coordinator_id)

    async def apply(self, *new: MetadataRecord, timestamp_ms: int = 1_000) -> None:
        batch = MetadataRecordBatch(
            self.image.next_offset, timestamp_ms, [encode_record(record) for record in new]
        )
        self.image.merge(await self.state.write(lambda c: apply_batches(self.image, [batch], c)))

    async def check(self) -> None:
        """The rows say what memory says, and their hash is the one that was kept."""
        loaded = CommittedImage(producers_max=10, coordinator_id=self.image.coordinator_id)
        await self.state.read(lambda c: load_image(c, loaded))
        assert loaded.topics == self.image.topics
        assert loaded.leader == self.image.leader
        assert loaded.brokers == self.image.brokers
        assert loaded.quotas == self.image.quotas
        assert loaded.acls == self.image.acls
        assert await self.state.read(scan_state_hash) == self.image.state_hash


async def replayed(path: Path, coordinator_id: int = 0) -> Replayed:
    state = StateDatabase(path / "state.sqlite", readers=1)
    await state.open_or_create()
    return Replayed(state, coordinator_id)


def leader(epoch: int, broker_id: int = 1) -> LeaderChangeRecord:
    return LeaderChangeRecord(
        leader_epoch=epoch, broker_id=broker_id, host="h", port=1, incarnation=LIFE
    )


async def test_leader_epochs_only_grow(tmp_path: Path) -> None:
    replica = await replayed(tmp_path)
    async with replica.state:
        await replica.apply(leader(1))
        await replica.apply(leader(2, broker_id=5))
        assert replica.image.leader == Leader(2, 5, "h", 1, LIFE)
        await replica.check()
        with pytest.raises(CorruptState, match="leader epoch 2"):
            await replica.apply(leader(2))


async def test_a_leader_of_a_later_release_is_not_followed(tmp_path: Path) -> None:
    replica = await replayed(tmp_path)
    async with replica.state:
        await replica.apply(replace(leader(1), metadata_version=METADATA_VERSION - 1))
        later = replace(leader(2, broker_id=7), metadata_version=METADATA_VERSION + 1)
        theirs = rf"broker 7 leads .* metadata version {METADATA_VERSION + 1}"
        with pytest.raises(CorruptState, match=theirs):
            await replica.apply(later)
        assert replica.image.leader == Leader(1, 1, "h", 1, LIFE)


async def test_the_catalogue_knows_where_every_partition_lives(tmp_path: Path) -> None:
    replica = await replayed(tmp_path)
    async with replica.state:
        await replica.apply(
            PartitionsAssignedRecord(
                topic_id=TOPIC, name="t", first_partition=0, coordinators=(2, 1)
            ),
            PartitionCreatedRecord(topic_id=TOPIC, name="t", partition=2),
            PartitionsAssignedRecord(
                topic_id=TOPIC, name="t", first_partition=3, coordinators=(2,)
            ),
        )
        topic = replica.image.topics_by_name["t"]
        assert topic.partition_count == 4
        assert [topic.coordinator_of(partition) for partition in range(4)] == [2, 1, 0, 2]
        assert list(replica.image.partitions) == [TopicIdPartition(TOPIC, 2)]
        await replica.check()


async def test_another_coordinator_has_only_its_partitions(tmp_path: Path) -> None:
    replica = await replayed(tmp_path, coordinator_id=2)
    async with replica.state:
        for partition in (0, 3):
            await replica.apply(
                PartitionCreatedRecord(topic_id=TOPIC, name="t", partition=partition)
            )
        assert {partition for _, partition in replica.image.partitions} == {0, 3}
        await replica.check()


async def test_a_partition_is_not_created_twice(tmp_path: Path) -> None:
    replica = await replayed(tmp_path, coordinator_id=2)
    async with replica.state:
        await replica.apply(PartitionCreatedRecord(topic_id=TOPIC, name="t", partition=3))
        with pytest.raises(CorruptState, match="partition 3 after 4"):
            await replica.apply(PartitionCreatedRecord(topic_id=TOPIC, name="t", partition=3))


async def test_a_file_that_was_handed_over_is_ours_and_drained(tmp_path: Path) -> None:
    replica = await replayed(tmp_path, coordinator_id=1)
    handed = FileHandedOverRecord(object_key=KEY, object_format=1, file_size=500, owner_ids=(0, 1))
    async with replica.state:
        await replica.apply(handed, timestamp_ms=5_000)
        await replica.apply(handed, timestamp_ms=6_000)
        (row,) = await replica.state.read(lambda c: c.execute(select(FILES.table)).all())
        assert (row.is_owner, row.live_rows, row.deletable_since_ms) == (1, 0, 5_000)
        await replica.check()


async def test_tombstones_are_files_that_wait_for_their_deletion(tmp_path: Path) -> None:
    replica = await replayed(tmp_path)
    keys = [ObjectKey(f"wal/00/{number}") for number in range(3)]
    async with replica.state:
        await replica.apply(FilesTombstonedRecord(object_keys=keys[:2]), timestamp_ms=5_000)
        await replica.apply(FilesTombstonedRecord(object_keys=keys[2:]))
        rows = await replica.state.read(lambda c: c.execute(select(FILES.table)).all())
        assert sorted(row.object_key for row in rows) == keys
        assert {row.object_format for row in rows} == {TOMBSTONE}
        await replica.check()


async def test_a_record_has_no_more_tombstones_than_it_has_surrogate_keys(tmp_path: Path) -> None:
    replica = await replayed(tmp_path)
    keys = tuple(ObjectKey(f"wal/{at}") for at in range(TOMBSTONES_PER_RECORD_MAX + 1))
    async with replica.state:
        with pytest.raises(CorruptState, match="tombstones in one record"):
            await replica.apply(FilesTombstonedRecord(object_keys=keys))
    assert FILES_PER_CALL_MAX <= TOMBSTONES_PER_RECORD_MAX


async def test_a_known_key_is_not_tombstoned(tmp_path: Path) -> None:
    replica = await replayed(tmp_path)
    async with replica.state:
        await replica.apply(FilesTombstonedRecord(object_keys=(KEY,)))
        with pytest.raises(CorruptState):
            await replica.apply(FilesTombstonedRecord(object_keys=(KEY,)))


async def test_brokers_come_and_go(tmp_path: Path) -> None:
    replica = await replayed(tmp_path)
    register = BrokerRegisteredRecord(
        broker_id=4,
        host="a",
        port=1,
        rack="r",
        incarnation=LIFE,
        endpoints="X://a:2",
        may_lead=True,
        metadata_version=1,
    )
    async with replica.state:
        await replica.apply(register)
        await replica.apply(
            BrokerRegisteredRecord(
                broker_id=4,
                host="b",
                port=2,
                rack="",
                incarnation=LIFE,
                endpoints="X://b:3",
                may_lead=False,
                metadata_version=1,
            )
        )
        assert replica.image.brokers == {
            4: RegisteredBroker(4, "b", 2, "", LIFE, "X://b:3", False, 1)
        }
        await replica.check()
        await replica.apply(BrokerUnregisteredRecord(broker_id=4))
        assert replica.image.brokers == {}
        await replica.check()
        with pytest.raises(CorruptState, match="not registered"):
            await replica.apply(BrokerUnregisteredRecord(broker_id=4))


async def test_an_entity_has_the_quotas_of_its_last_record(tmp_path: Path) -> None:
    replica = await replayed(tmp_path)
    one, other = (("user", "u"),), (("client-id", "c"), ("user", None))
    async with replica.state:
        await replica.apply(
            ClientQuotasRecord(entity=one, quotas={"a": 1.0, "b": 2.0**62}),
            ClientQuotasRecord(entity=other, quotas={"a": 0.5}),
        )
        first = replica.image.quotas
        assert first == {one: {"a": 1.0, "b": 2.0**62}, other: {"a": 0.5}}
        await replica.check()
        await replica.apply(ClientQuotasRecord(entity=one, quotas={"c": 1e300}))
        assert replica.image.quotas == {one: {"c": 1e300}, other: {"a": 0.5}}
        await replica.check()
        await replica.apply(ClientQuotasRecord(entity=one, quotas={}))
        assert replica.image.quotas == {other: {"a": 0.5}}
        assert len(first) == 2, "a reader of the quotas does not see them change under its hands"
        await replica.check()
        with pytest.raises(CorruptState, match="had none"):
            await replica.apply(ClientQuotasRecord(entity=one, quotas={}))


async def test_a_rule_is_there_from_its_record_until_it_is_removed(tmp_path: Path) -> None:
    replica = await replayed(tmp_path)
    one = AclBinding(2, "t", 3, "User:u", "*", 3, 3)
    other = one._replace(pattern_type=4)
    added, removed = AccessControlEntryRecord, RemoveAccessControlEntryRecord
    async with replica.state:
        await replica.apply(added(rule=one), added(rule=other))
        first = replica.image.acls
        assert first == {one, other}
        await replica.check()
        await replica.apply(removed(rule=one), added(rule=one), removed(rule=other))
        assert replica.image.acls == {one}
        assert first == {one, other}, "a reader of the rules does not see them change"
        await replica.check()
        with pytest.raises(CorruptState, match="was there"):
            await replica.apply(added(rule=one))
        with pytest.raises(CorruptState, match="was not there"):
            await replica.apply(removed(rule=other))


@pytest.mark.parametrize(
    ("entity", "problem"),
    [
        ("03 03 6970 00 02 61 00  03 6970 01 01 00", "after 'ip'"),
        ("02 03 6970 01 02 61 00", "a default ip with the name 'a'"),
        ("02 03 6970 02 01 00", "a default ip"),
        ("0a" + "".join(f"02 {at:02x} 01 01 00" for at in range(0x61, 0x6A)), "of 9 parts"),
    ],
)
def test_an_entity_that_no_encoder_writes_is_corrupt(entity: str, problem: str) -> None:
    with pytest.raises(CorruptLog, match=problem):
        decode_record(bytes.fromhex(f"01 f607 00 {entity} 01 00"))
