"""The ground of all parts of a broker: its settings, its directory, its address and health checks.

The data directory is locked first. Then the address is taken, because other brokers are told where
this one is before it serves anything; and health checks are answered, so that a start and a stop
can be watched, too.
"""

import asyncio
import random
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry

from diskless.addresses import parse_address
from diskless.broker_http import broker_routes, take_http_address
from diskless.config import Config
from diskless.health.health import Health, LoopPulse
from diskless.health.http_server import HttpServer
from diskless.metrics import MetricsPage
from diskless.server.server import bind_listener
from diskless.storage.cluster_identity import OBJECT_LOG
from diskless.storage.data_directory import DataDirectory
from wal.clock import Clock
from wal.errors import InvalidSettings, NotCoordinator
from wal.segmented_log.log_directory import DirectoryLock


class Foundation:
    """The first part: nothing of it needs the object store."""

    def __init__(
        self,
        stack: AsyncExitStack,
        config: Config,
        *,
        data: Path,
        host: str,
        port: int,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        """Port 0 takes a free one. Raises: InvalidSettings, NotCoordinator (`data` is in use)."""
        self.config: Final = config
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
        self.listener: Final = bind_listener(host, port)
        stack.callback(self.listener.close)
        host, port = self.listener.getsockname()[:2]
        self.host: Final = host
        self.port: Final = port
        self.advertised: Final = self._advertised()
        self.http: Final = self._serve_http(stack)

    @property
    def node_id(self) -> int:
        return self.data.node_id

    @property
    def is_shared(self) -> bool:
        """Whether other brokers work on the same metadata, in the object store."""
        return self.config.broker.metadata_log == OBJECT_LOG

    def _advertised(self) -> tuple[str, int]:
        told = self.config.broker.advertised_listener
        host, port = parse_address(told, "advertised.listener") if told else (self.host, self.port)
        if self.is_shared and host in ("0.0.0.0", "::"):
            raise InvalidSettings(
                f"advertised.listener: other brokers cannot reach {host}; "
                "say under which name or address they and the clients do"
            )
        return host, port

    def _serve_http(self, stack: AsyncExitStack) -> HttpServer | None:
        listener = take_http_address(self.config)
        if listener is None:
            return None
        stack.callback(listener.close)
        pulse = LoopPulse(asyncio.get_running_loop())
        routes = broker_routes(self.health, pulse, self.metrics_page)
        return stack.enter_context(HttpServer(listener, routes))
