"""The configuration section of SASL, by Kafka's keys; and two of our own for the first user."""

from dataclasses import dataclass
from typing import Final

from wal.security.secret import Secret
from wal.settings import setting

ENABLED_MECHANISMS: Final = "sasl.enabled.mechanisms"

SENT_AS_THEY_ARE: Final = frozenset({"PLAIN", "OAUTHBEARER"})
"""Mechanisms that send a password, or a token, for everybody on the way to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings:
    """How clients log in on listeners with SASL_PLAINTEXT and SASL_SSL."""

    mechanisms: str = setting(
        ENABLED_MECHANISMS,
        "SCRAM-SHA-256,SCRAM-SHA-512",
        is_per_listener=True,
        why="separated by commas: SCRAM-SHA-256, SCRAM-SHA-512, PLAIN, OAUTHBEARER; the last two "
        "send what opens the door as it is, so they need TLS",
    )
    max_reauth_ms: int = setting(
        "connections.max.reauth.ms",
        0,
        minimum=0,
        maximum=2**53,
        is_per_listener=True,
        why="after which a client must log in again on its connection, or loses it; 0: never; "
        "longer: who was removed stays connected for longer",
    )
    receive_max_bytes: int = setting(
        "sasl.server.max.receive.size",
        512 << 10,
        minimum=1 << 10,
        maximum=4 << 20,
        why="the longest request before a client is logged in; larger: who is not logged in can "
        "take more memory",
    )
    failure_delay_ms: int = setting(
        "connection.failed.authentication.delay.ms",
        100,
        minimum=0,
        maximum=5_000,
        why="after which a failed log-in is answered, doubled with each failure of the address up "
        "to 5 s; longer: guessing takes longer",
    )
    pending_per_ip_max: int = setting(
        "max.connections.unauthenticated.per.ip",
        20,
        minimum=1,
        why="connections of one address that are not logged in yet; one more is closed; larger "
        "where many clients share an address; all addresses: a tenth of max.connections",
    )
    secret_follow_ms: int = setting(
        "broker.secret.follow.interval.ms",
        60_000,
        minimum=100,
        maximum=120_000,
        why="how often a broker looks for a new secret of the cluster; shorter: more requests to "
        "the store; longer: one that was rotated away counts for longer",
    )
    bootstrap_admin: str = setting(
        "bootstrap.admin",
        "",
        why="the first user, set at the start where the cluster has no user, and not looked at "
        "where it has",
    )
    bootstrap_password: Secret = setting(
        "bootstrap.admin.password", Secret(), why="of the first user"
    )
