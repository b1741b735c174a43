"""The configuration of listeners: what it means, and what it is refused for."""

from contextlib import AsyncExitStack

import pytest

from diskless.listeners.endpoints import Endpoint, format_endpoints, parse_endpoints
from diskless.listeners.listener_settings import ListenerSettings
from diskless.listeners.listeners import open_listeners, plan_listeners
from wal.errors import InvalidSettings

TWO = "INSIDE://10.0.0.5:9092,OUTSIDE://0.0.0.0:9094"
MAP = "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT"


@pytest.mark.parametrize(
    ("text", "endpoints"),
    [
        ("", []),
        ("PLAINTEXT://localhost:9092", [("PLAINTEXT", "localhost", 9092)]),
        (" a://h:1 , b-c_1://[::1]:2,", [("A", "h", 1), ("B-C_1", "::1", 2)]),
        ("X://:9092", [("X", "", 9092)]),
    ],
)
def test_endpoints_are_written_as_they_are_read(
    text: str, endpoints: list[tuple[str, str, int]]
) -> None:
    parsed = parse_endpoints(text, "listeners")
    assert parsed == tuple(Endpoint(*endpoint) for endpoint in endpoints)
    assert parse_endpoints(format_endpoints(parsed), "listeners") == parsed


@pytest.mark.parametrize(
    "text", ["h:1", "A:/h:1", "A://h", "A://h:", "A://h:65536", "A://h:-1", "A://::1:1", "://h:1"]
)
def test_what_is_no_endpoint_is_named(text: str) -> None:
    with pytest.raises(InvalidSettings, match=r"listeners: .* is not NAME://host:port"):
        parse_endpoints(text, "listeners")


def settings(**values: str) -> ListenerSettings:
    return ListenerSettings(
        **{
            "listeners": TWO,
            "advertised": "OUTSIDE://kafka.example.com:9094",
            "protocol_map": MAP,
            "inter_broker_name": "inside",
            **values,
        }
    )


def test_listeners_have_their_own_addresses_and_one_is_for_brokers() -> None:
    inside, outside = plan_listeners(settings())
    assert (inside.bind, inside.advertised) == (Endpoint("INSIDE", "10.0.0.5", 9092), None)
    assert outside.bind == Endpoint("OUTSIDE", "0.0.0.0", 9094)
    assert outside.advertised == Endpoint("OUTSIDE", "kafka.example.com", 9094)
    assert (inside.inter_broker_rank, outside.inter_broker_rank) == (0, None)


def test_the_only_listener_is_for_brokers_too() -> None:
    values = {"listeners": "A://127.0.0.1:1", "advertised": "", "protocol_map": "A:PLAINTEXT"}
    (only,) = plan_listeners(settings(**values, inter_broker_name=""))
    assert only.inter_broker_rank == 0


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"listeners": ""}, "write one, such as PLAINTEXT://"),
        ({"listeners": "INSIDE://h:1,inside://h:2"}, "INSIDE is there twice"),
        ({"listeners": "INSIDE://h:1,OUTSIDE://h:1"}, "each needs its own port"),
        ({"advertised": "ELSEWHERE://h:1"}, "listeners has no ELSEWHERE"),
        ({"advertised": "OUTSIDE://0.0.0.0:1"}, "nobody can connect to OUTSIDE://0.0.0.0:1"),
        ({"advertised": "OUTSIDE://h:0"}, "nobody can connect to OUTSIDE://h:0"),
        ({"advertised": ""}, "add OUTSIDE://NAME:9094"),
        ({"protocol_map": "INSIDE:PLAINTEXT"}, "add OUTSIDE:PROTOCOL"),
        ({"protocol_map": "INSIDE"}, "is not NAME:PROTOCOL"),
        ({"protocol_map": "INSIDE:TLS"}, "write one of PLAINTEXT, SSL"),
        ({"protocol_map": "A:PLAINTEXT,a:PLAINTEXT"}, "A is there twice"),
        ({"inter_broker_name": ""}, "one of INSIDE, OUTSIDE"),
        ({"inter_broker_name": "X"}, "one of INSIDE, OUTSIDE"),
    ],
)
def test_what_does_not_go_together_is_refused_with_what_to_write(
    values: dict[str, str], told: str
) -> None:
    with pytest.raises(InvalidSettings) as refused:
        plan_listeners(settings(**values))
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_where_nothing_else_is_said_others_are_told_the_port_it_got() -> None:
    planned = plan_listeners(
        settings(listeners="INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0", advertised="")
    )
    async with AsyncExitStack() as stack:
        for listener in open_listeners(planned, [], stack):
            assert listener.advertised == Endpoint(listener.name, *listener.address)
            assert listener.advertised.port > 0
