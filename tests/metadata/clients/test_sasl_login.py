"""The client's log-in, against answers that no honest broker gives."""

import random
import struct
from collections.abc import Iterable

import pytest

from metadata.clients.sasl_login import SASL_HANDSHAKE, LoginRefused, log_in
from metadata.scram.credentials import ScramMechanism, credential_of, salt_password
from metadata.scram.server import ScramServer
from wal.errors import CommitFailed
from wal.security.client_login import ClientLogin, SaslMechanism
from wal.security.secret import Secret
from wal.wire.fields import FieldReader, compact_bytes

NO_ERROR = struct.pack(">hi", 0, 0)


def login(mechanism: SaslMechanism) -> ClientLogin:
    return ClientLogin(mechanism=mechanism, user="ann", password=Secret("right"), source="mine")


def token(data: bytes) -> bytes:
    """An answer to SaslAuthenticate."""
    return b"\0" + struct.pack(">hB", 0, 0) + compact_bytes(data) + struct.pack(">qB", 0, 0)


class Broker:
    """Knows one password, or says so."""

    def __init__(self, password: str) -> None:
        mechanism, salt = ScramMechanism.SHA_256, b"salt of sixteen."
        salted = salt_password(mechanism, password, salt, 4_096)
        credential = credential_of(mechanism, salted, salt, 4_096)
        self._server = ScramServer(mechanism, lambda _: credential, "nonce")
        self.knows = True

    async def ask(self, key: int, version: int, rest: bytes) -> bytes:
        if key == SASL_HANDSHAKE:
            return NO_ERROR
        received = FieldReader(rest, "request")
        received.skip_tags()
        message = received.compact_bytes()
        if not self._server.has_begun:
            return token(self._server.first(message))
        answer, _ = self._server.final(message)
        return token(answer if self.knows else b"v=" + b"A" * 43 + b"=")


async def test_a_broker_proves_that_it_knows_the_password() -> None:
    honest = Broker("right")
    scram = login(SaslMechanism.SCRAM_SHA_256)
    await log_in(scram, "there", honest.ask, random.Random(1))
    posing = Broker("right")
    posing.knows = False
    with pytest.raises(LoginRefused, match=r"there does not prove .* of ann in mine"):
        await log_in(scram, "there", posing.ask, random.Random(1))


async def refused_by(answers: Iterable[bytes], mechanism: SaslMechanism) -> str:
    rest = iter(answers)

    async def ask(key: int, version: int, body: bytes) -> bytes:
        return next(rest)

    with pytest.raises((CommitFailed, LoginRefused)) as refused:
        await log_in(login(mechanism), "there", ask, random.Random(1))
    assert "there" in str(refused.value)
    assert "right" not in str(refused.value)
    return type(refused.value).__name__


@pytest.mark.parametrize(
    "challenge", [b"", b"\xff", b"r=other,s=AAAA,i=4096", b"e=other-error", b"r=x,s=AAAA,i=1"]
)
async def test_a_challenge_that_is_none_is_not_answered(challenge: bytes) -> None:
    answers = [NO_ERROR, token(challenge)]
    assert await refused_by(answers, SaslMechanism.SCRAM_SHA_512) == "LoginRefused"


@pytest.mark.parametrize(
    "answers",
    [
        [b""],
        [b"\0"],
        [struct.pack(">hi", 0, 2**31 - 1)],
        [struct.pack(">hih", 0, 1, 100)],
        [struct.pack(">hi", 42, 0)],
        [NO_ERROR, b""],
        [NO_ERROR, b"\0\0"],
        [NO_ERROR, b"\0\0\0\0\xff\xff\xff\xff\x0f"],
    ],
)
async def test_answers_that_make_no_sense_are_no_log_in(answers: list[bytes]) -> None:
    assert await refused_by(answers, SaslMechanism.PLAIN) == "CommitFailed"
