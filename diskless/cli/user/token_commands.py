"""The commands `diskless token create`, `list` and `revoke`: tokens for the HTTP port.

A token is made here and told once; the broker gets its digest.
"""

import argparse
import random
from datetime import UTC, datetime
from typing import Final

from diskless.cli.options import Commands, add_bootstrap, command, group
from wal.errors import Rejected

_DAY_MS: Final = 24 * 3_600_000


def add_token(commands: Commands) -> None:
    tokens = group(commands, "token", "create, list or revoke tokens for the HTTP port")
    create = command(
        tokens,
        "create",
        _create,
        help="create a token of a user, and print it",
        description="Create a token with which metrics and tables are asked for as USER. It is "
        "printed once and stored nowhere.",
    )
    create.add_argument("user")
    create.add_argument(
        "--days", type=float, default=30.0, metavar="N", help="until it ends; default: %(default)g"
    )
    listing = command(tokens, "list", _list, help="list tokens by their ids")
    listing.add_argument("user", nargs="?", default="", help="default: of all users")
    revoke = command(tokens, "revoke", _revoke, help="end tokens now")
    revoke.add_argument("what", nargs="+", metavar="ID|USER", help="a token, or all of a user")
    for parser in (create, listing, revoke):
        add_bootstrap(parser)


def _create(options: argparse.Namespace) -> int:
    from diskless.cli.admin_connection import client_security
    from diskless.cli.user.token_client import TokenClient
    from wal.clock import SystemClock

    client = TokenClient(options.bootstrap, client_security(options))
    lifetime_ms = int(options.days * _DAY_MS)
    print(client.create(options.user, lifetime_ms, SystemClock(), random.SystemRandom()))
    return 0


def _list(options: argparse.Namespace) -> int:
    from diskless.cli.admin_connection import client_security
    from diskless.cli.tables import print_tables, table
    from diskless.cli.user.token_client import TokenClient

    rows = table("id", "user", "made", "ends")
    for token in TokenClient(options.bootstrap, client_security(options)).tokens(options.user):
        made, ends = _moment(token.made_at_ms), _moment(token.ends_at_ms)
        rows.add_row(token.token_id, token.user, made, ends)
    print_tables(rows)
    return 0


def _revoke(options: argparse.Namespace) -> int:
    from diskless.cli.admin_connection import client_security
    from diskless.cli.user.token_client import TokenClient

    client = TokenClient(options.bootstrap, client_security(options))
    known = client.tokens()
    gone = []
    for what in options.what:
        found = [token for token in known if what in (token.token_id, token.user)]
        if not found:
            raise Rejected(f"there is no token {what}, nor one of a user of that name")
        gone += found
    client.revoke(gone)
    for token in gone:
        print(f"revoked {token.token_id} of {token.user}")
    return 0


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(" ", "minutes")
