"""What a member of a classic group subscribes to, as far as the coordinator has to know it.

Assignment is the members' business and their metadata is opaque, with one exception: the offsets of
a topic that is being read are not deleted and do not expire. The embedded "consumer" protocol
begins the same in all its versions: int16 version, array of topic names.

Source: ConsumerProtocolSubscription in Apache Kafka.
"""

from collections.abc import Iterable
from typing import Final

from diskless.protocol.wire import ProtocolError, Reader

CONSUMER_PROTOCOL: Final = "consumer"
"""The protocol type of groups that read topics; Connect and others have their own."""

_TOPIC_BYTES_MIN: Final = 2


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics a member wants; None when that cannot be made out."""
    reader = Reader([metadata])
    try:
        reader.int16()
        count = reader.array_count(flexible=False, item_bytes_min=_TOPIC_BYTES_MIN)
        return frozenset(reader.string(flexible=False) for _ in range(count))
    except ProtocolError:
        return None


def all_subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """The topics any of the members wants; None when one of them cannot be made out."""
    topics: set[str] = set()
    for one in metadata:
        wanted = subscribed_topics(one)
        if wanted is None:
            return None
        topics |= wanted
    return frozenset(topics)
