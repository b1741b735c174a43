"""Requests of any version, written and read with schemas that the broker does not use.

Kafka-python brings its own, for all APIs but those of consumer groups of the new protocol. Those
are kio's, with kio's reader and writer, of which the broker has its own as well.
"""

import importlib
import io
import socket
import struct
import warnings
from collections.abc import Mapping
from typing import Any, Final, Self

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from tests.support.clients.stock_clients import TIMEOUT_S

__all__ = ["PlainConnection", "kafka_python_versions"]

MODULES: Final = (
    *("admin.acl", "admin.client_quotas", "admin.cluster", "admin.configs", "admin.groups"),
    *("admin.topics", "admin.transactions", "admin.users", "consumer", "metadata", "producer"),
    "sasl",
)
API_VERSIONS: Final = 18
"""Whose answers have the oldest header in every version."""
CLIENT_ID: Final = "versions"


def _classes() -> dict[int, tuple[Any, Any]]:
    found: dict[int, dict[str, Any]] = {}
    with warnings.catch_warnings():
        # As in tests/support/clients/stock_clients.py.
        warnings.simplefilter("ignore", DeprecationWarning)
        for name in MODULES:
            for one in vars(importlib.import_module(f"kafka.protocol.{name}")).values():
                if isinstance(getattr(one, "API_KEY", None), int):
                    found.setdefault(one.API_KEY, {})[one.type] = one
    return {key: (pair["request"], pair["response"]) for key, pair in found.items()}


CLASSES: Final = _classes()


def kafka_python_versions(key: int) -> range:
    """The versions of an API that kafka-python has schemas for; none if it has not heard of it."""
    if key not in CLASSES:
        return range(0)
    request, _ = CLASSES[key]
    return range(request.max_version + 1)


class PlainConnection:
    """One connection, one question at a time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, key: int, version: int, /, **values: Any) -> Any:
        """The answer, decoded to its last byte.

        Nested messages are mappings; what a version lacks is left out, what is missing is the
        schema's default. Raises ConnectionError when the broker closes the connection instead.
        """
        if version in kafka_python_versions(key):
            return self._ask_with_kafka_python(key, version, values)
        return self._ask_with_kio(key, version, values)

    def _ask_with_kafka_python(self, key: int, version: int, values: Mapping[str, Any]) -> Any:
        request_class, response_class = CLASSES[key]
        request = _filled(request_class, version, values)
        request.with_header(correlation_id=key, client_id=CLIENT_ID)
        self._socket.sendall(request.encode(version=version, header=True, framed=True))
        answer = self._frame()
        assert struct.unpack_from(">i", answer) == (key,)
        flexible = response_class.flexible_version_q(version)
        # Its own `decode` does not tell where it ended.
        decode = response_class._struct.compiled_decode_from(
            version, compact=flexible, tagged=flexible, data_class=response_class[None]
        )
        start = 5 if flexible and key != API_VERSIONS else 4
        response, end = decode(memoryview(answer), start)
        assert end == len(answer)
        return response

    def _ask_with_kio(self, key: int, version: int, values: Mapping[str, Any]) -> Any:
        schema = load_request_schema(key, version)
        body = io.BytesIO()
        known = {name: value for name, value in values.items() if name in _names(schema)}
        entity_writer(schema)(body, schema(**known))
        header = struct.pack(">hhih", key, version, key, len(CLIENT_ID)) + CLIENT_ID.encode()
        header += b"\x00" if schema.__flexible__ else b""
        frame = header + body.getvalue()
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        answer = self._frame()
        assert struct.unpack_from(">i", answer) == (key,)
        answered = load_response_schema(key, version)
        start = 5 if answered.__header_schema__.__flexible__ else 4
        response, size = entity_reader(answered)(answer, start)
        assert start + size == len(answer)
        return response

    def _frame(self) -> bytes:
        (length,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            part = self._socket.recv(count - len(found))
            if not part:
                raise ConnectionError("the broker has closed the connection")
            found += part
        return found


def _names(schema: Any) -> set[str]:
    return set(schema.__dataclass_fields__)


def _filled(data_class: Any, version: int, values: Mapping[str, Any]) -> Any:
    """A message of kafka-python with what this version has of `values`."""
    known = {}
    for name, value in values.items():
        field = data_class.fields[name]
        if not field.for_version_q(version):
            continue
        if isinstance(value, Mapping):
            known[name] = _filled(field.data_class, version, value)
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            known[name] = [_filled(field.data_class, version, item) for item in value]
        else:
            known[name] = value
    return data_class(version=version, **known)
