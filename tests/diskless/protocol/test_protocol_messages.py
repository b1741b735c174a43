"""Control messages: our reader and writer held to kio's, over all versions, and to bad bytes."""

import io
import random
import struct
from datetime import timedelta
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_writer

from diskless.api import kafka_apis
from diskless.audit.audit_log import UNNOTED
from diskless.authorization import AllowEverything
from diskless.fetch.fetch_sessions import FetchSessions
from diskless.groups.group_router import GroupRouter
from diskless.loop.long_work import done_at_once
from diskless.ports import BrokerEndpoint
from diskless.protocol import messages
from diskless.protocol.wire import ProtocolError
from diskless.quotas.quota_settings import QuotaSettings
from diskless.quotas.quotas import QuotaEnforcer
from diskless.transactions.transaction_numbers import TransactionNumbers
from diskless.transactions.transaction_router import TransactionRouter
from tests.support.brokers.fake_logs import FakeReplicaManager, FakeTopics
from tests.support.brokers.kafka_fakes import (
    FakeCluster,
    FakeConfigs,
    FakeQuotas,
    FakeStored,
    FakeUsers,
)
from tests.support.profiles import examples
from tests.support.samples.kio_entities import as_fields, entities, promoted, smallest
from wal.clock import ManualClock


def decode_request(key: int, version: int, body: bytes) -> Any:
    return done_at_once(messages.decode_request(key, version, body))


def encode_response(key: int, version: int, values: messages.Fields) -> bytes:
    return b"".join(done_at_once(messages.encode_response(key, version, values)))


def _registry():
    topics = FakeTopics()
    return kafka_apis(
        manager=FakeReplicaManager(topics),
        cluster=FakeCluster(BrokerEndpoint(0, "localhost", 1)),
        groups=cast(GroupRouter, None),  # no handler is called
        topics=topics,
        producer_ids=topics,
        broker_configs=FakeConfigs(),
        stored=FakeStored(),
        quotas=QuotaEnforcer(dict, settings=QuotaSettings(), clock=ManualClock()),
        quota_admin=FakeQuotas(),
        transactions=cast(TransactionRouter, None),
        transaction_numbers=cast(TransactionNumbers, None),
        scram_admin=FakeUsers(),
        fetch_sessions=FetchSessions(slots=0, clock=ManualClock(), rng=random.Random(1)),
        authorizer=AllowEverything(),
        acl_admin=None,
        audit=UNNOTED,
        now_ms=ManualClock().now_ms,
    )


APIS = list(_registry())
SERVED = [
    pytest.param(api.key, version, id=f"{api.name}-v{version}")
    for api in APIS
    for version in api.versions
    if api.name not in ("Produce", "Fetch")
]
FLEXIBLE = [
    item for item in SERVED if load_request_schema(item.values[0], item.values[1]).__flexible__
]

few_examples = examples(0.15)


