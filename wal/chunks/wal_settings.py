"""The `wal.*` section of the configuration: chunks, buffers, uploads, tail cache.

`diskless.config` fills it; the write loop, the chunk directory, the buffer pool and the uploader
take it as a plain value. The defaults are for stores that bill requests; a directory has others.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from wal.settings import setting, settings_of

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class WalSettings:
    """Limits of the write path; bytes and milliseconds."""

    chunk_max_bytes: int = setting(
        "wal.chunk.max.bytes",
        8 * MIB,
        minimum=64 * KIB,
        maximum=1 * GIB,
        why="smaller: more PUTs per second; larger: more to upload again after a crash",
    )
    chunk_max_batches: int = setting(
        "wal.chunk.max.batches",
        16_384,
        minimum=1,
        maximum=1_000_000,
        why="smaller: more PUTs when batches are tiny; larger: bigger commits and footers",
    )
    chunk_overflow_bytes: int = setting(
        "wal.chunk.overflow.bytes",
        128 * MIB,
        minimum=1 * MIB,
        maximum=2 * GIB,
        why="below socket.request.max.bytes: legal requests are refused; larger: larger objects",
    )
    chunk_sync: bool = setting(
        "wal.chunk.sync",
        False,
        why="true: an fdatasync per file and append, for a promise that the object store gives",
    )
    commit_interval_ms: int = setting(
        "wal.commit.interval.ms",
        250,
        minimum=1,
        maximum=60_000,
        why="the longest wait for more batches; smaller: more PUTs per second; larger: batches "
        "that come one by one wait longer",
    )
    commit_early: bool = setting(
        "wal.commit.early",
        True,
        why="false: a chunk that is not full waits for the commit interval, whatever is under way",
    )
    commit_early_chunks: int = setting(
        "wal.commit.early.chunks",
        4,
        minimum=1,
        maximum=64,
        why="chunks under way below which another is sealed in a pause of the producers; smaller: "
        "larger chunks; larger: shorter waits behind slow PUTs",
    )
    commit_early_bytes: int = setting(
        "wal.commit.early.bytes",
        0,
        minimum=0,
        maximum=1 * GIB,
        why="what a chunk must hold for that; smaller: more PUTs; larger: small batches wait for "
        "the answers of those before them",
    )
    puts_per_second_max: int = setting(
        "wal.puts.per.second.max",
        20,
        minimum=1,
        maximum=100_000,
        why="smaller: fewer requests to pay for, longer waits; larger: more objects and commits",
    )
    puts_large_bytes: int = setting(
        "wal.puts.large.bytes",
        3 * MIB,
        minimum=0,
        maximum=1 * GIB,
        why="from which on a PUT does not count in wal.puts.per.second.max, and a chunk is sealed "
        "while uploads are free; smaller: more PUTs for a GiB; larger: less of what producers have "
        "in flight is uploaded at a time; 0: every PUT counts",
    )
    append_queue_max_bytes: int = setting(
        "wal.append.queue.max.bytes",
        1 * GIB,
        minimum=1 * MIB,
        maximum=64 * GIB,
        why="a net below queued.max.request.bytes and 64 KiB for each connection, which they meet "
        "first and which must be smaller; past it appends are refused (retriably)",
    )
    buffer_pool_max_bytes: int = setting(
        "wal.buffer.pool.max.bytes",
        64 * MIB,
        minimum=1 * MIB,
        maximum=16 * GIB,
        why="smaller: buffers are allocated anew under load; larger: memory kept while idle",
    )
    buffer_max_bytes: int = setting(
        "wal.buffer.max.bytes",
        256 * MIB,
        minimum=1 * MIB,
        maximum=1024 * GIB,
        why="smaller: a short store outage stops producers; larger: more disk and a longer backlog",
    )
    upload_concurrency: int = setting(
        "wal.upload.concurrency",
        8,
        minimum=1,
        maximum=256,
        why="smaller: PUT latency limits throughput; larger: more sockets and more 1 MiB buffers",
    )
    upload_second_percent: int = setting(
        "wal.upload.second.percent",
        2,
        minimum=0,
        maximum=50,
        why="of the PUTs of WAL objects, how many may be made a second time because they take far "
        "longer than others do; 0: an outlier of the store is waited for; larger: more requests",
    )
    retry_backoff_ms: int = setting(
        "wal.retry.backoff.ms",
        100,
        minimum=1,
        maximum=60_000,
        why="smaller: a failing store is asked more often; larger: one lost request costs more",
    )
    retry_backoff_max_ms: int = setting(
        "wal.retry.backoff.max.ms",
        5_000,
        minimum=1,
        maximum=600_000,
        why="smaller: a long outage is probed harder; larger: recovery after an outage is noticed"
        " later",
    )
    cache_max_bytes: int = setting(
        "wal.cache.max.bytes",
        1 * GIB,
        minimum=0,
        maximum=64 * 1024 * GIB,
        why="smaller: tail reads go to the object store earlier; larger: more local disk",
    )
    cache_memory_max_bytes: int = setting(
        "wal.cache.memory.max.bytes",
        32 * MIB,
        minimum=0,
        maximum=1024 * GIB,
        why="what it takes to know where the batches of kept chunks lie; smaller: a broker whose "
        "chunks are small keeps fewer of them than wal.cache.max.bytes allows",
    )
    quarantine_max_bytes: int = setting(
        "wal.quarantine.max.bytes",
        256 * MIB,
        minimum=0,
        maximum=64 * 1024 * GIB,
        why="smaller: evidence of damaged chunks goes sooner; larger: more local disk",
    )


def for_directory(settings: WalSettings, explicit: Collection[str]) -> WalSettings:
    """`settings` where a PUT is a local file, which costs no money; `explicit` keys stay."""
    changed: dict[str, Any] = {
        name: DIRECTORY_DEFAULTS[setting.key]
        for name, setting in settings_of(WalSettings)
        if setting.key in DIRECTORY_DEFAULTS and setting.key not in explicit
    }
    return replace(settings, **changed)


DIRECTORY_DEFAULTS: Final[Mapping[str, int]] = {
    "wal.commit.interval.ms": 10,
    "wal.commit.early.bytes": 1 * MIB,
    "wal.puts.large.bytes": 0,
    "wal.puts.per.second.max": 250,
    "wal.upload.second.percent": 0,
}
