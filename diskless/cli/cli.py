"""The command line: what each sub-command takes stands beside what it does.

`serve` runs a broker. `topic`, `quota`, `acl`, `user`, `token`, `transaction` and `tier` are
clients of a running one (`broker_commands`, `acl`, `user`, `transactions`, `tier`).
`verify`, `chunk dump` and `wal dump` read what is stored, without a broker, `rebuild` writes lost
metadata anew, and `cluster` has to do with what brokers share (`stored_commands`); `metadata` reads
with or without one (`metadata_commands`).
Everything heavy is imported inside the command that needs it, so that `diskless --help` is instant
and a broker never imports Spark.

Exit status: 0 it worked, 1 it did not (or `verify` found a broken invariant), 2 the command line or
the configuration does not make sense, 3 `rebuild` worked and has doubts to tell.
"""

import argparse
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from diskless.cli.acl.acl_commands import add_acl
from diskless.cli.broker_commands import add_quota, add_topic
from diskless.cli.metadata_commands import add_metadata
from diskless.cli.options import DEFAULT_LISTEN, Commands, add_data, add_pairs, command, key_values
from diskless.cli.stored_commands import add_cluster, add_dumps, add_rebuild, add_verify
from diskless.cli.tier.tier_command import add_tier
from diskless.cli.transactions.transaction_commands import add_transaction
from diskless.cli.user.token_commands import add_token
from diskless.cli.user.user_commands import add_user
from wal.errors import DisklessError, InvalidSettings

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
    _add_serve(commands)
    add_topic(commands)
    add_quota(commands)
    add_user(commands)
    add_token(commands)
    add_acl(commands)
    add_transaction(commands)
    add_tier(commands)
    add_verify(commands)
    add_rebuild(commands)
    add_cluster(commands)
    add_dumps(commands)
    add_metadata(commands)
    command(commands, "config", _config, help="list every configuration key of the broker")
    return parser


def _add_serve(commands: Commands) -> None:
    serve = command(
        commands,
        "serve",
        _serve,
        help="run a broker",
        description="Run a broker in the foreground until SIGTERM or SIGINT.",
        epilog="`diskless config` lists every configuration key; each can be set in --config, as "
        "--set KEY=VALUE, or in the environment as DISKLESS_ and the key in capitals.",
    )
    add_data(serve)
    serve.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help=f"short for --set listeners=PLAINTEXT://HOST:PORT; default: {DEFAULT_LISTEN}",
    )
    serve.add_argument(
        "--object-store",
        metavar="URL",
        help="file:///dir, s3://bucket/prefix[?endpoint_url=...] or memory://name; "
        "default: DIR/objects",
    )
    serve.add_argument(
        "--workers",
        metavar="N",
        help="short for --set broker.workers=N: processes that share the listeners; 0: one for "
        "each core; default: 1",
    )
    serve.add_argument("--config", type=Path, metavar="FILE", help="key=value lines")
    add_pairs(serve, "--set", "one configuration key")


def _serve(options: argparse.Namespace) -> int:
    with _hypothesis_left_out(), _collector_at_rest():
        from diskless.addresses import parse_address
        from diskless.cli.serve import serve
        from diskless.config import load_config
        from diskless.listeners.endpoints import Endpoint
        from diskless.listeners.listener_settings import LISTENERS

    overrides = key_values(options.set)
    if options.listen is not None:
        if LISTENERS in overrides:
            raise InvalidSettings(f"--listen and --set {LISTENERS}= both say where to listen")
        endpoint = Endpoint("PLAINTEXT", *parse_address(options.listen, "--listen"))
        overrides[LISTENERS] = str(endpoint)
    if options.object_store is not None:
        overrides["object.store.url"] = options.object_store
    if options.workers is not None:
        overrides["broker.workers"] = options.workers
    config = load_config(file=options.config, environment=os.environ, overrides=overrides)
    return serve(
        config,
        data=options.data,
    )


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Modules leave no garbage worth a look: the collector took a seventh of a start's imports."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


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


def _config(options: argparse.Namespace) -> int:
    from diskless.cli.tables import print_tables, table
    from diskless.config import explain_all

    rows = table("key", "default", "why")
    for key, default, why in explain_all():
        rows.add_row(key, str(default), why)
    print_tables(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
