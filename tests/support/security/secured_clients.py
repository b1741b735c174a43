"""Stock clients that log in, or show a certificate: what goes through, what they are told, rights.

Each of them takes a `Way`, which says how a broker is reached, in its own spelling:

    client.through(way, topic, values)       the values, written and read back
    client.refusal(way)                      what the library says when it is not let in
    with client.running(way, topic) as one:  a producer and a consumer that stay
        one.write(b"v")                      None, or what the library says
        one.read()                           the next value, or what the library says

Everything blocks and has a deadline. Here are the libraries of Python; the others are programs, in
secured_programs.py.
"""

import asyncio
import gc
import logging
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from logging.handlers import BufferingHandler
from typing import Any, Final, NamedTuple

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from aiokafka.errors import KafkaError as AioError
from kafka.errors import KafkaError as PythonError
from kafka.net.sasl.oauth import AbstractTokenProvider as PythonTokenProvider

from tests.support.brokers.live_broker import until
from tests.support.clients.stock_clients import (
    QUIET,
    TIMEOUT_S,
    KafkaConsumer,
    KafkaProducer,
    PythonTopicPartition,
)

__all__ = [
    "OAUTHBEARER",
    "AioKafka",
    "KafkaPython",
    "Librdkafka",
    "Running",
    "SecuredClient",
    "Way",
    "librdkafka",
]

OAUTHBEARER: Final = "OAUTHBEARER"
TOKEN_LIVES_S: Final = 3_600.0
"""As librdkafka is told, which does not look into tokens."""
GIVES_UP_S: Final = 0.5
"""After which a library that tries again and again is to say why; it asks once at least."""


class Way(NamedTuple):
    """How a broker is reached, and as whom."""

    bootstrap: str
    protocol: str
    authority: str
    """Whom the client trusts."""
    mechanism: str = ""
    user: str = ""
    password: str = ""
    """With OAUTHBEARER the token."""
    keys: str = ""
    """Its own key store, if it shows a certificate."""

    @property
    def is_tls(self) -> bool:
        return self.protocol.endswith("SSL")


class Running(ABC):
    """A producer and a consumer of one partition that keep their connections."""

    @abstractmethod
    def write(self, value: bytes) -> str | None:
        """None when it was acknowledged, otherwise what the library says."""

    @abstractmethod
    def read(self) -> bytes | str:
        """The next value, or what the library says in its place."""


class SecuredClient(ABC):
    """One client library."""

    def through(self, way: Way, topic: str, values: Sequence[bytes]) -> list[bytes | str]:
        """What is read after `values` were written to a new topic."""
        with self.running(way, topic) as one:
            assert [one.write(value) for value in values] == [None] * len(values)
            return [one.read() for _ in values]

    @abstractmethod
    def refusal(self, way: Way) -> str:
        """What the library says. Fails when it is let in."""

    @abstractmethod
    def running(self, way: Way, topic: str) -> AbstractContextManager[Running]:
        """A producer and a consumer at the beginning of partition 0."""


@contextmanager
def _leftovers_collected() -> Iterator[None]:
    """Libraries that are refused leave sockets to the collector, which warns in any test after."""
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


def librdkafka(way: Way) -> dict[str, Any]:
    """The settings of librdkafka."""
    settings: dict[str, Any] = {
        "bootstrap.servers": way.bootstrap,
        "security.protocol": way.protocol,
    }
    if way.is_tls:
        settings["ssl.ca.location"] = way.authority
    if way.mechanism == OAUTHBEARER:
        token = (way.password, time.time() + TOKEN_LIVES_S)
        settings |= {"sasl.mechanism": way.mechanism, "oauth_cb": lambda _: token}
    elif way.mechanism:
        settings |= {
            "sasl.mechanism": way.mechanism,
            "sasl.username": way.user,
            "sasl.password": way.password,
        }
    if way.keys:
        settings |= {"ssl.certificate.location": way.keys, "ssl.key.location": way.keys}
    return settings


