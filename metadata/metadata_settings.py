"""The configuration section of the coordinator and its helpers."""

from dataclasses import dataclass

from wal.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """Limits of the coordinator, its SQLite state, segment planning and the life of files."""

    max_commit_age_ms: int = setting(
        "diskless.coordinator.max.commit.age.ms",
        15 * 60_000,
        minimum=1_000,
        maximum=24 * 3_600_000,
        why="lower: chunks recovered after a long outage are refused; higher: answers of committed "
        "files are kept longer and an orphan can only be told later",
    )
    sink_stage_max_age_ms: int = setting(
        "sink.stage.max.age.ms",
        24 * 3_600_000,
        minimum=1_000,
        maximum=30 * 24 * 3_600_000,
        why="how long after a task began with a staged object a sink may commit it; older ones are "
        "deleted; lower: a batch that takes longer can never be committed; higher: what failed "
        "attempts leave behind is paid for longer",
    )
    sink_expiration_ms: int = setting(
        "sink.id.expiration.ms",
        30 * 24 * 3_600_000,
        minimum=1,
        why="a sink that commits nothing for longer is forgotten, and may start at any batch; "
        "lower: a stream that is started again after that long writes its last batch twice",
    )
    pending_operations_max: int = setting(
        "diskless.coordinator.pending.operations.max",
        4_096,
        minimum=1,
        maximum=1_000_000,
        why="operations waiting to be decided; lower: callers wait earlier; higher: more memory",
    )
    group_records_max: int = setting(
        "diskless.coordinator.group.records.max",
        1_024,
        minimum=1,
        maximum=100_000,
        why="records in one append to the metadata log; lower: more fsyncs under load; higher: "
        "longer SQLite transactions",
    )
    commit_batches_max: int = setting(
        "diskless.coordinator.commit.batches.max",
        50_000,
        minimum=1,
        maximum=1_000_000,
        why="batches of one WAL object; bounds the metadata record and the time it takes to apply",
    )
    producer_cache_max: int = setting(
        "diskless.coordinator.producer.cache.max",
        100_000,
        minimum=1,
        maximum=10_000_000,
        why="producer states kept in memory; a miss costs one look-up in SQLite",
    )
    producer_expiration_ms: int = setting(
        "producer.id.expiration.ms",
        24 * 3_600_000,
        minimum=1,
        why="a producer silent for longer on a partition is forgotten there, and may start at any "
        "sequence; lower: a paused producer loses its protection against duplicates",
    )
    transactional_id_expiration_ms: int = setting(
        "transactional.id.expiration.ms",
        7 * 24 * 3_600_000,
        minimum=1,
        why="a transactional id that does nothing for longer, and has nothing open, is forgotten; "
        "lower: a producer that pauses for longer is refused and begins anew; higher: more memory",
    )
    transaction_max_timeout_ms: int = setting(
        "transaction.max.timeout.ms",
        15 * 60_000,
        minimum=1,
        maximum=24 * 3_600_000,
        why="producers that ask for a longer transaction.timeout.ms are refused; higher: one that "
        "is gone holds up readers of committed records, and rolling, for longer",
    )
    state_readers: int = setting(
        "diskless.coordinator.state.readers",
        4,
        minimum=1,
        maximum=64,
        why="threads that answer find_batches; more than cores only helps with a slow disk",
    )
    metadata_partitions: int = setting(
        "diskless.metadata.topic.num.partitions",
        1,
        minimum=1,
        maximum=1_000,
        why="coordinators that share the work; more: a file is committed by more of them, each of "
        "which appends to a log of its own; can be raised, which serves new partitions only",
    )
    session_timeout_ms: int = setting(
        "broker.session.timeout.ms",
        9_000,
        minimum=100,
        maximum=600_000,
        why="a broker silent for longer is taken out of the cluster; lower: a pause looks like a "
        "death; higher: clients are sent to a dead broker for longer",
    )
    follow_interval_ms: int = setting(
        "diskless.metadata.follow.interval.ms",
        500,
        minimum=1,
        maximum=60_000,
        why="how often a broker that is not fed by the leader of an object metadata log looks for "
        "what it has appended; lower: more requests per broker and metadata partition; higher: "
        "consumers there see new records later",
    )
    rebalance_interval_ms: int = setting(
        "diskless.metadata.leader.rebalance.interval.ms",
        60_000,
        minimum=100,
        maximum=86_400_000,
        why="how long the broker that should lead a metadata partition must have been there before "
        "its leader resigns to it; a broker makes three such moves in that time; lower: restarts "
        "move more; higher: one broker leads much for longer after a restart",
    )
    may_lead: bool = setting(
        "diskless.coordinator.candidate",
        True,
        why="whether this broker may lead metadata partitions; false leaves that to others",
    )
    segment_bytes: int = setting(
        "segment.bytes",
        128 << 20,
        minimum=1,
        maximum=2**31 - 1,
        why="a segment is planned when this much is unrolled; lower: more, smaller Parquet files; "
        "higher: longer until Spark sees the data, longer roll tasks",
    )
    segment_ms: int = setting(
        "segment.ms",
        10 * 60_000,
        minimum=1,
        why="unrolled data older than this is planned even when it is little",
    )
    segment_merge_bytes: int = setting(
        "segment.merge.bytes",
        512 << 20,
        minimum=0,
        maximum=2**40,
        why="small neighbouring segments are merged up to this size; lower: more files; higher: "
        "longer merge tasks; 0: none are merged",
    )
    plans_per_call_max: int = setting(
        "diskless.segment.plans.per.call.max",
        1_000,
        minimum=1,
        maximum=100_000,
        why="plans outstanding at any time, and so the size of the answer; lower: more calls for "
        "a backlog; plans that cannot be rolled count until their topic is deleted",
    )
    file_delete_grace_ms: int = setting(
        "diskless.file.delete.grace.ms",
        60_000,
        minimum=0,
        why="time between an object's last reference and its deletion; must exceed a fetch plus "
        "the age of any cached extent, or a reader in flight meets a missing object",
    )
    table_owner_max_ms: int = setting(
        "table.owner.max.ms",
        24 * 3_600_000,
        minimum=0,
        why="how long a segment that was deleted or replaced is kept for the table of its topic "
        "when no commit of the table says that it may go; lower: a tiering job that is away for "
        "longer leaves a table that names missing objects; higher: deleted data stays longer then",
    )
    orphan_scan_interval_ms: int = setting(
        "diskless.coordinator.orphan.scan.interval.ms",
        3_600_000,
        minimum=1_000,
        why="time in which the whole bucket is looked through once for WAL objects that nobody "
        "committed; lower: more LIST requests; higher: orphans are paid for longer",
    )
    orphan_scan_grace_ms: int = setting(
        "diskless.coordinator.orphan.scan.grace.period.ms",
        24 * 3_600_000,
        minimum=0,
        why="how much longer than diskless.coordinator.max.commit.age.ms an object is left alone "
        "before anybody is asked whether it is an orphan",
    )
    orphan_scan_page_max: int = setting(
        "diskless.coordinator.orphan.scan.page.max",
        1_000,
        minimum=1,
        maximum=10_000,
        why="objects listed, asked about and deleted at a time; S3 lists 1000 per request",
    )
    clock_skew_max_ms: int = setting(
        "diskless.coordinator.clock.skew.max.ms",
        5 * 60_000,
        minimum=0,
        why="how far the clocks of brokers and store may be apart; added to the age of an orphan",
    )
    file_cleaner_interval_ms: int = setting(
        "diskless.file.cleaner.interval.ms",
        30_000,
        minimum=10,
        why="pause between two passes of the background work on files without live batches",
    )
    file_cleaner_batch_max: int = setting(
        "diskless.file.cleaner.batch.max",
        1_000,
        minimum=1,
        maximum=100_000,
        why="objects deleted or handed over in one pass; bounds its memory and the size of its "
        "metadata record",
    )
