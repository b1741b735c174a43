"""What workers are told of users and rights, from a catalogue to a worker that asks."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from diskless.sasl.cluster_secret import ClusterSecret
from diskless.workers.head_line import HeadLine
from diskless.workers.security.known_rights import KnownRights
from diskless.workers.security.rights_teller import RightsTeller
from diskless.workers.security.security_news import (
    RuleNews,
    SecretNews,
    changes_of_users,
    decode_users,
    encode_users,
)
from metadata.acls import AclBinding
from metadata.operations import ScramCredentials
from metadata.scram.credentials import ScramCredential, ScramMechanism
from tests.support.loops.until import until
from wal.clock import ManualClock
from wal.errors import CorruptLog, CorruptObject

SHA = ScramMechanism.SHA_512


def rule(name: str) -> AclBinding:
    return AclBinding(2, name, 3, "User:ann", "*", 4, 3)


def credential(byte: int) -> ScramCredential:
    return ScramCredential(
        salt=bytes([byte]) * 16, stored_key=bytes(64), server_key=bytes(64), iterations=4096
    )


def secret(byte: int, made_ms: int = 0) -> ClusterSecret:
    return ClusterSecret(made_ms, bytes([byte]) * 32, bytes(32))


class Catalogue:
    """What a replica says of users and rules."""

    def __init__(self) -> None:
        self.rules: frozenset[AclBinding] = frozenset()
        self.users: ScramCredentials = {}

    def acls(self) -> frozenset[AclBinding]:
        return self.rules

    def scram_credentials(self) -> ScramCredentials:
        return self.users


class Told:
    """A head's end of a line, and the worker's; news are sent and not taken by themselves."""

    def __init__(self) -> None:
        self.catalogue = Catalogue()
        self.secrets = SecretNews(b"decoys", [secret(1)])
        self.teller = RightsTeller(
            self.catalogue, lambda: self.secrets, asks_rules=True, asks_users=True
        )
        self.ours, theirs = socket.socketpair()

        async def page() -> bytes:
            return b""

        self.worker = HeadLine(theirs, metadata_partitions=1, page=page, ended=lambda status: None)

    def close(self) -> None:
        self.ours.close()
        self.worker.take()

    @property
    def rights(self) -> KnownRights:
        return self.worker.rights

    def join(self) -> None:
        self.tell()
        for message in self.teller.everything():
            self.ours.send(message)

    def tell(self) -> int:
        changes = self.teller.changes()
        for message in changes:
            self.ours.send(message)
        return len(changes)


@pytest.fixture
async def told() -> AsyncIterator[Told]:
    told = Told()
    yield told
    told.close()


async def test_rules_and_users_that_come_and_go_do_so_before_the_next_answer(told: Told) -> None:
    told.catalogue.rules = frozenset({rule("a"), rule("b")})
    told.catalogue.users = {("ann", SHA): credential(1), ("bob", SHA): credential(2)}
    told.join()
    assert told.rights.acls() == told.catalogue.rules
    assert told.rights.scram_credentials() == told.catalogue.users
    assert told.rights.decoys == b"decoys"
    known, users = told.rights.acls(), told.rights.scram_credentials()
    assert told.tell() == 0
    assert told.rights.acls() is known
    assert told.rights.scram_credentials() is users
    told.catalogue.rules = frozenset({rule("b"), rule("c")})
    told.catalogue.users = {("ann", SHA): credential(3)}
    assert told.tell() == 2
    # Nobody has let the event loop come by.
    assert told.rights.acls() == told.catalogue.rules
    assert told.rights.scram_credentials() == told.catalogue.users
    told.catalogue.rules = frozenset()
    told.catalogue.users = {}
    told.tell()
    assert told.rights.acls() == frozenset()
    assert told.rights.scram_credentials() == {}


async def test_a_worker_that_joins_later_knows_as_much_and_the_others_miss_nothing(
    told: Told,
) -> None:
    told.join()
    told.catalogue.rules = frozenset({rule("a")})
    # As a worker that joins before anybody was told has it: others are told first.
    told.join()
    assert told.rights.acls() == {rule("a")}
    told.catalogue.rules = frozenset()
    told.tell()
    assert told.rights.acls() == frozenset()


async def test_what_was_prepared_is_told_only_while_it_is_so(told: Told) -> None:
    told.catalogue.rules = frozenset({rule("a")})
    told.catalogue.users = {("ann", SHA): credential(1)}
    await told.teller.prepare()
    told.join()
    assert told.rights.acls() == {rule("a")}
    assert told.rights.scram_credentials() == told.catalogue.users
    first = told.teller.everything()
    assert [one is other for one, other in zip(told.teller.everything(), first, strict=True)] == [
        True,
        True,
        False,
    ], "all but the secrets were encoded once"
    await told.teller.prepare()
    told.catalogue.rules = frozenset()
    told.catalogue.users = {}
    told.join()
    assert told.rights.acls() == frozenset()
    assert told.rights.scram_credentials() == {}


def test_what_no_listener_and_no_authorizer_asks_for_is_not_told() -> None:
    catalogue = Catalogue()
    teller = RightsTeller(catalogue, SecretNews, asks_rules=False, asks_users=False)
    catalogue.rules = frozenset({rule("a")})
    catalogue.users = {("ann", SHA): credential(1)}
    assert teller.changes() == []
    assert teller.everything() == []


async def test_another_secret_of_the_brokers_is_offered_as_soon_as_it_is_told(told: Told) -> None:
    told.join()
    told.worker.take()
    clock = ManualClock()
    secrets = told.rights.broker_secrets(clock)
    assert secrets is not None
    first = secrets.offered
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(told.rights.follow(secrets))
        told.secrets = SecretNews(b"decoys", [secret(1), secret(2, made_ms=1)])
        told.ours.send(told.teller.secrets())
        await until(lambda: secrets.offered != first)
        assert secrets.is_older(first.salt)
        following.cancel()
    assert KnownRights(lambda: None).broker_secrets(clock) is None


def test_users_that_did_not_change_are_not_told_again() -> None:
    before = {("ann", int(SHA)): credential(1), ("bob", int(SHA)): credential(2)}
    now = {("ann", int(SHA)): credential(1), ("carl", int(SHA)): credential(3)}
    changes = changes_of_users(before, now)
    assert changes == {("carl", SHA): credential(3), ("bob", SHA): None}
    assert decode_users(encode_users(changes)) == changes


def test_news_of_secrets_tell_nobody_who_prints_them() -> None:
    news = SecretNews(b"decoys", [secret(7)])
    assert SecretNews.decode(news.encode()) == news
    assert SecretNews.decode(SecretNews().encode()) == SecretNews(b"", [])
    assert "decoys" not in repr(news)
    assert "07" not in repr(news)


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_news_that_are_not_whole_are_no_news(cut: int) -> None:
    with pytest.raises(CorruptLog):
        RuleNews.decode(RuleNews([rule("a" * 50)], []).encode()[:-cut])
    with pytest.raises((CorruptLog, CorruptObject)):
        SecretNews.decode(SecretNews(b"d", [secret(1)]).encode()[:-cut])
