"""Stock clients that log in, or show a certificate, at a broker with two workers.

The tests are those of tests/clients; only the broker is another one. A client has connections to
both workers, most of the time, and knows nothing of that.
"""

import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from prometheus_client.parser import text_string_to_metric_families

from demo.broker_process import BrokerProcess
from tests.clients.test_secured_clients import (
    CLIENTS,
    READ,
    Secured,
    SecuredClient,
    case,
    clients,
    test_a_client_logs_in_and_works,
    test_a_right_that_goes_is_missed_by_who_runs,
    test_a_wrong_password_or_token_and_an_unknown_user_are_refused,
    test_expired_and_wrong_certificates_are_refused,
)
from tests.clients.test_secured_clients import (
    test_a_client_shows_its_certificate_and_works as shows_its_certificate,
)

__all__ = (
    "clients",
    "test_a_client_logs_in_and_works",
    "test_a_right_that_goes_is_missed_by_who_runs",
    "test_a_wrong_password_or_token_and_an_unknown_user_are_refused",
    "test_expired_and_wrong_certificates_are_refused",
)

pytestmark = pytest.mark.clients


class SecuredWorkers(Secured):
    """Such a broker, of three processes."""

    process: BrokerProcess

    def counted(self, name: str, **labels: str) -> float:
        with urllib.request.urlopen(f"{self.process.http_url}/metrics", timeout=60) as answer:
            page = answer.read().decode()
        return sum(
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == name and sample.labels == labels
        )

    def take(self, topic: str, operation: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        gone = AclBindingFilter(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            None,
            None,
            AclOperation.READ if operation == READ else AclOperation.WRITE,
            AclPermissionType.ALLOW,
        )
        for removed in admin.delete_acls([gone]).values():
            assert len(removed.result(60)) == 1


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    place = tmp_path_factory.mktemp("secured")
    secured = SecuredWorkers(place)
    settings: dict[str, Any] = {
        **secured.settings(),
        "broker.workers": "2",
        "broker.workers.active.min": "2",
    }
    with BrokerProcess(place / "data", place, settings) as secured.process:
        secured.process.start()
        secured.open_up()
        yield secured
        secured.process.stop()


@pytest.mark.parametrize("client", [case(one, is_quick=one == "librdkafka") for one in CLIENTS])
def test_a_client_shows_its_certificate_and_works(
    secured: Secured, clients: Callable[[str], SecuredClient], client: str
) -> None:
    shows_its_certificate(secured, clients, client)
