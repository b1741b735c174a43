"""The commands that look into metadata logs and snapshots, with or without a broker."""

import argparse
import sys
from contextlib import closing
from pathlib import Path
from typing import Final

from diskless.cli.options import DEFAULT_LISTEN, Commands, add_command_config, command, group

_DUMP_EXAMPLES: Final = """\
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

_SNAPSHOTS_EXAMPLES: Final = """\
examples:
  diskless metadata snapshots --store s3://bucket/prefix
  diskless metadata snapshots --data ./data --verify      load and check each, too
  diskless metadata snapshots --data ./data --json

A snapshot is usable only after its keeper has loaded it again and checked every row. It is
without a manifest while it is being taken, and after a crash until it is cleaned away.
"""


def add_metadata(commands: Commands) -> None:
    actions = group(commands, "metadata", "look into metadata logs and snapshots")
    dump = command(
        actions,
        "dump",
        _metadata_dump,
        help="print the decoded records of the metadata log, one per line",
        description="Print the records of the metadata log: partition:offset, time in UTC, type, "
        "fields.",
        examples=_DUMP_EXAMPLES,
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
    add_command_config(dump)
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

    snapshots = command(
        actions,
        "snapshots",
        _metadata_snapshots,
        help="list the snapshots of the metadata",
        examples=_SNAPSHOTS_EXAMPLES,
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


def _offset(text: str) -> int:
    """An offset or a count, for argparse."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def _metadata_dump(options: argparse.Namespace) -> int:
    from diskless.cli.dumps.metadata_dump import Dump
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
        from diskless.cli.admin_connection import client_security

        records = read_broker(options.bootstrap, wanted, client_security(options))
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

    from diskless.cli.dumps.metadata_dump import time_text
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
