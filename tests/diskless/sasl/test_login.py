"""The log-in of a connection without a socket: its order, its limits, its failures; fuzzed."""

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import strategies as st

from diskless.logs import Pace
from diskless.protocol.wire import ProtocolError
from diskless.sasl.failure_delay import DELAY_MAX_S, HELD_MAX, FailureDelay
from diskless.sasl.login import (
    API_VERSIONS,
    LOGIN_MAX_S,
    REQUESTS_MAX,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Authenticated,
    Login,
    LoginError,
    LoginRules,
)
from diskless.sasl.mechanisms import AuthenticationFailed, Mechanism, ScramExchange, Step
from diskless.sasl.plain import REMEMBERED_S, PasswordCheck, PlainExchange
from diskless.sasl.scram_users import ScramUsers
from metadata.operations import ScramCredentials
from metadata.scram.client import ScramClient
from metadata.scram.credentials import ScramMechanism, credential_of, salt_password
from tests.support.samples.fuzzing import fuzzed
from wal.clock import ManualClock

SCRAM = "SCRAM-SHA-256"
PRODUCE = 0
SALT = b"0123456789abcdef"


def credentials(**passwords: str) -> ScramCredentials:
    mechanism = ScramMechanism.SHA_256
    return {
        (user, mechanism): credential_of(
            mechanism, salt_password(mechanism, password, SALT, 4_096), SALT, 4_096
        )
        for user, password in passwords.items()
    }


def of_different_kinds() -> ScramCredentials:
    """Of users `old`, `new` and `both`."""
    weak, strong = ScramMechanism
    kinds = [("old", weak, 4_096), ("new", weak, 8_192), ("both", weak, 4_096)]
    return {
        (user, mechanism): credential_of(mechanism, b"x", SALT, iterations)
        for user, mechanism, iterations in [*kinds, ("both", strong, 8_192)]
    }


class Token:
    """A mechanism whose token says what comes of it: `user`, `user:END-MS`, `more`, `refused`."""

    async def step(self, token: bytes) -> Step:
        if token == b"more":
            return Step(b"go on")
        if token == b"refused":
            return Step(b"why", refusal=AuthenticationFailed("refused"))
        user, _, end = token.decode().partition(":")
        if user == "wrong":
            raise AuthenticationFailed("wrong")
        return Step(b"welcome", user, int(end) if end else None)


class Rig:
    """A listener's rules, and what they were told."""

    def __init__(self, *, max_reauth_ms: int = 0, known: ScramCredentials | None = None) -> None:
        self.clock = ManualClock()
        self.known = credentials(ann="pencil") if known is None else known
        self.slept: list[float] = []
        self.held: list[float] = []
        self.ended: list[tuple[str, str]] = []
        self.users: list[str | None] = []
        self.failed = 0
        self.checked = 0
        rng = random.Random(1)
        users = ScramUsers(lambda: self.known, decoy_key=b"k")
        self.check = PasswordCheck(users, run=self._run, clock=self.clock, rng=rng)
        mechanisms: dict[str, Mechanism] = {
            mechanism.sasl_name: lambda mechanism=mechanism: ScramExchange(mechanism, users, rng)
            for mechanism in ScramMechanism
        }
        self.rules = LoginRules(
            mechanisms={**mechanisms, "PLAIN": lambda: PlainExchange(self.check), "TOKEN": Token},
            max_reauth_ms=max_reauth_ms,
            lasting=("__broker",),
            receive_max_bytes=1_000,
            delay=FailureDelay(100, self.clock),
            clock=self.clock,
            sleep=self._sleep,
            ended=lambda mechanism, result: self.ended.append((mechanism, result)),
            failures=Pace(),
        )

    def login(self, host: str = "h") -> Login:
        return self.rules.login(host, self.users.append, self._failed, self.held.append)

    def _failed(self) -> None:
        self.failed += 1

    async def _sleep(self, delay: float) -> None:
        self.slept.append(delay)

    async def _run(self, work: Any) -> bool:
        self.checked += 1
        return bool(work())


async def scram(login: Login, user: str, password: str, nonce: str = "client") -> Authenticated:
    client = ScramClient(ScramMechanism.SHA_256, user, password, nonce)
    first = await login.authenticate(client.first())
    if first.error is not None:
        return first
    last = await login.authenticate(client.final(first.token))
    if last.error is None:
        client.verify(last.token)
    return last


def begun(rig: Rig, mechanism: str = SCRAM) -> Login:
    login = rig.login()
    assert login.handshake(mechanism).error is None
    return login


async def test_who_logs_in_may_ask_for_anything_after_it() -> None:
    rig = Rig()
    login = rig.login()
    for key in (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE):
        login.check(key, 1_000)
    assert login.handshake(SCRAM).error is None
    assert (await scram(login, "ann", "pencil")).error is None
    login.check(PRODUCE, 1 << 20)
    assert rig.users == ["ann"]
    assert rig.ended == [(SCRAM, "success")]


