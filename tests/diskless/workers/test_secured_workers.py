"""Two workers that ask who is there and what they may: what holds in one holds in both, at once.

Which worker has a connection is said by the number that the audit log knows it by.
"""

import asyncio
import contextlib
import json
import os
import signal
import ssl
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from diskless.authorization import BROKER_USER
from diskless.cli import serve
from diskless.cli.cli import main
from tests.support.brokers.killed_workers import (
    PARTITIONS,
    Ledger,
    check,
    is_alive,
    stored,
    workers_of,
)
from tests.support.brokers.killed_workers import TOPIC as LEDGER_TOPIC
from tests.support.brokers.live_broker import until as blocking_until
from tests.support.loops.until import until
from tests.support.ports import own_port
from tests.support.questions.kafka_raw_client import RawClient
from tests.support.questions.worker_clients import fetched, produce
from tests.support.security.secured_workers import (
    ALTER_QUOTAS,
    ALTER_USERS,
    ANN,
    CLUSTER_REFUSED,
    CONNECTIONS,
    CREATE_ACLS,
    CREATE_TOPICS,
    LOGIN_FAILED,
    METADATA,
    NONE,
    PASSWORD,
    PENDING,
    PER_USER,
    PRODUCE,
    QUOTA,
    REAUTH_MS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    TOPIC_REFUSED,
    TOPICS,
    SecuredWorkers,
    add_rule,
    log_in,
    paused,
    refused_by_all,
    remove_rule,
    rule,
    set_password,
    workers_among,
    written,
)

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredWorkers]:
    place: Path = tmp_path_factory.mktemp("secured")
    broker = SecuredWorkers(place)
    with broker.process as process:
        process.start()
        at = ("--bootstrap", broker.plain)
        for topic in TOPICS:
            assert main(["topic", "create", topic, *at]) == 0
        assert main(["acl", "add", ANN, "read,write", "topic:open", *at]) == 0
        yield broker
        process.stop()


async def test_both_workers_let_in_who_has_the_password_and_write_one_log(
    broker: SecuredWorkers,
) -> None:
    async with broker.logged_in() as clients:
        for number, client in enumerate(clients):
            await produce(client, "open", b"value %d" % number)
        read = [await fetched(client, "open") for client in clients]
        assert [b"value 5" in answer for answer in read] == [True] * CONNECTIONS

        def noted() -> bool:
            notes = broker.notes("login", principal=f"User:{ANN}", mechanism="PLAIN")
            return sum(note["count"] for note in notes) > 0

        await until(noted)
    (note, *_) = broker.notes("login", principal=f"User:{ANN}", result="ok")
    assert (note["host"], note["listener"]) == ("127.0.0.1", "SASL_SSL")
    assert "password" not in json.dumps(note)


async def test_wrong_passwords_unknown_users_and_brokers_are_let_in_by_nobody(
    broker: SecuredWorkers,
) -> None:
    for user, password in ((ANN, "another"), ("nobody", PASSWORD), (BROKER_USER, PASSWORD)):
        await refused_by_all(broker, user, password, count=2)


async def test_who_is_not_logged_in_reaches_nothing_here_and_nothing_at_the_head(
    broker: SecuredWorkers,
) -> None:
    for key, version in ((METADATA, 9), (CREATE_TOPICS, 5), (PRODUCE, 9), (ALTER_USERS, 0)):
        client = await broker.connect("SASL_SSL")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.call(key, version)
        await client.close()


async def test_a_user_that_is_changed_or_removed_is_so_in_every_worker_at_once(
    broker: SecuredWorkers,
) -> None:
    async with broker.admin() as admin:
        await set_password(admin, "bob", "first")
        async with broker.logged_in("bob", "first"):
            pass
        await set_password(admin, "bob", "second")
        await refused_by_all(broker, "bob", "first")
        async with broker.logged_in("bob", "second"):
            pass
        await set_password(admin, "bob", None)
        await refused_by_all(broker, "bob", "second")


