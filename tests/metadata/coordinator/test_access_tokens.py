"""Access tokens: they come, go and end, through three coordinators and over a socket."""

import random
from pathlib import Path

import pytest

from metadata.access_tokens import (
    PREFIX,
    AccessToken,
    AlterAccessToken,
    new_token,
    user_of,
)
from metadata.messages.access_tokens import ALTER_ACCESS_TOKENS_HERE
from metadata.records.users import AccessTokenCreatedRecord, AccessTokensRemovedRecord
from metadata.rules import users
from tests.support.coordinators.applied_state import applied_state
from tests.support.coordinators.conformance_bench import ConformanceBench
from tests.support.logs.log_media import LocalLogs
from wal.clock import ManualClock
from wal.errors import CorruptState, PolicyViolation
from wal.stores.memory_store import MemoryStore


def token(name: str, *, made_at_ms: int = 10, ends_at_ms: int = 100) -> AccessToken:
    return AccessToken(name, "ann", name.encode(), made_at_ms, ends_at_ms)


def create(made: AccessToken) -> AlterAccessToken:
    return AlterAccessToken(made, is_revoked=False)


def revoke(made: AccessToken) -> AlterAccessToken:
    return AlterAccessToken(made, is_revoked=True)


async def test_tokens_come_once_go_once_and_make_room_when_they_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users, "ACCESS_TOKENS_MAX", 2)
    clock = ManualClock()
    async with ConformanceBench(
        tmp_path,
        LocalLogs(tmp_path / "logs"),
        clock=clock,
        store=MemoryStore(clock=clock),
        over_the_wire=True,
        coordinators=3,
    ) as bench:

        async def alter(*requests: AlterAccessToken) -> list[type[Exception] | None]:
            answers = await bench.client.call(ALTER_ACCESS_TOKENS_HERE, requests)
            return [None if error is None else type(error) for error in answers]

        a, b, c = token("a"), token("b", ends_at_ms=50), token("c")
        for _ in range(2):
            assert await alter(create(a), create(b)) == [None, None]
        assert await alter(create(c)) == [PolicyViolation]
        assert await alter(create(a._replace(user="bob"))) == [PolicyViolation]
        # The one that has ended makes room, by the time at which another is made.
        late = token("d", made_at_ms=50)
        assert await alter(create(late), create(c)) == [None, PolicyViolation]
        for _ in range(2):
            assert await alter(revoke(a), revoke(token("nowhere"))) == [None, None]
        assert await alter(create(c)) == [None]


async def test_what_cannot_be_is_corrupt(tmp_path: Path) -> None:
    async with applied_state(tmp_path) as state:
        await state.apply(AccessTokenCreatedRecord(token=token("a")))
        assert state.image.tokens == {"a": token("a")}
        with pytest.raises(CorruptState, match="was there already"):
            await state.apply(AccessTokenCreatedRecord(token=token("a")))
        await state.apply(AccessTokensRemovedRecord(token_ids=["a"]))
        assert state.image.tokens == {}
        with pytest.raises(CorruptState, match="was not there"):
            await state.apply(AccessTokensRemovedRecord(token_ids=["a"]))


def test_a_token_is_known_by_its_secret_until_it_ends() -> None:
    text, stored = new_token("ann", random.Random(1), now_ms=1, ends_at_ms=10)
    other, _ = new_token("bob", random.Random(2), now_ms=1, ends_at_ms=10)
    known = {stored.token_id: stored}
    assert user_of(text, known, 9) == "ann"
    assert user_of(text, known, 10) is None
    assert user_of(text, {}, 9) is None
    secret = other.rpartition("_")[2]
    for wrong in (
        "",
        PREFIX,
        text[:-1],
        text + "A",
        text.upper(),
        other,
        f"{PREFIX}{stored.token_id}_{secret}",
        f"{PREFIX}{stored.token_id}_{stored.digest.hex()[:43]}",
    ):
        assert user_of(wrong, known, 9) is None
    assert text.rpartition("_")[2] not in str(stored)