@pytest.mark.parametrize("is_chosen", [False, True])
def test_nothing_else_is_received_before_it(is_chosen: bool) -> None:
    rig = Rig()
    login = begun(rig) if is_chosen else rig.login()
    for key in (PRODUCE, 3, 22, 10_000):
        with pytest.raises(ProtocolError, match="not logged in"):
            login.check(key, 10)
    with pytest.raises(ProtocolError, match="1001 bytes"):
        login.check(SASL_AUTHENTICATE, 1_001)


async def test_a_log_in_has_so_many_requests_and_no_more() -> None:
    rig = Rig(max_reauth_ms=5_000)
    login = begun(rig, "TOKEN")
    for _ in range(REQUESTS_MAX):
        login.check(API_VERSIONS, 10)
    with pytest.raises(ProtocolError, match="requests before a log-in"):
        login.check(API_VERSIONS, 10)
    login = begun(rig, "TOKEN")
    await login.authenticate(b"ann")
    for _ in range(2 * REQUESTS_MAX):
        login.check(PRODUCE, 10)
    rig.clock.advance(6)
    for _ in range(2 * REQUESTS_MAX):
        login.check(SASL_HANDSHAKE, 10)


@pytest.mark.parametrize(
    ("user", "password"), [("ann", "pen"), ("bob", "pencil"), ("__broker:1", "")]
)
async def test_all_causes_of_failure_look_alike(user: str, password: str) -> None:
    rig = Rig()
    login = begun(rig)
    assert await scram(login, user, password) == Authenticated(error=LoginError.FAILED)
    assert rig.users == [None]
    assert rig.ended == [(SCRAM, "failure")]
    with pytest.raises(ProtocolError, match="failed"):
        login.check(SASL_HANDSHAKE, 10)
    assert login.handshake(SCRAM).error is LoginError.ILLEGAL_STATE


async def test_an_unknown_user_has_a_salt_of_its_own_that_stays() -> None:
    rig = Rig()

    async def challenge(user: str) -> str:
        client = ScramClient(ScramMechanism.SHA_256, user, "x", "n")
        answer = (await begun(rig).authenticate(client.first())).token.decode()
        return answer[answer.index(",s=") :]

    assert await challenge("bob") == await challenge("bob")
    assert await challenge("bob") != await challenge("eve")
    assert (await challenge("bob")).endswith(",i=4096"), "as many iterations as others have"


async def test_iterations_do_not_tell_which_users_there_are() -> None:
    """Some users came with other iterations than most; those of nobody are as various."""
    rig = Rig(known=of_different_kinds())

    async def iterations(user: str) -> str:
        client = ScramClient(ScramMechanism.SHA_256, user, "x", "n")
        answer = await begun(rig).authenticate(client.first())
        return answer.token.decode().rpartition(",")[2]

    names = [f"nobody-{number}" for number in range(40)]
    told = {name: await iterations(name) for name in names}
    assert set(told.values()) == {"i=4096", "i=8192"}
    rig.known = {**rig.known, **credentials(another="x")}
    assert told == {name: await iterations(name) for name in names}


def test_a_password_of_nobody_is_checked_as_that_of_somebody() -> None:
    """By all that takes a time of its own: the mechanism, and the iterations."""
    users = ScramUsers(of_different_kinds, decoy_key=b"k")

    def kind(user: str) -> tuple[ScramMechanism, int]:
        found = users.password_credential(user)
        return found.mechanism, found.credential.iterations

    assert {kind(f"nobody-{number}") for number in range(60)} == {
        kind(user) for user in ("old", "new", "both")
    }


async def test_failures_are_answered_later_and_later_by_address() -> None:
    rig = Rig()
    for _ in range(8):
        await scram(begun(rig), "ann", "wrong")
    assert rig.slept == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, DELAY_MAX_S, DELAY_MAX_S]
    assert rig.held == rig.slept, "its place is taken for as long"
    await scram(begun(rig), "ann", "pencil")
    await scram(begun(rig), "ann", "wrong")
    assert rig.slept[-1] == 0.1
    rig.clock.advance(61)
    await scram(begun(rig), "ann", "wrong")
    assert rig.slept[-1] == 0.1


def test_an_address_waits_while_many_of_its_failures_are_held_back() -> None:
    clock = ManualClock()
    delay = FailureDelay(100, clock)
    for _ in range(HELD_MAX):
        assert not delay.is_at_limit("h")
        delay.failed("h")
    clock.advance(0.05)
    assert delay.is_at_limit("h")
    assert not delay.is_at_limit("another")
    clock.advance(0.1)
    assert not delay.is_at_limit("h"), "the first one is answered"
    delay.failed("h")
    delay.succeeded("h")
    delay.failed("h")
    clock.advance(DELAY_MAX_S)
    assert not delay.is_at_limit("h")