async def test_a_rule_counts_in_every_worker_as_soon_as_anybody_knows(
    broker: SecuredWorkers,
) -> None:
    async with broker.admin() as admin, broker.logged_in() as clients:
        for _ in range(3):
            assert {await written(client, "given") for client in clients} == {TOPIC_REFUSED}
            await add_rule(admin, ANN, "given")
            assert {await written(client, "given") for client in clients} == {NONE}
            await remove_rule(admin, ANN, "given")
        assert {await written(client, "given") for client in clients} == {TOPIC_REFUSED}
        read = [await fetched(client, "given") for client in clients]
        assert [b"a value" in answer for answer in read] == [False] * CONNECTIONS


async def test_what_is_relayed_is_authorized_for_who_asked(broker: SecuredWorkers) -> None:
    async with broker.logged_in() as clients:
        wanted = {"name": "hers", "num_partitions": 1, "replication_factor": 1}
        wanted |= {"assignments": [], "configs": []}
        for client in clients:
            answer = await client.ask(
                CREATE_TOPICS, 5, topics=[wanted], timeout=timedelta(0), validate_only=False
            )
            assert [int(one.error_code) for one in answer.topics] == [TOPIC_REFUSED]
            answer = await client.ask(CREATE_ACLS, 2, creations=[rule(ANN, "hers")])
            assert [int(one.error_code) for one in answer.results] == [CLUSTER_REFUSED]
        await until(lambda: bool(broker.notes("refused", resource="topic:hers")))
    note = broker.notes("refused", resource="topic:hers")[0]
    assert note["principal"] == f"User:{ANN}"
    assert (note["host"], note["listener"], note["client_id"]) == ("127.0.0.1", "SASL_SSL", "raw")
    assert workers_among([note]) <= {1, 2}


