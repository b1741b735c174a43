"""Refuses to be open to a network by accident.

A listener that is reached from other machines must know who is there: by certificates that it asks
for, or by SASL. One that does not is refused at start, unless `security.allow.insecure` says that
this is meant; then the log says so at every start, and `diskless_insecure_listeners` counts. What
is on loopback needs nothing, so a laptop, a test and a first try are not asked.

SASL's PLAIN and OAUTHBEARER send passwords and tokens as they are, so they count as not asking
where there is no TLS.

The port of health checks, metrics and tables asks by certificate, or by tokens, which need TLS. It
tells no records, so it can be allowed alone to ask nobody.
"""

import ipaddress
import socket
from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Final

import structlog

from diskless.addresses import parse_address
from diskless.listeners.endpoints import EVERYWHERE, Endpoint
from diskless.listeners.listener_settings import ALLOW_INSECURE
from diskless.listeners.listeners import PlannedListener
from diskless.listeners.tls_keys import TlsKeys
from wal.errors import InvalidSettings
from wal.security.security_protocol import SecurityProtocol

HTTP: Final = "HTTP"
"""What the port of health checks and metrics is called here."""

_log = structlog.get_logger(__name__)


class Allowed(StrEnum):
    """What `security.allow.insecure` may say."""

    NOTHING = "false"
    HTTP = "http"
    EVERYTHING = "true"


def check_exposure(
    planned: Sequence[PlannedListener],
    keys: Sequence[TlsKeys],
    *,
    passwords: Collection[str],
    http: str,
    http_asks: bool = False,
    allowed: Allowed,
) -> Sequence[str]:
    """The names of listeners that other machines reach and that know nobody.

    `http_asks`: whether that port asks who is there, and nobody on the way can read along.
    `passwords` names the listeners on which clients may send theirs, or tokens, as they are.
    Raises InvalidSettings for one that is not allowed.
    """
    authenticating = {one.listener for one in keys if one.is_client_authenticated}
    exposed = []
    for plan in planned:
        name = plan.bind.listener
        shows_passwords = name in passwords and not plan.protocol.is_tls
        is_asking = plan.protocol.is_sasl or name in authenticating
        if (is_asking and not shows_passwords) or is_loopback(plan.bind.host):
            continue
        if allowed != Allowed.EVERYTHING:
            raise InvalidSettings(_refusal(plan.bind, plan.protocol))
        exposed.append(name)
    if http and not http_asks and not is_loopback(parse_address(http, "http.listen")[0]):
        if allowed == Allowed.NOTHING:
            raise InvalidSettings(
                f"http.listen={http}: other machines would reach metrics and tables, and nobody is "
                "asked who they are: listen on 127.0.0.1, or write http.security.protocol=SSL and "
                f"http.authentication=required, or {ALLOW_INSECURE}=http"
            )
        exposed.append(HTTP)
    if exposed:
        _log.warning("open to other machines, and nobody is asked who they are", listeners=exposed)
    return exposed


def _refusal(bind: Endpoint, protocol: SecurityProtocol) -> str:
    if protocol.is_sasl:
        return (
            f"{bind}: other machines would reach it, and PLAIN and OAUTHBEARER send passwords and "
            "tokens as they are: write "
            f"listener.security.protocol.map={bind.listener}:SASL_SSL, or leave both out "
            f"of sasl.enabled.mechanisms, or {ALLOW_INSECURE}=true"
        )
    how = (
        "ssl.client.auth=required"
        if protocol.is_tls
        else f"listener.security.protocol.map={bind.listener}:SASL_SSL, or another that asks"
    )
    return (
        f"{bind}: other machines would reach it, and nobody is asked who they are: listen on "
        f"127.0.0.1, or write {how}, or {ALLOW_INSECURE}=true if everybody there may do everything"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on `host`. Raises InvalidSettings."""
    if host in EVERYWHERE:
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InvalidSettings(f"cannot listen on {host}: {error.strerror or error}") from error
    return all(ipaddress.ip_address(address[0]).is_loopback for *_, address in found)
