"""Figures become tables and a picture; what was not measured is left out."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import page
from bench.page import bounds_table, main, peers_table, picture, replaced
from bench.tools.report import Report

FIGURES = {
    "peer_diskless_idempotent_mb_per_s": 412.3,
    "peer_diskless_idempotent_mb_per_s_low": 400.0,
    "peer_diskless_idempotent_mb_per_s_high": 430.0,
    "peer_diskless_idempotent_core_s_per_gib": 1.52,
    "peer_kafka_idempotent_mb_per_s": 600.0,
    "peer_kafka_ack_p50_1mb_ms": 0.4,
    "produce_vs_sink": 0.41,
    "produce_vs_sink_low": 0.4,
    "produce_vs_sink_high": 0.5,
}


def test_before_and_now_stand_beside_each_other() -> None:
    table = peers_table(FIGURES)
    produced = next(line for line in table.splitlines() if "produce 1 KiB, idemp" in line)
    assert (
        "| 222 (2.2) | **412** (1.5) | 612 (1.7) | **600** | 405 | – | 366 (2.0) | – |" in produced
    )


def test_figures_with_a_bound_say_whether_it_is_met() -> None:
    table = bounds_table(FIGURES, {"produce_vs_sink": "≥ 0.45", "not_measured": "≤ 1"})
    assert "| `produce_vs_sink` | 0.41 | 0.4 … 0.5 | ≥ 0.45 | **missed** |" in table
    assert "not_measured" not in table


def test_the_picture_has_a_bar_for_each_figure_that_is_there() -> None:
    root = ElementTree.fromstring(picture(FIGURES))
    bars = [each for each in root.iter() if each.get("height") == "11"]
    assert len(bars) == 3
    widths = [float(bar.get("width", "")) for bar in bars]
    assert widths[0] < widths[1]
    assert ElementTree.fromstring(picture({})) is not None


def test_a_section_is_written_anew_and_the_rest_stays() -> None:
    text = "before\n<!-- peers: from build/bench.json -->\nold\n<!-- end of peers -->\nafter\n"
    once = replaced(text, "peers", "new\n")
    assert once == replaced(once, "peers", "new\n")
    assert once.startswith("before\n")
    assert once.endswith("after\n")
    assert "old" not in once
    with pytest.raises(ValueError, match="bounds"):
        replaced(text, "bounds", "new\n")


def test_a_run_is_merged_and_becomes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = page.PAGE.resolve().read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    assert main() == 1
    for key, value in (("first", 1.0), ("second", 2.0)):
        report = Report()
        report.add(key, value, bound="≥ 1.5")
        report.write()
    assert json.loads(Path("build/bench.json").read_text()) == {"first": 1.0, "second": 2.0}
    Path("docs").mkdir()
    page.PAGE.write_text(original, "utf-8")
    assert main() == 0
    assert "| `second` | 2 |  | ≥ 1.5 | met |" in page.PAGE.read_text("utf-8")
    assert page.PICTURE.exists()
