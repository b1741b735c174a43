"""The command line: what it prints, what it returns, how it stops."""

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from demo.broker_process import DISKLESS, BrokerError, BrokerProcess
from diskless.cli.cli import main
from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients.stock_clients import ConfluentKafka, Record
from tests.support.tiers.rolled import roll_everything

TIMEOUT_S = 120


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The installed command, to its end."""
    return subprocess.run(
        [DISKLESS, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, **environment},
    )


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    data = tmp_path_factory.mktemp("cli") / "data"
    with LiveBroker(data, {"wal.commit.interval.ms": "5"}) as broker:
        yield broker


# Without a broker


def test_help_names_every_command_and_loads_nothing_heavy() -> None:
    finished = run("--help")
    assert finished.returncode == 0
    commands = (
        "serve",
        "topic",
        "quota",
        "acl",
        "transaction",
        "tier",
        "verify",
        "rebuild",
        "cluster",
        "chunk",
        "wal",
        "config",
    )
    for command in commands:
        assert re.search(rf"^ +{command}\b", finished.stdout, re.MULTILINE), command


def test_config_lists_every_key_with_its_default_and_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["config"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = (line for line in lines if line.startswith("wal.commit.interval.ms"))
    assert " 250 " in line
    assert "PUTs" in line


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--set", "wal.comit.interval.ms=5"], "wal.comit.interval.ms"),
        (["--set", "wal.commit.interval.ms=fast"], "wal.commit.interval.ms"),
        (["--set", "wal.commit.interval.ms=0"], "wal.commit.interval.ms"),
        (["--set", "no equals sign"], "no equals sign"),
        (["--config", "/nowhere/at/all"], "/nowhere/at/all"),
        (["--listen", "9092"], "'9092'"),
        (["--listen", "127.0.0.1:99999"], "'127.0.0.1:99999'"),
    ],
)
def test_bad_settings_end_with_status_2_and_name_the_key(
    tmp_path: Path,
    arguments: list[str],
    named: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["serve", "--data", str(tmp_path / "data"), *arguments]) == 2
    assert named in capsys.readouterr().err


def test_a_url_that_makes_no_sense_ends_with_status_2(tmp_path: Path) -> None:
    finished = run("serve", "--data", tmp_path / "data", "--object-store", "ftp://somewhere")
    assert finished.returncode == 2
    assert "'ftp://somewhere'" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_a_bad_environment_variable_is_named_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DISKLESS_WAL_CHUNK_MAX_BYTES", "many")
    assert main(["serve", "--data", str(tmp_path / "data")]) == 2
    assert "wal.chunk.max.bytes" in capsys.readouterr().err


def test_a_command_that_does_not_exist_is_status_2() -> None:
    assert run("surve").returncode == 2
    assert run("topic").returncode == 2


def test_nobody_at_the_bootstrap_address_is_an_error_in_words() -> None:
    finished = run("topic", "list", "--bootstrap", "127.0.0.1:1")
    assert finished.returncode == 1
    assert "diskless: " in finished.stderr
    assert "127.0.0.1:1" in finished.stderr
    assert "Traceback" not in finished.stderr


# With one


def test_topics_are_created_listed_described_and_deleted(
    broker: LiveBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    bootstrap = ["--bootstrap", broker.bootstrap]
    create = ["topic", "create", "flights", "--partitions", "3", "--config", "segment.bytes=1000"]
    assert main([*create, *bootstrap]) == 0
    assert capsys.readouterr().out == "created flights\n"
    assert main([*create, *bootstrap]) == 1
    assert "flights" in capsys.readouterr().err

    ConfluentKafka().produce(broker.bootstrap, "flights", [Record()] * 1_234, partition=1)
    assert main(["topic", "list", *bootstrap]) == 0
    assert re.search(r"^flights +3 +1,234", capsys.readouterr().out, re.MULTILINE)
    assert main(["topic", "describe", "flights", *bootstrap]) == 0
    described = capsys.readouterr().out
    assert re.search(r"^1 +0 +0 +1234 +- +1,234", described, re.MULTILINE)
    assert re.search(r"^segment.bytes +1000", described, re.MULTILINE)

    *_, segment = roll_everything(broker)  # a slow machine makes more batches of them
    ConfluentKafka().produce(broker.bootstrap, "flights", [Record()] * 6, partition=1)
    assert main(["topic", "describe", "flights", *bootstrap]) == 0
    described = capsys.readouterr().out
    assert re.search(r"^0 +0 +0 +0 +- +0 *$", described, re.MULTILINE)
    assert re.search(r"^1 +0 +0 +1240 +1233 +6 *$", described, re.MULTILINE)
    told = dict(re.findall(r"^(id|segments) +(\S+) *$", described, re.MULTILINE))
    assert told["id"] == str(segment.partition.topic_id)
    assert segment.object_key.startswith(f"{told['segments']}/partition=1/")

    assert main(["topic", "delete", "flights", *bootstrap]) == 0
    assert capsys.readouterr().out == "deleted flights\n"
    for command in ("describe", "delete"):
        assert main(["topic", command, "flights", *bootstrap]) == 1
        assert "flights" in capsys.readouterr().err


def test_topics_are_altered_and_grow(
    broker: LiveBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    bootstrap = ["--bootstrap", broker.bootstrap]
    assert main(["topic", "create", "growing", "--config", "segment.ms=7", *bootstrap]) == 0
    capsys.readouterr()
    options = ["--config", "segment.bytes=1000", "--delete-config", "segment.ms"]
    assert main(["topic", "alter", "growing", *options, "--partitions", "3", *bootstrap]) == 0
    assert capsys.readouterr().out == "altered growing\n"
    topic = broker.broker.coordination.client.topics()["growing"]
    assert (topic.configs, topic.partition_count) == ({"segment.bytes": "1000"}, 3)
    for arguments, named in [
        (["growing", "--config", "no.such.key=1"], "Unknown topic config name: no.such.key"),
        (["growing", "--config", "segment.ms=lots"], "Invalid value lots"),
        (["growing", "--partitions", "2"], "would not be an increase"),
        (["shrinking", "--partitions", "2"], "The topic 'shrinking' does not exist."),
        (["shrinking", "--config", "segment.ms=1"], "The topic 'shrinking' does not exist."),
    ]:
        assert main(["topic", "alter", *arguments, *bootstrap]) == 1
        assert named in capsys.readouterr().err
    assert main(["topic", "alter", "growing", *bootstrap]) == 2
    assert "nothing to alter" in capsys.readouterr().err
    assert broker.broker.coordination.client.topics()["growing"] == topic


def test_a_topic_that_cannot_be_is_refused_by_name(
    broker: LiveBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    bootstrap = ["--bootstrap", broker.bootstrap]
    for arguments, named in [
        (["bad name!"], "bad name!"),
        (["t", "--partitions", "0"], "partition"),
        (["t", "--config", "no.such.key=1"], "no.such.key"),
        (["t", "--config", "segment.bytes=lots"], "segment.bytes"),
    ]:
        assert main(["topic", "create", *arguments, *bootstrap]) == 1
        assert named in capsys.readouterr().err
    assert main(["topic", "create", "t", "--config", "novalue", *bootstrap]) == 2


def test_quotas_are_set_listed_and_removed(
    broker: LiveBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--bootstrap", broker.bootstrap]
    etl = ["--client-id", "etl"]
    assert main(["quota", "set", *etl, "producer_byte_rate=1048576", *at]) == 0
    assert main(["quota", "set", *etl, "consumer_byte_rate=2e6", *at]) == 0
    both = ["--default-client-id", "--user", "u"]
    assert main(["quota", "set", *both, "producer_byte_rate=5", *at]) == 0
    assert main(["quota", "list", *at]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert sorted(rows) == [
        ["(default)", "u", "producer_byte_rate", "5"],
        ["etl", "consumer_byte_rate", "2,000,000"],
        ["etl", "producer_byte_rate", "1,048,576"],
    ]
    assert main(["quota", "remove", *etl, "consumer_byte_rate", *at]) == 0
    assert main(["quota", "remove", *both, *at]) == 0
    assert main(["quota", "list", *at]) == 0
    (row,) = capsys.readouterr().out.splitlines()[1:]
    assert row.split() == ["etl", "producer_byte_rate", "1,048,576"]
    assert main(["quota", "remove", *etl, *at]) == 0
    assert main(["quota", "remove", *etl, *at]) == 1
    assert "no quotas" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "named"),
    [
        (["set", "producer_byte_rate=5"], 2, "whose quotas"),
        (["set", "--user", "u", "producer_byte_rate"], 2, "not KEY=VALUE"),
        (["set", "--user", "u", "producer_byte_rate=fast"], 2, "'fast' is no number"),
        (["set", "--ip", "10.0.0.1", "request_percentage=5"], 1, "no quota 'request_percentage'"),
        (["set", "--user", "u", "producer_byte_rate=-5"], 1, "greater than 0"),
    ],
)
def test_a_quota_that_cannot_be_is_refused_in_words(
    broker: LiveBroker,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    named: str,
) -> None:
    assert main(["quota", *arguments, "--bootstrap", broker.bootstrap]) == status
    assert named in capsys.readouterr().err


def test_chunks_and_objects_are_dumped_batch_by_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LiveBroker(tmp_path / "data", {"wal.commit.interval.ms": "5"}) as broker:
        for count in (3, 7):
            ConfluentKafka().produce(broker.bootstrap, "t", [Record()] * count, codec="zstd")
        data = broker.broker.base.data
        topic_id = str(broker.broker.coordination.client.topics()["t"].topic_id)
        chunks = sorted(data.chunks.rglob("chunk-*.data"))
        objects = sorted(path for path in data.objects.rglob("wal/*/*") if path.is_file())
    assert len(chunks) == len(objects) == 2
    for path, command in [*((c, "chunk") for c in chunks), *((o, "wal") for o in objects)]:
        assert main([command, "dump", str(path)]) == 0
        dumped = capsys.readouterr().out
        assert topic_id in dumped
        assert "zstd" in dumped or "records" in dumped
    # A key in a store names the same object as its path.
    key = str(objects[0].relative_to(data.objects))
    assert main(["wal", "dump", str(objects[0])]) == 0
    by_path = capsys.readouterr().out
    assert main(["wal", "dump", key, "--object-store", f"file://{data.objects}"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == by_path.splitlines()[1:]


def test_dumping_what_is_not_there_or_no_chunk_is_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"\x00" * 1_000)
    for arguments in (
        ["chunk", "dump", str(tmp_path / "chunk-000001.data")],
        ["wal", "dump", str(tmp_path / "nothing")],
        ["wal", "dump", str(garbage)],
    ):
        assert main(arguments) == 1, arguments
        assert capsys.readouterr().err.startswith("diskless: ")


# serve as a process


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_serve_says_when_it_is_ready_and_stops_cleanly(tmp_path: Path, how: signal.Signals) -> None:
    with BrokerProcess(tmp_path / "data", tmp_path) as broker:
        broker.start()
        ready = (tmp_path / "broker.log").read_text()
        (line,) = (line for line in ready.splitlines() if "ready" in line)
        assert broker.bootstrap in line
        assert re.search(r"health and metrics on http://127\.0\.0\.1:\d+$", line)
        ConfluentKafka().produce(broker.bootstrap, "t", [Record()])
        os.kill(broker.pid, how)
        assert broker.wait_for_death() == 0
        assert "Traceback" not in (tmp_path / "broker.log").read_text()
        # Stopped cleanly, it has nothing to recover.
        broker.start()
        assert ConfluentKafka().read(broker.bootstrap, "t", 1)[0].record == Record()
        broker.stop()
        last_start = (tmp_path / "broker.log").read_text().rpartition("chunks recovered")[2]
        assert "waiting=0" in last_start.splitlines()[0]


def test_a_second_broker_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    with BrokerProcess(tmp_path / "data", tmp_path) as first:
        first.start()
        second = BrokerProcess(tmp_path / "data", tmp_path / "second")
        with second, pytest.raises(BrokerError, match=r"status [12]") as raised:
            second.start()
        assert str(tmp_path / "data") in str(raised.value)
        assert "Traceback" not in str(raised.value)
        # The first one did not notice.
        ConfluentKafka().produce(first.bootstrap, "t", [Record()])
        first.stop()


def test_a_port_in_use_is_said_in_words(tmp_path: Path, broker: LiveBroker) -> None:
    finished = run("serve", "--data", tmp_path / "data", "--listen", broker.bootstrap)
    assert finished.returncode == 2
    output = finished.stdout + finished.stderr
    assert str(broker.port) in output
    assert "Traceback" not in output


@pytest.mark.parametrize("what", ["data", "data/wal", "data/metadata/0/log", "data/objects"])
def test_a_path_that_cannot_be_a_directory_is_said_in_one_line(tmp_path: Path, what: str) -> None:
    path = tmp_path / what
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("in the way")
    finished = run("serve", "--data", tmp_path / "data", "--listen", "127.0.0.1:0")
    assert finished.returncode == 1
    *_, line = finished.stderr.splitlines()
    assert line.startswith("diskless: ")
    assert str(tmp_path / "data") in line
    assert "Traceback" not in finished.stderr


def test_a_signal_ends_a_start_that_a_store_holds_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        http = f"127.0.0.1:{probe.getsockname()[1]}"
        probe.close()
        url = f"s3://bucket?endpoint_url=http://127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [
                *[DISKLESS, "serve", "--data", tmp_path / "data", "--listen", "127.0.0.1:0"],
                *["--object-store", url, "--set", f"http.listen={http}"],
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"},
        )
        try:
            silent.settimeout(TIMEOUT_S)
            asked, _ = silent.accept()
            with asked, pytest.raises(HTTPError) as answer:
                urlopen(f"http://{http}/readyz", timeout=TIMEOUT_S)
            with answer.value as error:
                assert b"starting: " in error.read()
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=120)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0
    assert "stopped before it was ready" in output
    assert "Traceback" not in output
