"""What is stored of a password, by mechanism, and how it follows from the password.

    SaltedPassword = PBKDF2(password, salt, iterations)      what kafka-configs sends (KIP-554)
    ClientKey      = HMAC(SaltedPassword, "Client Key")      what a client proves to have
    StoredKey      = H(ClientKey)                            stored
    ServerKey      = HMAC(SaltedPassword, "Server Key")      stored

Who has StoredKey and ServerKey can pose as the server, but not as the user, and has to guess the
password at the price of one PBKDF2 a guess. They are secrets all the same: `repr` shows none.

Passwords are UTF-8 as they are given. RFC 5802 asks for SASLprep before; Kafka's broker and the
clients of Kafka leave it out, so a password outside ASCII would not work with them otherwise.

Source: RFC 5802 section 3, RFC 7677.
"""

import hashlib
import hmac
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from wal.wire.layouts import CompactBytes, Int32

ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 16_384
"""Kafka's bounds. A check of a PLAIN password costs the broker as many."""

ITERATIONS_DEFAULT: Final = 8_192

SALT_BYTES: Final = 16
SALT_BYTES_MAX: Final = 256


class ScramMechanism(IntEnum):
    """The mechanisms, by Kafka's numbers."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        return f"SCRAM-SHA-{self.bits}"

    @property
    def bits(self) -> int:
        return 256 if self is ScramMechanism.SHA_256 else 512

    @property
    def hash_name(self) -> str:
        """As `hashlib` calls it."""
        return f"sha{self.bits}"

    @property
    def key_bytes(self) -> int:
        """The length of every key."""
        return self.bits // 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """What a server needs to check a user's proof."""

    iterations: Int32
    salt: CompactBytes = field(repr=False)
    stored_key: CompactBytes = field(repr=False)
    server_key: CompactBytes = field(repr=False)


def salt_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """SaltedPassword. Takes milliseconds; lets other threads run meanwhile."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def credential_of(
    mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """Returns what is stored of a salted password."""
    client_key = keyed(mechanism, salted_password, b"Client Key")
    return ScramCredential(
        salt=salt,
        stored_key=hashed(mechanism, client_key),
        server_key=keyed(mechanism, salted_password, b"Server Key"),
        iterations=iterations,
    )


def is_password_of(mechanism: ScramMechanism, credential: ScramCredential, password: str) -> bool:
    """Whether it is the password. Takes milliseconds; lets other threads run meanwhile."""
    salted = salt_password(mechanism, password, credential.salt, credential.iterations)
    known = credential_of(mechanism, salted, credential.salt, credential.iterations)
    return hmac.compare_digest(known.stored_key, credential.stored_key)


def keyed(mechanism: ScramMechanism, key: bytes, data: bytes) -> bytes:
    """HMAC(key, data)"""
    return hmac.digest(key, data, mechanism.hash_name)


def hashed(mechanism: ScramMechanism, data: bytes) -> bytes:
    """H(data)"""
    return hashlib.new(mechanism.hash_name, data).digest()


def combined(one: bytes, other: bytes) -> bytes:
    """XOR of two keys of one length."""
    number = int.from_bytes(one, "big") ^ int.from_bytes(other, "big")
    return number.to_bytes(len(one), "big")