async def test_refusals_of_all_workers_are_noted_and_counted_together(
    broker: SecuredWorkers,
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        clients: list[RawClient] = []
        for worker in workers_of(broker.process):
            with paused(worker):
                clients += await stack.enter_async_context(broker.logged_in(count=CONNECTIONS // 2))
        own = [f"topic:shut-{uuid4()}" for _ in clients]
        for client, resource in zip(clients, own, strict=True):
            assert await written(client, resource.removeprefix("topic:")) == TOPIC_REFUSED

        def of_each() -> list[Mapping[str, Any]]:
            return [note for note in broker.notes("refused") if note["resource"] in own]

        # Each of a connection of its own, of either worker; and the lines of one are whole.
        await until(lambda: len(of_each()) == CONNECTIONS)
        assert len(workers_among(of_each())) == 2
        assert len({note["connection"] for note in of_each()}) == CONNECTIONS
        assert {await written(client, "shut") for client in clients} == {TOPIC_REFUSED}

        def counted() -> int:
            notes = broker.notes("refused", resource="topic:shut", operation="WRITE")
            return sum(note["count"] for note in notes)

        # A second later the next one says how many there were.
        while counted() < CONNECTIONS + 1:
            await asyncio.gather(*(written(client, "shut") for client in clients))
            await asyncio.sleep(0.05)
        notes = broker.notes("refused", resource="topic:shut", operation="WRITE")
        assert len(notes) < counted()


async def test_half_done_log_ins_of_an_address_are_counted_over_all_workers(
    broker: SecuredWorkers,
) -> None:
    pending: list[RawClient] = []
    # Those of the tests before may not have ended in everybody's books yet.
    async with asyncio.timeout(9):
        while len(pending) < PENDING:
            client = await broker.connect("SASL_SSL")
            try:
                await client.call(SASL_HANDSHAKE, 1, mechanism="PLAIN")
            except (asyncio.IncompleteReadError, ConnectionError):
                await client.close()
            else:
                pending.append(client)
    for _ in range(4):
        with pytest.raises((ConnectionError, ssl.SSLError, asyncio.IncompleteReadError)):
            await (await broker.connect("SASL_SSL")).call(SASL_HANDSHAKE, 1, mechanism="PLAIN")
    assert await log_in_after_handshake(pending.pop()) == NONE
    for client in pending:
        await client.close()


async def log_in_after_handshake(client: RawClient) -> int:
    token = f"\0{ANN}\0{PASSWORD}".encode()
    answer = await client.call(SASL_AUTHENTICATE, 2, auth_bytes=token)
    await client.close()
    return int(answer.error_code)


async def test_a_user_has_no_more_connections_in_all_workers_than_it_may_have(
    broker: SecuredWorkers,
) -> None:
    async with broker.admin() as admin:
        await set_password(admin, "eve", "hers")
        async with broker.logged_in("eve", "hers", PER_USER):
            for _ in range(4):
                client = await broker.connect("SASL_SSL")
                with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                    await log_in(client, "eve", "hers")
                assert await client.is_closed_by_server()
                await client.close()
            # Others have places of their own.
            async with broker.logged_in():
                pass
        await set_password(admin, "eve", None)


@pytest.mark.exhaustive
async def test_a_quota_of_a_user_is_one_through_all_workers(broker: SecuredWorkers) -> None:
    entity = [{"entity_type": "user", "entity_name": "fay"}]

    async def limit(admin: RawClient, *, is_removed: bool) -> None:
        change = {"key": "producer_byte_rate", "value": QUOTA, "remove": is_removed}
        entries = [{"entity": entity, "ops": [change]}]
        await admin.ask(ALTER_QUOTAS, 1, entries=entries, validate_only=False)

    async with broker.admin() as admin:
        await set_password(admin, "fay", "hers")
        await add_rule(admin, "fay", "given")
        await limit(admin, is_removed=False)
        # Ten seconds' worth may come at once; half as much again comes, a part through each.
        part = b"x" * int(15 * QUOTA / CONNECTIONS)
        async with broker.logged_in("fay", "hers") as clients:
            waits = [
                (await produce(client, "given", os.urandom(len(part))))[1] for client in clients
            ]
        assert waits[:3] == [0, 0, 0]
        assert max(waits) > 2, waits
        async with broker.logged_in() as others:
            assert (await produce(others[0], "open", os.urandom(len(part))))[1] == 0
        await limit(admin, is_removed=True)
        await remove_rule(admin, "fay", "given")
        await set_password(admin, "fay", None)


async def test_a_session_that_is_over_reaches_nothing_and_may_be_renewed(
    broker: SecuredWorkers,
) -> None:
    lifetimes: list[timedelta] = []
    renewed, forgotten = [
        [await broker.connect("SHORT") for _ in range(CONNECTIONS // 2)] for _ in range(2)
    ]
    for client in (*renewed, *forgotten):
        assert await log_in(client, ANN, PASSWORD, lifetimes=lifetimes) == NONE
        await client.call(METADATA, 9)
    assert set(lifetimes) == {timedelta(milliseconds=REAUTH_MS)}

    async def outlive(client: RawClient, *, is_renewed: bool) -> None:
        """Ask for what is the worker's and what is the head's until the session is over."""
        try:
            async with asyncio.timeout(60):
                while True:
                    await client.call(METADATA, 9)
                    await produce(client, "open", b"x")
                    if is_renewed:
                        assert await log_in(client, ANN, PASSWORD, lifetimes=lifetimes) == NONE
                        if len(lifetimes) > 20 * CONNECTIONS and forgotten_ended.done():
                            return
        except (ConnectionError, asyncio.IncompleteReadError):
            assert not is_renewed

    forgotten_ended = asyncio.gather(*(outlive(one, is_renewed=False) for one in forgotten))
    await asyncio.gather(forgotten_ended, *(outlive(one, is_renewed=True) for one in renewed))
    # Nobody becomes somebody else on a connection.
    async with broker.admin() as admin:
        await set_password(admin, "gus", "his")
        for client in renewed:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                assert await log_in(client, "gus", "his") == LOGIN_FAILED
            assert await client.is_closed_by_server()
        await set_password(admin, "gus", None)
    for client in (*renewed, *forgotten):
        await client.close()


async def test_who_shows_a_certificate_is_who_the_rules_make_of_it(broker: SecuredWorkers) -> None:
    keys = broker.certificates.signed("of-carl", common_name="carl")
    async with broker.admin() as admin:
        clients = [await broker.connect("SSL", keys) for _ in range(CONNECTIONS)]
        assert {await written(client, "given") for client in clients} == {TOPIC_REFUSED}
        await add_rule(admin, "carl", "given")
        assert {await written(client, "given") for client in clients} == {NONE}
        await remove_rule(admin, "carl", "given")
    for client in clients:
        await client.close()
    for _ in range(2):
        with pytest.raises((ConnectionError, ssl.SSLError, asyncio.IncompleteReadError)):
            await (await broker.connect("SSL")).call(METADATA, 9)


async def test_certificates_are_replaced_in_every_worker_and_nobody_is_cut_off(
    broker: SecuredWorkers,
) -> None:
    async with broker.logged_in() as clients:
        before = {serial(client) for client in clients}
        assert len(before) == 1
        broker.certificates.signed("server", "localhost", "127.0.0.1")
        os.kill(broker.process.pid, signal.SIGHUP)
        shown: list[bytes] = []
        async with asyncio.timeout(60):
            # Of a few connections each worker has some.
            while len(shown) < CONNECTIONS:
                async with broker.logged_in(count=CONNECTIONS) as others:
                    found = {serial(other) for other in others} - before
                    together = len({serial(other) for other in others}) == 1
                    shown = [*found] * CONNECTIONS if found and together else []
                for client in clients:
                    await produce(client, "open", b"as ever")


def serial(client: RawClient) -> bytes:
    """What the server showed."""
    tls = client.writer.get_extra_info("ssl_object")
    return bytes(tls.getpeercert(binary_form=True))


def test_no_secret_is_in_a_command_an_environment_or_a_log(broker: SecuredWorkers) -> None:
    workers = workers_of(broker.process)
    assert len(workers) == 2
    for pid in (broker.process.pid, *workers):
        for name in ("cmdline", "environ"):
            assert PASSWORD.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
    assert PASSWORD not in broker.log.read_text()
    assert PASSWORD not in broker.audit.read_text()


@pytest.mark.exhaustive
def test_workers_that_are_killed_under_load_cost_no_record(broker: SecuredWorkers) -> None:
    at = ("--bootstrap", broker.plain)
    assert main(["topic", "create", LEDGER_TOPIC, "--partitions", str(PARTITIONS), *at]) == 0
    assert main(["acl", "add", ANN, "write", f"topic:{LEDGER_TOPIC}", *at]) == 0
    ledger = Ledger(
        f"127.0.0.1:{broker.ports['SASL_SSL']}",
        producers=2,
        records=600,
        security_protocol="sasl_ssl",
        ssl_ca_location=broker.certificates.authority,
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username=ANN,
        sasl_password=PASSWORD,
    )
    for share in (0.2, 0.6):
        blocking_until(lambda share=share: ledger.has(share), "some records to be acknowledged")
        first = workers_of(broker.process)
        for victim in first:
            os.kill(victim, signal.SIGKILL)
        blocking_until(
            lambda first=first: len(set(workers_of(broker.process)) - set(first)) == 2,
            "other lives of both workers",
        )
    ledger.join()
    check(ledger, stored(broker.plain))


async def test_a_worker_that_is_killed_is_followed_by_one_that_knows_as_much(
    broker: SecuredWorkers,
) -> None:
    async with broker.admin() as admin:
        await set_password(admin, "dora", "hers")
        await add_rule(admin, "dora", "given")
        first = workers_of(broker.process)
        for victim in first:
            os.kill(victim, signal.SIGKILL)
        await until(lambda: len(set(workers_of(broker.process)) - set(first)) == 2)
    async with broker.logged_in("dora", "hers") as clients:
        assert {await written(client, "given") for client in clients} == {NONE}
        assert {await written(client, "shut") for client in clients} == {TOPIC_REFUSED}
    await refused_by_all(broker, "dora", "another")
    async with broker.admin() as admin:
        await set_password(admin, "dora", None)
    await refused_by_all(broker, "dora", "hers")


@pytest.mark.exhaustive
async def test_a_worker_that_finds_no_keys_waits_for_them_and_the_other_serves(
    broker: SecuredWorkers,
) -> None:
    good = broker.keys()
    victim, other = workers_of(broker.process)
    broker.put_keys(good[: len(good) // 2])
    os.kill(victim, signal.SIGKILL)
    await until(lambda: "worker does not start" in broker.log.read_text())
    assert other in workers_of(broker.process)
    async with broker.logged_in() as clients:
        assert {await written(client, "open") for client in clients} == {NONE}
        broker.put_keys(good)

        before = len(workers_among(broker.notes("login")))

        async def reaches_both() -> bool:
            async with broker.logged_in(count=2):
                return len(workers_among(broker.notes("login"))) > before

        async with asyncio.timeout(60):
            while not await reaches_both():
                assert {await written(client, "open") for client in clients} == {NONE}


@pytest.mark.exhaustive
async def test_half_done_handshakes_count_among_the_connections_of_all_workers(
    tmp_path: Path,
) -> None:
    allowed, turned_away = 20, 10
    # So that nobody ends for having been slow.
    limits = {"max.connections": str(allowed), "ssl.handshake.timeout.ms": "600000"}
    broker = SecuredWorkers(tmp_path, limits)
    keys = broker.certificates.signed("of-carl", common_name="carl")
    with broker.process as process:
        process.start()
        # Too many for all listeners, and for none of them by itself.
        silent = [
            await asyncio.open_connection("127.0.0.1", broker.ports[listener])
            for _ in range((allowed + turned_away) // 2)
            for listener in ("SSL", "PLAINTEXT")
        ]

        def ended() -> int:
            return sum(reader.at_eof() or bool(reader.exception()) for reader, _ in silent)

        # Two workers that look at the same instant may each let one more in.
        await until(lambda: turned_away - 1 <= ended() <= turned_away)
        late = await asyncio.open_connection("127.0.0.1", broker.ports["SSL"])
        assert await late[0].read() == b""
        for _, writer in (*silent, late):
            writer.close()

        async def is_let_in() -> bool:
            try:
                client = await broker.connect("SSL", keys)
                await client.call(METADATA, 9)
            except (ConnectionError, ssl.SSLError, asyncio.IncompleteReadError):
                return False
            await client.close()
            return True

        async with asyncio.timeout(60):
            while not await is_let_in():
                pass
        process.stop()


@pytest.mark.exhaustive
async def test_a_head_that_is_killed_leaves_no_log_in_half_done(tmp_path: Path) -> None:
    broker = SecuredWorkers(tmp_path)
    with broker.process as process:
        process.start()
        assert main(["topic", "create", "open", "--bootstrap", broker.plain]) == 0
        workers = workers_of(process)
        silent = [await asyncio.open_connection("127.0.0.1", broker.ports["SSL"]) for _ in "123"]
        chosen = [await broker.connect("SASL_SSL") for _ in "123"]
        for client in chosen:
            await client.call(SASL_HANDSHAKE, 1, mechanism="PLAIN")
        async with broker.logged_in(count=3) as clients:
            for client in clients:
                await client.call(METADATA, 9)
            process.kill()
            for client in (*chosen, *clients):
                assert await client.is_closed_by_server()
                await client.close()
        for reader, writer in silent:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
        await until(lambda: not any(map(is_alive, workers)))


def test_a_broker_says_what_is_wrong_with_log_ins_before_there_are_workers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # In this process: the logs of later tests are not to go where this one's did.
    monkeypatch.setattr(serve, "configure_logs", lambda **_: None)
    arguments = ["serve", "--data", str(tmp_path / "data"), "--workers", "2"]
    settings = tmp_path / "broker.properties"
    settings.write_text(
        f"listeners=SASL_PLAINTEXT://127.0.0.1:{own_port()}\nsasl.enabled.mechanisms=OTHER\n"
        "authorizer=none\nhttp.listen=\n"
    )
    assert main([*arguments, "--config", str(settings)]) != 0
    assert "OTHER is not served" in capsys.readouterr().err
