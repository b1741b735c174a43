"""Where the commands get a password from: a file that nobody else may read, or the terminal.

Never an argument: lists of processes and histories of shells show those.
"""

import getpass
import sys
from pathlib import Path

from wal.errors import InvalidSettings
from wal.security.secret import read_private


def read_password(path: Path | None, user: str) -> str:
    """The password of `user`; of a file, its first line. Raises InvalidSettings."""
    if path is not None:
        try:
            password = read_private(path, "--password-file").decode().partition("\n")[0]
        except UnicodeDecodeError as error:
            raise InvalidSettings(f"--password-file: {path} is not text") from error
        password = password.rstrip("\r")
    elif sys.stdin.isatty():
        password = getpass.getpass(f"password of {user}: ")
        if getpass.getpass("once more: ") != password:
            raise InvalidSettings("the two passwords differ")
    else:
        raise InvalidSettings("no terminal to ask for the password: give --password-file FILE")
    if not password:
        raise InvalidSettings("an empty password")
    return password
