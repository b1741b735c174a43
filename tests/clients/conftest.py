"""What the tests of stock clients share: a broker for the module, topics, administrators, tools."""

import gc
import itertools
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients.jvm import NEWEST, JvmUnavailable, KafkaTools
from tests.support.clients.stock_clients import KafkaAdminClient, confluent_admin
from tests.support.groups.group_members import Group

_names = itertools.count()


@pytest.fixture(scope="module")
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveBroker]:
    """With the SETTINGS of the module."""
    with LiveBroker(tmp_path_factory.mktemp("broker") / "data", request.module.SETTINGS) as broker:
        yield broker


@pytest.fixture
def topic() -> str:
    """A name nobody used before."""
    return f"topic-{next(_names)}"


@pytest.fixture
def admin(broker: LiveBroker) -> AdminClient:
    return confluent_admin(broker.bootstrap)


@pytest.fixture
def python_admin(broker: LiveBroker) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as client:
        yield client


@pytest.fixture
def members() -> Iterator[Group]:
    group = Group()
    yield group
    group.abandon()
    gc.collect()


@pytest.fixture(scope="module", params=NEWEST)
def tools(request: pytest.FixtureRequest) -> Iterator[KafkaTools]:
    try:
        tools = KafkaTools(request.param)
    except JvmUnavailable as missing:
        pytest.skip(str(missing))
    yield tools
    tools.close()
