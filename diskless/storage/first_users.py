"""The first user of a cluster, on its way from `diskless user add --data` to the catalogue.

The command writes `DIR/first-user` before a broker runs there; the broker sets the user at its next
start, if the cluster has none by then, and removes the file. So there is a first user on an empty
data directory or bucket, and again on a cluster that was rebuilt and has lost its users.

The file holds credentials, not the password: one line each, `user mechanism iterations salt
stored-key server-key`, the name quoted as in URLs, binary values in hexadecimal digits. Nobody else
may read it.
"""

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from diskless.storage.private_places import make_private
from metadata.operations import AlterScramCredential
from metadata.scram.credentials import (
    ITERATIONS_DEFAULT,
    SALT_BYTES,
    ScramCredential,
    ScramMechanism,
    credential_of,
    salt_password,
)
from wal.errors import InvalidSettings
from wal.security.secret import read_private

FIRST_USER_FILE: Final = "first-user"


def with_password(
    user: str, password: str, rng: random.Random, *, iterations: int = ITERATIONS_DEFAULT
) -> Sequence[AlterScramCredential]:
    """A first user's credentials of every mechanism. Takes milliseconds. Raises InvalidSettings."""
    if not user or not password:
        raise InvalidSettings("the first user needs a name and a password")
    if user.startswith("__"):
        raise InvalidSettings(f"{user}: names that begin with __ are the brokers'")
    wanted = []
    for mechanism in ScramMechanism:
        salt = rng.randbytes(SALT_BYTES)
        salted = salt_password(mechanism, password, salt, iterations)
        wanted.append(
            AlterScramCredential(
                user=user,
                mechanism=mechanism,
                credential=credential_of(mechanism, salted, salt, iterations),
                is_first=True,
            )
        )
    return wanted


def write_first_users(data: Path, wanted: Sequence[AlterScramCredential]) -> None:
    """Replaces what was there. Raises OSError."""
    make_private(data)
    temporary = data / f"{FIRST_USER_FILE}.tmp"
    temporary.unlink(missing_ok=True)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        for row in wanted:
            credential = row.credential
            assert credential is not None
            binary = (credential.salt, credential.stored_key, credential.server_key)
            words = (str(int(row.mechanism)), str(credential.iterations), *map(bytes.hex, binary))
            file.write(f"{quote(row.user, safe='')} {' '.join(words)}\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(data / FIRST_USER_FILE)


def read_first_users(data: Path) -> Sequence[AlterScramCredential]:
    """Nothing where there is no such file. Raises InvalidSettings."""
    path = data / FIRST_USER_FILE
    if not path.exists():
        return ()
    wanted = []
    try:
        for line in read_private(path, FIRST_USER_FILE).decode("ascii").splitlines():
            user, mechanism, iterations, salt, stored_key, server_key = line.split(" ")
            credential = ScramCredential(
                iterations=int(iterations),
                salt=bytes.fromhex(salt),
                stored_key=bytes.fromhex(stored_key),
                server_key=bytes.fromhex(server_key),
            )
            wanted.append(
                AlterScramCredential(
                    user=unquote(user),
                    mechanism=ScramMechanism(int(mechanism)),
                    credential=credential,
                    is_first=True,
                )
            )
    except ValueError as error:
        raise InvalidSettings(f"{path} is damaged: add the first user again") from error
    return wanted


def remove_first_users(data: Path) -> None:
    (data / FIRST_USER_FILE).unlink(missing_ok=True)
