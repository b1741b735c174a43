"""What the demo reads off a broker's output and metrics page."""

from pathlib import Path

import pytest

from demo import broker_process, spark_numbers
from demo.broker_process import BrokerError, BrokerProcess
from demo.events import CarrierNumbers, Numbers

PAGE = """\
# HELP diskless_fetch_bytes_total Bytes handed to consumers.
# TYPE diskless_fetch_bytes_total counter
diskless_fetch_bytes_total{source="chunk"} 10.0
diskless_fetch_bytes_total{source="segment"} 1.5e+06
# HELP diskless_fetch_bytes_created Bytes handed to consumers.
# TYPE diskless_fetch_bytes_created gauge
diskless_fetch_bytes_created{source="chunk"} 1.7e+09
# HELP diskless_segment_reads_total Segments read.
# TYPE diskless_segment_reads_total counter
diskless_segment_reads_total 3.0
# HELP diskless_connections Open connections.
# TYPE diskless_connections gauge
diskless_connections 2.0
# HELP process_cpu_seconds_total Total user and system CPU time spent in seconds.
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 0.31
"""

A_BROKER = """\
#!/bin/sh
echo "$@" >> "$(dirname "$0")/arguments"
echo starting
echo "ready on 127.0.0.1:4242"
exec sleep 60
"""


@pytest.fixture
def fake_diskless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `diskless` command that only says `ready`."""
    command = tmp_path / "diskless"
    command.write_text(A_BROKER)
    command.chmod(0o755)
    monkeypatch.setattr(broker_process, "DISKLESS", command)
    return command


def test_counters_are_named_as_on_the_page_and_gauges_are_left_out() -> None:
    assert broker_process.parse_counters(PAGE) == {
        'diskless_fetch_bytes_total{source="chunk"}': 10.0,
        'diskless_fetch_bytes_total{source="segment"}': 1.5e6,
        "diskless_segment_reads_total": 3.0,
    }


def test_a_broker_is_started_again_on_the_port_it_had(
    fake_diskless: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BrokerProcess, "new_port", staticmethod(lambda: 0))
    with BrokerProcess(tmp_path / "data", tmp_path) as broker:
        broker.start()
        assert broker.bootstrap == "127.0.0.1:4242"
        broker.kill()
        broker.start()
    first, second = (tmp_path / "arguments").read_text().splitlines()
    assert "--listen 127.0.0.1:0 " in first
    assert second == first.replace("127.0.0.1:0 ", "127.0.0.1:4242 ")
    assert (tmp_path / "broker.log").read_text().count("ready on 127.0.0.1:4242") == 2


def test_settings_reach_the_broker_in_its_configuration_file(tmp_path: Path) -> None:
    BrokerProcess(
        tmp_path / "data", tmp_path, {"object.store.url": "s3://b/p?endpoint_url=http://h"}
    )
    lines = (tmp_path / "broker.properties").read_text().splitlines()
    assert lines[0] == "object.store.url=s3://b/p?endpoint_url=http://h"
    assert lines[1].startswith("http.listen=127.0.0.1:")


def test_a_broker_that_ends_at_once_is_an_error_with_its_output(
    fake_diskless: Path, tmp_path: Path
) -> None:
    fake_diskless.write_text("#!/bin/sh\necho 'wal.dir: no space'\nexit 3\n")
    with (
        BrokerProcess(tmp_path / "data", tmp_path) as broker,
        pytest.raises(BrokerError, match=r"status 3(.|\n)*no space"),
    ):
        broker.start()


def test_a_command_that_takes_too_long_is_killed_and_named(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match="sleep 60 took longer than 0 s"):
        broker_process.run_logged(["sleep", "60"], tmp_path / "log", timeout_s=0.05)


def test_the_numbers_spark_prints_are_found_among_its_other_output() -> None:
    numbers = Numbers(
        carriers={"UA": CarrierNumbers(2, 1, -5, 300)},
        weather_rows=3,
        weather_rows_per_origin={"EWR": 3},
        wind_dir_sum_degrees=90,
    )
    output = "WARN something\n" + spark_numbers.format_numbers(numbers) + "\nbye\n"
    assert spark_numbers.parse_numbers(output) == numbers
    with pytest.raises(ValueError, match="no numbers"):
        spark_numbers.parse_numbers("WARN something\n")
