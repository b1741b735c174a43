"""What all parts of a broker stand on: its settings, its directory, its address and health checks.

The data directory is locked first. Then the addresses are taken, because other brokers are told
where this one is before it serves anything; and health checks are answered, so that a start and a
stop can be watched, too.
"""

import asyncio
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry

from diskless.acls.acl_settings import ACL_AUTHORIZER
from diskless.audit.audit_log import AuditLog
from diskless.audit.audit_sinks import audit_sink
from diskless.broker_http import broker_routes, take_http_address
from diskless.config import Config
from diskless.health.health import Health, LoopPulse
from diskless.health.http_server import HttpServer
from diskless.iceberg.rest_catalogue import PREFIX, TOKENS, RestCatalogue
from diskless.listeners.endpoints import Endpoint
from diskless.listeners.exposure import HTTP, Allowed, check_exposure, is_loopback
from diskless.listeners.listeners import (
    Listener,
    PlannedListener,
    open_listeners,
    plan_listeners,
)
from diskless.listeners.tls_keys import KeyWatch, TlsKeys
from diskless.metrics import MetricsPage
from diskless.sasl.sasl_settings import SENT_AS_THEY_ARE
from diskless.storage.cluster_identity import OBJECT_LOG
from diskless.storage.data_directory import DataDirectory
from diskless.storage.private_places import refuse_open
from diskless.web.http_gate import HttpGate
from diskless.web.http_settings import HTTP_PROTOCOL
from wal.clock import Clock
from wal.errors import InvalidSettings, NotCoordinator
from wal.security.security_protocol import SecurityProtocol
from wal.segmented_log.log_directory import DirectoryLock


