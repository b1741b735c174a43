"""The commands `diskless user add`, `list`, `remove` and `passwd`."""

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

from diskless.cli.options import Commands, add_bootstrap, command, group
from metadata.scram.credentials import ScramMechanism
from wal.errors import InvalidSettings, Rejected


def add_user(commands: Commands) -> None:
    users = group(commands, "user", "add, list or remove users, or change a password")
    add = command(
        users,
        "add",
        _add,
        help="add a user with a password",
        description="Add a user at a running broker, or with --data the first user of a cluster, "
        "which the broker of that data directory sets at its next start if there is none.",
    )
    passwd = command(users, "passwd", _passwd, help="change the password of a user")
    remove = command(users, "remove", _remove, help="remove a user")
    listing = command(users, "list", _list, help="list all users")
    for parser in (add, passwd):
        parser.add_argument("name")
        parser.add_argument(
            "--password-file",
            type=Path,
            metavar="FILE",
            help="its first line is the password; default: ask for it",
        )
        parser.add_argument(
            "--iterations",
            type=int,
            default=8_192,
            metavar="N",
            help="4096 to 16384, default: %(default)s",
        )
        parser.add_argument(
            "--mechanism",
            action="append",
            default=[],
            metavar="NAME",
            help="SCRAM-SHA-256 or SCRAM-SHA-512; may come again; default: both",
        )
    remove.add_argument("name", nargs="+")
    add.add_argument(
        "--data", type=Path, metavar="DIR", help="of a broker that does not run: the first user"
    )
    for parser in (add, passwd, remove, listing):
        add_bootstrap(parser)


def _add(options: argparse.Namespace) -> int:
    from diskless.cli.user.passwords import read_password

    if options.data is not None:
        from diskless.storage.first_users import with_password, write_first_users

        password = read_password(options.password_file, options.name)
        wanted = with_password(
            options.name, password, random.SystemRandom(), iterations=options.iterations
        )
        write_first_users(options.data, wanted)
        print(f"{options.name} becomes the first user when a broker starts on {options.data}")
        return 0
    return _set(options, is_new=True)


def _passwd(options: argparse.Namespace) -> int:
    return _set(options, is_new=False)


def _set(options: argparse.Namespace, *, is_new: bool) -> int:
    from diskless.cli.user.passwords import read_password
    from diskless.cli.user.user_client import UserClient

    mechanisms = _mechanisms(options.mechanism)
    with UserClient.of(options) as client:
        known = client.users().get(options.name)
        if is_new and known is not None:
            raise Rejected(f"{options.name} is there already: diskless user passwd changes it")
        if not is_new:
            if known is None:
                raise Rejected(f"there is no user {options.name}: diskless user add adds it")
            if not options.mechanism:
                mechanisms = [mechanism for mechanism, _ in known]
        password = read_password(options.password_file, options.name)
        client.set_password(
            options.name, password, mechanisms, options.iterations, random.SystemRandom()
        )
    print(f"{'added' if is_new else 'changed the password of'} {options.name}")
    return 0


def _mechanisms(names: Sequence[str]) -> Sequence[ScramMechanism]:
    known = {mechanism.sasl_name: mechanism for mechanism in ScramMechanism}
    for name in names:
        if name.upper() not in known:
            raise InvalidSettings(f"--mechanism {name}: write {' or '.join(known)}")
    return [known[name.upper()] for name in names] or [*known.values()]


def _remove(options: argparse.Namespace) -> int:
    from diskless.cli.user.user_client import UserClient

    with UserClient.of(options) as client:
        for name in options.name:
            client.remove(name)
            print(f"removed {name}")
    return 0


def _list(options: argparse.Namespace) -> int:
    from diskless.cli.tables import print_tables, table
    from diskless.cli.user.user_client import UserClient

    with UserClient.of(options) as client:
        rows = table("user", "mechanism", "iterations")
        for user, credentials in client.users().items():
            for mechanism, iterations in credentials:
                rows.add_row(user, mechanism.sasl_name, f"{iterations:,}")
    print_tables(rows)
    return 0
