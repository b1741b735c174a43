"""Keeps the newest record of each key in a share, for option `latest`.

    keys of the share -> without those that come again behind it -> rows at the offsets left

A share is one of several of its partition, so a task reads the keys of all records behind its share
too, up to where the read ends, and their values never. What it keeps in memory are the keys of its
own share, and some of the others' at a time: a plan has `SHARES_MAX` shares of a partition at most,
so that keys are read that many times at most.

What counts as newest is what key compaction would leave, of the records of the read: a tombstone
removes its key, itself included; records without a key and batches that nobody can decode stay. The
bytes of whole keys are compared, never hashes alone.

All extents are looked up once, at the beginning. A compaction that ends meanwhile may remove what
was the newest below the end of the read for the sake of a record beyond it; the objects of before
are read then, as long as they are kept.

Failure cases: those of `share_rows`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from metadata.operations import AbortedTransaction, Extent
from tiering.source.planning import Share
from tiering.source.rows.share_rows import Wanted, share_tables
from tiering.source.topic_log import Located, TopicLog
from wal.columns import Int64s
from wal.coordinates import TopicIdPartition
from wal.stores.blocking_store import BlockingStore

SHARES_MAX: Final = 16
"""Of a partition."""

KEYS_BYTES: Final = 64 << 20
"""Keys that are compared at a time, at least."""

_KEYS: Final = pa.schema(
    [
        pa.field("offset", pa.int64()),
        pa.field("tombstone", pa.bool_()),
        # More than 2 GiB of keys may come together.
        pa.field("key", pa.large_binary()),
    ]
)


def fewer_shares(shares: Sequence[Share], count_max: int = SHARES_MAX) -> Sequence[Share]:
    """Neighbours of one partition put together, as many of them as it takes."""
    together = -(-len(shares) // count_max)
    found: list[Share] = []
    sizes: list[int] = []
    for share in shares:
        if found and found[-1].end == share.start and sizes[-1] < together:
            found[-1] = found[-1]._replace(end=share.end)
            sizes[-1] += 1
        else:
            found.append(share)
            sizes.append(1)
    return found


def latest_tables(
    log: TopicLog,
    partition: TopicIdPartition,
    share: Share,
    end: int,
    store: BlockingStore,
    wanted: Wanted,
) -> Iterator[pa.Table]:
    """The rows of a share that are the newest of their key among those below `end`."""
    extents = _all(log.located(partition, share.start, end))
    offsets = newest_offsets(
        _keys(log, partition, share, store, wanted, extents),
        _keys(log, partition, Share(share.partition, share.end, end), store, wanted, extents),
    )
    if len(offsets):
        wanted = replace(wanted, offsets=offsets)
        yield from share_tables(log, partition, share, store, wanted, known=extents)


def newest_offsets(
    own: Iterable[pa.Table], later: Iterable[pa.Table], *, keys_bytes: int = KEYS_BYTES
) -> Int64s:
    """The offsets of those of `own` that stay, in their order; `later` are the rows behind them.

    Both are tables of `offset`, `tombstone` and `key` by ascending offsets.
    """
    without_key: list[Int64s] = []
    newest = _KEYS.empty_table()
    for rows in _some(own, keys_bytes):
        without_key.append(rows.column("offset").filter(rows.column("key").is_null()).to_numpy())
        newest = _newest(pa.concat_tables([newest, rows.filter(rows.column("key").is_valid())]))
    for rows in _some(later, max(keys_bytes, newest.nbytes)) if newest.num_rows else ():
        again = pc.is_in(newest.column("key"), value_set=_distinct(rows.column("key")))
        newest = newest.filter(pc.invert(again))
        if not newest.num_rows:
            break
    live = newest.column("offset").filter(pc.invert(newest.column("tombstone")))
    return np.sort(np.concatenate([live.to_numpy(), *without_key]))


def _keys(
    log: TopicLog,
    partition: TopicIdPartition,
    share: Share,
    store: BlockingStore,
    wanted: Wanted,
    extents: Located,
) -> Iterator[pa.Table]:
    # Without bounds of time: an older record is not the newest because that one is not asked for.
    asked = Wanted(columns=_KEYS.names, fail_on_data_loss=wanted.fail_on_data_loss)
    return share_tables(log, partition, share, store, asked, known=extents)


def _all(pages: Iterable[Located]) -> Located:
    extents: list[Extent] = []
    aborted: dict[AbortedTransaction, None] = {}
    for page in pages:
        extents += page.extents
        aborted |= dict.fromkeys(page.aborted)
    return Located(extents, tuple(aborted))


def _some(tables: Iterable[pa.Table], size_bytes: int) -> Iterator[pa.Table]:
    """Neighbours together, until they have `size_bytes`."""
    run: list[pa.Table] = []
    run_bytes = 0
    for rows in tables:
        run.append(rows.cast(_KEYS))
        run_bytes += run[-1].nbytes
        if run_bytes >= size_bytes:
            yield pa.concat_tables(run)
            run, run_bytes = [], 0
    if run:
        yield pa.concat_tables(run)


def _newest(rows: pa.Table) -> pa.Table:
    """The last row of each key."""
    last = rows.group_by("key", use_threads=False).aggregate([("offset", "max")])
    return rows.filter(pc.is_in(rows.column("offset"), value_set=_distinct(last["offset_max"])))


def _distinct(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
