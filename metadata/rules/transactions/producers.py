"""Decides which producer a transactional id has.

Whoever asks gets a producer id and epoch that nobody had before, and fences who had the last ones:
its transaction, if one is open, is aborted with the epoch above its own. A producer that goes on
after an error (KIP-360) names the pair that it has, and is refused when that is not the last one;
it may have asked before and lost the answer, so the pair that led to the present one gets the same
answer.

Epochs are given up to EPOCH_MAX. The one above only fences: then the id gets a fresh producer id.
A producer that goes on gets that with the abort, so that no answer to it has the epoch above.

Source: Kafka's rules for InitProducerId, KIP-360.
"""

from collections.abc import Sequence
from typing import Final

from metadata.records.records import MetadataRecord
from metadata.records.transactions import TransactionalIdsExpiredRecord, TransactionBeganRecord
from metadata.rules.commit import Decision
from metadata.rules.transactions.ending import abort_now
from metadata.rules.transactions.producer_pairs import (
    NOBODY,
    Pair,
    being_ended,
    fenced,
    is_last_pair,
    next_pair_of,
    pair_of,
)
from metadata.state.speculative import SpeculativeView
from metadata.state.transactions import transitions
from metadata.transaction_operations import (
    EPOCH_MAX,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    InitializedProducer,
    InitProducer,
    Transaction,
    TransactionState,
)
from wal.errors import (
    DisklessError,
    InvalidRequest,
    PolicyViolation,
)

TRANSACTIONAL_IDS_MAX: Final = 200_000
"""Of one coordinator; it has them all in memory, some hundred bytes each."""
TRANSACTIONAL_ID_BYTES_MAX: Final = 32_767
"""The longest string of Kafka's protocol."""


def decide_init_producer(
    view: SpeculativeView, asked: InitProducer, *, now_ms: int, coordinator_epoch: int
) -> Decision[InitializedProducer]:
    """A producer of the id; or ConcurrentTransactions: its last transaction is being ended.

    Where all that belongs to an open one lives here, that is ended in the same append.
    """
    known = view.transactions.transaction(asked.transactional_id)
    error = _request_error(view, known, asked)
    if error is not None:
        return Decision((), InitializedProducer(error=error))
    pair = Pair(asked.producer_id, asked.producer_epoch)
    records: list[MetadataRecord] = []
    if known is not None and known.state == TransactionState.ONGOING:
        goes_on = pair == pair_of(known)
        is_last_epoch = known.producer_epoch >= EPOCH_MAX
        records += abort_now(
            view,
            known,
            last_epoch=known.producer_epoch if goes_on else NO_PRODUCER_EPOCH,
            next_producer_id=asked.fresh_producer_id
            if goes_on and is_last_epoch
            else NO_PRODUCER_ID,
            now_ms=now_ms,
            coordinator_epoch=coordinator_epoch,
        )
        known = view.transactions.transaction(asked.transactional_id)
    if known is not None and TransactionState(known.state).is_decided:
        return Decision(records, InitializedProducer(error=being_ended(known)))
    given, last = _given(known, pair, asked.fresh_producer_id)
    if known is None or given != pair_of(known) or asked.timeout_ms != known.timeout_ms:
        record = TransactionBeganRecord(
            transactional_id=asked.transactional_id,
            producer_id=given.producer_id,
            producer_epoch=given.producer_epoch,
            last_producer_id=last.producer_id,
            last_epoch=last.producer_epoch,
            timeout_ms=asked.timeout_ms,
            at_ms=now_ms,
        )
        after = transitions.began(known, view.next_offset + len(records), record)
        view.transactions.put_transaction(after, view.group)
        records.append(record)
    return Decision(records, InitializedProducer(*given))


def _request_error(
    view: SpeculativeView, known: Transaction | None, asked: InitProducer
) -> DisklessError | None:
    pair = Pair(asked.producer_id, asked.producer_epoch)
    if pair != NOBODY and (pair.producer_id < 0 or pair.producer_epoch < 0):
        return InvalidRequest(f"half a producer: {pair}")
    if known is None:
        return _id_error(view, asked.transactional_id)
    if pair in (NOBODY, pair_of(known), next_pair_of(known)):
        return None
    if is_last_pair(known, pair) and known.state != TransactionState.ONGOING:
        return None
    return fenced()


def _id_error(view: SpeculativeView, transactional_id: str) -> DisklessError | None:
    try:
        length = len(transactional_id.encode())
    except UnicodeEncodeError:
        return InvalidRequest(f"the transactional id {transactional_id!r} is not Unicode")
    if not 0 < length <= TRANSACTIONAL_ID_BYTES_MAX:
        return InvalidRequest(f"a transactional id of {length} bytes")
    if view.transactions.id_count() >= TRANSACTIONAL_IDS_MAX:
        return PolicyViolation(f"there are {TRANSACTIONAL_IDS_MAX} transactional ids")
    return None


def _given(known: Transaction | None, pair: Pair, fresh_producer_id: int) -> tuple[Pair, Pair]:
    """The producer that is given, and the one that may ask for it again.

    No transaction is open; `pair` is nobody, or one that may go on.
    """
    fresh = Pair(fresh_producer_id, 0)
    if known is None:
        return fresh, pair
    if is_last_pair(known, pair) and known.producer_epoch <= EPOCH_MAX:
        return pair_of(known), pair
    if known.producer_epoch >= EPOCH_MAX:
        return fresh, pair
    return Pair(known.producer_id, known.producer_epoch + 1), pair


def decide_expire_ids(
    view: SpeculativeView, names: Sequence[str], *, before_ms: int
) -> Decision[int]:
    """Forget those of `names` that did nothing since `before_ms`; how many they are.

    One that has anything open is not forgotten.
    """
    expired = []
    for name in names:
        known = view.transactions.transaction(name)
        if known is not None and not known.is_open and known.changed_ms < before_ms:
            view.transactions.forget_transaction(name, view.group)
            expired.append(name)
    record = TransactionalIdsExpiredRecord(transactional_ids=expired)
    return Decision([record] if expired else [], len(expired))
