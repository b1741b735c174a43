"""The operation by which leaders of metadata partitions feed their followers, as bytes.

    10100 FollowMetadataLog

Laid out like those of metadata/messages/brokers.py; docs/coordinator-api.md has the fields,
metadata/feed_operations.py the values. The answer may take as long as the request says. Answers
leave a connection in the order of its requests, so each follower has a connection for it.
"""

from collections.abc import Sequence
from typing import Any, Final

from metadata.feed_operations import FedObjects, FollowLog
from metadata.messages.codec import Address, Operation
from metadata.messages.shapes import ERROR, Addressed, addressed, in_order
from wal.wire.layouts import layout

FOLLOW_METADATA_LOG: Final[Operation[Addressed[FollowLog], FedObjects]] = Operation(
    key=10_100,
    name="FollowMetadataLog",
    address=Address.NAMED,
    request=addressed(layout(FollowLog)),
    answers=in_order(layout(FedObjects, error=ERROR)),
    failed=lambda error: FedObjects(error=error),
    changes_state=False,
    is_repeated=False,
)

FEEDS_BETWEEN_BROKERS: Final[Sequence[Operation[Any, Any]]] = (FOLLOW_METADATA_LOG,)
