"""Stock clients of a broker with workers: what they find with one process, they find here.

The tests are those of tests/clients; only the broker is another one, of two workers, or of three.
"""

from collections.abc import Iterator

import pytest

from demo.broker_process import BrokerProcess
from tests.clients.conftest import admin, members, python_admin, topic
from tests.clients.test_groups import (
    test_a_member_that_was_replaced_cannot_commit,
    test_groups_are_listed_described_and_deleted,
    test_members_of_all_clients_share_a_group,
    test_offsets_are_committed_and_read_without_being_in_the_group,
)
from tests.clients.test_stock_clients import (
    test_a_client_goes_on_after_its_topic_was_deleted_and_created_anew,
    test_a_hundred_partitions_are_written_and_read_by_one_client,
    test_an_idempotent_producer_writes_every_record_once,
    test_an_offset_outside_the_log_is_an_error_and_the_reset_policy_heals_it,
    test_librdkafka_finds_every_timestamp_at_its_record,
    test_producers_and_consumers_at_once_keep_order_within_every_partition,
    timed_topic,
)
from tests.clients.test_transactional_producers import (
    test_a_second_producer_fences_the_first_and_aborts_what_it_left_open,
    test_what_is_committed_is_read_and_what_is_aborted_is_not,
)

__all__ = (
    "admin",
    "members",
    "python_admin",
    "test_a_client_goes_on_after_its_topic_was_deleted_and_created_anew",
    "test_a_hundred_partitions_are_written_and_read_by_one_client",
    "test_a_member_that_was_replaced_cannot_commit",
    "test_a_second_producer_fences_the_first_and_aborts_what_it_left_open",
    "test_an_idempotent_producer_writes_every_record_once",
    "test_an_offset_outside_the_log_is_an_error_and_the_reset_policy_heals_it",
    "test_groups_are_listed_described_and_deleted",
    "test_librdkafka_finds_every_timestamp_at_its_record",
    "test_members_of_all_clients_share_a_group",
    "test_offsets_are_committed_and_read_without_being_in_the_group",
    "test_producers_and_consumers_at_once_keep_order_within_every_partition",
    "test_what_is_committed_is_read_and_what_is_aborted_is_not",
    "timed_topic",
    "topic",
)

pytestmark = pytest.mark.clients

SETTINGS = {
    "wal.commit.interval.ms": "5",
    "group.initial.rebalance.delay.ms": "0",
    "diskless.metadata.topic.num.partitions": "2",
    "num.partitions": "4",
}


class WorkingBroker(BrokerProcess):
    """As much of a `LiveBroker` as the tests use."""

    @property
    def port(self) -> int:
        return int(self.bootstrap.rpartition(":")[2])


@pytest.fixture(scope="module", params=["2", pytest.param("3", marks=pytest.mark.exhaustive)])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkingBroker]:
    place = tmp_path_factory.mktemp("workers")
    workers = {"broker.workers": request.param, "broker.workers.active.min": request.param}
    with WorkingBroker(place / "data", place, {**SETTINGS, **workers}) as broker:
        broker.start()
        yield broker
        broker.stop()


@pytest.fixture
def one_broker(broker: WorkingBroker) -> WorkingBroker:
    return broker
