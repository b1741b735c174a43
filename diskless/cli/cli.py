"""The command line: one sub-command, one function.

`serve` runs a broker. `topic`, `quota` and `tier` are clients of a running one. `verify`, `chunk
dump` and `wal dump` read what is stored, without a broker, and `metadata` does with or without one;
`rebuild` writes lost metadata anew. Everything heavy is imported inside the command that needs it,
so that `diskless --help` is instant and a broker never imports Spark.

Exit status: 0 it worked, 1 it did not (or `verify` found a broken invariant), 2 the command line or
the configuration does not make sense, 3 `rebuild` worked and has doubts to tell.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from wal.errors import DisklessError, InvalidSettings

DEFAULT_LISTEN: Final = "127.0.0.1:9092"

_EPILOG: Final = """\
first steps:
  diskless serve --data ./data                       a broker on 127.0.0.1:9092
  diskless topic create flights --partitions 6       (or let the first producer create it)
  kcat -b 127.0.0.1:9092 -t flights -P               type records, ctrl-D to send
  kcat -b 127.0.0.1:9092 -t flights -C -e            read them back
  diskless tier --once --all                         roll everything into Parquet (needs Java)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the `diskless` command."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except InvalidSettings as error:
        print(f"diskless: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Who read the output has seen enough. What is still buffered must go somewhere at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (DisklessError, OSError) as error:
        print(f"diskless: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="diskless",
        description="Kafka-compatible logs whose only durable store is an S3-compatible bucket.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    serve = commands.add_parser(
        "serve",
        help="run a broker",
        description="Run a broker in the foreground until SIGTERM or SIGINT.",
        epilog="`diskless config` lists every configuration key; each can be set in --config, as "
        "--set KEY=VALUE, or in the environment as DISKLESS_ and the key in capitals.",
    )
    serve.add_argument("--data", type=Path, required=True, metavar="DIR", help="data directory")
    serve.add_argument(
        "--listen", default=DEFAULT_LISTEN, metavar="HOST:PORT", help="default: %(default)s"
    )
    serve.add_argument(
        "--object-store",
        metavar="URL",
        help="file:///dir, s3://bucket/prefix[?endpoint_url=...] or memory://name; "
        "default: DIR/objects",
    )
    serve.add_argument("--config", type=Path, metavar="FILE", help="key=value lines")
    serve.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="one configuration key"
    )
    serve.set_defaults(run=_serve)

    topic = commands.add_parser("topic", help="create, list, describe, alter or delete topics")
    topics = topic.add_subparsers(title="commands", required=True, metavar="COMMAND")
    create = topics.add_parser("create", help="create a topic")
    create.add_argument("name")
    create.add_argument("--partitions", type=int, default=-1, help="default: num.partitions")
    create.add_argument(
        "--config", action="append", default=[], metavar="KEY=VALUE", help="topic configuration"
    )
    create.set_defaults(run=_topic_create)
    listing = topics.add_parser("list", help="list all topics")
    listing.set_defaults(run=_topic_list)
    describe = topics.add_parser("describe", help="partitions, offsets and configuration")
    describe.add_argument("name")
    describe.set_defaults(run=_topic_describe)
    alter = topics.add_parser(
        "alter",
        help="change configuration, add partitions",
        description="Change a topic while it is in use. A topic can grow but not shrink; records "
        "stay where they are.",
    )
    alter.add_argument("name")
    alter.add_argument("--partitions", type=int, metavar="N", help="how many there shall be in all")
    alter.add_argument(
        "--config", action="append", default=[], metavar="KEY=VALUE", help="set a topic config"
    )
    alter.add_argument(
        "--delete-config",
        action="append",
        default=[],
        metavar="KEY",
        help="let the topic follow the broker's default again",
    )
    alter.set_defaults(run=_topic_alter)
    delete = topics.add_parser("delete", help="delete topics and their records")
    delete.add_argument("name", nargs="+")
    delete.set_defaults(run=_topic_delete)
    for command in (create, listing, describe, alter, delete):
        _add_bootstrap(command)

    _add_quota(commands)

    tier = commands.add_parser(
        "tier",
        help="roll committed batches into Parquet segments with Spark",
        description="Ask the broker what is due, roll it on Spark, commit the segments. Repeating "
        "it after a failure converges on the same files.",
    )
    _add_bootstrap(tier)
    tier.add_argument("--once", action="store_true", help="one pass, then exit")
    tier.add_argument(
        "--all",
        action="store_true",
        help="roll partial segments too, without waiting for segment.bytes or segment.ms",
    )
    tier.add_argument("--master", default="local[*]", help="Spark master; default: %(default)s")
    tier.add_argument(
        "--interval", type=float, default=60.0, metavar="SECONDS", help="between passes"
    )
    tier.add_argument(
        "--object-store", metavar="URL", help="when Spark reaches the bucket by another URL"
    )
    tier.set_defaults(run=_tier)

    verify = commands.add_parser(
        "verify",
        help="check every invariant of what is stored",
        description="Check chunks, metadata log, SQLite state, WAL objects and segments of a "
        "stopped broker. Exit status 1 and a list when something is broken.",
    )
    verify.add_argument("--data", type=Path, required=True, metavar="DIR")
    verify.add_argument("--object-store", metavar="URL", help="default: DIR/objects")
    verify.set_defaults(run=_verify)

    rebuild = commands.add_parser(
        "rebuild",
        help="rebuild lost metadata from the bucket",
        description="Write a new metadata log from the WAL objects and segments in the bucket, for "
        "when metadata log, snapshots and SQLite are gone. Exit status 3 when something could not "
        "be known; the report says what.",
    )
    rebuild.add_argument("--data", type=Path, required=True, metavar="DIR", help="data directory")
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
        "--name",
        action="append",
        default=[],
        metavar="ID=NAME",
        help="the name of a topic, by its id",
    )
    rebuild.set_defaults(run=_rebuild)

    chunk = commands.add_parser("chunk", help="look into local chunk files")
    chunks = chunk.add_subparsers(title="commands", required=True, metavar="COMMAND")
    chunk_dump = chunks.add_parser("dump", help="print the batches of a chunk")
    chunk_dump.add_argument("file", type=Path, help="any of the chunk's four files")
    chunk_dump.set_defaults(run=_chunk_dump)

    wal = commands.add_parser("wal", help="look into WAL objects")
    wals = wal.add_subparsers(title="commands", required=True, metavar="COMMAND")
    wal_dump = wals.add_parser("dump", help="print header, footer and batches of a WAL object")
    wal_dump.add_argument("object", help="a path, or a key together with --object-store")
    wal_dump.add_argument("--object-store", metavar="URL")
    wal_dump.set_defaults(run=_wal_dump)

    _add_metadata_commands(commands)

    config = commands.add_parser("config", help="list every configuration key of the broker")
    config.set_defaults(run=_config)
    return parser


