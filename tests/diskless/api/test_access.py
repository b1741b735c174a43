"""Rows of a request are parted by whether they are refused, and their answers put together."""

from collections.abc import Iterable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from diskless.api.access import Access, allowed_rows
from diskless.authorization import AllowEverything
from diskless.fetch.fetch_rows import FetchAnswer, FetchRows
from diskless.ports import NOTHING_REFUSED, FetchPartition, FetchResult
from tests.support.profiles import examples
from tests.support.security.refusing_broker import CLIENT, CREATE, READ, WRITE
from wal.errors import OffsetOutOfRange, Rejected


def test_whoever_allows_everything_reads_no_names():
    def names() -> Iterable[str]:
        raise AssertionError("nobody needs them")
        yield ""

    access = Access(AllowEverything())
    assert access.refused_topics(CLIENT, WRITE, names()) is NOTHING_REFUSED
    assert access.refused_groups(CLIENT, READ, names()) is NOTHING_REFUSED
    assert access.refused_cluster(CLIENT, CREATE) is None
    assert not access.may_with_no_topic(CLIENT, WRITE)


@given(st.lists(st.sampled_from("abcdef")), st.sets(st.sampled_from("abcdef")))
def test_each_row_gets_its_answer_or_its_error(names: list[str], closed: set[str]) -> None:
    refused = {name: Rejected(name) for name in closed}
    rows = allowed_rows(list(enumerate(names)), lambda row: row[1], refused)
    assert [name for _, name in rows.allowed] == [name for name in names if name not in closed]
    assert rows.are_none == (bool(names) and {*names} <= closed)
    answers = rows.merged(
        [f"{at}{name}" for at, name in rows.allowed], lambda row, error: f"{row[0]}{error}!"
    )
    assert answers == [
        f"{at}{name}!" if name in closed else f"{at}{name}" for at, name in enumerate(names)
    ]


PARTITION = st.builds(
    FetchPartition,
    topic_id=st.none(),
    topic_name=st.sampled_from("abc"),
    partition=st.integers(0, 9),
    offset=st.integers(0, 99),
    max_bytes=st.integers(0, 99),
    current_leader_epoch=st.just(-1),
)


@given(st.data(), st.lists(PARTITION, max_size=12))
@examples(0.5)
def test_the_rows_of_a_fetch_are_taken_apart_and_put_together(
    data: st.DataObject, asked: list[FetchPartition]
) -> None:
    places = range(len(asked))
    refused = {
        place: Rejected(str(place))
        for place in sorted(
            data.draw(st.sets(st.sampled_from(places)) if asked else st.just(set()))
        )
    }
    rows = FetchRows.of(asked).without(refused)
    left = [place for place in places if place not in refused]
    assert [*rows] == [asked[place] for place in left]
    assert {topic.name for topic in rows.topics} == {asked[place].topic_name for place in left}
    results = [
        FetchResult(error=OffsetOutOfRange("x"))
        if place % 3 == 0
        else FetchResult(None, place, 0, [b"x"] if place % 3 == 1 else ())
        for place in left
    ]
    answer = FetchAnswer.of(results).at(dict.fromkeys(range(len(left)), 7)).among(refused)
    assert len(answer) == len(asked)
    assert [*answer.errors] == sorted(answer.errors)
    assert [answer[place] for place in left] == results
    assert {place: answer[place].error for place in refused} == refused
    assert np.all(answer.high_watermarks[[*refused]] == -1)
    assert {*answer.readers} == {place for place in left if place % 3}
