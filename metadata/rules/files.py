"""Decides about WAL files that nothing references any more: pure functions, nothing here waits.

A file belongs to the coordinators of its owner list, one after the other. Where it stands at one of
them says its row:

| standing    | row of `files`                       | may it still be committed here? |
|-------------|--------------------------------------|---------------------------------|
| COMMITTED   | has an answer                        | it was; a repetition gets that answer |
| HANDED_OVER | no answer, format of a WAL object    | yes, until its key is too old   |
| SEALED      | no answer, tombstone, an owner list  | never                           |
| TOMBSTONED  | no answer, tombstone, no owner list  | never                           |

What may be done with a file is decided twice, and both times here. `plan_file` tells the background
workers what comes next for a row they read; that may be outdated by the time they act. What they,
or other coordinators, then ask of this coordinator is decided against the speculative state like
every other operation, so that a commit and a tombstone of one key exclude each other in either
order: an object is deleted only behind a record that refuses its commit for ever.

Source: KIP-1164, "WAL file management"; docs/file-lifecycle.md has the whole picture.
"""

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from hashlib import blake2b
from typing import Final, NamedTuple

from metadata import operations as ops
from metadata.metadata_settings import CoordinatorSettings
from metadata.records.control import FileHandedOverRecord, FilesTombstonedRecord
from metadata.records.records import FilesDeletedRecord, MetadataRecord
from metadata.rules.commit import Decision
from metadata.rules.tables import Hold
from metadata.state.queries.file_queries import DeletableFile
from metadata.state.speculative import FileStanding, KnownFile, SpeculativeView
from wal.coordinates import ObjectKey
from wal.errors import DisklessError, InvalidRequest, Rejected
from wal.staging.staged_keys import is_staged, sink_of
from wal.stores.object_store import check_object_key
from wal.ulid import minted_ms

FILES_PER_CALL_MAX: Final = 10_000
"""Files that one call may hand over, tombstone, describe or forget."""


def permuted_owners(key: ObjectKey, coordinator_ids: Iterable[int]) -> tuple[int, ...]:
    """The owner list of a file that is committed at these coordinators.

    In an order that is as random as the key, so that no coordinator has to do all the deleting,
    and follows from the key. A commit that is sent again, to those who missed it the first time,
    must not come with another order: the last owner of one list would delete what the last owner
    of another one still has live batches in. So two lists of one key agree about the order of
    those who are in both, even when a topic was deleted in between and one of them is shorter.
    """
    return tuple(sorted(set(coordinator_ids), key=lambda owner: _rank(key, owner)))


def _rank(key: ObjectKey, coordinator_id: int) -> bytes:
    return blake2b(f"{key} {coordinator_id}".encode(), digest_size=8).digest()


def owners_before(owner_ids: Sequence[int], coordinator_id: int) -> tuple[int, ...]:
    """Returns the owners before this coordinator; all, if it is not in the list."""
    owners = tuple(dict.fromkeys(owner_ids))
    return owners[: owners.index(coordinator_id)] if coordinator_id in owners else owners


def next_owner(owner_ids: Sequence[int], coordinator_id: int) -> int | None:
    """Returns the next owner of the file; None: it is deleted."""
    owners = tuple(dict.fromkeys(owner_ids))
    if coordinator_id not in owners:
        return None
    behind = owners[owners.index(coordinator_id) + 1 :]
    return behind[0] if behind else None


def commit_age_max_ms(key: ObjectKey, settings: CoordinatorSettings) -> int:
    """How long after its minting an object of this name may be committed."""
    return settings.sink_stage_max_age_ms if is_staged(key) else settings.max_commit_age_ms


# -- what the workers do with a row --------------------------------------------------------------


