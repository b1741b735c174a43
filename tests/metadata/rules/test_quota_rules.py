"""Quotas of clients at the coordinator: changes by key, durable, and only so many entities."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.operations import AlterClientQuotas, QuotaEntity
from metadata.records.control import ClientQuotasRecord
from metadata.rules import quotas as quota_rules
from metadata.rules.quotas import decide_alter_client_quotas
from metadata.state.image import Changes, CommittedImage
from metadata.state.speculative import SpeculativeView
from tests.support.coordinators.coordinator_bench import (
    CoordinatorBench,
    MemoryMetadataLog,
    running_coordinator,
)
from wal.errors import CommitFailed, DisklessError, PolicyViolation

USER: QuotaEntity = (("user", "u"),)
CLIENT: QuotaEntity = (("client-id", "c"),)
DEFAULT: QuotaEntity = (("client-id", None), ("user", "u"))


def alter(entity: QuotaEntity, **changes: float | None) -> AlterClientQuotas:
    return AlterClientQuotas(entity=entity, changes=changes)


async def altered(
    bench: CoordinatorBench, *requests: AlterClientQuotas
) -> Sequence[DisklessError | None]:
    return await bench.coordinator.catalogue.alter_client_quotas(requests)


def known(bench: CoordinatorBench) -> Mapping[QuotaEntity, Mapping[str, float]]:
    return bench.coordinator.replica.client_quotas()


async def test_a_change_of_one_key_leaves_the_others_alone(bench: CoordinatorBench) -> None:
    assert await altered(bench, alter(USER, a=1.0, b=2.0), alter(CLIENT, a=3.0)) == [None, None]
    assert await altered(bench, alter(USER, b=None, c=4.0)) == [None]
    assert known(bench) == {USER: {"a": 1.0, "c": 4.0}, CLIENT: {"a": 3.0}}


async def test_an_entity_without_quotas_is_forgotten(bench: CoordinatorBench) -> None:
    await altered(bench, alter(DEFAULT, a=1.0))
    assert await altered(bench, alter(DEFAULT, a=None)) == [None]
    assert known(bench) == {}


async def test_what_changes_nothing_writes_nothing(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    await altered(bench, alter(USER, a=1.0))
    before = known(bench)
    assert await altered(bench, alter(USER, a=1.0, x=None), alter(CLIENT, y=None)) == [None, None]
    assert known(bench) is before
    assert [type(record) for record in log.records()].count(ClientQuotasRecord) == 1


async def test_changes_of_one_request_apply_in_order(bench: CoordinatorBench) -> None:
    await altered(bench, alter(USER, a=1.0), alter(USER, a=2.0, b=3.0), alter(USER, a=None))
    assert known(bench) == {USER: {"b": 3.0}}


async def test_quotas_that_could_not_be_appended_are_not_in_force(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    log.failures.append(CommitFailed("the disk is full"))
    with pytest.raises(CommitFailed):
        await altered(bench, alter(USER, a=1.0))
    assert known(bench) == {}
    assert await altered(bench, alter(USER, a=1.0)) == [None]


def test_only_so_many_entities_have_quotas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_rules, "QUOTA_ENTITIES_MAX", 2)
    view = SpeculativeView(CommittedImage(producers_max=1))
    requests = [alter((("user", str(number)),), a=1.0) for number in range(3)]
    answer = decide_alter_client_quotas(view, requests).answer
    assert answer[:2] == [None, None]
    assert isinstance(answer[2], PolicyViolation)
    # Those that are there can still change, and make room.
    more = [alter((("user", "0"),), a=2.0), alter((("user", "1"),), a=None), requests[2]]
    assert decide_alter_client_quotas(view, more).answer == [None, None, None]


entities = st.sampled_from([USER, CLIENT, DEFAULT])
alterations = st.lists(
    st.builds(
        AlterClientQuotas,
        entity=entities,
        changes=st.dictionaries(st.sampled_from("abc"), st.none() | st.sampled_from([1.0, 2.0])),
    ),
    max_size=4,
)


@given(st.lists(st.tuples(alterations, st.booleans()), max_size=6))
def test_decisions_are_those_of_a_dictionary(
    groups: Sequence[tuple[Sequence[AlterClientQuotas], bool]],
) -> None:
    """Whether or not the operations before were applied when the next are decided."""
    image = CommittedImage(producers_max=1)
    view = SpeculativeView(image)
    model: dict[QuotaEntity, dict[str, float]] = {}
    pending: list[ClientQuotasRecord] = []
    for number, (requests, is_applied) in enumerate(groups):
        view.group = number
        pending += decide_alter_client_quotas(view, requests).records  # type: ignore[arg-type]
        for request in requests:
            quotas = model.setdefault(request.entity, {})
            for key, value in request.changes.items():
                quotas.pop(key, None)
                if value is not None:
                    quotas[key] = value
        model = {entity: quotas for entity, quotas in model.items() if quotas}
        for entity in (USER, CLIENT, DEFAULT):
            assert (view.quotas(entity) or {}) == model.get(entity, {})
        assert view.quota_entity_count() == len(model)
        if is_applied:
            image.merge(changes_of(pending))
            view.retire(number)
            pending = []
            assert image.quotas == model


def changes_of(records: Sequence[ClientQuotasRecord]) -> Changes:
    changes = Changes(
        next_offset=0,
        timestamp_ms=0,
        state_hash=0,
        next_producer_id=0,
        forgotten_until_ms=-1,
        began_ms=0,
    )
    for record in records:
        changes.quotas[record.entity] = dict(record.quotas) or None
    return changes


async def test_quotas_are_there_after_a_restart_from_the_log(
    tmp_path: Path, log: MemoryMetadataLog
) -> None:
    async with running_coordinator(tmp_path / "one", log) as bench:
        await altered(bench, alter(USER, a=1.0, b=2.5), alter(CLIENT, a=3.0))
        await altered(bench, alter(CLIENT, a=None))
        state_hash = bench.coordinator.replica.state_hash
    for directory in ("one", "two"):
        async with running_coordinator(tmp_path / directory, log) as bench:
            assert known(bench) == {USER: {"a": 1.0, "b": 2.5}}
            assert bench.coordinator.replica.state_hash == state_hash