async def test_a_mechanisms_own_refusal_counts_though_the_client_goes_away() -> None:
    rig = Rig()
    login = begun(rig, "TOKEN")
    assert await login.authenticate(b"refused") == Authenticated(b"why")
    assert (rig.ended, rig.slept, rig.failed) == ([("TOKEN", "failure")], [0.1], 1)
    assert rig.users == [], "it may still be told in Kafka's words"
    with pytest.raises(ProtocolError):
        login.check(PRODUCE, 10)
    assert (await login.authenticate(b"wrong")).error is LoginError.FAILED
    assert (rig.ended, rig.slept, rig.failed) == ([("TOKEN", "failure")], [0.1], 1)
    assert rig.users == [None]


def test_an_unknown_mechanism_is_told_those_that_there_are() -> None:
    rig = Rig()
    login = rig.login()
    answer = login.handshake("GSSAPI")
    assert answer.error is LoginError.UNSUPPORTED_MECHANISM
    assert answer.mechanisms == ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "TOKEN")
    assert rig.users == [None]


async def test_each_request_has_its_turn() -> None:
    rig = Rig()
    login = rig.login()
    assert (await login.authenticate(b"x")).error is LoginError.ILLEGAL_STATE
    login = begun(rig)
    assert login.handshake(SCRAM).error is LoginError.ILLEGAL_STATE
    login = begun(rig, "TOKEN")
    assert await login.authenticate(b"more") == Authenticated(b"go on")
    await login.authenticate(b"ann")
    # Whoever is logged in hears that it is not its turn, and stays so.
    assert (await login.authenticate(b"x")).error is LoginError.ILLEGAL_STATE
    assert login.handshake("TOKEN").error is LoginError.ILLEGAL_STATE
    login.check(PRODUCE, 10)


async def test_one_token_is_looked_at_at_a_time() -> None:
    rig = Rig()
    gate = asyncio.Event()

    class Waiting:
        async def step(self, token: bytes) -> Step:
            await gate.wait()
            return Step(b"", "ann")

    login = LoginRules(
        **{
            **{name: getattr(rig.rules, name) for name in LoginRules.__slots__},
            "mechanisms": {"W": Waiting},
        }
    ).login("h", rig.users.append)
    login.handshake("W")
    first = asyncio.ensure_future(login.authenticate(b"1"))
    await asyncio.sleep(0)
    assert login.is_busy
    assert (await login.authenticate(b"2")).error is LoginError.ILLEGAL_STATE
    gate.set()
    await first
    assert not login.is_busy


async def test_a_step_that_is_cancelled_leaves_nobody_logged_in() -> None:
    rig = Rig()
    login = begun(rig, "PLAIN")
    step = asyncio.ensure_future(login.authenticate(b"\0ann\0wrong"))
    await asyncio.sleep(0)
    step.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await step
    assert login.user is None
    with pytest.raises(ProtocolError):
        login.check(SASL_AUTHENTICATE, 10)


async def test_a_log_in_that_takes_too_long_is_overdue() -> None:
    rig = Rig()
    login = begun(rig)
    assert not login.is_overdue(rig.clock.monotonic() + LOGIN_MAX_S)
    assert login.is_overdue(rig.clock.monotonic() + LOGIN_MAX_S + 1)
    # It was read from later.
    login.begin(100)
    assert not login.is_overdue(rig.clock.monotonic() + 100 + LOGIN_MAX_S)
    assert login.is_overdue(rig.clock.monotonic() + 100 + LOGIN_MAX_S + 1)
    await scram(login, "ann", "pencil")
    assert not login.is_overdue(rig.clock.monotonic() + 1e6)


# --- again (KIP-368)


async def test_a_session_ends_and_another_log_in_goes_on() -> None:
    rig = Rig(max_reauth_ms=5_000)
    login = begun(rig, "TOKEN")
    assert (await login.authenticate(b"ann")).lifetime_ms == 5_000
    rig.clock.advance(5)
    login.check(PRODUCE, 10)
    rig.clock.advance(1)
    with pytest.raises(ProtocolError, match="not logged in"):
        login.check(PRODUCE, 10)
    login.check(SASL_HANDSHAKE, 10)
    assert login.handshake("TOKEN").error is None
    with pytest.raises(ProtocolError, match="not logged in"):
        login.check(PRODUCE, 10)
    assert (await login.authenticate(b"ann")).lifetime_ms == 5_000
    login.check(PRODUCE, 10)
    assert rig.users == ["ann", "ann"]