class Librdkafka(SecuredClient):
    """confluent-kafka."""

    def refusal(self, way: Way) -> str:
        told: list[str] = []
        settings = {**librdkafka(way), "logger": QUIET}
        producer = confluent_kafka.Producer(
            {**settings, "error_cb": lambda error: told.append(f"{error.name()}: {error.str()}")}
        )
        until(lambda: producer.poll(0.05) >= 0 and len(told) > 0, "what librdkafka says")
        return told[0]

    @contextmanager
    def running(self, way: Way, topic: str) -> Iterator["_RunningLibrdkafka"]:
        settings = {**librdkafka(way), "logger": QUIET}
        producer = confluent_kafka.Producer({**settings, "linger.ms": 0})
        consumer = confluent_kafka.Consumer(
            {**settings, "group.id": "unused", "auto.offset.reset": "earliest"}
        )
        with closing(consumer):
            consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
            yield _RunningLibrdkafka(producer, consumer, topic)


class _RunningLibrdkafka(Running):
    def __init__(
        self, producer: confluent_kafka.Producer, consumer: confluent_kafka.Consumer, topic: str
    ) -> None:
        self._producer = producer
        self._consumer = consumer
        self._topic = topic

    def write(self, value: bytes) -> str | None:
        told: list[confluent_kafka.KafkaError | None] = []
        self._producer.produce(
            self._topic, value, partition=0, on_delivery=lambda error, _: told.append(error)
        )
        assert self._producer.flush(TIMEOUT_S) == 0
        return None if told[0] is None else told[0].name()

    def read(self) -> bytes | str:
        ends_at = time.monotonic() + TIMEOUT_S
        while time.monotonic() < ends_at:
            message = self._consumer.poll(1)
            if message is None:
                continue
            error, value = message.error(), message.value()
            if error is None:
                assert value is not None
                return value
            # It says so too while a topic is new.
            if error.code() != confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                return error.name()
        raise AssertionError("nothing to read")


class PythonTokens(PythonTokenProvider):  # type: ignore[misc]
    """Gives kafka-python one token."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token


class AioTokens(AioTokenProvider):  # type: ignore[misc]
    """Gives aiokafka one token."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def _python_settings(way: Way, tokens: Callable[[str], Any]) -> dict[str, Any]:
    """What kafka-python and aiokafka are told alike; `tokens` gives the provider of a token."""
    settings: dict[str, Any] = {
        "bootstrap_servers": way.bootstrap,
        "security_protocol": way.protocol,
    }
    if way.mechanism:
        settings["sasl_mechanism"] = way.mechanism
    if way.mechanism == OAUTHBEARER:
        settings["sasl_oauth_token_provider"] = tokens(way.password)
    elif way.mechanism:
        settings |= {"sasl_plain_username": way.user, "sasl_plain_password": way.password}
    return settings


class KafkaPython(SecuredClient):
    """kafka-python."""

    @staticmethod
    def _settings(way: Way) -> dict[str, Any]:
        settings = _python_settings(way, PythonTokens)
        if way.is_tls:
            settings["ssl_cafile"] = way.authority
        if way.keys:
            settings |= {"ssl_certfile": way.keys, "ssl_keyfile": way.keys}
        return settings

    def refusal(self, way: Way) -> str:
        with _leftovers_collected():
            return self._refusal(way)

    def _refusal(self, way: Way) -> str:
        # A function of its own: while the error is at hand, so is what it was raised in.
        limit_ms = int(GIVES_UP_S * 1_000)
        try:
            KafkaProducer(**self._settings(way), bootstrap_timeout_ms=limit_ms).close()
        except PythonError as error:
            return repr(error)
        raise AssertionError("it was let in")

    @contextmanager
    def running(self, way: Way, topic: str) -> Iterator["_RunningKafkaPython"]:
        settings = self._settings(way)
        with closing(KafkaProducer(**settings)) as producer:
            consumer = KafkaConsumer(**settings, auto_offset_reset="earliest")
            with closing(consumer):
                place = PythonTopicPartition(topic, 0)
                consumer.assign([place])
                consumer.seek(place, 0)
                yield _RunningKafkaPython(producer, consumer, topic)