class Foundation:
    """The first part: nothing of it needs the object store."""

    def __init__(
        self,
        stack: AsyncExitStack,
        config: Config,
        *,
        data: Path,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        """Raises: InvalidSettings, NotCoordinator (`data` is in use)."""
        planned = plan_listeners(config.listeners)
        keys = _open_keys(planned, config, clock)
        self.http_keys: Final = _http_keys(planned, config, clock)
        """Of the HTTP port; None: it does not speak TLS."""
        self.config: Final = config
        self.insecure: Final = check_exposure(
            planned,
            keys,
            passwords=[
                plan.bind.listener
                for plan in planned
                if SENT_AS_THEY_ARE & {*map(str.strip, _mechanisms(config, plan).split(","))}
            ],
            http=config.broker.http_listen,
            http_asks=self.http_keys is not None and self.is_http_asking,
            allowed=Allowed(config.listeners.allow_insecure),
        )
        """The listeners that other machines reach, and that ask nobody who they are."""
        self.is_protected: Final = _is_protected(planned, keys, config)
        """Whether clients are asked who they are, or what they may."""
        if self.is_protected:
            refuse_open(data, "the data directory")
        self.clock: Final = clock
        self.rng: Final = rng
        self.data: Final = DataDirectory.open(data, node_id=config.broker.node_id, rng=rng)
        self.health: Final = Health(config.health)
        self.registry: Final = CollectorRegistry()
        """What is counted as it happens; the page also has what is read at a scrape."""
        self.metrics_page: Final = MetricsPage(self.registry, clock=clock)
        try:
            self.lock: Final = DirectoryLock(self.data.path)
        except BlockingIOError as error:
            raise NotCoordinator(f"{self.data.path} is in use by another broker") from error
        stack.callback(self.lock.close)
        self.audit_sink: Final = stack.enter_context(audit_sink(config.audit))
        self.audit: Final = AuditLog(self.audit_sink, clock)
        self.tls: Final = KeyWatch([*keys, *filter(None, [self.http_keys])])
        self.listeners: Final = open_listeners(planned, keys, stack)
        host, port = self.listeners[0].address
        self.host: Final = host
        """Of the first listener, as is `port`."""
        self.port: Final = port
        self.gate: HttpGate | None = None
        """Of the HTTP port; None: it asks nobody who they are."""
        self.catalogue: RestCatalogue | None = None
        """Of tables, where there is a port for it."""
        self.http: Final = self._serve_http(stack)

    @property
    def node_id(self) -> int:
        return self.data.node_id

    @property
    def is_shared(self) -> bool:
        """Whether other brokers work on the same metadata, in the object store."""
        return self.config.broker.metadata_log == OBJECT_LOG

    @property
    def is_http_asking(self) -> bool:
        """Whether the HTTP port asks who is there."""
        keys = self.http_keys
        is_by_certificate = keys is not None and keys.is_client_authenticated
        return is_by_certificate or self.config.http.authentication == "required"

    @property
    def advertised(self) -> Sequence[Endpoint]:
        """Where this broker is reached, one for each listener."""
        return [listener.advertised for listener in self.listeners]

    @property
    def inter_broker(self) -> Sequence[Listener]:
        """The listeners that other brokers may come through, the one they are told of first."""
        ranked = [
            (listener.inter_broker_rank, listener)
            for listener in self.listeners
            if listener.inter_broker_rank is not None
        ]
        return [listener for _, listener in sorted(ranked, key=lambda ranks: ranks[0])]

    def _serve_http(self, stack: AsyncExitStack) -> HttpServer | None:
        listener = take_http_address(self.config)
        if listener is None:
            return None
        stack.callback(listener.close)
        pulse = LoopPulse(asyncio.get_running_loop())
        address, keys = listener.getsockname()[0], self.http_keys
        if self.is_http_asking:
            self.gate = HttpGate(grants=keys is not None or is_loopback(address))
        gate = self.gate
        routes = broker_routes(
            self.health, pulse, self.metrics_page, gate=gate, tells_why=is_loopback(address)
        )
        self.catalogue = RestCatalogue(address, gate)
        return stack.enter_context(
            HttpServer(
                listener,
                routes,
                trees={PREFIX: self.catalogue.route},
                posts={TOKENS: self.catalogue.grant} if gate is not None and gate.grants else {},
                tls=None if keys is None else lambda: keys.server,
                handshakes_per_s=self.config.tls.handshakes_per_s,
            )
        )


def _open_keys(
    planned: Sequence[PlannedListener], config: Config, clock: Clock
) -> Sequence[TlsKeys]:
    """The keys of those that are TLS listeners. Raises InvalidSettings."""
    names = {plan.bind.listener for plan in planned}
    for name in config.per_listener:
        if name not in names and name != HTTP:
            raise InvalidSettings(
                f"listener.name.{name.lower()}.…: listeners has no {name}, but {', '.join(names)}"
            )
    return [
        TlsKeys(plan.bind.listener, config.of_listener(plan.bind.listener, config.tls), clock)
        for plan in planned
        if plan.protocol.is_tls
    ]


def _is_protected(
    planned: Sequence[PlannedListener], keys: Sequence[TlsKeys], config: Config
) -> bool:
    is_asking = any(plan.protocol.is_sasl for plan in planned) or any(
        one.is_client_authenticated for one in keys
    )
    return is_asking or config.authorizer.authorizer == ACL_AUTHORIZER


def _http_keys(planned: Sequence[PlannedListener], config: Config, clock: Clock) -> TlsKeys | None:
    """The keys of the HTTP port, where it speaks TLS. Raises InvalidSettings."""
    if config.http.protocol != SecurityProtocol.SSL or not config.broker.http_listen:
        return None
    if any(plan.bind.listener == HTTP for plan in planned):
        raise InvalidSettings(
            f"{HTTP_PROTOCOL}=SSL: {HTTP} is the name of that port; give the listener another"
        )
    return TlsKeys(HTTP, config.of_listener(HTTP, config.tls), clock)


def _mechanisms(config: Config, plan: PlannedListener) -> str:
    return config.of_listener(plan.bind.listener, config.sasl).mechanisms.upper()
