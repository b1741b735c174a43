"""Produce, key 0, versions 3-13: appends record batches, and answers with their offsets.

- Advertised from 0 (see `diskless/api/cluster/api_versions.py`); 0-2 carry formats older than
  RecordBatch and close the connection.
- acks=1 and acks=all are the same: an offset exists only once the coordinator has committed it, so
  both are answered then. acks=0 is never answered; when one of its batches is refused the
  connection is closed, as Kafka does, since that is the only way to tell.
- Batches of one connection are handed on in the order of arrival, without waiting for answers. A
  request of very many partitions is taken in slices, and what follows on its connection waits
  behind it.
- A batch of a transaction is answered as in Kafka when it cannot be found out whether it belongs
  there (NOT_ENOUGH_REPLICAS), or found out that it does not (INVALID_TXN_STATE, and from version 11
  on TRANSACTION_ABORTABLE). It needs a request with a transactional id for which the client has
  WRITE; else the answer is TRANSACTIONAL_ID_AUTHORIZATION_FAILED. Kafka then refuses the other
  batches of the request, too. A batch of no transaction may come with an id, as in Kafka, which
  then does not ask for WRITE on the id; here the id alone is enough to ask.
- Version 13 names topics by id: with the id of a deleted topic a batch is UNKNOWN_TOPIC_ID, also
  when there is a new topic of the same name.
- A batch for the metadata topic is INVALID_TOPIC_EXCEPTION, as for Kafka's internal topics.
- Of a batch for a compacted topic, the first thousand records without key are named (KIP-467);
  Kafka names those with a bad timestamp too.
- Asks for WRITE on the transactional id, whose refusal concerns all batches, and on each topic.
- Under a producer_byte_rate quota the request counts, with all its bytes, when it has arrived; a
  client over its quota learns it from throttle_time_ms and is not read from until then.
- No leader hints (KIP-951): they need growing leader epochs.
"""

from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

from diskless.api.access import Access, AllowedRows, Refused, allowed_rows
from diskless.api.errors import InvalidRequiredAcks, error_message, kafka_code
from diskless.api.known_errors import known_error
from diskless.authorization import AclOperation
from diskless.loop.long_work import Steps
from diskless.ports import (
    NOTHING_REFUSED,
    ClientInfo,
    ProducedBatches,
    ReplicaManager,
    TopicAdmin,
)
from diskless.protocol.batch_scan import SCANNED, columns_of
from diskless.protocol.produce import (
    EqualRows,
    ProducedRow,
    ProduceRequest,
    appended_rows,
    decode_request,
    encode_response,
    encode_row,
    row_packer,
)
from diskless.quotas.quotas import QuotaEnforcer
from diskless.server.registry import Api, Deferred, MustClose, Outcome, ReplySteps, Request
from metadata.batch_commits import BatchCommits
from metadata.operations import BatchCommit
from wal.errors import DisklessError, KeysMissing

KEY: Final = 0

_ACKS: Final = frozenset({-1, 0, 1})

_Results = Sequence[BatchCommit]
"""Has a name because `handle` defines `encode` anew for each request: see `ReplySteps`."""


def api(manager: ReplicaManager, topics: TopicAdmin, quotas: QuotaEnforcer, access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        assert request.frame is not None
        assert request.reader is not None
        version = request.version
        asked = yield from decode_request(version, request.frame, request.reader)
        batches = asked.batches
        request.batch_count = count = len(batches.rows) // SCANNED.size
        mute_until = quotas.produced(request.client, len(request.frame))
        if mute_until:
            request.mute(mute_until)

        refusal = _refused_id(asked, request.client, access) or _wrong_acks(asked)
        refused = NOTHING_REFUSED
        if refusal is None:
            named = [topic.named for topic in batches.topics]
            refused = access.refused_named(request.client, AclOperation.WRITE, named, topics)
        rows = _allowed_rows(batches, refused) if refused else None

        def encode(results: _Results) -> ReplySteps:
            if rows is not None:
                results = rows.merged(results, lambda _, error: BatchCommit(error=error))
            if asked.acks == 0:
                _close_if_refused(results)
                return None
            encoded = encoded_rows(version, batches.rows, results)
            throttle_ms = quotas.left_ms(mute_until)
            body = yield from encode_response(
                version, batches.topics, encoded, throttle_ms=throttle_ms
            )
            return [body]

        def refuse(error: DisklessError) -> ReplySteps:
            allowed = count if rows is None else len(rows.allowed)
            return encode([BatchCommit(error=error)] * allowed)

        if refusal is not None:
            return (yield from refuse(refusal))
        if rows is not None and rows.are_none:
            return (yield from encode(()))
        try:
            answer = yield from manager.append(
                _of_allowed(batches, refused) if refused else batches,
                timeout_ms=asked.timeout_ms,
                produce_version=version,
                client=request.client,
                transactional_id=asked.transactional_id,
            )
        except DisklessError as error:
            return (yield from refuse(error))
        return Deferred(answer, encode, refuse)

    return Api(
        key=KEY,
        name="Produce",
        versions=range(3, 14),
        flexible_from=9,
        handler=handle,
        advertised_min_version=0,
        reads_frame=True,
    )


def _refused_id(asked: ProduceRequest, client: ClientInfo, access: Access) -> DisklessError | None:
    """The error of every batch, whatever its topic: the client may not use its id."""
    if asked.transactional_id is None:
        return None
    return access.refused_transactional_id(client, AclOperation.WRITE, asked.transactional_id)


def _wrong_acks(asked: ProduceRequest) -> DisklessError | None:
    if asked.acks in _ACKS:
        return None
    return InvalidRequiredAcks(f"acks must be -1, 0 or 1, not {asked.acks}")


def _allowed_rows(batches: ProducedBatches, refused: Refused) -> AllowedRows[str | UUID]:
    """The batches that are no refused topic's; a row is what its topic is called."""
    named = [topic.named for topic in batches.topics for _ in range(topic.batch_count)]
    return allowed_rows(named, lambda name: name, refused)


def _of_allowed(batches: ProducedBatches, refused: Refused) -> ProducedBatches:
    """The request without refused topics."""
    rows = []
    end = 0
    for topic in batches.topics:
        start, end = end, end + topic.batch_count * SCANNED.size
        if topic.named not in refused:
            rows.append(batches.rows[start:end])
    allowed = [topic for topic in batches.topics if topic.named not in refused]
    return ProducedBatches(allowed, b"".join(rows), batches.frame)


def encoded_rows(version: int, rows: bytes, results: _Results) -> Iterable[bytes] | EqualRows:
    """The answer's row for each of the request's."""
    if type(results) is BatchCommits and not results.errors:
        return appended_rows(version, columns_of(rows)["partition"], results)
    pack = row_packer(version)
    return (
        pack(partition, base_offset, append_time_ms, log_start_offset)
        if error is None
        else encode_row(version, _refused(version, partition, error))
        for (_, partition, *_), (base_offset, append_time_ms, log_start_offset, _, error) in zip(
            SCANNED.iter_unpack(rows), results, strict=True
        )
    )


def _close_if_refused(results: Sequence[BatchCommit]) -> None:
    """Raises MustClose for a refused batch of a request that is not answered."""
    for result in results:
        if result.error is not None:
            raise MustClose(f"acks=0 produce refused: {result.error}")


def _refused(version: int, partition: int, error: DisklessError) -> ProducedRow:
    error = known_error(KEY, version, error)
    return ProducedRow(
        partition,
        kafka_code(error),
        base_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=-1,
        error_message=error_message(error),
        refused_records=error.positions if isinstance(error, KeysMissing) else (),
    )
