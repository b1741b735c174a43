"""A fault that no first example shows is found, and time alone ends the search."""

import itertools

import pytest
from hypothesis import strategies as st

from tests.support.samples.fuzzing import FUZZ_SECONDS, ROUND_EXAMPLES, fuzzed


@pytest.mark.parametrize("rounds", [1, 2])
def test_rounds_follow_until_the_time_is_over_and_draw_other_examples(rounds: int) -> None:
    seen: list[int] = []
    clock = itertools.count(0, FUZZ_SECONDS / rounds).__next__

    @fuzzed(st.integers(0, 2**62), share=1, clock=clock)
    def draw(number: int) -> None:
        seen.append(number)

    draw()
    assert len(seen) == pytest.approx(rounds * ROUND_EXAMPLES, rel=0.1)
    assert len({*seen}) > 0.7 * len(seen)


def test_what_does_not_hold_fails() -> None:
    def holds(text: str) -> None:
        assert "=2C" not in text

    tokens = st.lists(st.sampled_from(["n=", "a", "=2C"])).map("".join)
    with pytest.raises(AssertionError):
        fuzzed(tokens, share=0)(holds)()
