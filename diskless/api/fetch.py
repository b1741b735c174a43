"""Fetch, key 1, versions 4-16.

- There are no fetch sessions (KIP-227): the session id is always 0, which makes every client send
  full requests, and every requested partition is in the answer. An incremental request gets
  FETCH_SESSION_ID_NOT_FOUND.
- A parked Fetch ends early when another answer of its connection waits behind it.
- The broker's own `fetch.max.bytes` caps the answer; one whole batch is given in any case.
- read_committed equals read_uncommitted as long as no transactions are served: the last stable
  offset is the high watermark and no transaction was aborted.
- Never a preferred read replica, never a diverging epoch, never a leader hint.
"""

from collections.abc import Sequence
from typing import Final

from diskless.api.errors import FetchSessionUnknown, kafka_code
from diskless.api.registry import Api, Deferred, Reply, Request
from diskless.ports import READ_COMMITTED, FetchResult, ReplicaManager
from diskless.protocol.fetch import (
    FINAL_SESSION_EPOCH,
    INITIAL_SESSION_EPOCH,
    FetchedRow,
    FetchRequest,
    decode_request,
    encode_response,
)
from wal.errors import DisklessError

KEY: Final = 1


def api(manager: ReplicaManager) -> Api:
    def handle(request: Request) -> Deferred | Reply:
        version = request.version
        asked = decode_request(version, request.body)
        if asked.session_epoch not in (INITIAL_SESSION_EPOCH, FINAL_SESSION_EPOCH):
            return encode_response(version, [], [], error_code=kafka_code(FetchSessionUnknown()))

        def encode(results: Sequence[FetchResult]) -> Reply:
            return _reply(version, asked, results)

        def refuse(error: DisklessError) -> Reply:
            return encode([FetchResult(error=error)] * len(asked.partitions))

        max_bytes = max(asked.max_bytes, 0)
        answer = manager.fetch(
            asked.partitions,
            max_wait_ms=max(asked.max_wait_ms, 0),
            min_bytes=min(max(asked.min_bytes, 0), max_bytes),
            max_bytes=max_bytes,
            isolation=asked.isolation,
            client=request.client,
            wake=request.wake,
            reserve=request.reserve,
        )
        return Deferred(answer, encode, refuse)

    return Api(
        key=KEY,
        name="Fetch",
        min_version=4,
        max_version=16,
        flexible_from=12,
        handler=handle,
        starts_in_turn=True,
    )


def _reply(version: int, asked: FetchRequest, results: Sequence[FetchResult]) -> Reply:
    rows = []
    for partition, result in zip(asked.partitions, results, strict=True):
        error, high_watermark, log_start_offset, records = result
        if error is None:
            row = FetchedRow(partition.partition, 0, high_watermark, log_start_offset, records)
        else:
            row = FetchedRow(partition.partition, kafka_code(error), -1, -1, ())
        rows.append(row)
    return encode_response(
        version, asked.topics, rows, read_committed=asked.isolation == READ_COMMITTED
    )
