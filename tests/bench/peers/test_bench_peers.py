"""The group of peers measures every system by every figure, and says what it leaves out."""

from pathlib import Path

import pytest

from bench.peers import peers
from bench.peers.peers import FIGURES, measure_peers, run_peers
from bench.peers.systems import Diskless, Kafka, KafkaSynced, Klite, NotThere
from bench.tools.report import Report

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)


def test_every_figure_of_a_broker() -> None:
    runs = measure_peers([Diskless], rounds=1, scale=0.02)
    assert set(runs["diskless"]) == set(FIGURES)
    # Little takes less processor time than the system tells.
    known = {name: values[0] for name, values in runs["diskless"].items() if "core_s" not in name}
    assert min(known.values()) > 0


@pytest.mark.jvm
@pytest.mark.exhaustive  # it measures what is not ours
def test_kafka_runs_under_the_same_loads(tmp_path: Path) -> None:
    try:
        KafkaSynced.install()
    except NotThere as missing:
        pytest.skip(str(missing))
    runs = measure_peers([KafkaSynced], rounds=1, scale=0.02)
    assert set(runs["kafka_synced"]) == set(FIGURES)


def test_what_cannot_be_had_is_left_out_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> None:
        raise NotThere("Go is needed")

    monkeypatch.setattr(Kafka, "install", lambda: None)
    monkeypatch.setattr(Klite, "install", missing)
    monkeypatch.setattr(peers, "SYSTEMS", [Diskless, Kafka, Klite])
    figures = {
        name: dict.fromkeys(FIGURES, values)
        for name, values in (("diskless", [2.0, 3.0, 4.0]), ("kafka", [4.0, 4.0, 4.0]))
    }
    monkeypatch.setattr(peers, "measure_peers", lambda systems, progress: figures)
    report = Report()
    run_peers(report)
    printed = capsys.readouterr().out
    assert "klite is skipped: Go is needed" in printed
    found = report.as_mapping()
    assert found["produce_vs_kafka"] == 0.75
    assert found["peer_kafka_restart_s"] == 4.0
    assert not [key for key in found if "klite" in key]


def test_a_binary_that_is_not_there_is_said_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KLITE", "/nowhere/klite")
    with pytest.raises(NotThere, match="KLITE=/nowhere/klite"):
        Klite.install()