async def test_nobody_becomes_somebody_else() -> None:
    rig = Rig(max_reauth_ms=5_000)
    login = begun(rig, "TOKEN")
    await login.authenticate(b"ann")
    login.handshake("TOKEN")
    assert (await login.authenticate(b"bob")).error is LoginError.FAILED
    assert (login.user, rig.users) == ("ann", ["ann", None])
    login = begun(rig, "TOKEN")
    await login.authenticate(b"ann")
    assert login.handshake("PLAIN").error is LoginError.ILLEGAL_STATE
    with pytest.raises(ProtocolError):
        login.check(PRODUCE, 10)


async def test_brokers_stay_logged_in() -> None:
    rig = Rig(max_reauth_ms=5_000)
    login = begun(rig, "TOKEN")
    assert (await login.authenticate(b"__broker")).lifetime_ms == 0
    rig.clock.advance(1_000_000)
    login.check(PRODUCE, 10)


@pytest.mark.parametrize(
    ("max_reauth_ms", "lifetime_ms"), [(0, 7_000), (5_000, 5_000), (9_000, 7_000)]
)
async def test_a_session_ends_with_its_token(max_reauth_ms: int, lifetime_ms: int) -> None:
    rig = Rig(max_reauth_ms=max_reauth_ms)
    token = f"ann:{rig.clock.now_ms() + 7_000}".encode()
    assert (await begun(rig, "TOKEN").authenticate(token)).lifetime_ms == lifetime_ms
    ended = f"ann:{rig.clock.now_ms()}".encode()
    assert (await begun(rig, "TOKEN").authenticate(ended)).error is LoginError.FAILED


# --- PLAIN


async def plain(rig: Rig, token: bytes) -> LoginError | None:
    return (await begun(rig, "PLAIN").authenticate(token)).error


async def test_a_password_that_was_right_is_not_computed_again_for_a_while() -> None:
    rig = Rig()
    assert await plain(rig, b"\0ann\0pencil") is None
    assert await plain(rig, b"ann\0ann\0pencil") is None
    assert rig.checked == 1
    for _ in range(2):
        assert await plain(rig, b"\0ann\0wrong") is LoginError.FAILED
    assert rig.checked == 3
    rig.clock.advance(REMEMBERED_S + 1)
    assert await plain(rig, b"\0ann\0pencil") is None
    assert rig.checked == 4


async def test_a_changed_or_removed_password_fails_at_once() -> None:
    rig = Rig()
    assert await plain(rig, b"\0ann\0pencil") is None
    rig.known = credentials(ann="other")
    assert await plain(rig, b"\0ann\0pencil") is LoginError.FAILED
    assert await plain(rig, b"\0ann\0other") is None
    rig.known = {}
    assert await plain(rig, b"\0ann\0other") is LoginError.FAILED


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"ann\0pencil",
        b"\0ann\0pencil\0",
        b"bob\0ann\0pencil",
        b"\0\0pencil",
        b"\0ann\0",
        b"\0ann\0\xff",
        b"\0bob\0pencil",
        b"\0__broker:1\0x",
        b"\0ann\0" + b"x" * 1_025,
    ],
)
async def test_a_plain_token_that_is_none_is_refused(token: bytes) -> None:
    assert await plain(Rig(), token) is LoginError.FAILED


async def test_an_unknown_user_costs_as_much_as_a_wrong_password() -> None:
    rig = Rig()
    await plain(rig, b"\0bob\0pencil")
    assert rig.checked == 1


# --- anything

requests = st.lists(
    st.one_of(
        st.tuples(st.just(SASL_HANDSHAKE), st.sampled_from([SCRAM, "PLAIN", "TOKEN", "X", ""])),
        st.tuples(
            st.just(SASL_AUTHENTICATE),
            st.binary(max_size=40)
            | st.sampled_from([b"more", b"wrong", b"\0ann\0wrong", b"n,,n=ann,r=x", b"c=biws,r=x"]),
        ),
        st.tuples(st.sampled_from([API_VERSIONS, PRODUCE, 3]), st.just("")),
    ),
    max_size=8,
)


@fuzzed(requests, share=0.35)
def test_nobody_gets_in_without_a_right_token(
    asked: Sequence[tuple[int, Any]],
) -> None:
    """TOKEN lets in whoever names itself; all else here is no right token of anybody."""

    async def run() -> None:
        rig = Rig()
        login = rig.login()
        mechanism, may_be_in = "", False
        for key, value in asked:
            if key == SASL_HANDSHAKE:
                if login.handshake(value).error is None:
                    mechanism = value
            elif key == SASL_AUTHENTICATE:
                with contextlib.suppress(UnicodeDecodeError, ValueError):
                    answer = await login.authenticate(value)
                    if mechanism == "TOKEN" and answer.error is None and value != b"more":
                        may_be_in = True
            else:
                with contextlib.suppress(ProtocolError):
                    login.check(key, 10)
                    assert may_be_in or key == API_VERSIONS
        assert may_be_in or login.user is None

    asyncio.run(run())
