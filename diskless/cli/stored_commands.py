"""The commands that read or write what is stored, without a broker.

They are verify, rebuild, cluster rotate-secret, and dumps.
"""

import argparse
from getpass import getuser
from pathlib import Path

from diskless.cli.options import Commands, add_data, command, group, key_value
from wal.errors import InvalidSettings


def add_verify(commands: Commands) -> None:
    verify = command(
        commands,
        "verify",
        _verify,
        help="check every invariant of what is stored",
        description="Check chunks, metadata log, SQLite state, WAL objects and segments of a "
        "stopped broker. Exit status 1 and a list when something is broken.",
    )
    add_data(verify)
    verify.add_argument("--object-store", metavar="URL", help="default: DIR/objects")
    verify.add_argument(
        "--typed-values",
        choices=("sample", "all", "none"),
        default="sample",
        help="make typed columns once more from the bytes and compare: those of one row group of "
        "each segment (default), of all, or of none. Needs diskless[types]",
    )


def _verify(options: argparse.Namespace) -> int:
    from diskless.cli.tables import print_tables, shown_progress, table
    from diskless.cli.verify import TypedValues, verify

    with shown_progress() as progress:
        report = verify(
            options.data,
            object_store_url=options.object_store,
            progress=progress,
            typed_values=TypedValues(options.typed_values),
        )
    checked = table("checked", "count")
    for name, count in report.checked.items():
        checked.add_row(name, f"{count:,}")
    print_tables(checked)
    for violation in report.violations:
        print(f"BROKEN {violation}")
    print(f"{len(report.violations)} broken" if report.violations else "all invariants hold")
    return 1 if report.violations else 0


def add_rebuild(commands: Commands) -> None:
    rebuild = command(
        commands,
        "rebuild",
        _rebuild,
        help="rebuild lost metadata from the bucket",
        description="Write a new metadata log from the WAL objects and segments in the bucket, for "
        "when metadata log, snapshots and SQLite are gone. Exit status 3 when something could not "
        "be known; the report says what.",
    )
    add_data(rebuild)
    rebuild.add_argument(
        "--object-store", "--store", metavar="URL", help="as for serve; default: DIR/objects"
    )
    rebuild.add_argument(
        "--metadata-log",
        choices=("local", "object"),
        default="local",
        help="where the brokers' diskless.metadata.log is; default: %(default)s",
    )
    rebuild.add_argument("--dry-run", action="store_true", help="report, and write nothing")
    rebuild.add_argument("--json", action="store_true", help="the report as JSON")
    rebuild.add_argument(
        "--force", action="store_true", help="set metadata aside that is there still"
    )
    rebuild.add_argument(
        "--orphans",
        choices=("include", "skip"),
        default="include",
        help="objects whose commit nobody noted, the last ones of each broker: include them, which "
        "may bring records that were never acknowledged, or skip them, which loses some that were; "
        "default: %(default)s",
    )
    rebuild.add_argument(
        "--transactions",
        choices=("abort", "commit"),
        default="abort",
        help="what becomes of transactions of which nobody noted how they ended, the open ones and "
        "those that ended in the last seconds: the report names them; default: %(default)s",
    )
    rebuild.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="ID=NAME",
        help="the name of a topic, by its id",
    )


def _rebuild(options: argparse.Namespace) -> int:
    import json
    from uuid import UUID

    from diskless.cli.rebuild import Rebuild, print_rebuilt, rebuild
    from diskless.cli.tables import shown_progress
    from metadata.rebuild.facts import RebuildOptions

    names: dict[UUID, str] = {}
    for pair in options.name:
        topic_id, name = key_value(pair)
        try:
            names[UUID(topic_id)] = name
        except ValueError as error:
            raise InvalidSettings(f"--name {pair}: {topic_id!r} is no topic id") from error
    request = Rebuild(
        data=options.data,
        object_store_url=options.object_store,
        is_dry_run=options.dry_run,
        force=options.force,
        is_log_in_store=options.metadata_log == "object",
        options=RebuildOptions(
            include_orphans=options.orphans == "include",
            commits_open_transactions=options.transactions == "commit",
            topic_names=names,
        ),
    )
    with shown_progress() as progress:
        report = rebuild(request, progress=progress)
    if not options.dry_run:
        _note_rebuild(request.data)
    if options.json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        print_rebuilt(report)
        print("nothing was written" if options.dry_run else f"metadata rebuilt in {options.data}")
    return 0 if report.is_certain else 3


