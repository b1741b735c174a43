"""Sets up log-ins on the listeners that ask for them, and creates the first user of a cluster.

Each such listener has its own rules, made from its own settings. All of them share the users, the
counts of failed log-ins and the threads that check passwords. A worker makes the same rules; its
head tells it the users, and counts the failures. On inter-broker listeners with SASL, the brokers
of a bucket log in to each other (diskless/sasl/broker_login.py).

The first user comes from the data directory (`diskless user add --data`) or from the configuration
(`bootstrap.admin`). It is created only while the cluster has no user; later both are ignored.

Failure case: a catalogue that cannot be written to ends the start. What is in the data directory
stays there for the next start.
"""

import asyncio
import functools
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final, Protocol

import structlog
from prometheus_client import CollectorRegistry, Counter

from diskless.authorization import BROKER_USER
from diskless.config import Config
from diskless.listeners.listeners import Listener
from diskless.logs import Pace
from diskless.parts.foundation import Foundation
from diskless.sasl.broker_login import UsersAndBrokers
from diskless.sasl.broker_secrets import BROKERS_MECHANISM, BrokerSecrets
from diskless.sasl.cluster_secret import local_secret
from diskless.sasl.failure_delay import Delays
from diskless.sasl.login import LoginRules
from diskless.sasl.mechanisms import Mechanism, ScramExchange
from diskless.sasl.oauth.exchange import OAuthBearerExchange
from diskless.sasl.oauth.oauth_settings import JWKS_URL
from diskless.sasl.oauth.tokens import TokenCheck
from diskless.sasl.plain import PasswordCheck, PlainExchange
from diskless.sasl.sasl_settings import ENABLED_MECHANISMS, SaslSettings
from diskless.sasl.scram_users import ScramUsers
from diskless.storage.first_users import read_first_users, remove_first_users, with_password
from metadata.clients.routed_client import RoutedClient
from metadata.operations import AlterScramCredential, ScramCredentials
from metadata.scram.credentials import ScramMechanism
from wal.clock import Clock
from wal.errors import InvalidSettings, PolicyViolation
from wal.worker_threads import WorkerThreads

PASSWORD_CHECKS_MAX: Final = 2
"""At once, each in a thread: a check of PLAIN takes milliseconds."""

OAUTHBEARER: Final = "OAUTHBEARER"

log = structlog.get_logger(__name__)


class LoginGround(Protocol):
    """What log-ins are made with, in a broker of one process or a worker."""

    @property
    def config(self) -> Config: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def listeners(self) -> Sequence[Listener]: ...
    @property
    def registry(self) -> CollectorRegistry: ...
    @property
    def is_shared(self) -> bool: ...


async def decoys_of(base: Foundation, secrets: BrokerSecrets | None) -> bytes:
    """What unknown users' salts follow from; empty where nobody logs in.

    `secrets` are those of the cluster; None: there is only this broker. Raises CorruptObject,
    OSError.
    """
    if not any(listener.protocol.is_sasl for listener in base.listeners):
        return b""
    if secrets is not None:
        return secrets.decoys
    rng = random.SystemRandom()
    return (await asyncio.to_thread(local_secret, base.data.path, base.clock, rng)).decoys


