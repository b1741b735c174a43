"""Three brokers with TLS between them and to their clients, each side with a certificate."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.clients.steady_load import SteadyLoad, read_back
from tests.support.ports import own_port
from tests.support.security.certificates import Certificates

BROKERS: Final = (1, 2, 3)
TIMEOUT_S: Final = 60.0
SHARED: Final = {
    "diskless.metadata.log": "object",
    "diskless.metadata.topic.num.partitions": "3",
    "diskless.metadata.follow.interval.ms": "50",
    "wal.commit.interval.ms": "5",
    "listener.security.protocol.map": "BROKERS:SSL,CLIENTS:SSL",
    "inter.broker.listener.name": "BROKERS",
    "ssl.client.auth": "required",
}


class TlsCluster:
    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.inside = Certificates(directory / "inside")
        self.outside = Certificates(directory / "outside")
        self.brokers: dict[int, LiveBroker] = {}
        addresses = []
        for node_id in BROKERS:
            inside, outside = own_port(), own_port()
            addresses.append(f"127.0.0.1:{outside}")
            settings = {
                **SHARED,
                "node.id": str(node_id),
                "object.store.url": f"file://{directory / 'bucket'}",
                "listeners": f"CLIENTS://127.0.0.1:{outside},BROKERS://127.0.0.1:{inside}",
                **_keys("brokers", self.inside),
                **_keys("clients", self.outside),
            }
            broker = LiveBroker(directory / f"data-{node_id}", settings)
            self.brokers[node_id] = stack.enter_context(broker)
        mine = self.outside.signed("client")
        self.client: Final = {
            "bootstrap.servers": ",".join(addresses),
            "security.protocol": "ssl",
            "ssl.ca.location": self.outside.authority,
            "ssl.certificate.location": mine,
            "ssl.key.location": mine,
        }
        self.admin: Final = AdminClient(self.client)

    def live(self) -> int:
        return len(self.admin.list_topics(timeout=TIMEOUT_S).brokers)


def _keys(listener: str, certificates: Certificates) -> dict[str, str]:
    keys = certificates.listener()
    return {f"listener.name.{listener}.{key}": value for key, value in keys.items()}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsCluster]:
    with ExitStack() as stack:
        found = TlsCluster(tmp_path_factory.mktemp("tls"), stack)
        until(lambda: found.live() == len(BROKERS), "the cluster")
        yield found


@pytest.mark.exhaustive  # test_secure_cluster.py does it with log-ins
def test_certificates_are_replaced_and_a_broker_goes_while_records_come(
    cluster: TlsCluster,
) -> None:
    cluster.admin.create_topics([NewTopic("load", 6)])["load"].result(TIMEOUT_S)
    with SteadyLoad(cluster.client, "load") as load:
        load.more()
        for certificates in (cluster.inside, cluster.outside):
            certificates.signed("server", "localhost", "127.0.0.1")
        for broker in cluster.brokers.values():
            broker.run(broker.broker.base.tls.reload())
            assert {keys.reloads for keys in broker.broker.base.tls.keys} == {1}
        load.more()
        # What was connected before goes on; now all of them connect anew.
        cluster.brokers[3].stop()
        load.more()
        assert not load.failed
    sent = load.delivered
    assert sorted(read_back(cluster.client, "load", len(sent))) == sorted(sent)
    until(lambda: cluster.live() == 2, "the broker that is gone")


def test_brokers_talk_to_each_other_by_tls_alone(cluster: TlsCluster) -> None:
    name, labels = "diskless_tls_handshakes_total", {"listener": "BROKERS", "result": "complete"}
    bases = [broker.broker.base for broker in cluster.brokers.values()]
    assert any(base.registry.get_sample_value(name, labels) for base in bases)
    for base in bases:
        assert base.inter_broker[0].tls is not None
