"""Serves `/livez`, `/readyz` and `/metrics` of a broker over HTTP.

`http.listen` says where. The default address is taken on trust: where another broker has it, a free
port does as well, and the log says which. An address that was asked for is taken, or it is an
error.

Health checks are for everybody, who hear no more than up or down where other machines reach the
port. Metrics are for those who may DESCRIBE the cluster, where the port asks (`diskless.web`).
"""

import errno
import socket
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import structlog

from diskless.addresses import parse_address
from diskless.authorization import AclOperation
from diskless.config import Config
from diskless.health.health import Health, LoopPulse
from diskless.health.http_server import HttpAnswer, HttpRequest, Route, bind_http, plain
from diskless.metrics import MetricsPage
from diskless.web.http_gate import GateClosed, HttpGate
from wal.errors import InvalidSettings

HTTP_LISTEN: Final = "http.listen"

LIVE_TIMEOUT_S: Final = 5.0
"""A loop that has not turned for so long does not answer clients either."""

log = structlog.get_logger(__name__)


def take_http_address(config: Config) -> socket.socket | None:
    """The socket that `http.listen` asks for; None when it is empty. Raises: InvalidSettings."""
    if not config.broker.http_listen:
        return None
    is_default = HTTP_LISTEN not in config.explicit
    return take_address(config.broker.http_listen, HTTP_LISTEN, is_default=is_default)


def take_address(address: str, setting: str, *, is_default: bool) -> socket.socket:
    """A socket at the `address` that `setting` names. Raises: InvalidSettings."""
    host, port = parse_address(address, setting)
    try:
        try:
            return bind_http(host, port)
        except OSError as error:
            if not is_default or error.errno != errno.EADDRINUSE:
                raise
        free = bind_http(host, 0)
    except OSError as error:
        raise InvalidSettings(
            f"{setting}: cannot listen on {host}:{port}: {error.strerror or error}"
        ) from error
    log.warning(
        "the default address for health checks and metrics is taken, another port is used",
        default=address,
        used=f"{host}:{free.getsockname()[1]}",
    )
    return free


def broker_routes(
    health: Health,
    pulse: LoopPulse,
    metrics: MetricsPage,
    *,
    gate: HttpGate | None,
    tells_why: bool,
) -> Mapping[str, Route]:
    """By path. `/livez` asks `pulse`'s loop and nothing else, and never the object store.

    `tells_why`: whether a broker that is not ready says what is missing.
    """

    async def livez(_: HttpRequest) -> HttpAnswer:
        if await pulse.beats(LIVE_TIMEOUT_S):
            return plain(HTTPStatus.OK, "live\n")
        return plain(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"the event loop has not turned for {LIVE_TIMEOUT_S:.0f} s\n",
        )

    async def readyz(_: HttpRequest) -> HttpAnswer:
        problems = health.problems()
        if not problems:
            return plain(HTTPStatus.OK, "ready\n")
        if not tells_why:
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, "not ready\n")
        return plain(HTTPStatus.SERVICE_UNAVAILABLE, "".join(f"{line}\n" for line in problems))

    return {"/livez": livez, "/readyz": readyz, "/metrics": metrics_route(metrics, gate)}


def metrics_route(metrics: MetricsPage, gate: HttpGate | None) -> Route:
    """The route of a page of metrics, behind a gate where there is one."""

    async def page(request: HttpRequest) -> HttpAnswer:
        if gate is not None:
            try:
                client = await gate.client(request)
                if client is None:
                    refused = plain(HTTPStatus.UNAUTHORIZED)
                    return refused._replace(headers={"WWW-Authenticate": "Bearer"})
                if await gate.refused_cluster(client, AclOperation.DESCRIBE):
                    return plain(HTTPStatus.FORBIDDEN)
            except GateClosed:
                return plain(HTTPStatus.SERVICE_UNAVAILABLE)
        content_type, body = await metrics.render(request.accept)
        return HttpAnswer(HTTPStatus.OK, body, content_type)

    return page
