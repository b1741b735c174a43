"""The configuration section of TLS, by Kafka's keys where Kafka has them."""

from dataclasses import dataclass
from typing import Final

from wal.security.secret import Secret
from wal.security.tls_contexts import CLIENT_AUTH
from wal.settings import setting

KEYSTORE: Final = "ssl.keystore.location"
TRUSTSTORE: Final = "ssl.truststore.location"
CLIENT_AUTHENTICATION: Final = "ssl.client.auth"
MAPPING_RULES: Final = "ssl.principal.mapping.rules"
KEYSTORE_TYPE: Final = "ssl.keystore.type"
TRUSTSTORE_TYPE: Final = "ssl.truststore.type"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """Keys, whom to trust, and what handshakes may cost."""

    keystore: str = setting(
        KEYSTORE,
        "",
        is_per_listener=True,
        why="PEM file with the private key, its certificate and those that lead to the root; "
        "nobody else may read it; looked at every minute and on SIGHUP",
    )
    keystore_type: str = setting(
        KEYSTORE_TYPE, "PEM", is_per_listener=True, why="PEM is the only type"
    )
    key_password: Secret = setting(
        "ssl.key.password",
        Secret(),
        is_per_listener=True,
        why="opens the private key, where that is encrypted",
    )
    truststore: str = setting(
        TRUSTSTORE,
        "",
        is_per_listener=True,
        why="PEM file with the certificates that those of clients, and of other brokers, are "
        "checked against; empty: for other brokers, whom the machine trusts",
    )
    truststore_type: str = setting(
        TRUSTSTORE_TYPE, "PEM", is_per_listener=True, why="PEM is the only type"
    )
    client_auth: str = setting(
        CLIENT_AUTHENTICATION,
        "none",
        choices=tuple(CLIENT_AUTH),
        is_per_listener=True,
        why="required: clients without a certificate that is trusted are refused; requested: they "
        "are ANONYMOUS; none: nobody is asked for one",
    )
    mapping_rules: str = setting(
        MAPPING_RULES,
        "DEFAULT",
        is_per_listener=True,
        why="who a client is by its certificate: RULE:pattern/replacement/[LU] or DEFAULT, the "
        "whole name, separated by commas; the first that matches counts",
    )
    endpoint_identification: str = setting(
        "ssl.endpoint.identification.algorithm",
        "https",
        choices=("https", ""),
        is_per_listener=True,
        why="https: the certificate of another broker must name the host that was connected to; "
        "empty: any name does, for whoever has one",
    )
    handshakes_max: int = setting(
        "ssl.handshakes.max",
        256,
        minimum=1,
        maximum=100_000,
        why="handshakes under way; who comes after them waits before one is begun; more: more "
        "memory for clients that nobody knows yet",
    )
    handshakes_per_address_max: int = setting(
        "ssl.handshakes.per.ip.max",
        64,
        minimum=1,
        maximum=100_000,
        why="of ssl.handshakes.max, for one address: the rest is left to others",
    )
    handshakes_per_s: int = setting(
        "ssl.handshakes.per.second.max",
        300,
        minimum=1,
        maximum=100_000,
        why="handshakes begun in a second, at a millisecond each; fewer: after a restart it takes "
        "longer until all clients are back; more: those who are connected wait for them",
    )
    handshake_timeout_ms: int = setting(
        "ssl.handshake.timeout.ms",
        10_000,
        minimum=10,
        maximum=600_000,
        why="to complete a handshake; shorter: clients on slow links are cut off",
    )
