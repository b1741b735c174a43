"""Stock clients with certificates of their own, on a broker that asks for one."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from tests.support.certificates import Certificates
from tests.support.java_client import scenario
from tests.support.jvm import KafkaTools
from tests.support.kcat import kcat_or_skip
from tests.support.live_broker import LiveBroker
from tests.support.stock_clients import KafkaConsumer, KafkaProducer, PythonTopicPartition

pytestmark = pytest.mark.clients

VALUES = [b"%d" % number * 1_000 for number in range(1, 50)]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[LiveBroker]:
    settings = {
        "listeners": "SSL://127.0.0.1:0",
        **certificates.listener(ssl_client_auth="required"),
    }
    with LiveBroker(tmp_path_factory.mktemp("broker") / "data", settings) as broker:
        yield broker


@pytest.fixture(scope="module")
def mine(certificates: Certificates) -> str:
    return certificates.signed("client")


def test_kafka_python(broker: LiveBroker, certificates: Certificates, mine: str) -> None:
    options: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap,
        "security_protocol": "SSL",
        "ssl_cafile": certificates.authority,
        "ssl_certfile": mine,
        "ssl_keyfile": mine,
    }
    producer = KafkaProducer(**options)
    for value in VALUES:
        producer.send("kafka-python", value, partition=0)
    producer.flush(60)
    producer.close()
    consumer = KafkaConsumer(**options, consumer_timeout_ms=60_000)
    place = PythonTopicPartition("kafka-python", 0)
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    assert [next(consumer).value for _ in VALUES] == VALUES
    consumer.close()


def test_aiokafka(broker: LiveBroker, certificates: Certificates, mine: str) -> None:
    async def through() -> list[bytes | None]:
        options: dict[str, Any] = {
            "bootstrap_servers": broker.bootstrap,
            "security_protocol": "SSL",
            "ssl_context": certificates.context(mine),
        }
        async with AIOKafkaProducer(**options) as producer:
            for value in VALUES:
                await producer.send_and_wait("aiokafka", value, partition=0)
        async with AIOKafkaConsumer(**options) as consumer:
            place = AioTopicPartition("aiokafka", 0)
            consumer.assign([place])
            await consumer.seek_to_beginning(place)
            return [(await consumer.getone()).value for _ in VALUES]

    assert asyncio.run(through()) == VALUES


def test_kcat(broker: LiveBroker, certificates: Certificates, mine: str) -> None:
    kcat = kcat_or_skip()
    properties = {
        "security.protocol": "ssl",
        "ssl.ca.location": certificates.authority,
        "ssl.certificate.location": mine,
        "ssl.key.location": mine,
    }
    options = [word for key, value in properties.items() for word in ("-X", f"{key}={value}")]
    lines = b"\n".join(VALUES) + b"\n"
    kcat.run(broker.bootstrap, *options, "-t", "kcat", "-P", "-p", "0", stdin=lines)
    read = kcat.run(broker.bootstrap, *options, "-t", "kcat", "-C", "-p", "0", "-e", "-q")
    assert read == lines


@pytest.mark.jvm
def test_java(
    broker: LiveBroker, certificates: Certificates, mine: str, tools: KafkaTools, tmp_path: Path
) -> None:
    content = Path(mine).read_bytes()
    # Java reads keys in PKCS#8 alone.
    key = load_pem_private_key(content, None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    keystore = tmp_path / "keystore.pem"
    keystore.write_bytes(key + content[content.index(b"-----BEGIN CERT") :])
    options = {
        "security_protocol": "SSL",
        "ssl_truststore_type": "PEM",
        "ssl_truststore_location": certificates.authority,
        "ssl_keystore_type": "PEM",
        "ssl_keystore_location": str(keystore),
    }
    topic = f"java-{tools.version}"
    line = json.dumps({"key": None, "value": "dmFsdWU=", "headers": [], "timestamp": 1}).encode()
    where = ("produce", broker.bootstrap, topic, "0")
    assert scenario(tools, *where, stdin=b"\n".join([line] * 3), **options) == [0, 1, 2]
    there = ("read", broker.bootstrap, topic, "0", "0", "3")
    assert [record["offset"] for record in scenario(tools, *there, **options)] == [0, 1, 2]
