"""The commands about transactional ids: `diskless transaction list|describe|abort`."""

import argparse
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from diskless.cli.options import Commands, add_bootstrap, command, group

_STATES: Final = (
    "empty",
    "ongoing",
    "prepare_commit",
    "prepare_abort",
    "complete_commit",
    "complete_abort",
)
_LIST: Final = """\
A transaction is ongoing until its producer ends it, or its timeout does. Consumers
that read committed records wait behind the first one that is open in a partition:

  diskless transaction list --open                  what is open now, the oldest first
  diskless transaction list --open --older-than 60  for longer than a minute

States: empty (a producer, and no transaction yet), ongoing, prepare_commit and
prepare_abort (decided; not everybody who has a part in it has heard of it),
complete_commit and complete_abort (over).
"""
_DESCRIBE: Final = """\
Shows the producer of a transactional id, and what belongs to the transaction that is
open: partitions with records in it, groups whose offsets it commits, and the
coordinator of each, which is a metadata partition.

  diskless transaction describe payments-1
"""
_ABORT: Final = """\
Aborts the transaction that is open, and fences its producer: whatever it writes from
then on is refused, until it begins anew. Records of the transaction are never seen by
consumers that read committed records, and those that waited behind it go on.

A transaction whose producer is gone ends by itself, within transaction.timeout.ms of
the producer and ten seconds. One that is decided (prepare_...) cannot be aborted; it ends
when those who have a part in it are there again.

  diskless transaction abort payments-1
  diskless transaction abort payments-1 --number 17   only if that is still the one

Takes ALTER on the cluster. Kafka's kafka-transactions.sh lists and describes what is here
too, but its abort is refused.
"""


def add_transaction(commands: Commands) -> None:
    transactions = group(commands, "transaction", "list, describe or abort transactions")
    listing = command(
        transactions, "list", _list, help="list transactional ids and their states", examples=_LIST
    )
    listing.add_argument(
        "--state", action="append", default=[], choices=_STATES, help="may come more than once"
    )
    listing.add_argument(
        "--open", action="store_true", help="only what is not over; the oldest first"
    )
    listing.add_argument(
        "--older-than",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="only what began longer ago; with --open",
    )
    describe = command(
        transactions,
        "describe",
        _describe,
        help="show what belongs to a transaction",
        examples=_DESCRIBE,
    )
    describe.add_argument("id", nargs="+", metavar="ID", help="a transactional id")
    abort = command(
        transactions,
        "abort",
        _abort,
        help="abort the open transaction of a transactional id",
        examples=_ABORT,
    )
    abort.add_argument("id", metavar="ID", help="a transactional id")
    abort.add_argument(
        "--number",
        type=int,
        default=-1,
        metavar="N",
        help="only this transaction; `list` shows the numbers. Default: whichever is open",
    )
    for parser in (listing, describe, abort):
        add_bootstrap(parser)


def _list(options: argparse.Namespace) -> int:
    from diskless.cli.admin_connection import client_security
    from diskless.cli.tables import print_tables
    from diskless.cli.transactions.transaction_client import TransactionClient
    from diskless.cli.transactions.transaction_tables import list_table, older_than
    from metadata.transaction_operations import TransactionState
    from wal.clock import SystemClock

    now_ms = SystemClock().now_ms()
    states = [TransactionState[name.upper()] for name in options.state]
    client = TransactionClient(options.bootstrap, client_security(options))
    found = client.transactions(states)
    if options.open or options.older_than:
        found = older_than(found, options.older_than, now_ms)
    print_tables(list_table(found, now_ms))
    return 0


def _describe(options: argparse.Namespace) -> int:
    from diskless.cli.admin_connection import client_security
    from diskless.cli.tables import print_tables
    from diskless.cli.transactions.transaction_client import TopicNames, TransactionClient
    from diskless.cli.transactions.transaction_tables import facts, parts_table
    from wal.clock import SystemClock
    from wal.errors import TransactionalIdNotFound

    now_ms = SystemClock().now_ms()
    security = client_security(options)
    found = TransactionClient(options.bootstrap, security).described(options.id)
    if missing := set(options.id) - {one.transactional_id for one in found}:
        raise TransactionalIdNotFound(f"no producer has {', '.join(sorted(missing))}")
    names: Mapping[UUID, str] = {}
    if any(one.partitions for one in found):
        with TopicNames(options.bootstrap, security) as topics:
            names = topics.names()
    for position, transaction in enumerate(found):
        if position:
            print()
        for name, value in facts(transaction, now_ms).items():
            print(f"{name}: {value}")
        if transaction.partitions or transaction.groups:
            print_tables(parts_table(transaction, names))
    return 0


def _abort(options: argparse.Namespace) -> int:
    from diskless.cli.admin_connection import client_security
    from diskless.cli.transactions.transaction_client import TransactionClient
    from diskless.cli.transactions.transaction_tables import duration, parts_text
    from wal.clock import SystemClock

    client = TransactionClient(options.bootstrap, client_security(options))
    aborted = client.abort(options.id, options.number)
    age = duration(SystemClock().now_ms() - aborted.began_ms)
    print(
        f"aborted transaction {aborted.number} of {aborted.transactional_id}, which was open for "
        f"{age} with {parts_text(aborted)}; producer {aborted.producer_id} is fenced"
    )
    return 0
