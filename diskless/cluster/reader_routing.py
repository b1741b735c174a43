"""Sends a consumer to a broker of its own rack (KIP-392).

Any broker serves any partition, so what a consumer gains by a broker of its own rack is only the
way between the racks, which is slow, and which clouds charge for. Producers say where they are in
their client id (diskless/cluster/client_rack.py), and Metadata sends them, and consumers who do the
same, to the right broker at once. But a consumer has a setting for it, `client.rack`, which is in
its Fetch requests and not in Metadata's. So:

- Metadata names as replicas of a partition its leader and one broker of each other rack.
- A Fetch that names a rack in which this broker is not, but others are, is answered at once and
  without records, with the partition's broker of that rack as the preferred read replica. The
  client goes there, and stays for some minutes, or until that broker fails it.

A broker in the client's rack never sends it away, so nobody is sent in circles. A client that does
not find the preferred replica among the replicas it knows asks for Metadata, and then does.
"""

from collections.abc import Mapping

from diskless.fetch.fetch_rows import FetchRows
from diskless.loop.long_work import Steps
from diskless.ports import ClientInfo, Cluster, TopicAdmin


class ReaderRouting:
    """Says who reads what elsewhere."""

    def __init__(self, cluster: Cluster, topics: TopicAdmin) -> None:
        self._cluster = cluster
        self._topics = topics

    def elsewhere(self, rack: str, rows: FetchRows, client: ClientInfo) -> Steps[Mapping[int, int]]:
        """Preferred read replicas of a consumer in `rack`, by row; empty: it is right here.

        Rows of topics that are not known have none.
        """
        found: dict[int, int] = {}
        if not rack or not self._cluster.is_another_rack(rack, client):
            return found
        topics = []
        for named in rows.topics:
            if named.topic_id is not None:
                topics.append(self._topics.topic_by_id(named.topic_id))
            else:
                topics.append(self._topics.topics().get(named.name))
            yield
        places = zip(rows.topic_of.tolist(), rows.partitions.tolist(), strict=True)
        for row, (place, partition) in enumerate(places):
            topic = topics[place]
            if topic is not None and 0 <= partition < topic.partition_count:
                found[row] = self._cluster.reader_in(rack, topic.topic_id, partition, client)
            yield
        return found
