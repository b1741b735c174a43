"""Says what work a batch needs before it may be appended, and does it.

Most batches need nothing: their CRC is summed where they arrive, and they are appended as they are.
Three kinds take too long for that: a batch of several MiB, which has to be summed; one of a topic
whose rules look at its records, which has to be opened; and one that has another codec than its
topic wants. `needed_work` says which a batch is, without touching more than its header.

A `BatchWork` then does all of it in one pass, in a thread: records are inflated once, for the
checks and for the new codec. `measure` comes first and tells how much memory `run` takes at most,
so that it can be set aside.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from wal.crc import Buffer, crc32c_of
from wal.records.batch_validation import (
    TopicRules,
    check_contents,
    check_records,
    inflated_bytes_max,
    opens_records,
)
from wal.records.compression import inflate, inflated_bound
from wal.records.recompression import Compression, recompressed
from wal.records.record_batch import CRC_START, HEADER_BYTES, BatchHeader

SUMMED_AT_ONCE_BYTES: Final = 8 << 20
"""A larger batch is summed in a thread; this one takes 0.4 ms."""

_INFLATE_COPIES: Final = 2
"""The records, and a codec's window, which may be as large."""
_DEFLATE_COPIES: Final = 3
"""A codec's copy of its input, its output as it grows, and the batch made of it."""


class NeededWork(NamedTuple):
    """What has to be done with one batch, and by which rules."""

    rules: TopicRules
    now_ms: int
    """When the batch arrived, which its timestamps are compared with."""
    is_unchecked: bool
    """Whether its CRC, and what depends on it, was not checked yet."""
    compression: Compression | None
    """The codec to compress the batch with; None leaves it as it is."""
    has_transactional_id: bool = False
    """Whether the batch came in a request that names one."""


class PreparedBatch(NamedTuple):
    """What came of a batch."""

    header: BatchHeader
    data: bytes | None
    """The whole batch if it is another one now."""


class PreparesBatch(Protocol):
    """One batch in work; both methods are slow, and `measure` is called first."""

    def measure(self) -> int:
        """Bytes of memory that `run` takes at most."""
        ...

    def run(self) -> PreparedBatch:
        """Raises the errors of `batch_validation` and of `recompression`."""
        ...


def needed_work(
    header: BatchHeader,
    rules: TopicRules,
    wanted: Compression | None,
    *,
    now_ms: int,
    has_transactional_id: bool = False,
) -> NeededWork | None:
    """Returns what a batch with this header needs; None, nearly always: only `check_contents`."""
    compression = wanted if wanted is not None and wanted.codec != header.codec else None
    is_large = header.length_bytes > SUMMED_AT_ONCE_BYTES
    if compression is None and not is_large and not opens_records(rules):
        return None
    return NeededWork(rules, now_ms, is_large, compression, has_transactional_id)


class BatchWork:
    """`PreparesBatch` of the batch in `payload`, which stays valid until `run` has ended."""

    def __init__(
        self, payload: Sequence[memoryview], header: BatchHeader, needed: NeededWork
    ) -> None:
        self._payload = payload
        self._header = header
        self._needed = needed
        self._data: Buffer = b""
        self._bound = 0
        self._is_opened = needed.compression is not None or opens_records(needed.rules)

    def measure(self) -> int:
        if not self._is_opened:
            return 0
        header, needed = self._header, self._needed
        self._data = _joined(self._payload)
        self._bound = inflated_bound(
            header.codec,
            memoryview(self._data)[HEADER_BYTES:],
            limit_bytes=inflated_bytes_max(needed.rules),
        )
        memory_bytes = _INFLATE_COPIES * self._bound
        if opens_records(needed.rules):
            from wal.records.record_scan import scan_bytes

            memory_bytes = scan_bytes(self._bound, header.record_count)
        if needed.compression is not None:
            memory_bytes += _DEFLATE_COPIES * self._bound
        return memory_bytes

    def run(self) -> PreparedBatch:
        header, needed = self._header, self._needed
        if needed.is_unchecked:
            check_contents(
                header,
                crc32c_of(self._payload, CRC_START),
                rules=needed.rules,
                now_ms=needed.now_ms,
                has_transactional_id=needed.has_transactional_id,
            )
        if not self._is_opened:
            return PreparedBatch(header, None)
        records = self._records()
        if needed.compression is None:
            return PreparedBatch(header, None)
        return PreparedBatch(
            *recompressed(
                header,
                records,
                needed.compression,
                max_bytes=needed.rules.max_message_bytes,
            )
        )

    def _records(self) -> Buffer:
        """Inflated, and checked if they have to be."""
        header, rules = self._header, self._needed.rules
        if not opens_records(rules):
            body = memoryview(self._data)[HEADER_BYTES:]
            return inflate(header.codec, body, limit_bytes=self._bound)
        # NumPy and Arrow take longer to load than the rest of the broker, and most brokers never
        # open a batch.
        from wal.records.record_scan import inflate_records

        records = inflate_records(header, self._data, self._bound)
        check_records(header, self._data, records, rules=rules, now_ms=self._needed.now_ms)
        return memoryview(records.buffer)[: records.length]


def _joined(payload: Sequence[memoryview]) -> Buffer:
    return payload[0] if len(payload) == 1 else b"".join(payload)
