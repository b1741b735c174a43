"""Fetch, key 1, versions 4-18.

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

import numpy as np

from diskless.api.errors import FetchSessionUnknown, kafka_code
from diskless.api.registry import Api, Deferred, Reply, Request
from diskless.fetch_rows import FetchAnswer, Int64s
from diskless.ports import READ_COMMITTED, FetchResult, ReplicaManager
from diskless.protocol.fetch import (
    FINAL_SESSION_EPOCH,
    FLEXIBLE_FROM,
    INITIAL_SESSION_EPOCH,
    VERSIONS,
    FetchRequest,
    decode_request,
    encode_refusal,
    encode_response,
)
from wal.errors import DisklessError

KEY: Final = 1


def api(manager: ReplicaManager) -> Api:
    def handle(request: Request) -> Deferred | Reply:
        version = request.version
        asked = decode_request(version, request.body)
        if asked.session_epoch not in (INITIAL_SESSION_EPOCH, FINAL_SESSION_EPOCH):
            return encode_refusal(version, kafka_code(FetchSessionUnknown()))

        def encode(results: Sequence[FetchResult]) -> Reply:
            return _reply(version, asked, FetchAnswer.of(results))

        def refuse(error: DisklessError) -> Reply:
            return _reply(version, asked, FetchAnswer.refused(len(asked.partitions), error))

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
        min_version=VERSIONS[0],
        max_version=VERSIONS[-1],
        flexible_from=FLEXIBLE_FROM,
        handler=handle,
        starts_in_turn=True,
    )


def _reply(version: int, asked: FetchRequest, answer: FetchAnswer) -> Reply:
    return encode_response(
        version,
        asked.topics,
        asked.partitions.partitions,
        answer,
        _error_codes(answer),
        read_committed=asked.isolation == READ_COMMITTED,
    )


def _error_codes(answer: FetchAnswer) -> Int64s:
    codes = np.zeros(len(answer), np.int64)
    for row, error in answer.errors.items():
        codes[row] = kafka_code(error)
    return codes