_DUMP_EPILOG: Final = """\
examples:
  diskless metadata dump                                  ask the broker on 127.0.0.1:9092
  diskless metadata dump --follow --type LeaderChange     watch leaders come and go
  diskless metadata dump --partition 0 --from 1000 --limit 5 --verbose
  diskless metadata dump --json | jq 'select(.type == "FileCommitted").fields.batch_count'
  diskless metadata dump --data ./data                    a stopped broker's local log
  diskless metadata dump --store s3://bucket/prefix       the log of brokers that share a bucket

Partition k is the log of coordinator k; 0 also holds topics, configs and brokers. What the fields
mean is in docs/formats.md. The same log is the topic __diskless_metadata for any Kafka client. The
shell's quotes keep names from being split; types may also be given as api keys.
"""

_SNAPSHOTS_EPILOG: Final = """\
examples:
  diskless metadata snapshots --store s3://bucket/prefix
  diskless metadata snapshots --data ./data --verify      load and check each, too
  diskless metadata snapshots --data ./data --json

A snapshot is usable only after whoever took it has loaded it again and checked every row. It is
without a manifest while it is being taken, and after a crash until it is cleaned away.
"""


def _add_metadata_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    metadata = commands.add_parser("metadata", help="look into metadata logs and snapshots")
    actions = metadata.add_subparsers(title="commands", required=True, metavar="COMMAND")
    dump = actions.add_parser(
        "dump",
        help="print the decoded records of the metadata log, one per line",
        description="Print the records of the metadata log: partition:offset, time in UTC, type, "
        "fields.",
        epilog=_DUMP_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = dump.add_mutually_exclusive_group()
    source.add_argument(
        "--bootstrap",
        default=DEFAULT_LISTEN,
        metavar="HOST:PORT",
        help="ask a running broker; default: %(default)s",
    )
    source.add_argument("--data", type=Path, metavar="DIR", help="a stopped broker's local log")
    source.add_argument("--store", metavar="URL", help="an object store's log, s3:// or file://")
    dump.add_argument(
        "--partition", type=int, action="append", default=[], metavar="K", help="default: all"
    )
    dump.add_argument(
        "--from", dest="from_offset", type=_offset, default=0, metavar="OFFSET", help="first shown"
    )
    dump.add_argument(
        "--to", dest="to_offset", type=_offset, metavar="OFFSET", help="first not shown any more"
    )
    dump.add_argument(
        "--type", action="append", default=[], metavar="NAME", help="such records only; repeatable"
    )
    dump.add_argument("--limit", type=_offset, metavar="N", help="stop after N records")
    dump.add_argument("--follow", action="store_true", help="wait for more, until ctrl-C")
    dump.add_argument("--verbose", action="store_true", help="each batch of FileCommitted, too")
    dump.add_argument("--json", action="store_true", help="one JSON object per line")
    dump.set_defaults(run=_metadata_dump)

    snapshots = actions.add_parser(
        "snapshots",
        help="list the snapshots of the metadata",
        epilog=_SNAPSHOTS_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    place = snapshots.add_mutually_exclusive_group(required=True)
    place.add_argument("--store", metavar="URL", help="the brokers' object store")
    place.add_argument("--data", type=Path, metavar="DIR", help="the same as file://DIR/objects")
    snapshots.add_argument(
        "--partition", type=int, action="append", default=[], metavar="K", help="default: all"
    )
    snapshots.add_argument(
        "--verify", action="store_true", help="load each and check every row; status 1 if one fails"
    )
    snapshots.add_argument("--json", action="store_true", help="one JSON object per line")
    snapshots.set_defaults(run=_metadata_snapshots)


def _offset(text: str) -> int:
    """An offset or a count, for argparse."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def _add_bootstrap(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bootstrap", default=DEFAULT_LISTEN, metavar="HOST:PORT", help="default: %(default)s"
    )


def _serve(options: argparse.Namespace) -> int:
    with _hypothesis_left_out():
        from diskless.cli.serve import serve
        from diskless.config import load_config

    overrides = dict(_key_value(pair) for pair in options.set)
    if options.object_store is not None:
        overrides["object.store.url"] = options.object_store
    config = load_config(file=options.config, environment=os.environ, overrides=overrides)
    return serve(config, data=options.data, listen=options.listen)


@contextmanager
def _hypothesis_left_out() -> Iterator[None]:
    """kio offers its types to hypothesis where that is installed: a sixth of a start, for tests."""
    if "hypothesis" in sys.modules:
        yield
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["hypothesis"]


def _add_quota(commands: Any) -> None:
    quota = commands.add_parser("quota", help="list, set or remove quotas of clients")
    quotas = quota.add_subparsers(title="commands", required=True, metavar="COMMAND")
    listing = quotas.add_parser("list", help="list all quotas")
    listing.set_defaults(run=_quota_list)
    change = quotas.add_parser(
        "set",
        help="set quotas of a client id, a user, or both",
        description="Keys are producer_byte_rate and consumer_byte_rate, in bytes a second, at "
        "each broker.",
    )
    change.add_argument("quota", nargs="+", metavar="KEY=VALUE")
    change.set_defaults(run=_quota_set)
    remove = quotas.add_parser("remove", help="remove quotas of a client id, a user, or both")
    remove.add_argument("key", nargs="*", metavar="KEY", help="default: all it has")
    remove.set_defaults(run=_quota_remove)
    for command in (change, remove):
        for name in ("client-id", "user"):
            which = command.add_mutually_exclusive_group()
            which.add_argument(f"--{name}", metavar="NAME")
            which.add_argument(
                f"--default-{name}",
                action="store_true",
                help=f"every {name} that has no quotas of its own",
            )
    for command in (listing, change, remove):
        _add_bootstrap(command)


def _quota_list(options: argparse.Namespace) -> int:
    from diskless.cli.quota_client import QuotaClient
    from diskless.cli.tables import print_tables, table

    with QuotaClient(options.bootstrap) as client:
        rows = table("client id", "user", "quota", "bytes a second")
        for row in client.list():
            names = ["(default)" if name is None else name for name in (row.client_id, row.user)]
            rows.add_row(*names, row.key, f"{row.value:,.0f}")
    print_tables(rows)
    return 0


def _quota_set(options: argparse.Namespace) -> int:
    from diskless.cli.quota_client import QuotaClient

    changes = {}
    for pair in options.quota:
        key, value = _key_value(pair)
        try:
            changes[key] = float(value)
        except ValueError as error:
            raise InvalidSettings(f"{pair}: {value!r} is no number") from error
    entity = _quota_entity(options)
    with QuotaClient(options.bootstrap) as client:
        client.alter(entity, changes)
    return 0


def _quota_remove(options: argparse.Namespace) -> int:
    from diskless.cli.quota_client import QuotaClient

    entity = _quota_entity(options)
    with QuotaClient(options.bootstrap) as client:
        client.alter(entity, dict.fromkeys(options.key or client.keys_of(entity)))
    return 0


def _quota_entity(options: argparse.Namespace) -> Mapping[str, str | None]:
    """Raises InvalidSettings."""
    parts = {
        "client-id": (options.client_id, options.default_client_id),
        "user": (options.user, options.default_user),
    }
    entity = {
        kind: name for kind, (name, is_default) in parts.items() if is_default or name is not None
    }
    if not entity:
        raise InvalidSettings("whose quotas? give --client-id, --user or one of --default-…")
    return entity


def _topic_create(options: argparse.Namespace) -> int:
    from diskless.cli.topic_client import TopicClient

    configs = dict(_key_value(pair) for pair in options.config)
    with TopicClient(options.bootstrap) as client:
        client.create(options.name, partitions=options.partitions, configs=configs)
        print(f"created {options.name}")
    return 0


def _topic_list(options: argparse.Namespace) -> int:
    from diskless.cli.tables import print_tables, table
    from diskless.cli.topic_client import TopicClient

    with TopicClient(options.bootstrap) as client:
        rows = table("topic", "partitions", "records")
        for row in client.list():
            rows.add_row(row.name, str(row.partitions), f"{row.records:,}")
    print_tables(rows)
    return 0


def _topic_describe(options: argparse.Namespace) -> int:
    from diskless.cli.tables import print_tables, table
    from diskless.cli.topic_client import TopicClient

    with TopicClient(options.bootstrap) as client:
        description = client.describe(options.name)
    partitions = table("partition", "leader", "log start offset", "log end offset")
    for row in description.partitions:
        partitions.add_row(
            str(row.partition), str(row.leader), str(row.log_start), str(row.log_end)
        )
    configs = table("configuration", "value", "set by")
    for name, value, source in description.configs:
        configs.add_row(name, value, source)
    print_tables(partitions, configs)
    return 0


def _topic_alter(options: argparse.Namespace) -> int:
    from diskless.cli.topic_client import TopicClient

    configs = dict(_key_value(pair) for pair in options.config)
    if not (configs or options.delete_config or options.partitions is not None):
        raise InvalidSettings(
            f"nothing to alter in {options.name}: give --config, --delete-config or --partitions"
        )
    with TopicClient(options.bootstrap) as client:
        if configs or options.delete_config:
            client.alter(options.name, configs=configs, delete=options.delete_config)
        if options.partitions is not None:
            client.grow(options.name, partitions=options.partitions)
        print(f"altered {options.name}")
    return 0


def _topic_delete(options: argparse.Namespace) -> int:
    from diskless.cli.topic_client import TopicClient

    with TopicClient(options.bootstrap) as client:
        for name in options.name:
            client.delete(name)
            print(f"deleted {name}")
    return 0


def _tier(options: argparse.Namespace) -> int:
    from tiering.command import tier

    return tier(
        bootstrap=options.bootstrap,
        master=options.master,
        once=options.once,
        include_partial=options.all,
        interval_s=options.interval,
        object_store_url=options.object_store,
    )


def _verify(options: argparse.Namespace) -> int:
    from diskless.cli.tables import print_tables, progress_bar, table
    from diskless.cli.verify import verify

    with progress_bar() as bar:
        task = bar.add_task("objects", total=None)
        report = verify(
            options.data,
            object_store_url=options.object_store,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    checked = table("checked", "count")
    for name, count in report.checked.items():
        checked.add_row(name, f"{count:,}")
    print_tables(checked)
    for violation in report.violations:
        print(f"BROKEN {violation}")
    print(f"{len(report.violations)} broken" if report.violations else "all invariants hold")
    return 1 if report.violations else 0


def _rebuild(options: argparse.Namespace) -> int:
    import json
    from uuid import UUID

    from diskless.cli.rebuild import Rebuild, print_rebuilt, rebuild
    from diskless.cli.tables import progress_bar
    from metadata.rebuild.facts import RebuildOptions

    names: dict[UUID, str] = {}
    for pair in options.name:
        topic_id, name = _key_value(pair)
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
        options=RebuildOptions(include_orphans=options.orphans == "include", topic_names=names),
    )
    with progress_bar() as bar:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what)
            bar.update(tasks[what], completed=done, total=total)

        report = rebuild(request, progress=show)
    if options.json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        print_rebuilt(report)
        print("nothing was written" if options.dry_run else f"metadata rebuilt in {options.data}")
    return 0 if report.is_certain else 3


def _chunk_dump(options: argparse.Namespace) -> int:
    from diskless.cli.tables import print_dump
    from wal.chunks.dump import dump_chunk

    print_dump(dump_chunk(options.file))
    return 0


def _wal_dump(options: argparse.Namespace) -> int:
    from diskless.cli.tables import print_dump
    from diskless.cli.wal_dump import dump_wal_object

    print_dump(dump_wal_object(options.object, object_store_url=options.object_store))
    return 0


def _metadata_dump(options: argparse.Namespace) -> int:
    from diskless.cli.metadata_dump import Dump
    from diskless.cli.metadata_sources import Range, read_broker, read_bucket, read_directory

    wanted = Range(
        partitions=options.partition,
        from_offset=options.from_offset,
        to_offset=options.to_offset,
        follow=options.follow,
    )
    if options.data is not None:
        records = read_directory(options.data, wanted)
    elif options.store is not None:
        records = read_bucket(options.store, wanted)
    else:
        records = read_broker(options.bootstrap, wanted)
    dump = Dump(
        types=options.type, limit=options.limit, as_json=options.json, verbose=options.verbose
    )
    with closing(records):
        for line in dump.lines(records):
            print(line, flush=options.follow)
    if dump.undecoded:
        print(
            f"diskless: {dump.undecoded} records could not be decoded and are shown raw: written "
            "by a newer release, or damaged",
            file=sys.stderr,
        )
    return 0


def _metadata_snapshots(options: argparse.Namespace) -> int:
    import json

    from diskless.cli.metadata_dump import time_text
    from diskless.cli.snapshot_list import list_snapshots
    from diskless.cli.tables import print_tables, table

    url = options.store or f"file://{options.data.resolve() / 'objects'}"
    listed = list_snapshots(url, partitions=options.partition, verify=options.verify)
    rows = table(
        "partition", "snapshot", "offset", "taken", "stored", "SQLite", "state hash", "cluster", ""
    )
    for snapshot in listed:
        if options.json:
            print(json.dumps(snapshot._asdict()))
            continue
        checked = ", verified now" if options.verify and snapshot.status == "usable" else ""
        rows.add_row(
            str(snapshot.partition),
            snapshot.name,
            str(snapshot.next_offset),
            "" if snapshot.taken_at_ms is None else time_text(snapshot.taken_at_ms),
            f"{snapshot.stored_bytes:,}",
            "" if snapshot.file_bytes is None else f"{snapshot.file_bytes:,}",
            "" if snapshot.state_hash is None else f"{snapshot.state_hash:016x}",
            snapshot.cluster_id or "",
            f"DAMAGED: {snapshot.problem}" if snapshot.problem else snapshot.status + checked,
        )
    if not listed and not options.json:
        print(f"no snapshots in {url}")
    elif not options.json:
        print_tables(rows)
    return 0 if all(snapshot.is_sound for snapshot in listed) else 1


def _config(options: argparse.Namespace) -> int:
    from diskless.cli.tables import print_tables, table
    from diskless.config import explain_all

    rows = table("key", "default", "why")
    for key, default, why in explain_all():
        rows.add_row(key, str(default), why)
    print_tables(rows)
    return 0


def _key_value(pair: str) -> tuple[str, str]:
    key, separator, value = pair.partition("=")
    if not separator:
        raise InvalidSettings(f"{pair!r} is not KEY=VALUE")
    return key.strip(), value.strip()


if __name__ == "__main__":
    sys.exit(main())
