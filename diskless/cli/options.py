"""Holds what the commands' parsers share. Imports nothing heavy: `--help` is instant."""

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeAlias

from wal.errors import InvalidSettings

DEFAULT_LISTEN: Final = "127.0.0.1:9092"

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def group(commands: Commands, name: str, summary: str) -> Commands:
    """A command that only has commands of its own."""
    parser = commands.add_parser(name, help=summary)
    return parser.add_subparsers(title="commands", required=True, metavar="COMMAND")


def command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    examples: str = "",
    **texts: Any,
) -> argparse.ArgumentParser:
    """A command that `run` carries out; `texts` are argparse's, `help` among them."""
    parser = commands.add_parser(name, **texts)
    if examples:
        parser.epilog, parser.formatter_class = examples, argparse.RawDescriptionHelpFormatter
    parser.set_defaults(run=run)
    return parser


def add_bootstrap(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bootstrap", default=DEFAULT_LISTEN, metavar="HOST:PORT", help="default: %(default)s"
    )
    add_command_config(parser)


def add_command_config(parser: argparse.ArgumentParser) -> None:
    """An option that `admin_connection.client_security` reads."""
    parser.add_argument(
        "--command-config",
        type=Path,
        metavar="FILE",
        help="how to connect, in the properties of Kafka's clients, such as security.protocol, "
        "ssl.ca.location and sasl.username",
    )


def add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="data directory")


def add_pairs(parser: argparse.ArgumentParser, option: str, what: str, *aliases: str) -> None:
    """An option with KEY=VALUE that may come more than once; `key_values` reads it."""
    parser.add_argument(
        option, *aliases, action="append", default=[], metavar="KEY=VALUE", help=what
    )


def key_values(pairs: Iterable[str]) -> dict[str, str]:
    """Raises InvalidSettings."""
    return dict(map(key_value, pairs))


def key_value(pair: str) -> tuple[str, str]:
    """Raises InvalidSettings."""
    key, separator, value = pair.partition("=")
    if not separator:
        raise InvalidSettings(f"{pair!r} is not KEY=VALUE")
    return key.strip(), value.strip()
