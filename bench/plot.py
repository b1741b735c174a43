"""Draws bars of several systems as an SVG: one panel per kind of figure, one group per figure.

Each panel has a scale of its own, linear from nothing or logarithmic. A bar is a median; the line
through its end is the range. What was not measured has no bar.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

WIDTH: Final = 900
_LABEL_WIDTH: Final = 350
_VALUE_WIDTH: Final = 90
_BAR: Final = 13
_GAP: Final = 12
_HEAD: Final = 44
_TITLE: Final = 34
_LEGEND: Final = 20
_COLOURS: Final = ("#0072B2", "#E69F00", "#D55E00", "#009E73")
"""Told apart with any eyes (Okabe and Ito)."""


class Bar(NamedTuple):
    """One system's figure, with its range where it has one."""

    system: str
    value: float
    low: float | None = None
    high: float | None = None


class Group(NamedTuple):
    """One figure of all systems."""

    label: str
    bars: Sequence[Bar]


class Panel(NamedTuple):
    """Figures that share a scale."""

    title: str
    groups: Sequence[Group]
    is_logarithmic: bool = False


def svg(title: str, systems: Sequence[str], panels: Sequence[Panel]) -> str:
    """The picture; `systems` are in the order of their colours."""
    colours = dict(zip(systems, _COLOURS, strict=False))
    body: list[str] = []
    top = _HEAD
    for panel in panels:
        body += _panel(panel, colours, top)
        top += _height(panel)
    legend = [
        f'<rect x="{_LABEL_WIDTH}" y="{top + number * _LEGEND + 6}" width="12" height="12" '
        f'fill="{colours[system]}"/>'
        f'<text x="{_LABEL_WIDTH + 18}" y="{top + number * _LEGEND + 16}">{escape(system)}</text>'
        for number, system in enumerate(systems)
    ]
    height = top + len(systems) * _LEGEND + 20
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12" fill="#222">'
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>'
        f'<text x="20" y="28" font-size="17" font-weight="bold">{escape(title)}</text>'
    )
    return "\n".join([head, *body, *legend, "</svg>"]) + "\n"


def _panel(panel: Panel, colours: dict[str, str], top: int) -> Iterator[str]:
    yield (
        f'<text x="20" y="{top + 20}" font-size="13" font-weight="bold">'
        f"{escape(panel.title)}</text>"
    )
    scale = _Scale(panel)
    y = top + _TITLE
    for group in panel.groups:
        middle = y + len(group.bars) * _BAR / 2 + 4
        yield (
            f'<text x="{_LABEL_WIDTH - 10}" y="{middle:.0f}" text-anchor="end">'
            f"{escape(group.label)}</text>"
        )
        for bar in group.bars:
            end = scale.x(bar.value)
            yield (
                f'<rect x="{_LABEL_WIDTH}" y="{y}" width="{end - _LABEL_WIDTH:.1f}" '
                f'height="{_BAR - 2}" fill="{colours[bar.system]}"/>'
            )
            right = end
            if bar.low is not None and bar.high is not None:
                right = scale.x(bar.high)
                line = y + (_BAR - 2) / 2
                yield (
                    f'<line x1="{scale.x(bar.low):.1f}" x2="{right:.1f}" y1="{line}" y2="{line}" '
                    'stroke="#222"/>'
                )
            yield (
                f'<text x="{max(end, right) + 5:.1f}" y="{y + _BAR - 3}" font-size="11">'
                f"{_number(bar.value)}</text>"
            )
            y += _BAR
        y += _GAP


def _height(panel: Panel) -> int:
    return _TITLE + sum(len(group.bars) * _BAR + _GAP for group in panel.groups)


class _Scale:
    """Where a value lies."""

    def __init__(self, panel: Panel) -> None:
        bars = [bar for group in panel.groups for bar in group.bars]
        highest = max((bar.high or bar.value for bar in bars), default=1.0)
        lowest = min((bar.low or bar.value for bar in bars), default=1.0)
        self._is_logarithmic = panel.is_logarithmic
        self._from = 10 ** math.floor(math.log10(lowest)) if panel.is_logarithmic else 0.0
        self._to = max(highest, self._from * 10, 1e-9)

    def x(self, value: float) -> float:
        if self._is_logarithmic:
            share = math.log(value / self._from) / math.log(self._to / self._from)
        else:
            share = value / self._to
        return _LABEL_WIDTH + share * (WIDTH - _LABEL_WIDTH - _VALUE_WIDTH)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
