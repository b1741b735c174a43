"""Reads a whole segment from a blocking store and checks every byte of it.

Called by a roll or a merge that finds its key taken, and by `diskless verify`. Reads one row group
at a time. A merge and a compaction ask here for footers and sources, too.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tiering.segment_format import (
    MAGIC,
    SegmentFooter,
    SegmentIdentity,
    WrittenSegment,
    footer_length,
    parse_footer,
)
from tiering.segment_sources import SourceRange
from wal.coordinates import ObjectKey
from wal.crc import crc32c
from wal.errors import CorruptObject, CorruptSegment, ObjectNotFound
from wal.stores.blocking_store import BlockingStore

_TAIL_BYTES_MAX: Final = 64 << 10
_TAIL_BYTES_MIN: Final = 8 << 10
_TAIL_SHARE: Final = 1024
"""A row group takes some two KiB of the footer, and two to four MiB of the object: what is read at
first has both, and of a small segment not more than that."""
_COPY_BYTES: Final = 8 << 20


def verify_segment(store: BlockingStore, key: ObjectKey) -> SegmentFooter:
    """Check footer, both parts of the row groups, their rows, batches, offsets, and page index.

    Where no compaction has removed anything, each batch has a row for each of its offsets. Returns
    the footer.

    Raises: CorruptSegment naming the key, ObjectNotFound, ObjectStoreUnavailable.
    """
    from tiering.raw_batches import raw_batches
    from tiering.segment_columns import (
        RAW_BATCH,
        check_typed_part,
        check_whole_batches,
        read_row_group,
    )

    raw_batch_count = 0
    object_bytes = store.head(key).length_bytes
    try:
        if store.get_range(key, 0, min(len(MAGIC), object_bytes)) != MAGIC:
            raise CorruptSegment(f"{key}: does not start as a Parquet file")
        footer = read_footer(store, key, object_bytes)
        for index, group in enumerate(footer.row_groups):
            data = store.get_range(key, group.byte_offset, group.length_bytes)
            columns = ["offset", "batch_base_offset", "batch_last_offset", RAW_BATCH]
            rows = read_row_group(key, footer, index, data, columns)
            typed = store.get_range(
                key, group.byte_offset + group.length_bytes, group.typed_length_bytes
            )
            check_typed_part(key, group, typed)
            if not footer.counts.removed:
                check_whole_batches(key, index, rows)
            raw_batch_count += sum(1 for _ in raw_batches(key, rows))
        index_bytes = footer.footer_start - footer.page_index_start
        page_index = store.get_range(key, footer.page_index_start, index_bytes)
    except CorruptObject as error:
        raise CorruptSegment(f"{key}: {error}") from error
    if crc32c(page_index) != footer.page_index_crc32c:
        raise CorruptSegment(f"{key}: page index does not have its CRC")
    if raw_batch_count != footer.raw_batch_count:
        raise CorruptSegment(
            f"{key}: holds {raw_batch_count} raw batches, not {footer.raw_batch_count}"
        )
    return footer


def existing_segment(
    store: BlockingStore, key: ObjectKey, identity: SegmentIdentity
) -> WrittenSegment | None:
    """The segment that an earlier or a concurrent attempt left, after reading and checking all.

    Raises: CorruptSegment when something else lies there, ObjectStoreUnavailable.
    """
    try:
        object_bytes = store.head(key).length_bytes
    except ObjectNotFound:
        return None
    footer = verify_segment(store, key)
    if footer.identity != identity:
        raise CorruptSegment(f"{key}: holds {footer.identity}, not what was planned")
    return WrittenSegment(
        object_bytes=object_bytes,
        crc32c=object_crc32c(store, key, object_bytes),
        counts=footer.counts,
        max_timestamp_ms=footer.max_timestamp_ms,
        raw_batch_count=footer.raw_batch_count,
    )


def existing_sources(
    store: BlockingStore, sources: Sequence[SourceRange], threads: ThreadPoolExecutor
) -> Sequence[SourceRange]:
    """Returns the sources whose object exists.

    The newest source stays in any case: it says up to when the topic was written.
    """
    keys = sorted({source.object_key for source in sources}, key=lambda key: key.rpartition("/")[2])

    def exists(key: ObjectKey) -> bool:
        try:
            store.head(key)
        except ObjectNotFound:
            return False
        return True

    there = {key for key, found in zip(keys, threads.map(exists, keys), strict=True) if found}
    there.update(keys[-1:])
    return [source for source in sources if source.object_key in there]


def object_crc32c(store: BlockingStore, key: ObjectKey, object_bytes: int) -> int:
    """CRC32C over the whole object, read piece by piece."""
    value = 0
    for start in range(0, object_bytes, _COPY_BYTES):
        piece = store.get_range(key, start, min(_COPY_BYTES, object_bytes - start))
        value = crc32c(piece, value)
    return value


def read_footer(store: BlockingStore, key: ObjectKey, object_bytes: int) -> SegmentFooter:
    """Read and check the footer. Raises: CorruptSegment, and what the store raises."""
    return _footer_and_tail(store, key, object_bytes)[0]


def read_footer_and_sources(
    store: BlockingStore, key: ObjectKey, object_bytes: int
) -> tuple[SegmentFooter, bytes]:
    """As `read_footer`, with the bytes of the sources before the footer."""
    footer, tail = _footer_and_tail(store, key, object_bytes)
    end = len(tail) - len(footer.footer_bytes)
    if footer.sources_bytes <= end:
        return footer, tail[end - footer.sources_bytes : end]
    start = footer.footer_start - footer.sources_bytes
    return footer, store.get_range(key, start, footer.sources_bytes)


def _footer_and_tail(
    store: BlockingStore, key: ObjectKey, object_bytes: int
) -> tuple[SegmentFooter, bytes]:
    guess = min(_TAIL_BYTES_MIN + object_bytes // _TAIL_SHARE, _TAIL_BYTES_MAX, object_bytes)
    tail = store.get_range(key, object_bytes - guess, guess)
    length = footer_length(key, tail, object_bytes)
    if length > guess:
        tail = store.get_range(key, object_bytes - length, length)
    return parse_footer(key, tail[-length:], object_bytes), tail
