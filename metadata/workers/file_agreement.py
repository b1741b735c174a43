"""Makes other coordinators agree that nobody knows a file, and that nobody ever will.

First everyone is asked whether it knows the file (DescribeFiles, which only reads);
that sorts out almost everything, and nothing is written for files that are alive somewhere. Then
those who knew nothing are asked to tombstone it, which is decided together with their commits: the
answer is either a durable refusal of any later commit, or that the file was committed meanwhile.
The first answer alone would be worth nothing: it may be stale by the time it arrives, and a commit
that is checked by a clock that is behind may still be accepted after it.

Of a staged object that may be too little. The home of a sink knows it from its decision until its
coordinator has committed it; so a coordinator that is asked before that commit, and a home that is
asked behind it, both know nothing. Hence those who gave it up are asked once more: by then no home
can decide about it any more, and who was told of an earlier decision knows it.

Used by the file workers (earlier owners of a file) and by the orphan scan (all coordinators). A
tombstone that turns out not to be needed, because another coordinator knew the file after all, does
no harm: it is forgotten when its key is too old to be committed anyway.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from metadata.operations import DescribedFile, HandedFile, Tombstone
from wal.coordinates import ObjectKey
from wal.errors import DisklessError, UnknownFile
from wal.staging.staged_keys import is_staged

_Answer = TypeVar("_Answer")

_logger = logging.getLogger(__name__)


class OtherCoordinators(Protocol):
    """What of `metadata.clients.coordinator_client.CoordinatorClient` the life of a file needs."""

    async def describe_files(
        self, keys: Sequence[ObjectKey], *, coordinator: int | None = None
    ) -> Sequence[DescribedFile]: ...

    async def tombstone_files(
        self, coordinator: int, keys: Sequence[ObjectKey]
    ) -> Sequence[Tombstone]: ...

    async def hand_over_files(
        self, coordinator: int, files: Sequence[HandedFile]
    ) -> Sequence[DisklessError | None]: ...


class Agreement(NamedTuple):
    """What became of each key; every key is in exactly one of them, in the order asked."""

    given_up: Sequence[ObjectKey]
    """All those asked refuse its commit for ever."""
    known: Sequence[ObjectKey]
    """At least one knows the file."""
    unclear: Sequence[ObjectKey]
    """At least one did not answer; ask again some time."""


async def give_up_files(
    others: OtherCoordinators, asked: Mapping[ObjectKey, Sequence[int]]
) -> Agreement:
    """Have each key given up by all the coordinators that go with it; raises nothing of theirs."""
    verdicts = _Verdicts(asked)
    await verdicts.ask(
        "describe",
        lambda coordinator, keys: others.describe_files(keys, coordinator=coordinator),
        _is_known_by_description,
    )
    await verdicts.ask("tombstone", others.tombstone_files, _is_known_by_tombstone)
    await verdicts.ask(
        "describe",
        lambda coordinator, keys: others.describe_files(keys, coordinator=coordinator),
        _is_known_by_description,
        among=is_staged,
    )
    return verdicts.agreement()


def _is_known_by_description(answer: DescribedFile) -> bool | DisklessError:
    if isinstance(answer.error, UnknownFile):
        return False
    return True if answer.error is None else answer.error


def _is_known_by_tombstone(answer: Tombstone) -> bool | DisklessError:
    return answer.is_known if answer.error is None else answer.error


class _Verdicts:
    """The keys that are still in question, and why the others are not."""

    def __init__(self, asked: Mapping[ObjectKey, Sequence[int]]) -> None:
        self._asked = asked
        self._known: set[ObjectKey] = set()
        self._unclear: set[ObjectKey] = set()

    async def ask(
        self,
        what: str,
        operation: Callable[[int, Sequence[ObjectKey]], Awaitable[Sequence[_Answer]]],
        is_known: Callable[[_Answer], bool | DisklessError],
        *,
        among: Callable[[ObjectKey], bool] = lambda _: True,
    ) -> None:
        """Ask every coordinator about its keys that are still in question, all at once."""
        questions: dict[int, list[ObjectKey]] = {}
        for key, coordinators in self._asked.items():
            if key not in self._known and key not in self._unclear and among(key):
                for coordinator in dict.fromkeys(coordinators):
                    questions.setdefault(coordinator, []).append(key)

        async def ask_one(coordinator: int, keys: Sequence[ObjectKey]) -> None:
            try:
                answers = await operation(coordinator, keys)
            except DisklessError as error:
                _logger.info("coordinator %d did not %s files: %s", coordinator, what, error)
                self._unclear.update(keys)
                return
            for key, answer in zip(keys, answers, strict=True):
                verdict = is_known(answer)
                if isinstance(verdict, DisklessError):
                    self._unclear.add(key)
                elif verdict:
                    self._known.add(key)

        async with asyncio.TaskGroup() as tasks:
            for coordinator, keys in questions.items():
                tasks.create_task(ask_one(coordinator, keys))

    def agreement(self) -> Agreement:
        known = [key for key in self._asked if key in self._known]
        unclear = [key for key in self._asked if key in self._unclear and key not in self._known]
        given_up = [
            key for key in self._asked if key not in self._known and key not in self._unclear
        ]
        return Agreement(given_up, known, unclear)