class _RunningKafkaPython(Running):
    def __init__(self, producer: Any, consumer: Any, topic: str) -> None:
        self._producer = producer
        self._consumer = consumer
        self._topic = topic
        self._found: list[bytes] = []

    def write(self, value: bytes) -> str | None:
        try:
            self._producer.send(self._topic, value, partition=0).get(TIMEOUT_S)
        except PythonError as error:
            return repr(error)
        return None

    def read(self) -> bytes | str:
        ends_at = time.monotonic() + TIMEOUT_S
        while not self._found:
            assert time.monotonic() < ends_at, "nothing to read"
            try:
                polled = self._consumer.poll(timeout_ms=1_000)
            except PythonError as error:
                return repr(error)
            self._found = [record.value for records in polled.values() for record in records]
        return self._found.pop(0)


class AioKafka(SecuredClient):
    """aiokafka, each on an event loop of its own."""

    def __init__(self, context: Callable[[Way], Any]) -> None:
        """`context` gives the TLS context of a way."""
        self._context = context

    def _settings(self, way: Way) -> dict[str, Any]:
        settings = _python_settings(way, AioTokens)
        if way.is_tls:
            settings["ssl_context"] = self._context(way)
        return settings

    def refusal(self, way: Way) -> str:
        async def start() -> None:
            producer = AIOKafkaProducer(**self._settings(way))
            try:
                await producer.start()
            finally:
                await producer.stop()

        # The exception says only that it cannot connect; the log says why.
        told = BufferingHandler(100)
        logger = logging.getLogger("aiokafka")
        logger.addHandler(told)
        try:
            with _leftovers_collected():
                self._fail(start())
        finally:
            logger.removeHandler(told)
        return "\n".join(record.getMessage() for record in told.buffer)

    @staticmethod
    def _fail(start: Coroutine[Any, Any, None]) -> None:
        with pytest.raises(AioError):
            asyncio.run(start)

    @contextmanager
    def running(self, way: Way, topic: str) -> Iterator["_RunningAioKafka"]:
        with asyncio.Runner() as runner:
            settings = self._settings(way)

            async def start() -> tuple[AIOKafkaProducer, AIOKafkaConsumer]:
                producer = AIOKafkaProducer(**settings)
                await producer.start()
                consumer = AIOKafkaConsumer(**settings, auto_offset_reset="earliest")
                await consumer.start()
                place = AioTopicPartition(topic, 0)
                consumer.assign([place])
                consumer.seek(place, 0)
                return producer, consumer

            async def stop() -> None:
                await consumer.stop()
                await producer.stop()

            producer, consumer = runner.run(start())
            try:
                yield _RunningAioKafka(runner, producer, consumer, topic)
            finally:
                runner.run(stop())


class _RunningAioKafka(Running):
    def __init__(
        self,
        runner: asyncio.Runner,
        producer: AIOKafkaProducer,
        consumer: AIOKafkaConsumer,
        topic: str,
    ) -> None:
        self._runner = runner
        self._producer = producer
        self._consumer = consumer
        self._topic = topic

    def write(self, value: bytes) -> str | None:
        async def send() -> None:
            async with asyncio.timeout(TIMEOUT_S):
                await self._producer.send_and_wait(self._topic, value, partition=0)

        try:
            self._runner.run(send())
        except AioError as error:
            return repr(error)
        return None

    def read(self) -> bytes | str:
        async def one() -> bytes:
            async with asyncio.timeout(TIMEOUT_S):
                return bytes((await self._consumer.getone()).value)

        try:
            return self._runner.run(one())
        except AioError as error:
            return repr(error)