def _written(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


@pytest.mark.parametrize(("key", "version"), SERVED)
@few_examples
@given(data=st.data())
def test_a_response_is_written_as_kio_writes_it(key, version, data):
    entity = data.draw(entities(load_response_schema(key, version)))
    assert encode_response(key, version, as_fields(entity)) == _written(entity)


@pytest.mark.parametrize(("key", "version"), SERVED)
@few_examples
@given(data=st.data())
def test_a_request_is_read_as_it_was_written_with_anything_behind_it(key, version, data):
    entity = data.draw(entities(load_request_schema(key, version)))
    trailing = data.draw(st.binary(max_size=5))
    assert decode_request(key, version, _written(entity) + trailing) == entity


@pytest.mark.parametrize(("key", "version"), FLEXIBLE)
@few_examples
@given(data=st.data())
def test_tagged_fields_of_the_future_are_skipped_on_every_level(key, version, data):
    entity = data.draw(entities(load_request_schema(key, version)))
    body = _written(promoted(entity))
    assert b"from tomorrow" in body
    assert decode_request(key, version, body) == entity


@pytest.mark.parametrize(("key", "version"), SERVED)
def test_a_request_cut_anywhere_is_a_protocol_error(key, version):
    body = _written(smallest(load_request_schema(key, version)))
    for end in range(len(body)):
        with pytest.raises(ProtocolError):
            decode_request(key, version, body[:end])


@pytest.mark.parametrize(("key", "version"), FLEXIBLE)
def test_a_request_of_the_future_cut_anywhere_is_a_protocol_error(key, version):
    body = _written(promoted(smallest(load_request_schema(key, version))))
    for end in range(len(body)):
        with pytest.raises(ProtocolError):
            decode_request(key, version, body[:end])


@pytest.mark.parametrize(("key", "version"), SERVED)
@few_examples
@given(garbage=st.binary(max_size=120))
def test_garbage_is_a_request_or_a_protocol_error(key, version, garbage):
    try:
        decode_request(key, version, garbage)
    except ProtocolError:
        pass


def test_librdkafkas_three_bytes_too_many_do_not_matter():
    # All topics, as librdkafka 2.16 sends it in version 9: null array, three flags, no tags, and a
    # placeholder of which it meant to write one byte.
    body = b"\x00" + b"\x01\x00\x00" + b"\x00" + b"\x00\x00\x00"
    assert decode_request(3, 9, body).topics is None


def test_a_field_that_a_handler_forgot_is_an_error():
    with pytest.raises(KeyError, match="producer_epoch"):
        encode_response(22, 4, {"error_code": 0, "producer_id": 1})


def test_fields_that_a_version_lacks_are_left_out():
    values = {"error_code": 0, "error_message": "x", "node_id": 1, "host": "h", "port": 2}
    assert encode_response(10, 0, values) == b"\0\0" + b"\0\0\0\1" + b"\0\1h" + b"\0\0\0\2"


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_an_api_knows_its_flexible_versions(api):
    for version in api.versions:
        request = load_request_schema(api.key, version)
        response = load_response_schema(api.key, version)
        assert api.is_flexible(version) == request.__flexible__
        assert (
            api.has_flexible_response_header and api.is_flexible(version)
        ) == response.__header_schema__.__flexible__


@pytest.mark.parametrize("milliseconds", [-(2**63), 2**63 - 1])
def test_a_time_beyond_what_can_be_held_is_as_much_as_can_be(milliseconds: int) -> None:
    """The retention of OffsetCommit v2, behind group id, generation and member id."""
    body = struct.pack(">hih", 0, -1, 0) + struct.pack(">qi", milliseconds, 0)
    held = decode_request(8, 2, body).retention_time
    assert held.days == (timedelta.max.days if milliseconds > 0 else timedelta.min.days)


def test_an_array_may_be_written_from_an_iterator_of_unknown_length() -> None:
    group = {"error_code": 0, "group_id": "g", "group_state": "", "protocol_type": ""}
    rows = ({**group, "protocol_data": "", "members": iter(())} for _ in range(2_000))
    listed = [{**group, "protocol_data": "", "members": []}] * 2_000
    assert encode_response(15, 0, {"groups": rows}) == encode_response(15, 0, {"groups": listed})


def test_long_arrays_are_read_and_written_in_steps() -> None:
    """OffsetFetch v1 of a thousand partitions, and the answer to it."""
    partitions = struct.pack(">1000i", *range(1_000))
    body = struct.pack(">h1sih1si", 1, b"g", 1, 1, b"t", 1_000) + partitions
    reading = messages.decode_request(9, 1, body)
    assert sum(1 for _ in iter(lambda: next(reading, "end"), "end")) >= 1_000
    row = {"committed_offset": 0, "metadata": None, "error_code": 0}
    rows = [{"partition_index": index, **row} for index in range(1_000)]
    values = {"topics": [{"name": "t", "partitions": rows}]}
    writing = messages.encode_response(9, 1, values)
    assert sum(1 for _ in iter(lambda: next(writing, "end"), "end")) >= 1_000
