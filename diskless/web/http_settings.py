"""The configuration section of the HTTP port: health checks, metrics, the catalogue of tables."""

from dataclasses import dataclass
from typing import Final

from wal.settings import setting

HTTP_PROTOCOL: Final = "http.security.protocol"
HTTP_AUTHENTICATION: Final = "http.authentication"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """How the port is protected; where it is: `http.listen`."""

    protocol: str = setting(
        HTTP_PROTOCOL,
        "PLAINTEXT",
        choices=("PLAINTEXT", "SSL"),
        why="SSL: https, with the keys of ssl.keystore.location, or of "
        "listener.name.http.ssl.keystore.location",
    )
    authentication: str = setting(
        HTTP_AUTHENTICATION,
        "none",
        choices=("none", "required"),
        why="required: metrics and tables are for those with a certificate or a token, as far as "
        "they have the right; none: for all who reach the port, unless ssl.client.auth=required",
    )
    token_lifetime_ms: int = setting(
        "http.token.lifetime.ms",
        3_600_000,
        minimum=1_000,
        maximum=24 * 3_600_000,
        why="of a token that /v1/oauth/tokens gives for a password; shorter: readers ask more "
        "often; longer: one that was stolen is good for longer, until the password is changed",
    )
