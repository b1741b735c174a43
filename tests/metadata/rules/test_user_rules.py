"""SCRAM credentials at the coordinator: durable, bounded, and a first one only once."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.operations import AlterScramCredential
from metadata.records.users import (
    ScramCredentialRemovedRecord,
    ScramCredentialSetRecord,
    UserRecord,
    blanked,
)
from metadata.rules import users as user_rules
from metadata.rules.users import decide_alter_scram_credentials
from metadata.scram.credentials import ScramCredential
from metadata.state.image import Changes, CommittedImage
from metadata.state.speculative import SpeculativeView
from tests.support.coordinators.coordinator_bench import (
    CoordinatorBench,
    MemoryMetadataLog,
    running_coordinator,
)
from wal.errors import CommitFailed, DisklessError, PolicyViolation, UnknownCredential


def credential(salt: bytes) -> ScramCredential:
    return ScramCredential(
        iterations=4_096, salt=salt, stored_key=b"stored" + salt, server_key=b"server"
    )


def change(
    user: str, salt: bytes | None, mechanism: int = 1, *, is_first: bool = False
) -> AlterScramCredential:
    return AlterScramCredential(
        user=user,
        mechanism=mechanism,
        credential=None if salt is None else credential(salt),
        is_first=is_first,
    )


async def altered(
    bench: CoordinatorBench, *requests: AlterScramCredential
) -> Sequence[type[DisklessError] | None]:
    errors = await bench.coordinator.catalogue.alter_scram_credentials(requests)
    return [None if error is None else type(error) for error in errors]


async def test_a_mechanism_has_one_credential_of_a_user(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    replica = bench.coordinator.replica
    assert await altered(bench, change("a", b"1"), change("a", b"2", 2), change("b", b"3")) == [
        None,
        None,
        None,
    ]
    before = replica.scram_credentials()
    assert await altered(bench, change("a", b"1")) == [None]
    assert replica.scram_credentials() is before, "what changes nothing writes nothing"
    assert await altered(bench, change("a", b"4"), change("b", None), change("b", None)) == [
        None,
        None,
        UnknownCredential,
    ]
    assert replica.scram_credentials() == {("a", 1): credential(b"4"), ("a", 2): credential(b"2")}
    assert len(before) == 3, "a reader does not see them change under its hands"


async def test_a_credential_that_could_not_be_appended_is_not_known(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    log.failures.append(CommitFailed("the disk is full"))
    with pytest.raises(CommitFailed):
        await altered(bench, change("a", b"1"))
    assert bench.coordinator.replica.scram_credentials() == {}
    assert await altered(bench, change("a", b"1")) == [None]
    assert bench.coordinator.replica.scram_credentials() == {("a", 1): credential(b"1")}


async def test_there_is_one_first_user(bench: CoordinatorBench) -> None:
    both = [change("a", b"1", 1, is_first=True), change("a", b"2", 2, is_first=True)]
    assert await altered(bench, *both) == [None, None]
    assert await altered(bench, change("b", b"1", is_first=True)) == [PolicyViolation]
    # On a cluster where the last one is gone there may be a first one again.
    assert await altered(bench, change("a", None), change("a", None, 2)) == [None, None]
    assert await altered(bench, change("b", b"1", is_first=True)) == [None]


def test_there_are_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_rules, "SCRAM_CREDENTIALS_MAX", 2)
    view = SpeculativeView(CommittedImage(producers_max=1))
    requests = [change(str(number), b"s") for number in range(3)]
    answer = decide_alter_scram_credentials(view, requests).answer
    assert answer[:2] == [None, None]
    assert isinstance(answer[2], PolicyViolation)
    # Those that are there can still change, and make room.
    more = [change("0", b"t"), change("1", None), requests[2]]
    assert decide_alter_scram_credentials(view, more).answer == [None, None, None]


alterations = st.lists(
    st.builds(
        change,
        st.sampled_from("ab"),
        st.none() | st.sampled_from([b"1", b"2"]),
        st.sampled_from([1, 2]),
    ),
    max_size=4,
)


@given(st.lists(st.tuples(alterations, st.booleans()), max_size=6))
def test_decisions_are_those_of_a_dictionary(
    groups: Sequence[tuple[Sequence[AlterScramCredential], bool]],
) -> None:
    """Whether or not the operations before were applied when the next are decided."""
    image = CommittedImage(producers_max=1)
    view = SpeculativeView(image)
    model: dict[tuple[str, int], ScramCredential] = {}
    pending: list[UserRecord] = []
    for number, (requests, is_applied) in enumerate(groups):
        view.group = number
        decision = decide_alter_scram_credentials(view, requests)
        pending += decision.records  # type: ignore[arg-type]
        for request, error in zip(requests, decision.answer, strict=True):
            key = (request.user, request.mechanism)
            assert (error is not None) == (request.credential is None and key not in model)
            model.pop(key, None)
            if request.credential is not None:
                model[key] = request.credential
        for user in "ab":
            for mechanism in (1, 2):
                assert view.scram(user, mechanism) == model.get((user, mechanism))
        assert view.scram_count() == len(model)
        if is_applied:
            image.merge(changes_of(pending))
            view.retire(number)
            pending = []
            assert image.scram == model


def changes_of(records: Sequence[UserRecord]) -> Changes:
    changes = Changes(
        next_offset=0,
        timestamp_ms=0,
        state_hash=0,
        next_producer_id=0,
        forgotten_until_ms=-1,
        began_ms=-1,
    )
    for record in records:
        match record:
            case ScramCredentialSetRecord():
                changes.scram[record.user, record.mechanism] = record.credential
            case ScramCredentialRemovedRecord():
                changes.scram[record.user, record.mechanism] = None
    return changes


def test_a_record_without_its_secrets_is_as_long() -> None:
    record = ScramCredentialSetRecord(user="a", mechanism=1, credential=credential(b"12"))
    shown = blanked(record).credential
    assert (shown.salt, shown.stored_key, shown.server_key) == (bytes(2), bytes(8), bytes(6))
    assert shown.iterations == 4_096


async def test_credentials_are_there_after_a_restart_from_the_log(
    tmp_path: Path, log: MemoryMetadataLog
) -> None:
    async with running_coordinator(tmp_path / "one", log) as bench:
        await altered(bench, change("a", b"1"), change("b", b"2", 2), change("c", b"3"))
        await altered(bench, change("c", None))
        state_hash = bench.coordinator.replica.state_hash
    for directory in ("one", "two"):
        async with running_coordinator(tmp_path / directory, log) as bench:
            replica = bench.coordinator.replica
            assert replica.scram_credentials() == {
                ("a", 1): credential(b"1"),
                ("b", 2): credential(b"2"),
            }
            assert replica.state_hash == state_hash