class FileStep(Enum):
    """What comes next for a file without live batches."""

    WAIT = auto()
    """For its key to become too old to be committed, for an earlier owner, or for a table."""
    TAKE_OVER = auto()
    """An earlier owner should have handed it over by now: ask whether it ever heard of it."""
    SEAL = auto()
    """It was handed over to us and never committed here: make sure that it never will be."""
    HAND_OVER = auto()
    DELETE = auto()
    FORGET_TOMBSTONE = auto()
    """Nobody can commit the key any more; whose the object is, is none of our business."""


class FilePlan(NamedTuple):
    """The next step, and whether the row may be forgotten after it."""

    step: FileStep
    is_final: bool = False
    """The key is too old to be committed, so nobody will ask for its answer again."""
    next_owner: int | None = None


def plan_file(
    file: DeletableFile,
    *,
    coordinator_id: int,
    now_ms: int,
    settings: CoordinatorSettings,
    hold: Hold = Hold.NONE,
) -> FilePlan:
    """Returns the next step for a file whose deletion grace is over.

    A segment's key belongs to a plan that is done with, so nobody asks for its answer; `hold` tells
    whether a table is an owner of it.
    """
    if file.object_format == ops.PARQUET_SEGMENT:
        if hold is Hold.HELD:
            return FilePlan(FileStep.WAIT)
        return FilePlan(FileStep.DELETE, is_final=True)
    is_too_old = now_ms - minted_ms(file.object_key) > commit_age_max_ms(file.object_key, settings)
    waiting = FilePlan(FileStep.WAIT)
    match file.standing:
        case FileStanding.TOMBSTONED:
            # Never deletes: it says that the file is not known *here*. Other coordinators may
            # have refused the tombstone because they have batches in it.
            return FilePlan(FileStep.FORGET_TOMBSTONE, is_final=True) if is_too_old else waiting
        case FileStanding.HANDED_OVER:
            return FilePlan(FileStep.SEAL) if is_too_old else waiting
    if not file.is_owner:
        return FilePlan(FileStep.TAKE_OVER) if is_too_old else waiting
    following = next_owner(file.owner_ids, coordinator_id)
    step = FileStep.DELETE if following is None else FileStep.HAND_OVER
    return FilePlan(step, is_too_old, following)


# -- what is asked of a coordinator --------------------------------------------------------------


def check_file_keys(keys: Sequence[ObjectKey]) -> None:
    """Raise InvalidRequest for more keys than one call may name."""
    if len(keys) > FILES_PER_CALL_MAX:
        raise InvalidRequest(f"{len(keys)} files, at most allowed are {FILES_PER_CALL_MAX}")


def decide_hand_over(
    view: SpeculativeView, files: Sequence[ops.HandedFile]
) -> Decision[Sequence[DisklessError | None]]:
    """Own these files from now on; what is owned already is left as it is.

    An entry is None or InvalidRequest, also for an unknown file that is older than our log. A file
    that was never committed here becomes a row that waits: its commit may be on its way.
    """
    records: list[MetadataRecord] = []
    answers: list[DisklessError | None] = []
    for file in files:
        problem = _problem_of_handed(file, view.coordinator_id)
        answers.append(problem)
        if problem is not None:
            continue
        known = view.file(file.object_key)
        if known is None:
            if _is_older_than_log(view, file.object_key):
                answers[-1] = _older_than_log(file.object_key)
                continue
            known = KnownFile(b"", b"", FileStanding.HANDED_OVER)
        elif known.standing is FileStanding.TOMBSTONED:
            known = known._replace(standing=FileStanding.SEALED)
        elif known.is_owner:
            continue  # the sender lost our answer
        view.put_file(file.object_key, known._replace(is_owner=True))
        records.append(
            FileHandedOverRecord(
                object_key=file.object_key,
                object_format=file.object_format,
                file_size=file.file_size_bytes,
                owner_ids=tuple(file.owner_ids),
            )
        )
    return Decision(records, answers)


