"""A producer that comes to another worker: in order, and once."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Final

import pytest

from demo.broker_process import BrokerProcess
from tests.support.chunks.batch_builder import Row, build_batch
from tests.support.clients.stock_clients import confluent_admin, create_topic
from tests.support.questions.kafka_raw_client import RawClient

OUT_OF_ORDER_SEQUENCE: Final = 45
CONNECTIONS: Final = 4
"""Those of one client; both are used, so some are at either."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    place = tmp_path_factory.mktemp("workers")
    with BrokerProcess(
        place / "data", place, {"broker.workers": "2", "broker.workers.active.min": "2"}
    ) as broker:
        broker.start()
        yield broker
        broker.stop()


def test_whichever_worker_it_comes_to_a_producer_is_kept_in_sequence(broker: BrokerProcess) -> None:
    topic = "flights"
    create_topic(confluent_admin(broker.bootstrap), topic)
    asyncio.run(_through_all(broker, topic))


async def _through_all(broker: BrokerProcess, topic: str) -> None:
    host, _, port = broker.bootstrap.rpartition(":")
    async with AsyncExitStack() as stack:
        clients = [await RawClient.connect((host, int(port))) for _ in range(CONNECTIONS)]
        for client in clients:
            stack.push_async_callback(client.close)
        answer = await clients[0].ask(
            22, 4, transactional_id=None, transaction_timeout=timedelta(0), producer_id=-1,
            producer_epoch=-1,
        )  # fmt: skip
        producer_id = int(answer.producer_id)

        async def produce(client: RawClient, sequence: int) -> tuple[int, int]:
            batch = build_batch(
                [Row(value=b"%d" % sequence)],
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
            )
            produced = await client.ask(
                0,
                9,
                transactional_id=None,
                acks=-1,
                timeout=timedelta(seconds=60),
                topic_data=[{"name": topic, "partition_data": [{"index": 0, "records": batch}]}],
            )
            ((row,),) = (one.partition_responses for one in produced.responses)
            return int(row.error_code), int(row.base_offset)

        for sequence in range(3 * CONNECTIONS):
            assert await produce(clients[sequence % CONNECTIONS], sequence) == (0, sequence)
        last = 3 * CONNECTIONS - 1
        # A gap is refused by whichever has it, and what was stored is not stored again.
        for client in clients:
            assert await produce(client, last + 2) == (OUT_OF_ORDER_SEQUENCE, -1)
            assert await produce(client, last) == (0, last)
        # What goes to two workers at once is stored once, and both are told where.
        both = await asyncio.gather(*(produce(client, last + 1) for client in clients))
        assert set(both) == {(0, last + 1)}
