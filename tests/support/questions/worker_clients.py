"""What a raw client asks of a broker of workers: a record in, all records out."""

from datetime import timedelta
from typing import Any

from tests.support.chunks.batch_builder import Row, build_batch
from tests.support.questions.kafka_raw_client import RawClient, fetch_frame

PRODUCE, FETCH, METADATA, CREATE_TOPICS, ALTER_QUOTAS = 0, 1, 3, 19, 49


async def produce(client: RawClient, topic: str, value: bytes) -> Any:
    """(Base offset, seconds of throttling)."""
    batch = {"index": 0, "records": build_batch([Row(value=value)])}
    answer = await client.ask(
        PRODUCE,
        9,
        transactional_id=None,
        acks=-1,
        timeout=timedelta(seconds=60),
        topic_data=[{"name": topic, "partition_data": [batch]}],
    )
    ((row,),) = (one.partition_responses for one in answer.responses)
    assert int(row.error_code) == 0
    return row.base_offset, answer.throttle_time.total_seconds()


async def fetched(client: RawClient, topic: str) -> bytes:
    """Everything from the beginning on, as it is now."""
    await client.send(fetch_frame(5, topic=topic))
    _, answer = await client.receive()
    return answer
