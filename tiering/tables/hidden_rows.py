"""Rows that a table leaves out because they were deleted: position deletes of Iceberg.

DeleteRecords may end in the middle of a segment, whose object stays for the records behind. With
`table.hide.deleted` the table has a *delete file* for such a segment: a Parquet file that names the
segment and the positions of the rows below the log start offset. Segments are in offset order, so
these are the first ones, 0 .. n-1, and only n has to be found out: from the offsets alone where no
record is missing, else from the footer and column `offset` of one row group.

What a delete file says is in its entry in the manifest too: the bounds of its paths are the one
segment, its record count is n. So it is compared with what should be there without being read. A
partition has one at most, that of its first segment; when the log start moves another one takes its
place, and none is left when the segment goes or the config is switched off.

Delete files lie below the table's metadata, under names that are never used again, and go as those
do (tiering/tables/table_files.py). Nothing else is ever written about rows: bytes of segments stay.

Failure cases: CorruptSegment naming the key, ObjectNotFound, ObjectStoreUnavailable.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.types import LongType

from metadata.table_operations import LiveSegment
from tiering.compaction.key_columns import read_columns
from tiering.segment_columns import FIELD_ID
from tiering.segment_verification import read_footer
from tiering.tables.data_files import SegmentFile
from tiering.tables.table_files import StoreFileIO
from wal.coordinates import ObjectKey
from wal.errors import CorruptObject, CorruptSegment
from wal.stores.blocking_store import BlockingStore

_PATH_ID: Final = 2_147_483_546
_POSITION_ID: Final = 2_147_483_545
"""Field ids that Iceberg reserves for the two columns."""

# The one path is in memory once, however many rows there are; in the file it is a string.
_SCHEMA: Final = pa.schema(
    [
        pa.field(
            "file_path", pa.dictionary(pa.int8(), pa.string()), False, {FIELD_ID: str(_PATH_ID)}
        ),
        pa.field("pos", pa.int64(), False, {FIELD_ID: str(_POSITION_ID)}),
    ]
)
_ROWS_AT_ONCE: Final = 1 << 20

_REMEMBERED_MAX: Final = 10_000
"""Counts that cost a read; one for each partition is what a pass needs."""


class Hidden(NamedTuple):
    """A segment of which the table leaves out the first `row_count` rows; there is one at least."""

    file: SegmentFile
    row_count: int


class HiddenCounts:
    """Counts the rows of a segment below an offset, and remembers what cost a read."""

    def __init__(self, store: BlockingStore) -> None:
        self._store = store
        self._remembered: OrderedDict[tuple[ObjectKey, int], int] = OrderedDict()

    def below(self, segment: LiveSegment, offset: int) -> int:
        """How many rows of `segment` have an offset below `offset`."""
        wanted = offset - segment.base_offset
        if wanted <= 0:
            return 0
        if segment.record_count == segment.last_offset - segment.base_offset + 1:
            return min(wanted, segment.record_count)
        known = self._remembered.get((segment.object_key, offset))
        if known is None:
            known = self._remembered[(segment.object_key, offset)] = self._read(segment, offset)
            if len(self._remembered) > _REMEMBERED_MAX:
                self._remembered.popitem(last=False)
        return known

    def _read(self, segment: LiveSegment, offset: int) -> int:
        key = segment.object_key
        try:
            footer = read_footer(self._store, key, segment.object_bytes)
            count = 0
            for index, group in enumerate(footer.row_groups):
                if group.last_offset < offset:
                    count += group.record_count
                elif group.base_offset < offset:
                    rows = read_columns(key, self._store, footer, index, ["offset"])
                    count += pc.sum(pc.less(rows.column("offset"), offset)).as_py() or 0
            return count
        except CorruptObject as error:
            raise CorruptSegment(f"{key}: {error}") from error


def hidden_by(file: DataFile) -> tuple[str, int]:
    """The location of the segment of a delete file, and how many of its rows that hides."""
    return file.lower_bounds[_PATH_ID].decode(), file.record_count


def write_delete_file(
    files: StoreFileIO, metadata: TableMetadata, hidden: Hidden, location: str
) -> DataFile:
    """Puts the delete file of a segment; returns it as manifests have it."""
    path = hidden.file.location
    output = files.new_output(location)
    with (
        output.create() as stream,
        pq.ParquetWriter(stream, _SCHEMA, compression="zstd", store_schema=False) as writer,
    ):
        for start in range(0, hidden.row_count, _ROWS_AT_ONCE):
            positions = np.arange(start, min(start + _ROWS_AT_ONCE, hidden.row_count))
            paths = pa.DictionaryArray.from_arrays(np.zeros(len(positions), np.int8), [path])
            writer.write_table(pa.table([paths, pa.array(positions)], schema=_SCHEMA))
    encoded = path.encode()
    first, last = (to_bytes(LongType(), position) for position in (0, hidden.row_count - 1))
    return DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=Record(hidden.file.partition),
        record_count=hidden.row_count,
        file_size_in_bytes=len(output),
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        lower_bounds={_PATH_ID: encoded, _POSITION_ID: first},
        upper_bounds={_PATH_ID: encoded, _POSITION_ID: last},
    )
