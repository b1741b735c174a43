"""What a reader of tables asks of any broker, as bytes: API keys 10030 to 10032.

    10030 ReadTopic      where a topic's records lie: its id, its partitions, its object store, and
                         its typed columns
    10031 ReadExtents    the bytes of FindBatches (98), answered from whichever replica knows
    10032 ReadOffsets    the bytes of ListOffsets (97), answered by the leaders

A reader is a program that takes records from the object store itself, as the Spark source does. It
may ask any broker, and that one asks the others. It needs READ on the topic, and no more: the
operations between brokers need CLUSTER_ACTION.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from metadata import operations as ops
from metadata.messages.codec import Address, Operation
from metadata.messages.coordinator import LIST_OFFSETS
from metadata.messages.find_batches import FIND_BATCHES
from metadata.messages.shapes import in_order, listed, or_error
from wal.errors import DisklessError
from wal.wire.fields import INT32, NO_TAGS, NO_UUID, FieldReader, compact_string, uvarint
from wal.wire.layouts import Field, closed, layout

_NO_TOPIC: Final = b"".join(
    (NO_UUID.bytes, INT32.pack(-1), uvarint(1), compact_string(""), uvarint(1), NO_TAGS)
)
_READABLE: Final = layout(ops.ReadableTopic)

READ_TOPIC: Final[Operation[Sequence[str], ops.ReadableTopic | DisklessError]] = Operation(
    key=10_030,
    name="ReadTopic",
    address=Address.CATALOGUE,
    request=listed(closed(Field(compact_string, FieldReader.compact_string))),
    answers=in_order(or_error(_READABLE, _NO_TOPIC)),
    changes_state=False,
)

READ_EXTENTS: Final = replace(FIND_BATCHES, key=10_031, name="ReadExtents")
READ_OFFSETS: Final = replace(LIST_OFFSETS, key=10_032, name="ReadOffsets")

OF_A_READER: Final[Sequence[Operation[Any, Any]]] = (READ_TOPIC, READ_EXTENTS, READ_OFFSETS)
