"""Kafka's Java producer and consumer as one of the stock clients, and its other scenarios.

What it does is in tests/jvm/ClientScenarios.java; each call runs one scenario in the warm process
of its `KafkaTools` and gives the JSON that it prints.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.clients.jvm import KafkaTools
from tests.support.clients.kafka_commands import check_quiet
from tests.support.clients.stock_clients import Record, Sending, StockClient, StoredRecord


def scenario(
    tools: KafkaTools,
    name: str,
    bootstrap: str,
    *arguments: str,
    main_class: str = "ClientScenarios",
    stdin: bytes = b"",
    **settings: str,
) -> Any:
    """What the scenario `name` says. Fails when it fails or the client library complains.

    `settings` are those of the client, with `_` for `.`.
    """
    configured = [f"{key.replace('_', '.')}={value}" for key, value in settings.items()]
    finished = tools.run(main_class, name, bootstrap, *arguments, *configured, stdin=stdin)
    assert finished.status == 0, finished.stderr
    check_quiet(finished.stderr)
    return json.loads(finished.lines[-1])


class JavaKafka(StockClient):
    """kafka-clients of one version."""

    def __init__(self, tools: KafkaTools) -> None:
        self.tools = tools
        self.name = f"java-{tools.version}"

    def can_send(self, record: Record) -> bool:
        return record.timestamp_ms >= 0

    def send(
        self, bootstrap: str, topic: str, records: Sequence[Record], how: Sending
    ) -> list[int]:
        offsets: list[int] = scenario(
            self.tools,
            *("produce", bootstrap, topic, str(how.partition)),
            stdin=b"\n".join(_line(record) for record in records),
            compression_type=how.codec,
            enable_idempotence=str(how.idempotent).lower(),
            acks=str(how.acks),
            linger_ms="5",
        )
        return offsets

    def read(
        self,
        bootstrap: str,
        topic: str,
        count: int,
        *,
        partition: int = 0,
        offset: int = 0,
        **settings: str,
    ) -> list[StoredRecord]:
        place = (topic, str(partition), str(offset), str(count))
        read = scenario(self.tools, "read", bootstrap, *place, **settings)
        return [StoredRecord(record["offset"], _record(record)) for record in read]

    def read_all(
        self, bootstrap: str, counts: Mapping[str, int], **settings: str
    ) -> dict[str, list[StoredRecord]]:
        """So many records of partition 0 of so many topics, in a group if `settings` name one."""
        counted = json.dumps(dict(counts)).encode()
        read = scenario(self.tools, "read all", bootstrap, stdin=counted, **settings)
        return {
            topic: [StoredRecord(record["offset"], _record(record)) for record in records]
            for topic, records in read.items()
        }


def _line(record: Record) -> bytes:
    return json.dumps(
        {
            "key": _text(record.key),
            "value": _text(record.value),
            "headers": [(name, _text(value)) for name, value in record.headers],
            "timestamp": record.timestamp_ms,
        }
    ).encode()


def _record(read: Mapping[str, Any]) -> Record:
    return Record(
        _bytes(read["key"]),
        _bytes(read["value"]),
        tuple((name, _bytes(value)) for name, value in read["headers"]),
        read["timestamp"],
    )


def _text(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
