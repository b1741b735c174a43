"""The tagged field of ours in Metadata: there for who knows it, unnoticed by who does not."""

from collections.abc import Generator
from dataclasses import MISSING, fields, is_dataclass, make_dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any, get_args

import pytest
from confluent_kafka.admin import AdminClient
from kio.index import load_response_schema
from kio.serial import entity_reader

from diskless.api.access import Access
from diskless.api.topics import metadata as metadata_api
from diskless.api.topics.metadata import PREFERRED_PRODUCE_BROKERS_TAG
from diskless.authorization import AllowEverything
from diskless.loop.early_end import EarlyEnd
from diskless.loop.long_work import done_at_once
from diskless.ports import BrokerEndpoint, ClientInfo
from diskless.server.registry import Request
from tests.support.brokers.fake_logs import FakeTopics
from tests.support.brokers.kafka_fakes import FakeCluster
from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients.stock_clients import STOCK_CLIENTS, TIMEOUT_S, Record, StockClient
from tests.support.questions.kafka_raw_client import request_body
from tests.support.samples.kio_entities import CLASS_VARIABLES

METADATA = 3


def answer(gateways: tuple[int, ...], version: int) -> bytes:
    """What a broker says of two partitions."""
    topics = FakeTopics()
    topics.add("flights", partitions=2)
    cluster = FakeCluster(BrokerEndpoint(0, "localhost", 1), gateways=gateways)
    request = Request(
        version=version,
        client=ClientInfo(1, "", ""),
        body=request_body(METADATA, version, topics=() if version == 0 else None),
        wake=EarlyEnd(),
        reserve=lambda size: size,
        mute=lambda until: None,
    )
    steps = metadata_api.api(cluster, topics, Access(AllowEverything())).handler(request)
    assert isinstance(steps, Generator)
    reply = done_at_once(steps)
    assert isinstance(reply, list)
    return b"".join(reply)


def knowing_the_field(schema: Any) -> Any:
    """kio's response class as it would be if a Kafka release had the field."""
    new: list[Any] = []
    for item in fields(schema):
        kind: Any = item.type
        inner = get_args(kind)[0] if get_args(kind) else None
        if is_dataclass(inner):
            kind = tuple[knowing_the_field(inner), ...]  # type: ignore[misc]
        keywords: dict[str, Any] = {"metadata": item.metadata, "kw_only": True}
        if item.default is not MISSING:
            keywords["default"] = item.default
        new.append((item.name, kind, dataclass_field(**keywords)))
    if schema.__name__ == "MetadataResponsePartition":
        tagged = {"kafka_type": "int32", "tag": PREFERRED_PRODUCE_BROKERS_TAG}
        new.append(
            (
                "preferred_produce_brokers",
                tuple[int, ...],
                dataclass_field(metadata=tagged, default=(), kw_only=True),
            )
        )
    variables = {name: getattr(schema, name) for name in CLASS_VARIABLES if hasattr(schema, name)}
    return make_dataclass(schema.__name__, new, namespace=variables, frozen=True, kw_only=True)


@pytest.mark.parametrize("version", range(9, 13))
@pytest.mark.parametrize("gateways", [(2,), (5, 1, 2**31 - 1), tuple(range(200))])
def test_a_reader_that_knows_the_field_gets_the_gateways(
    version: int, gateways: tuple[int, ...]
) -> None:
    body = answer(gateways, version)
    schema = knowing_the_field(load_response_schema(METADATA, version))
    found, size = entity_reader(schema)(body, 0)
    assert size == len(body)
    (topic,) = found.topics
    assert [part.preferred_produce_brokers for part in topic.partitions] == [gateways] * 2


@pytest.mark.parametrize("version", range(9))
def test_versions_without_tags_do_not_have_it(version: int) -> None:
    assert answer((1, 2), version) == answer((), version)


@pytest.mark.parametrize("version", range(9, 13))
def test_where_there_is_no_telling_the_answer_is_kafkas_own(version: int) -> None:
    body = answer((), version)
    _, size = entity_reader(load_response_schema(METADATA, version))(body, 0)
    assert size == len(body)


@pytest.mark.clients
@pytest.mark.parametrize("client", STOCK_CLIENTS, ids=lambda client: client.name)
def test_stock_clients_do_not_notice_it(client: StockClient, tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data", {"num.partitions": "3"}) as broker:
        written = client.produce(broker.bootstrap, "flights", [Record(value=b"x")] * 3)
        assert len(written) == 3
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        described = admin.list_topics("flights", timeout=TIMEOUT_S).topics["flights"]
        assert sorted(described.partitions) == [0, 1, 2]
        assert {part.leader for part in described.partitions.values()} == {0}
