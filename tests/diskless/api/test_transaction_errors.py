"""What a whole broker answers to transactional producers that are wrong, late or ask twice."""

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any, Final

import pytest

from tests.support.brokers.live_broker import LiveBroker
from tests.support.questions.kafka_raw_client import RawClient

INIT, ADD_PARTITIONS, ADD_OFFSETS, END = 22, 24, 25, 26
INVALID_EPOCH, INVALID_STATE, UNKNOWN_MAPPING, FENCED = 47, 48, 49, 90
TOPIC: Final = "t"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    settings = {"wal.commit.interval.ms": "5"}
    with LiveBroker(tmp_path_factory.mktemp("broker") / "data", settings) as broker:
        yield broker


@pytest.fixture
async def client(broker: LiveBroker) -> AsyncIterator[RawClient]:
    client = await RawClient.connect(("127.0.0.1", broker.port))
    await client.ask(3, 8, topics=[{"name": TOPIC}], allow_auto_topic_creation=True)
    yield client
    await client.close()


class Asking:
    """One transactional id, that of the test, asked about with any producer id and epoch."""

    def __init__(self, client: RawClient, name: str) -> None:
        self._client = client
        self.name = name

    async def init(self, producer_id: int = -1, epoch: int = -1, version: int = 4) -> Any:
        """(error code, producer id, epoch)"""
        answer = await self._client.ask(
            INIT,
            version,
            transactional_id=self.name,
            transaction_timeout=timedelta(minutes=1),
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        return int(answer.error_code), answer.producer_id, answer.producer_epoch

    async def add(self, producer_id: int, epoch: int, version: int = 3) -> int:
        answer = await self._client.ask(
            ADD_PARTITIONS,
            version,
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[{"name": TOPIC, "partitions": [0]}],
        )
        (topic,) = answer.results_by_topic_v3_and_below
        return int(topic.results_by_partition[0].partition_error_code)

    async def add_group(self, producer_id: int, epoch: int, version: int = 3) -> int:
        answer = await self._client.ask(ADD_OFFSETS, version, **self._pair(producer_id, epoch),
                                        group_id="g")  # fmt: skip
        return int(answer.error_code)

    async def end(
        self, producer_id: int, epoch: int, version: int = 3, *, is_commit: bool = True
    ) -> int:
        answer = await self._client.ask(END, version, **self._pair(producer_id, epoch),
                                        committed=is_commit)  # fmt: skip
        return int(answer.error_code)

    def _pair(self, producer_id: int, epoch: int) -> dict[str, Any]:
        return {
            "transactional_id": self.name,
            "producer_id": producer_id,
            "producer_epoch": epoch,
        }


@pytest.fixture
def asking(client: RawClient, request: pytest.FixtureRequest) -> Asking:
    return Asking(client, request.node.name)


async def test_who_was_never_given_the_id_has_no_transaction(asking: Asking) -> None:
    for ask in (asking.add, asking.add_group, asking.end):
        assert await ask(77, 0) == UNKNOWN_MAPPING
    _, producer_id, epoch = await asking.init()
    for ask in (asking.add, asking.add_group, asking.end):
        assert await ask(producer_id + 1, epoch) == UNKNOWN_MAPPING


async def test_a_producer_with_a_successor_is_fenced_in_the_words_of_its_version(
    asking: Asking,
) -> None:
    _, producer_id, epoch = await asking.init()
    assert await asking.init() == (0, producer_id, epoch + 1)
    for ask in (asking.add, asking.add_group, asking.end):
        assert await ask(producer_id, epoch, version=1) == INVALID_EPOCH
        assert await ask(producer_id, epoch, version=2) == FENCED


async def test_an_end_is_repeated_and_never_revised(asking: Asking) -> None:
    _, *pair = await asking.init()
    assert await asking.end(*pair) == INVALID_STATE
    for is_commit in (True, False):
        assert await asking.add(*pair) == 0
        assert await asking.add(*pair) == 0
        for _ in range(2):
            assert await asking.end(*pair, is_commit=is_commit) == 0
        assert await asking.end(*pair, is_commit=not is_commit) == INVALID_STATE


async def test_a_producer_goes_on_under_its_next_epoch_and_may_ask_for_it_twice(
    asking: Asking,
) -> None:
    _, producer_id, epoch = await asking.init()
    for _ in range(2):
        assert await asking.init(producer_id, epoch) == (0, producer_id, epoch + 1)
    assert await asking.init(producer_id, epoch + 1) == (0, producer_id, epoch + 2)
    assert await asking.init(producer_id, epoch) == (FENCED, -1, -1)
    assert await asking.init(producer_id, epoch, version=3) == (INVALID_EPOCH, -1, -1)
