"""SCRAM credentials over a real socket: set, described and removed, and what is refused."""

from typing import Any

from metadata.scram.credentials import ScramMechanism, credential_of
from tests.support.brokers.kafka_fakes import Broker, connected
from tests.support.questions.kafka_raw_client import RawClient
from wal.errors import CommitFailed, UnknownCredential

DESCRIBE, ALTER = 50, 51
OK, RESOURCE_NOT_FOUND, DUPLICATE, UNACCEPTABLE, UNSUPPORTED = 0, 91, 92, 93, 33
KEYS = {1: bytes(range(32)), 2: bytes(range(64))}


def upsertion(name: str, mechanism: int = 1, **changed: Any) -> dict[str, Any]:
    return {
        "name": name,
        "mechanism": mechanism,
        "iterations": 4_096,
        "salt": b"salt",
        "salted_password": KEYS.get(mechanism, b""),
        **changed,
    }


def deletion(name: str, mechanism: int = 1) -> dict[str, Any]:
    return {"name": name, "mechanism": mechanism}


async def alter(
    client: RawClient,
    upsertions: list[dict[str, Any]],
    deletions: list[dict[str, Any]] | None = None,
) -> dict[str, int]:
    answer = await client.ask(ALTER, 0, upsertions=upsertions, deletions=deletions or [])
    assert len({row.user for row in answer.results}) == len(answer.results)
    return {row.user: int(row.error_code) for row in answer.results}


async def describe(client: RawClient, *names: str) -> dict[str, Any]:
    users = [{"name": name} for name in names] or None
    answer = await client.ask(DESCRIBE, 0, users=users)
    assert not answer.error_code
    return {
        row.user: int(row.error_code)
        or [(int(info.mechanism), int(info.iterations)) for info in row.credential_infos]
        for row in answer.results
    }


async def test_credentials_are_set_described_and_removed() -> None:
    async with connected() as (broker, client):
        assert await alter(
            client, [upsertion("b"), upsertion("b", 2, iterations=16_384), upsertion("a")]
        ) == {"b": OK, "a": OK}
        assert broker.users.known["b", 2] == credential_of(
            ScramMechanism.SHA_512, KEYS[2], b"salt", 16_384
        )
        assert await describe(client) == {"a": [(1, 4_096)], "b": [(1, 4_096), (2, 16_384)]}
        assert await alter(client, [upsertion("a", 2)], [deletion("b", 1), deletion("a", 1)]) == {
            "b": OK,
            "a": OK,
        }
        assert await describe(client) == {"a": [(2, 4_096)], "b": [(2, 16_384)]}


async def test_who_is_asked_for_is_described_or_not_there() -> None:
    async with connected() as (_, client):
        await alter(client, [upsertion("a"), upsertion("b")])
        assert await describe(client, "b", "c", "a", "a") == {
            "b": [(1, 4_096)],
            "c": RESOURCE_NOT_FOUND,
            "a": DUPLICATE,
        }


async def test_a_user_is_refused_as_a_whole_and_hinders_nobody() -> None:
    async with connected() as (broker, client):
        assert await alter(
            client,
            [
                upsertion("good"),
                upsertion("few", iterations=4_095),
                upsertion("few", 2),
                upsertion("many", iterations=16_385),
                upsertion(""),
                upsertion("__broker"),
                upsertion("none", 0),
                upsertion("three", 3),
                upsertion("twice"),
                upsertion("twice"),
                upsertion("saltless", salt=b""),
                upsertion("short", salted_password=b"x"),
                upsertion("nul\0"),
                upsertion("long" * 64),
            ],
            [deletion("absent"), deletion("__other")],
        ) == {
            "good": OK,
            "few": UNACCEPTABLE,
            "many": UNACCEPTABLE,
            "": UNACCEPTABLE,
            "__broker": UNACCEPTABLE,
            "none": UNSUPPORTED,
            "three": UNSUPPORTED,
            "twice": DUPLICATE,
            "saltless": UNACCEPTABLE,
            "short": UNACCEPTABLE,
            "nul\0": UNACCEPTABLE,
            "long" * 64: UNACCEPTABLE,
            "absent": RESOURCE_NOT_FOUND,
            "__other": UNACCEPTABLE,
        }
        assert set(broker.users.known) == {("good", 1)}


async def test_set_and_removed_in_one_request_is_twice() -> None:
    async with connected() as (_, client):
        await alter(client, [upsertion("a")])
        assert await alter(client, [upsertion("a")], [deletion("a")]) == {"a": DUPLICATE}


async def test_what_a_coordinator_refuses_or_fails_at_is_told_for_each_user() -> None:
    async with connected() as (broker, client):
        broker.users.error = CommitFailed("the disk is full")
        codes = await alter(client, [upsertion("a"), upsertion("a", 2), upsertion("")])
        assert codes[""] == UNACCEPTABLE
        assert codes["a"] not in (OK, UNACCEPTABLE)
        assert await say_gone(broker, client) == {"a": RESOURCE_NOT_FOUND}


async def say_gone(broker: Broker, client: RawClient) -> dict[str, int]:
    """Somebody else was faster at removing it."""
    broker.users.error = None
    await alter(client, [upsertion("a")])
    broker.users.error = UnknownCredential("gone")
    return await alter(client, [], [deletion("a")])