def add_cluster(commands: Commands) -> None:
    cluster = group(commands, "cluster", "what the brokers on one bucket share")
    rotation = command(
        cluster,
        "rotate-secret",
        _rotate_secret,
        help="give the brokers another secret by which they log in to each other",
        description="Put a new secret into the bucket. Brokers take it up by themselves, within "
        "broker.secret.follow.interval.ms; the one before ends ten minutes later. Until then the "
        "command changes nothing, so it may be given again after a failure.",
    )
    rotation.add_argument("--object-store", metavar="URL", required=True, help="as for serve")


def _rotate_secret(options: argparse.Namespace) -> int:
    import asyncio
    import random
    from datetime import UTC, datetime

    from diskless.sasl.cluster_secret import Rotation, rotate
    from wal.clock import SystemClock
    from wal.stores.store_url import open_store

    clock, rng = SystemClock(), random.SystemRandom()

    async def rotated() -> Rotation:
        async with open_store(options.object_store, clock=clock, rng=rng) as store:
            return await rotate(store, clock, rng)

    rotation = asyncio.run(rotated())
    ends = datetime.fromtimestamp(rotation.ends_ms / 1000, UTC).isoformat(timespec="seconds")
    print(
        f"{'made' if rotation.is_new else 'there is'} secret {rotation.number}; the one before it "
        f"ends at {ends}"
    )
    return 0


def _note_rebuild(data: Path) -> None:
    """Say so in the audit log that the settings name."""
    from diskless.audit.audit_log import AuditLog
    from diskless.audit.audit_sinks import audit_sink
    from diskless.config import load_config
    from wal.clock import SystemClock

    settings = load_config().audit
    if settings.path:
        with audit_sink(settings) as sink:
            AuditLog(sink, SystemClock()).rebuilt(getuser(), str(data.resolve()))


def add_dumps(commands: Commands) -> None:
    chunks = group(commands, "chunk", "look into local chunk files")
    chunk = command(chunks, "dump", _chunk_dump, help="print the batches of a chunk")
    chunk.add_argument("file", type=Path, help="either of the chunk's two files")
    objects = group(commands, "wal", "look into WAL objects")
    wal = command(
        objects, "dump", _wal_dump, help="print header, footer and batches of a WAL object"
    )
    wal.add_argument("object", help="a path, or a key together with --object-store")
    wal.add_argument("--object-store", metavar="URL")


def _chunk_dump(options: argparse.Namespace) -> int:
    from diskless.cli.dumps.stored_dump import dump_chunk
    from diskless.cli.tables import print_dump

    print_dump(dump_chunk(options.file))
    return 0


def _wal_dump(options: argparse.Namespace) -> int:
    import asyncio
    import random

    from diskless.cli.dumps.stored_dump import Dump, dump_wal_index
    from diskless.cli.tables import print_dump
    from wal.chunks.wal_object import WalObjectReader
    from wal.clock import SystemClock
    from wal.coordinates import ObjectKey
    from wal.stores.store_url import open_store

    url, key = options.object_store, ObjectKey(options.object)
    if url is None:
        path = Path(options.object).resolve()
        url, key = f"file://{path.parent}", ObjectKey(path.name)

    async def dump() -> Dump:
        async with open_store(url, clock=SystemClock(), rng=random.Random(0)) as store:
            return dump_wal_index(key, await WalObjectReader(store).read_index(key))

    print_dump(asyncio.run(dump()))
    return 0
