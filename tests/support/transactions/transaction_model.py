"""What a coordinator must answer about transactional ids, in plain dicts; operations one by one.

Part of the coordinator's model, and written like it from Kafka's rules and not from the code: what
InitProducerId, AddOffsetsToTxn, TxnOffsetCommit and EndTxn do, with KIP-360 and KIP-890. Ids hold
groups alone: those of this coordinator, and those of another one, which nobody tells here.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from metadata.replica.replica import Replica
from metadata.transaction_operations import TransactionState
from wal import errors
from wal.coordinates import TopicIdPartition

HERE: Final = 0

Pair = tuple[int, int]
NOBODY: Final[Pair] = (-1, -1)
Offset = tuple[int, int]
"""(when it was committed, offset)."""
ErrorType = type[errors.DisklessError]


@dataclass(slots=True)
class ModelId:
    """A transactional id."""

    pair: Pair
    asked_with: Pair = NOBODY
    """Whoever had this led to `pair`, and may ask again."""
    number: int = 0
    state: str = "EMPTY"
    bumps: bool = False
    groups: dict[str, int] = field(default_factory=dict)
    pending: dict[tuple[str, TopicIdPartition], Offset] = field(default_factory=dict)

    @property
    def is_decided(self) -> bool:
        return self.state.startswith("PREPARE")


class TransactionModel:
    def __init__(self) -> None:
        self.ids: dict[str, ModelId] = {}
        self.committed: dict[tuple[str, TopicIdPartition], Offset] = {}
        """Offsets by group and partition."""

    def init(self, name: str, pair: Pair, fresh: int) -> Pair | ErrorType:
        known = self.ids.get(name)
        if known is None:
            self.ids[name] = ModelId((fresh, 0), pair)
            return fresh, 0
        is_again = pair != NOBODY and pair == known.asked_with and known.state != "ONGOING"
        if pair not in (NOBODY, known.pair) and not is_again:
            return errors.ProducerFenced
        if known.state == "ONGOING":
            self._end(known, is_commit=False, bump=1, again=pair if pair != NOBODY else None)
        if known.is_decided:
            return errors.ConcurrentTransactions
        if pair == NOBODY or pair == known.pair:
            known.pair = (known.pair[0], known.pair[1] + 1)
            known.asked_with = pair
            known.state = "EMPTY"
        return known.pair

    def _producer_error(self, name: str, pair: Pair) -> ErrorType | None:
        known = self.ids.get(name)
        if known is None or known.pair[0] != pair[0]:
            return errors.InvalidProducerIdMapping
        if known.pair != pair:
            return errors.ProducerFenced
        return errors.ConcurrentTransactions if known.is_decided else None

    def add(self, name: str, pair: Pair, group: str, home: int, *, bumps: bool) -> int | ErrorType:
        error = self._producer_error(name, pair)
        if error is not None:
            return error
        known = self.ids[name]
        if known.state != "ONGOING":
            known.number += 1
            known.state, known.bumps = "ONGOING", False
        known.bumps |= bumps
        known.groups.setdefault(group, home)
        return known.number

    def join(self, name: str, pair: Pair, group: str) -> int | ErrorType:
        error = self._producer_error(name, pair)
        if error is not None:
            return error
        known = self.ids[name]
        if known.state != "ONGOING" or group not in known.groups:
            return errors.InvalidTransactionState
        return known.number

    def commit_offset(
        self, name: str, group: str, partition: TopicIdPartition, offset: Offset
    ) -> None:
        self.ids[name].pending[group, partition] = offset

    def end(
        self, name: str, pair: Pair, *, is_commit: bool, bumps: bool
    ) -> tuple[int, bool, Pair] | ErrorType:
        """(number, whether it is completed, the pair to go on with)."""
        known = self.ids.get(name)
        ended = known is not None and known.state not in ("EMPTY", "ONGOING")
        is_again = known is not None and ended and pair != NOBODY and pair == known.asked_with
        if not is_again:
            error = self._producer_error(name, pair)
            if error not in (None, errors.ConcurrentTransactions):
                return error
        assert known is not None
        outcome = "COMMIT" if is_commit else "ABORT"
        if known.state != "ONGOING":
            is_empty_abort = bumps and not is_commit and not is_again and not known.is_decided
            if is_empty_abort:
                known.number += 1
                self._end(known, is_commit=False, bump=1, again=known.pair)
            elif known.state == "EMPTY" or not known.state.endswith(outcome):
                return errors.InvalidTransactionState
            elif known.is_decided:
                return errors.ConcurrentTransactions
            elif bumps and not is_again:
                return errors.InvalidTransactionState
        else:
            bump = int(bumps or known.bumps)
            again = known.pair if bump else None
            self._end(known, is_commit=is_commit, bump=bump, again=again)
        return known.number, not known.is_decided, known.pair

    def abort(self, name: str) -> tuple[int, bool, Pair] | ErrorType:
        known = self.ids.get(name)
        if known is None or known.state in ("EMPTY", "PREPARE_COMMIT", "COMPLETE_COMMIT"):
            return errors.InvalidTransactionState
        if known.state == "PREPARE_ABORT":
            return errors.ConcurrentTransactions
        if known.state == "ONGOING":
            self._end(known, is_commit=False, bump=1, again=None)
        return known.number, not known.is_decided, known.pair

    def _end(self, known: ModelId, *, is_commit: bool, bump: int, again: Pair | None) -> None:
        known.asked_with = again or NOBODY
        known.pair = (known.pair[0], known.pair[1] + bump)
        known.state = "PREPARE_COMMIT" if is_commit else "PREPARE_ABORT"
        if all(home == HERE for home in known.groups.values()):
            self.end_groups(known)
            self.complete(known)

    def end_groups(self, known: ModelId) -> None:
        """Those of this coordinator have heard."""
        if known.state == "PREPARE_COMMIT":
            for key, offset in known.pending.items():
                # One that was committed later, by somebody else, stays.
                if self.committed.get(key, offset)[0] <= offset[0]:
                    self.committed[key] = offset
        known.pending = {}

    def complete(self, known: ModelId) -> None:
        known.state = known.state.replace("PREPARE", "COMPLETE")
        known.groups = {}

    # -- comparing ------------------------------------------------------------------------------

    async def check(self, replica: Replica, groups: Collection[str]) -> None:
        found = {
            name: (
                (known.producer_id, known.producer_epoch),
                known.number,
                TransactionState(known.state).name,
                dict(known.groups),
            )
            for name, known in replica.image.transactions.ids.items()
        }
        assert found == {
            name: (known.pair, known.number, known.state, known.groups)
            for name, known in self.ids.items()
        }
        for group in groups:
            offsets = await replica.group_offsets(group)
            there = {(group, of): (at.commit_ms, at.offset) for of, at in offsets.items()}
            assert there == {
                key: offset for key, offset in self.committed.items() if key[0] == group
            }
            assert {*await replica.pending_partitions(group)} == {
                partition
                for known in self.ids.values()
                for of, partition in known.pending
                if of == group
            }
