"""The configuration section of the listeners: where a broker listens, and what it tells others."""

from dataclasses import dataclass
from typing import Final

from wal.settings import setting

LISTENERS: Final = "listeners"
ADVERTISED_LISTENERS: Final = "advertised.listeners"
PROTOCOL_MAP: Final = "listener.security.protocol.map"
INTER_BROKER_NAME: Final = "inter.broker.listener.name"
ALLOW_INSECURE: Final = "security.allow.insecure"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """Kafka's keys; `diskless.listeners.listeners` makes values of them and says what is wrong."""

    listeners: str = setting(
        LISTENERS,
        "PLAINTEXT://127.0.0.1:9092",
        why="NAME://host:port, separated by commas: where the broker listens; port 0 takes a free "
        "one; `--listen HOST:PORT` is short for PLAINTEXT://HOST:PORT",
    )
    advertised: str = setting(
        ADVERTISED_LISTENERS,
        "",
        why="NAME://host:port, separated by commas: what clients and other brokers are told, who "
        "asked through the listener of that name; a listener without an entry: where it listens",
    )
    protocol_map: str = setting(
        PROTOCOL_MAP,
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        why="NAME:PROTOCOL, separated by commas: what is spoken on the listener of that name",
    )
    inter_broker_name: str = setting(
        INTER_BROKER_NAME,
        "",
        why="the listener through which other brokers reach this one; empty: the only one there "
        "is, or the one named PLAINTEXT; several, separated by commas, while a running cluster "
        "moves: brokers use the first that both have, and are let in on all",
    )
    allow_insecure: str = setting(
        ALLOW_INSECURE,
        "false",
        choices=("false", "http", "true"),
        why="true: listeners that other machines reach may do without asking who they are; http: "
        "only the port of health checks and metrics may; false: a broker with such a listener does "
        "not start",
    )
