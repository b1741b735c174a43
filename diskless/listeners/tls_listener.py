"""What makes a connection of an accepted socket on a TLS listener.

A turn among the handshakes, the handshake, the client's name by its certificate; then its protocol
begins. Until then nothing of it can cost others more than a turn and a millisecond.

Failure cases: Refused, with a word for the metric, for a client that does not speak TLS, shows a
certificate that is not trusted or has no name, takes too long or leaves. A cancelled connection is
closed at once.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from diskless.authorization import BROKER_USER
from diskless.listeners.certificate_names import subject_text
from diskless.listeners.handshakes import Handshakes
from diskless.listeners.tls_keys import TlsKeys
from diskless.listeners.tls_stream import Scratch, TlsStream

PRINCIPAL: Final = "principal"
"""What `get_extra_info` of a transport calls who the client is by its certificate."""

_PLAIN_TEXT: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST"})


_EXPIRED: Final = 10
"""X509_V_ERR_CERT_HAS_EXPIRED."""


class Refused(Exception):
    """A handshake that did not lead to a connection."""

    def __init__(self, result: str, detail: str) -> None:
        super().__init__(detail)
        self.result: Final = result
        """In a word: `failed`, `expired`, `plaintext`, `timeout`, `left`, `nameless`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsListener:
    """The handshakes of one listener, whose turns it shares with the others of the process."""

    keys: TlsKeys
    handshakes: Handshakes
    scratch: Scratch
    timeout_s: float
    close: Callable[[asyncio.Transport], None]
    """Closes the socket behind what was sent last; see `Lingering.close`."""

    async def connect(
        self,
        client: socket.socket,
        address: str,
        protocol: asyncio.BufferedProtocol,
        must_log_in: Callable[[], bool],
    ) -> None:
        """Returns when `protocol` has its transport. Raises Refused, OSError.

        `must_log_in` tells whether it is unknown who the client is; see `TlsStream`.
        """
        async with self.handshakes.turn(address):
            stream = TlsStream(self.keys.server, protocol, self.scratch, self.close, must_log_in)
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(lambda: stream, client)
            try:
                async with asyncio.timeout(self.timeout_s):
                    await stream.secured
                name = self._principal(stream)
            except asyncio.CancelledError:
                stream.abort()
                raise
            except Exception as error:
                stream.close()
                raise _refused(error, self.timeout_s) from error
            if name is not None:
                stream.extra[PRINCIPAL] = name
            stream.begin()

    def _principal(self, stream: TlsStream) -> str | None:
        certificate = stream.certificate()
        if certificate is None:
            return None
        subject = subject_text(certificate)
        name = self.keys.principals.name(subject)
        if name is None:
            raise Refused("nameless", f"no rule of ssl.principal.mapping.rules is about {subject}")
        if name == BROKER_USER:
            # It may do what brokers may, and is proved by the cluster's secret alone.
            raise Refused("nameless", f"{subject} is made {name}, whom no certificate proves")
        return name


def _refused(error: Exception, timeout_s: float) -> Exception:
    match error:
        case ssl.SSLError():
            is_plain = error.reason in _PLAIN_TEXT
            detail = "plain text on a TLS listener" if is_plain else error.reason or str(error)
            if getattr(error, "verify_code", None) == _EXPIRED:
                return Refused("expired", "a certificate whose time is over")
            return Refused("plaintext" if is_plain else "failed", detail)
        case TimeoutError():
            return Refused("timeout", f"no TLS handshake within {timeout_s:g} s")
        case OSError():
            return Refused("left", str(error))
        case ValueError():
            return Refused("failed", f"its certificate: {error}")
    return error
