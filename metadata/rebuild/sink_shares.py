"""Takes out of notes what coordinators committed of batches that never became complete.

Each coordinator notes its share of a sink's batch under the share's name before it answers the
home, with the time of the decision, and the home notes the sink's last batch when all have
answered, with a time that is no earlier (metadata/coordinator/sink_notes.py). So a share that is
later than what the home noted is of a batch that nobody was answered: its other shares may be known
to nobody, and its query writes it again. No segment has anything of it
(metadata/coordinator/unsettled_batches.py).

Shares themselves are not restored: they tell a coordinator what its home has told it, and the new
metadata begin with other homes, which have told nothing.
"""

from metadata.sink_operations import sink_of_share
from wal.chunks.kept_notes import KeptNotes, NotedSink, StagedNote, StagedRun
from wal.coordinates import TopicIdPartition


def only_complete_batches(kept: KeptNotes) -> KeptNotes:
    """Returns the notes without shares, and without staged runs of incomplete batches."""
    last = {sink.sink_id: sink.committed_at_ms for sink in kept.sinks}
    incomplete: dict[str, list[NotedSink]] = {}
    for noted in kept.sinks:
        sink_id = sink_of_share(noted.sink_id)
        if sink_id is not None and noted.committed_at_ms > last.get(sink_id, -1):
            incomplete.setdefault(sink_id, []).append(noted)
    sinks = tuple(sink for sink in kept.sinks if sink_of_share(sink.sink_id) is None)
    staged = kept.staged
    if incomplete:
        left = [_without(note, incomplete.get(note.sink_id, [])) for note in staged]
        staged = tuple(note for note in left if note.runs)
    return kept._replace(sinks=sinks, staged=staged)


def _without(note: StagedNote, shares: list[NotedSink]) -> StagedNote:
    ranges: dict[TopicIdPartition, list[tuple[int, int]]] = {}
    for share in shares:
        for partition, base_offset, last_offset in share.ranges:
            ranges.setdefault(partition, []).append((base_offset, last_offset))

    def is_left(run: StagedRun) -> bool:
        inside = ranges.get(run.partition, ())
        return not any(base <= run.base_offset <= last for base, last in inside)

    return note._replace(runs=tuple(filter(is_left, note.runs)))