def _problem_of_handed(file: ops.HandedFile, coordinator_id: int) -> InvalidRequest | None:
    problem = _problem_of_key(file.object_key)
    if problem is not None:
        return problem
    if file.object_format != ops.WRITE_AHEAD_MULTI_SEGMENT or file.file_size_bytes < 0:
        return InvalidRequest(f"{file.object_key} is not a WAL object")
    if coordinator_id not in file.owner_ids:
        return InvalidRequest(f"{file.object_key} is not for coordinator {coordinator_id}")
    return None


def _is_older_than_log(view: SpeculativeView, key: ObjectKey) -> bool:
    """Whether the file may have been committed in a log of this coordinator that is gone.

    Then its not being known means nothing. So a cluster that starts with empty metadata on a full
    bucket, on purpose or not, does not see its objects taken for orphans: they wait to be rebuilt
    from.
    """
    return view.began_ms is None or minted_ms(key) < view.began_ms


def _older_than_log(key: ObjectKey) -> InvalidRequest:
    return InvalidRequest(f"{key} is older than our metadata log: who knows what it holds")


def _problem_of_key(key: ObjectKey) -> InvalidRequest | None:
    try:
        check_object_key(key)
        minted_ms(key)
    except (Rejected, ValueError) as error:
        return InvalidRequest(f"{key!r} is not the key of a WAL object: {error}")
    return None


def decide_tombstone(
    view: SpeculativeView, keys: Sequence[ObjectKey]
) -> Decision[Sequence[ops.Tombstone]]:
    """Refuse the commit of these keys for ever, except for those that are known here.

    An entry is InvalidRequest for a key that is older than our log.
    """
    new: list[ObjectKey] = []
    answers: list[ops.Tombstone] = []
    for key in keys:
        problem = _problem_of_key(key)
        if problem is not None:
            answers.append(ops.Tombstone(error=problem))
            continue
        known = view.file(key)
        if known is None and _is_in_open_batch(view, key):
            answers.append(ops.Tombstone(is_known=True))
            continue
        if known is None:
            if _is_older_than_log(view, key):
                answers.append(ops.Tombstone(error=_older_than_log(key)))
                continue
            view.put_file(key, KnownFile(b"", b"", FileStanding.TOMBSTONED))
            new.append(key)
        is_known = known is not None and known.standing is not FileStanding.TOMBSTONED
        answers.append(ops.Tombstone(is_known=is_known))
    return Decision([FilesTombstonedRecord(object_keys=tuple(new))] if new else [], answers)


def _is_in_open_batch(view: SpeculativeView, key: ObjectKey) -> bool:
    """Whether a sink has committed the object, and its coordinator may not have heard of it."""
    sink_id = sink_of(key)
    opened = None if sink_id is None else view.open_batch(sink_id)
    return opened is not None and key in opened.object_keys


def decide_seal(view: SpeculativeView, keys: Sequence[ObjectKey]) -> Decision[None]:
    """Refuse the commit of files that were handed over to us and not committed since."""
    sealed = []
    for key in keys:
        known = view.file(key)
        if known is not None and known.standing is FileStanding.HANDED_OVER:
            view.put_file(key, known._replace(standing=FileStanding.SEALED))
            sealed.append(key)
    return Decision([FilesTombstonedRecord(object_keys=tuple(sealed))] if sealed else [], None)


def decide_forget(
    view: SpeculativeView, keys: Sequence[ObjectKey], *, tombstones: bool
) -> Decision[None]:
    """Forget files that are dealt with, or tombstones; each leaves the other alone.

    A key that is not known any more was forgotten by a repetition of this call. A tombstone that
    became an owned file meanwhile is an obligation, which must not be forgotten with it.
    """
    forgotten = []
    for key in dict.fromkeys(keys):
        known = view.file(key)
        if known is not None and (known.standing is FileStanding.TOMBSTONED) is tombstones:
            view.forget_file(key)
            forgotten.append(key)
    return Decision([FilesDeletedRecord(object_keys=tuple(forgotten))] if forgotten else [], None)
