"""A broker of Kafka's own, in a process, as the judge of ours: `with kafka_broker(...) as broker:`.

One node that is broker and controller. Skipped where Java or the jars are missing (`jvm.py`).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.brokers.live_broker import until
from tests.support.clients.jvm import KafkaTools
from tests.support.ports import own_port
from tests.support.questions.versioned_requests import PlainConnection

__all__ = ["kafka_broker"]

_CLUSTER_ID: Final = "MkU3OEVBNTcwNTJENDM2Qg"


@contextmanager
def kafka_broker(
    tools: KafkaTools, directory: Path, ports: Mapping[str, int], settings: Mapping[str, str]
) -> Iterator[None]:
    """A broker with a listener for each protocol in `ports`, in `directory`, which is there."""
    controller = own_port()
    listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
    protocols = ",".join(f"{name}:{name}" for name in ports)
    every = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "log.dirs": str(directory / "data"),
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": f"{protocols},CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        **settings,
    }
    properties = directory / "server.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in every.items()))
    formatted = tools.run(
        "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(properties)
    )
    assert formatted.status == 0, formatted.stderr
    with tools.start("kafka.Kafka", str(properties)):
        until(lambda: _answers(ports["PLAINTEXT"]), "Kafka")
        yield


def _answers(port: int) -> bool:
    try:
        with PlainConnection(port) as connection:
            return bool(connection.ask(18, 0).api_keys)
    except ConnectionError:
        return False
