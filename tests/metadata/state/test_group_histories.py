"""Any history of groups gives one state, however it is cut into transactions."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.log.log import MetadataRecordBatch
from metadata.records.groups import (
    CommittedOffset,
    GroupDeletedRecord,
    GroupRecord,
    GroupStoredRecord,
    OffsetsCommittedRecord,
    OffsetsDeletedRecord,
)
from metadata.records.records import encode_record
from metadata.replica.state_recovery import apply_batches
from metadata.replica.verify import check_state
from metadata.state.image import CommittedImage
from metadata.state.queries.group_queries import (
    group_offsets,
    stored_groups,
)
from metadata.state.schema import COMMIT_PERIOD_MS
from metadata.state.state import STATE_FILE, StateDatabase
from metadata.state.state_check import scan_state_hash
from tests.support.profiles import examples
from wal.coordinates import TopicIdPartition
from wal.errors import CorruptState

group_ids = st.sampled_from(["g", "h", "i"])
places = st.sampled_from(
    [TopicIdPartition(UUID(int=topic), index) for topic, index in [(0, 0), (0, 1), (0, 2), (1, 0)]]
)
times = st.sampled_from([0, 5, COMMIT_PERIOD_MS, COMMIT_PERIOD_MS + 1, 3 * COMMIT_PERIOD_MS])
histories = st.lists(
    st.one_of(
        st.builds(
            OffsetsCommittedRecord,
            group_id=group_ids,
            offsets=st.lists(
                st.builds(
                    CommittedOffset,
                    partition=places,
                    offset=st.integers(0, 9),
                    commit_ms=times,
                    leader_epoch=st.integers(-1, 2),
                    expire_ms=st.sampled_from([-1, -1, 7]),
                    metadata=st.sampled_from(["", "m"]),
                ),
                max_size=4,
            ).map(tuple),
        ),
        st.builds(
            OffsetsDeletedRecord,
            group_id=group_ids,
            partitions=st.lists(places, max_size=3).map(tuple),
            committed_until_ms=times,
        ),
        st.builds(
            GroupStoredRecord,
            group_id=group_ids,
            kind=st.sampled_from([1, 2, 9]),
            state=st.binary(max_size=3),
            updated_ms=times,
        ),
        st.builds(GroupDeletedRecord, group_id=group_ids),
    ),
    max_size=30,
)


class Model:
    """What a history should leave, kept in dictionaries."""

    def __init__(self) -> None:
        self.offsets: dict[str, dict[TopicIdPartition, CommittedOffset]] = {}
        self.groups: dict[str, tuple[int, bytes]] = {}

    def apply(self, record: GroupRecord) -> None:
        group = record.group_id
        offsets = self.offsets.setdefault(group, {})
        match record:
            case OffsetsCommittedRecord():
                offsets.update((offset.partition, offset) for offset in record.offsets)
                if record.offsets:
                    self.groups.setdefault(group, (0, b""))
            case OffsetsDeletedRecord():
                for place in record.partitions:
                    known = offsets.get(place)
                    if known is not None and known.commit_ms <= record.committed_until_ms:
                        del offsets[place]
                if not offsets and self.groups.get(group) == (0, b""):
                    del self.groups[group]
            case GroupStoredRecord():
                self.groups[group] = (record.kind, record.state)
            case GroupDeletedRecord():
                offsets.clear()
                self.groups.pop(group, None)


async def states_of(
    directory: Path, history: Sequence[GroupRecord], per_transaction: int
) -> tuple[int, Model]:
    """State hash and content after `history`, applied so many records at a time."""
    async with StateDatabase(directory / STATE_FILE, readers=1) as state:
        await state.open_or_create()
        image = CommittedImage(producers_max=1)
        batches = [
            MetadataRecordBatch(offset, 1_000 + offset, [bytes(encode_record(record))])
            for offset, record in enumerate(history)
        ]
        for start in range(0, len(batches), per_transaction):
            some = batches[start : start + per_transaction]
            image.merge(await state.write(partial(apply_batches, image, some)))
        assert await state.read(scan_state_hash) == image.state_hash
        assert await state.read(check_state) == []
        found = Model()
        for group in await state.read(partial(stored_groups, after=-1, limit=100)):
            found.groups[group.group_id] = (group.kind, group.state)
            found.offsets[group.group_id] = dict(
                await state.read(partial(group_offsets, group_id=group.group_id))
            )
        return image.state_hash, found


@examples(0.4)
@given(history=histories, per_transaction=st.integers(1, 12))
def test_any_history_gives_one_state_however_it_is_cut_into_transactions(
    tmp_path_factory: pytest.TempPathFactory,
    history: Sequence[GroupRecord],
    per_transaction: int,
) -> None:
    async def compared() -> None:
        model = Model()
        for record in history:
            model.apply(record)
        whole_hash, whole = await states_of(
            tmp_path_factory.mktemp("whole"), history, max(len(history), 1)
        )
        cut_hash, _ = await states_of(tmp_path_factory.mktemp("cut"), history, per_transaction)
        assert whole_hash == cut_hash
        assert whole.groups == model.groups
        known = {group: offsets for group, offsets in model.offsets.items() if offsets}
        assert {g: offsets for g, offsets in whole.offsets.items() if offsets} == known

    asyncio.run(compared())


async def test_a_record_of_a_group_without_a_kind_is_refused(tmp_path: Path) -> None:
    record = GroupStoredRecord(group_id="g", kind=0, state=b"", updated_ms=0)
    with pytest.raises(CorruptState, match="kind 0"):
        await states_of(tmp_path, [record], 1)
