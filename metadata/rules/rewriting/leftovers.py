"""Decides whether an object that is named like a segment may still be committed.

Jobs write objects before they commit them, and a job may end in between: its plan was ended because
the log start went past its inputs, its topic was deleted, or a task of it was late and wrote what
had been deleted already. What such a job left behind has a key that no commit takes any more:

- A roll commits the key of an outstanding plan. Plans of a partition follow each other, so below
  `planned_end_offset` there is no key that a later plan could get.
- A rewrite commits keys with the generation of the one that is under way. The next one has a
  greater generation.

Neither ever becomes possible again. So a state of the past gives a right answer too: it says "may
be committed" of some keys for too long, and never the reverse. That is why, unlike for WAL objects,
no record has to forbid a commit before such an object is deleted, and a replica that is behind may
be asked.

A segment that was committed has a file row until its object is deleted; it is the caller's part to
look for that, in rows that are at least as new as the image.
"""

from metadata.records.segment_identity import NamedSegment, segment_key
from metadata.rewrites import NO_REWRITE
from metadata.state.image import CommittedImage, RewriteState


def may_be_committed(image: CommittedImage, named: NamedSegment) -> bool:
    """Whether a key of a partition that is in `image` is, or may become, that of a plan."""
    state = image.partitions[named.partition]
    if named.generation == 0:
        is_planned = segment_key(*named) in image.plans
        return is_planned or named.base_offset >= state.planned_end_offset
    rewrite = image.rewrites.get(named.partition) or RewriteState()
    if named.generation == rewrite.generation:
        return rewrite.kind != NO_REWRITE
    return named.generation > rewrite.generation
