"""Hypothesis strategies for what is asked of coordinators, and for what they answer.

    SAMPLES["DisklessListOffsets"].requests
    SAMPLES["DisklessListOffsets"].answer      one answer, such as survives encoding

They follow from the annotations of the operations; what these do not say stands in `_KNOWN`.
`draw_answers` draws as many answers as a request has entries.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final, NamedTuple, get_args, get_origin

from hypothesis import strategies as st

from metadata import operations as ops
from metadata import sink_operations as sink_ops
from metadata.feed_operations import FedObjects, FollowLog
from metadata.messages import (
    access_tokens,
    brokers,
    commit_file,
    coordinator,
    feeds,
    find_batches,
    readers,
    sinks,
    tables,
    transactions,
)
from metadata.messages.codec import Operation
from metadata.messages.shapes import Addressed
from tests.support.samples.typed_samples import ERRORS, INT8, INT16, INT32, UINT32, Known, values_of
from wal.coordinates import BatchExtent
from wal.errors import DisklessError

_NATURAL: Final = st.integers(0, 2**31 - 1)
_EXTENTS: Final[Known] = {(ops.WalExtent, "timestamp_type"): st.integers(0, 1)}
_KNOWN: Final[Known] = {
    **_EXTENTS,
    (BatchExtent, "byte_offset"): _NATURAL,
    (BatchExtent, "length_bytes"): _NATURAL,
    (BatchExtent, "record_count"): st.integers(1, 2**31 - 1),
    (BatchExtent, "crc"): UINT32,
    (BatchExtent, "timestamp_type"): st.just(1),
    (BatchExtent, "producer_id"): st.integers(-1, 2**63 - 1),
    (BatchExtent, "producer_epoch"): INT16,
    (BatchExtent, "base_sequence"): st.integers(-1, 2**31 - 1),
    (BatchExtent, "request_id"): INT32,
    (BatchExtent, "transaction_number"): st.integers(-1, 2**63 - 1),
    (ops.CommitFile, "uploader_broker_id"): INT32,
    (ops.CommitFile, "object_format"): INT8,
    (ops.CommitFile, "owner_ids"): st.lists(INT32, max_size=3).map(tuple),
    (ops.TopicDescription, "partition_count"): INT32,
    (ops.ReadableTopic, "partition_count"): INT32,
    (ops.TopicDescription, "assignments"): st.dictionaries(INT32, INT32, max_size=3),
    (ops.FindBatches, "max_bytes"): INT32,
    (ops.FoundBatches, "extents"): st.lists(values_of(ops.Extent, _EXTENTS), max_size=3),
    (Addressed, "coordinator"): INT32,
    (sinks.CommitSinkAt, "coordinator"): INT32,
    (sink_ops.SinkShare, "coordinator"): INT32,
    (sink_ops.CommitShare, "home"): INT32,
    (sink_ops.CommitShare, "digest"): st.binary(max_size=20),
    (sink_ops.CommitShare, "files"): st.binary(max_size=20),
    (FollowLog, "broker_id"): INT32,
    (FollowLog, "put_id"): st.binary(max_size=20),
    (FollowLog, "wait_ms"): INT32,
    (FedObjects, "objects"): st.lists(st.binary(max_size=20), max_size=3).map(tuple),
    (sink_ops.CommitSink, "digest"): st.binary(max_size=20),
    (coordinator.DescribeFilesMessage, "coordinator"): st.none() | _NATURAL,
    (find_batches.FindBatchesMessage, "max_bytes"): INT32,
    (find_batches.FindBatchesMessage, "batches_per_partition_max"): INT32,
    range: st.builds(
        lambda start, count: range(start, start + count),
        st.integers(0, 2**62),
        st.integers(1, 2**31 - 1),
    ),
    # Not on the wire.
    (ops.CreateTopic, "assignments"): st.just({}),
    (ops.CreatePartitions, "assignments"): st.just({}),
    (ops.ListedOffset, "extent"): st.none(),
    (ops.ListedOffset, "log_start_offset"): st.just(-1),
    (commit_file.CommitFileMessage, "refused"): st.just({}),
    (ops.BatchCommit, "error"): st.none(),
    ops.CommittedFile: st.builds(ops.CommittedFile, st.just([]), st.none() | ERRORS),
}


class Samples(NamedTuple):
    operation: Operation[Any, Any]
    requests: st.SearchStrategy[Any]
    answer: st.SearchStrategy[Any]


def _samples(name: str, module: ModuleType) -> Samples:
    operation: Operation[Any, Any] = getattr(module, name)
    ((request, answer),) = map(get_args, get_args(module.__annotations__[name]))
    known = _KNOWN
    if operation in (commit_file.COMMIT_FILES_AT, sinks.COMMIT_SINK_HERE):
        # Without batches, so that any answer fits; batches are the same bytes as in COMMIT_FILE.
        known = {**known, (ops.CommitFile, "batches"): st.just([])}
    answers = values_of(answer, known)
    if answer is ops.BatchCommit:
        answers |= ERRORS.map(operation.failed)  # either that, or a value
    requests = values_of(request, known).map(
        lambda asked: operation.request.share(asked, [*operation.request.entries(asked)])
    )
    return Samples(operation, requests, answers)


_SAMPLES: Final = [
    _samples(name, module)
    for module in (
        coordinator,
        commit_file,
        find_batches,
        brokers,
        readers,
        tables,
        sinks,
        access_tokens,
        transactions,
        feeds,
    )
    for name, annotation in module.__annotations__.items()
    if any(get_origin(kind) is Operation for kind in get_args(annotation))
]
SAMPLES: Final = {samples.operation.name: samples for samples in _SAMPLES}


def draw_answers(data: st.DataObject, samples: Samples, request: Any) -> Sequence[Any]:
    count = samples.operation.count(request)
    return data.draw(st.lists(samples.answer, min_size=count, max_size=count), label="answers")


def told(answer: Any) -> Any:
    """The answer with its error as (class, text), so that answers can be compared."""
    if isinstance(answer, DisklessError):
        return type(answer), str(answer)
    if getattr(answer, "error", None) is not None:
        return answer._replace(error=(type(answer.error), str(answer.error)))
    return answer
