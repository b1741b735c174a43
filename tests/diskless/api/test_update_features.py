"""UpdateFeatures: what is there already may be asked for again, and nothing else may."""

import pytest

from tests.support.brokers.kafka_fakes import connected
from tests.support.questions.kafka_raw_client import RawClient

OK, INVALID_UPDATE_VERSION = 0, 95
TRANSACTIONS = "transaction.version"
UPGRADE, SAFE, UNSAFE = 1, 2, 3

Update = tuple[str, int, int]
"""Feature, level, type."""


async def updated(client: RawClient, version: int, *updates: Update) -> tuple[int, str | None]:
    """The error of the request; what succeeded is told by name where there is room for it."""
    rows = [
        {"feature": feature, "max_version_level": level}
        | ({"upgrade_type": kind} if version else {"allow_downgrade": kind != UPGRADE})
        for feature, level, kind in updates
    ]
    answer = await client.ask(57, version, feature_updates=rows)
    if version < 2:
        told = [(row.feature, row.error_code, row.error_message) for row in answer.results]
        succeeded = updates if answer.error_code == OK else ()
        assert told == [(feature, OK, None) for feature, _, _ in succeeded]
    return int(answer.error_code), answer.error_message


@pytest.mark.parametrize("version", range(3))
async def test_what_is_there_already_can_be_asked_for(version: int) -> None:
    async with connected() as (_, client):
        assert await updated(client, version) == (OK, None)
        for kind in (UPGRADE, SAFE, UNSAFE):
            assert await updated(client, version, (TRANSACTIONS, 2, kind)) == (OK, None)
        assert await updated(client, version, *[(TRANSACTIONS, 2, UPGRADE)] * 2) == (OK, None)


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize(
    ("update", "why"),
    [
        ((TRANSACTIONS, 1, SAFE), "only supports version 2"),
        ((TRANSACTIONS, 0, UNSAFE), "only supports version 2"),
        ((TRANSACTIONS, 3, UPGRADE), "only supports version 2"),
        ((TRANSACTIONS, -1, UPGRADE), "cannot be less than 0"),
        (("metadata.version", 7, UPGRADE), "does not support the feature"),
        (("", 0, SAFE), "does not support the feature"),
    ],
)
async def test_any_other_level_is_refused_with_all_that_is_beside_it(
    update: Update, why: str, version: int
) -> None:
    async with connected() as (_, client):
        for updates in ([update], [(TRANSACTIONS, 2, UPGRADE), update]):
            code, message = await updated(client, version, *updates)
            assert code == INVALID_UPDATE_VERSION
            assert message is not None
            assert f"version {update[1]} for feature {update[0]}." in message
            assert why in message


@pytest.mark.parametrize("kind", [0, 4])
async def test_an_unknown_type_is_refused(kind: int) -> None:
    async with connected() as (_, client):
        code, message = await updated(client, 1, (TRANSACTIONS, 2, kind))
        assert (code, message) == (
            INVALID_UPDATE_VERSION,
            "Invalid update version 2 for feature transaction.version. "
            "There is no such upgrade type.",
        )
