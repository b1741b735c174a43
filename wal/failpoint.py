"""Named crash points: tests kill a process at one, or make it fail there.

`failpoint("upload.after_put")` does nothing, at the cost of one dictionary test, unless the process
was told to act there. Crash tests start a broker with

    DISKLESS_FAILPOINTS="upload.after_put=kill:3,chunk.after_append=raise"

which means: the third time that point is reached, kill this process with SIGKILL; the first time
the other is reached, raise `FailpointError`. `delay:N:S` sleeps S seconds from the Nth time on.

| point | where |
|---|---|
| chunk.after_append | batches are in the chunk's two files, nobody knows yet |
| chunk.after_seal | the chunk is closed and queued for upload |
| upload.before_put / upload.after_put | around the object store's put |
| commit.before_log | metadata records are decided, of any operation; nobody has written them |
| log.before_sync | they are in the local log's file, which is not synced |
| commit.after_log | the metadata records are durable, SQLite has not seen them |
| apply.before_commit | the rows are written, in a transaction that is not committed |
| commit.after_apply | SQLite has them, nobody was answered |
| commit.after_answer | the commit lane has the answer, the produce requests do not |
| segment.after_log | a segment commit is durable in the metadata log |
| lead.after_log | a leader's first record is durable, it has not begun to serve |
| topic.after_shares | partitions are created at their coordinators, the catalogue has no topic |
| topic.after_deletion | the catalogue has deleted a topic, other coordinators have not |
| deletion.after_step | a part of a large DeleteRecords is done |
| retention.after_step / sweep.after_step / expiry.after_step | one bounded step is done |
| handover.before_send / handover.after_ack | around handing files over to their next owner |
| delete.before_object / delete.after_object | around the deletion of objects without live batches |
| forget.after_log | files that are dealt with are forgotten durably |
| seal.after_log | what was handed over and never committed here cannot be committed any more |
| takeover.after_tombstones / takeover.after_log | around acting for an owner that never came |
| notes.before_put / notes.after_put | around keeping what objects to be deleted note of others |
| notes.after_merge | notes objects are merged, those that went into it are there still |
| orphan.after_marker | the store's clock is about to be read |
| orphan.after_tombstones / orphan.after_delete | around the deletion of orphans |
| snapshot.after_copy | the state is copied beside itself |
| snapshot.after_upload | the parts are stored, nobody has checked them |
| snapshot.before_manifest / snapshot.after_manifest | around what makes them a snapshot |
| snapshot.after_delete | an old snapshot or debris is gone |
| prune.before / prune.after_some | around each step of pruning the metadata log |
| restore.before_rename / restore.after_rename | a loaded snapshot is about to be the state, or is |
| roll.before_put / roll.after_put / roll.before_commit / roll.after_commit | the tiering job |
| merge.before_put / merge.after_put / merge.before_commit / merge.after_commit | when it merges |
| compact.before_put / compact.after_put / compact.before_commit / compact.after_commit | compacts |
| txn.after_decision | how a transaction ends is applied, those who have a part are not told |
| txn.after_end | a transaction has ended in partitions and groups, nobody is answered |
| txn.after_offsets | offsets wait for the end of a transaction, nobody is answered |
| transaction.before_note / transaction.after_note | around a note of how transactions ended |
| sink.before_note / sink.after_note | a commit of a sink is applied, nobody is answered |
| sink.after_decision | a batch is decided, those who have shares of it are not told |
| sink.after_share | a share is committed and noted, nobody is answered |
| sink.before_completion | all shares are committed, the home has not written it down |
| sink.before_commit / sink.after_commit | the driver of a Spark sink, around its commit |
| schema.after_note | a schema is noted in the bucket, the topic does not have it yet |
| table.before_metadata / table.before_commit / table.after_commit | a job writes a table |
"""

import os
import signal
import time
from dataclasses import dataclass
from typing import Final

from wal.errors import DisklessError, InvalidSettings

ENVIRONMENT_VARIABLE: Final = "DISKLESS_FAILPOINTS"


class FailpointError(DisklessError):
    """Raised by a failpoint that was armed with `raise`."""


@dataclass(slots=True)
class _Armed:
    action: str
    countdown: int
    seconds: float = 0.0


_armed: dict[str, _Armed] = {}


def failpoint(name: str) -> None:
    """Act here if `name` is armed; otherwise do nothing."""
    if _armed and name in _armed:
        _act(name, _armed[name])


def arm(settings: str) -> None:
    """Arm the points of a `name=action[:count[:seconds]]` list; an empty string disarms all.

    Raises InvalidSettings naming the entry that does not parse.
    """
    _armed.clear()
    for entry in filter(None, (part.strip() for part in settings.split(","))):
        name, separator, action = entry.partition("=")
        fields = action.split(":")
        if not separator or fields[0] not in {"kill", "raise", "delay"} or len(fields) > 3:
            raise InvalidSettings(
                f"{ENVIRONMENT_VARIABLE}: {entry!r} is not name=kill|raise|delay[:count[:seconds]]"
            )
        try:
            countdown = int(fields[1]) if len(fields) > 1 else 1
            seconds = float(fields[2]) if len(fields) > 2 else 0.0
        except ValueError as error:
            raise InvalidSettings(f"{ENVIRONMENT_VARIABLE}: {entry!r}: {error}") from error
        _armed[name] = _Armed(fields[0], countdown, seconds)


def arm_from_environment() -> None:
    """Arm what the environment names; called once by each entry point."""
    arm(os.environ.get(ENVIRONMENT_VARIABLE, ""))


def _act(name: str, armed: _Armed) -> None:
    armed.countdown -= 1
    if armed.countdown > 0:
        return
    if armed.action == "delay":
        time.sleep(armed.seconds)
        return
    if armed.countdown == 0:
        if armed.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise FailpointError(f"failpoint {name}")
