"""Racks, gateways and leaders that spread, as processes under stock clients.

One metadata partition for each broker: every broker leads one, is a gateway for some, and clients
are sent to brokers of their own rack, as long as there are any.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.brokers.broker_racks import PARTITIONS, Racks
from tests.support.brokers.live_broker import until
from tests.support.clients.numbered_records import NumberedProducer, assert_each_once

IN_B = "diskless_az=b"
NO_SESSION_ENDS = {"broker.session.timeout.ms": "600000"}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def test_each_broker_leads_and_clients_stay_in_their_rack(tmp_path: Path, stack: ExitStack) -> None:
    """A broker that stops, one that is killed, and a rack that is left without brokers."""
    racks = Racks(tmp_path, stack, {1: "a", 2: "b", 3: "b"})
    everybody = {1, 2, 3}
    racks.until_each_leads(everybody)
    for rack in ("a", "b"):
        racks.until_sent_to(f"diskless_az={rack}", racks.of(rack), 2)
    producer = NumberedProducer(
        racks.cluster.bootstrap, client_id="diskless_az=a", socket_timeout_ms=5_000
    )
    producer.send(60)
    producer.flush()
    racks.cluster.create(1, "u", PARTITIONS)
    for asked in everybody:
        until(lambda asked=asked: racks.sent_to(IN_B, asked) == {2, 3}, "both are gateways in b")
    racks.produce("b", "u")
    written = [one for one in racks.committed().values() if one.uploader in racks.of("b")]
    assert {one.uploader for one in written} == racks.of("b")
    assert all(len(one.coordinators) <= 2 for one in written), "two brokers share three"

    racks.cluster.brokers[1].stop()
    racks.until_sent_to("diskless_az=a", racks.of("b"), 2)
    producer.send(60)
    producer.flush()
    racks.read_all("a", 3, [*producer.acknowledged.values()])
    racks.start(1)
    racks.until_each_leads(everybody)
    racks.until_sent_to("diskless_az=a", racks.of("a"), 2)

    racks.cluster.brokers[3].kill()
    producer.send(60)
    producer.flush()
    racks.until_sent_to(IN_B, {2}, 1)
    assert_each_once(racks.cluster.brokers[2].bootstrap, producer)


def test_a_gateway_that_is_killed_is_left_long_before_its_session_ends(
    tmp_path: Path, stack: ExitStack
) -> None:
    """It leads nothing, so no election tells that it is gone."""
    racks = Racks(tmp_path, stack, {1: "a", 2: "b"}, gateways_only={2}, settings=NO_SESSION_ENDS)
    racks.until_sent_to(IN_B, {2}, 1)
    producer = NumberedProducer(racks.cluster.bootstrap, client_id=IN_B)
    producer.send(60)
    producer.flush()
    racks.cluster.brokers[2].kill()
    producer.send(60)
    producer.flush()
    until(lambda: racks.cluster.live_brokers(1) == {1}, "nobody is told of it")
    assert_each_once(racks.cluster.brokers[1].bootstrap, producer)