def login_rules(
    stack: AsyncExitStack,
    base: LoginGround,
    known: Callable[[], ScramCredentials],
    *,
    decoys: bytes,
    secrets: BrokerSecrets | None,
    tokens: TokenCheck | None,
    delay: Delays,
    checks_max: int = PASSWORD_CHECKS_MAX,
) -> Mapping[str, LoginRules]:
    """By the name of the listener; `tokens`: where tokens are taken.

    `known` gives the credentials of all users, another mapping after every change; `decoys` as
    `decoys_of` has them; `secrets` are those of the cluster, or None. `delay` counts failures, and
    no more than `checks_max` passwords are checked at once. Raises InvalidSettings.
    """
    listeners = [listener for listener in base.listeners if listener.protocol.is_sasl]
    if not listeners:
        return {}
    # Nonces are seen by everybody; those of a generator that has a state would give it away.
    rng = random.SystemRandom()
    users = ScramUsers(known, decoy_key=decoys)
    users_and_brokers = users
    if secrets is not None:
        users_and_brokers = UsersAndBrokers(known, decoy_key=decoys, secrets=secrets)
    threads = WorkerThreads("password", checks_max)
    stack.push_async_callback(threads.close)
    check = PasswordCheck(users, run=threads.run, clock=base.clock, rng=rng)
    counted = Counter(
        "diskless_authentications",
        "Log-ins that ended, by mechanism and result",
        ["mechanism", "result"],
        registry=base.registry,
    )

    def served(listener: Listener) -> Mapping[str, Mechanism]:
        known = users_and_brokers if _is_between_brokers(listener, base) else users
        return {
            **{
                mechanism.sasl_name: functools.partial(ScramExchange, mechanism, known, rng)
                for mechanism in ScramMechanism
            },
            "PLAIN": functools.partial(PlainExchange, check),
            **({} if tokens is None else {OAUTHBEARER: _by_token(tokens)}),
        }

    return {
        listener.name: _rules(
            listener,
            base.config.of_listener(listener.name, base.config.sasl),
            served(listener),
            base,
            delay,
            lambda mechanism, result: counted.labels(mechanism, result).inc(),
        )
        for listener in listeners
    }


def _rules(
    listener: Listener,
    settings: SaslSettings,
    served: Mapping[str, Mechanism],
    base: LoginGround,
    delay: Delays,
    ended: Callable[[str, str], None],
) -> LoginRules:
    names = [name.strip().upper() for name in settings.mechanisms.split(",") if name.strip()]
    for name in names:
        if name == OAUTHBEARER and name not in served:
            raise InvalidSettings(
                f"{ENABLED_MECHANISMS}={settings.mechanisms}: whose tokens? write {JWKS_URL}=…"
            )
        if name not in served:
            raise InvalidSettings(
                f"{ENABLED_MECHANISMS}={settings.mechanisms}: {name} is not served; write one or "
                f"more of {', '.join(served)}"
            )
    if not names:
        raise InvalidSettings(
            f"{ENABLED_MECHANISMS} is empty, and nobody could log in on {listener.name}"
        )
    is_between_brokers = _is_between_brokers(listener, base)
    if is_between_brokers and BROKERS_MECHANISM.sasl_name not in names:
        raise InvalidSettings(
            f"{ENABLED_MECHANISMS}={settings.mechanisms}: brokers log in to each other on "
            f"{listener.name} by {BROKERS_MECHANISM.sasl_name}; write that too"
        )
    return LoginRules(
        # A broker's secret becomes old by rotation alone, which looks after its connections.
        lasting=(BROKER_USER,) if is_between_brokers else (),
        mechanisms={name: served[name] for name in names},
        max_reauth_ms=settings.max_reauth_ms,
        receive_max_bytes=settings.receive_max_bytes,
        delay=delay,
        clock=base.clock,
        sleep=asyncio.sleep,
        ended=ended,
        failures=Pace(),
    )


def _by_token(tokens: TokenCheck) -> Mechanism:
    return functools.partial(OAuthBearerExchange, tokens.bearer)


def _is_between_brokers(listener: Listener, base: LoginGround) -> bool:
    """Whether brokers log in to each other on this listener."""
    return base.is_shared and listener.protocol.is_sasl and listener.inter_broker_rank is not None


async def set_first_users(base: Foundation, client: RoutedClient) -> None:
    """Raises InvalidSettings, and what the catalogue raises."""
    path = base.data.path
    wanted = await asyncio.to_thread(read_first_users, path)
    is_from_file = bool(wanted)
    if not wanted and base.config.sasl.bootstrap_admin and not client.scram_credentials():
        settings = base.config.sasl
        wanted = await asyncio.to_thread(
            with_password,
            settings.bootstrap_admin,
            settings.bootstrap_password.reveal(),
            random.SystemRandom(),
        )
    if not wanted:
        return
    await _set_first(wanted, client)
    if is_from_file:
        await asyncio.to_thread(remove_first_users, path)


async def _set_first(wanted: Sequence[AlterScramCredential], client: RoutedClient) -> None:
    name = wanted[0].user
    for error in await client.alter_scram_credentials(wanted):
        if isinstance(error, PolicyViolation):
            log.warning("the first user was not added: the cluster has users", user=name)
            return
        if error is not None:
            raise error
    log.info("added the first user", user=name)
