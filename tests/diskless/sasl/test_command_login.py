"""Commands, tiering jobs and the Spark source log in as `--command-config` says."""

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from diskless.cli.cli import main
from metadata.clients.sasl_login import LoginRefused
from metadata.operations import WHATEVER_IS_DUE
from tests.support.brokers.gate import Gate
from tests.support.brokers.live_broker import LiveBroker
from tests.support.ports import own_port
from tests.support.security.certificates import Certificates
from tiering.coordinator_client import CoordinatorClient
from tiering.source.batch import BatchReader
from tiering.source.columns import schema_of
from tiering.source.options import parse_options, parse_sink_options
from tiering.source.writing.at_least_once import Sink, Written
from wal.errors import CommitFailed
from wal.security.client_security import read_client_security

# kafka-python reads its schemas in a way that Python is giving up.
pytestmark = pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated")

USER, PASSWORD = "ann,=b", "pass word="
PATIENCE: Final = "diskless.cli.admin_connection.BOOTSTRAP_TIMEOUT_MS"
ROWS: Final = StructType().add("value", "binary")


class Served:
    """A broker with a listener of each kind."""

    def __init__(self, plain: int, sasl: int, tls: int, authority: str) -> None:
        self.plain = f"127.0.0.1:{plain}"
        self.by_protocol = {
            "SASL_PLAINTEXT": f"127.0.0.1:{sasl}",
            "SASL_SSL": f"127.0.0.1:{tls}",
        }
        self.authority = authority


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("logins")
    certificates = Certificates(directory / "certificates")
    plain, sasl, tls = own_port(), own_port(), own_port()
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl},"
        f"SASL_SSL://127.0.0.1:{tls}",
        **certificates.listener(),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "listener.name.SASL_SSL.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "bootstrap.admin": USER,
        "bootstrap.admin.password": f"file:{written(directory / 'password', PASSWORD)}",
        "connection.failed.authentication.delay.ms": "1",
        "num.partitions": "1",
    }
    with LiveBroker(directory / "data", settings, port=plain):
        yield Served(plain, sasl, tls, certificates.authority)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def properties(path: Path, served: Served, lines: Mapping[str, str]) -> Path:
    ca = {"ssl.ca.location": served.authority}
    return written(path, "".join(f"{key}={value}\n" for key, value in {**ca, **lines}.items()))


def librdkafka(protocol: str, mechanism: str, password: str = PASSWORD) -> dict[str, str]:
    return {
        "security.protocol": protocol,
        "sasl.mechanisms": mechanism,
        "sasl.username": USER,
        "sasl.password": password,
    }


def jaas(protocol: str, mechanism: str, module: str) -> dict[str, str]:
    return {
        "security.protocol": protocol,
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"org.apache.kafka.common.security.{module} required \\\n"
        f'  username="{USER}" \\\n  password="{PASSWORD}";',
    }


@pytest.mark.parametrize(
    "lines",
    [
        librdkafka("SASL_PLAINTEXT", "SCRAM-SHA-512"),
        jaas("SASL_PLAINTEXT", "PLAIN", "plain.PlainLoginModule"),
        jaas("SASL_SSL", "SCRAM-SHA-256", "scram.ScramLoginModule"),
    ],
    ids=["SCRAM-SHA-512", "PLAIN", "SCRAM-SHA-256 by TLS"],
)
def test_commands_and_jobs_log_in_as_they_are_told(
    served: Served, lines: Mapping[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = properties(tmp_path / "mine", served, lines)
    bootstrap = served.by_protocol[lines["security.protocol"]]
    reached = ["--bootstrap", bootstrap, "--command-config", str(mine)]
    topic = f"made-by-{lines['sasl.mechanism' if 'sasl.mechanism' in lines else 'sasl.mechanisms']}"
    for words, told in [
        (["topic", "create", topic], f"created {topic}"),
        (["topic", "list"], topic),
        (["user", "list"], USER),
        (["metadata", "dump", "--type", "PartitionCreated"], topic),
    ]:
        assert main([*words, *reached]) == 0, capsys.readouterr().err
        printed = capsys.readouterr()
        assert told in printed.out
        assert printed.err == ""
    table = {"bootstrap": bootstrap, "topic": topic, "commandConfig": str(mine)}
    rows = pa.record_batch({"value": pa.array([b"record"], pa.binary())})
    assert Sink(parse_sink_options(table), ROWS).write(iter([rows])) == Written(record_count=1)
    asked = WHATEVER_IS_DUE._replace(include_partial=True, topics=[topic])
    planned = CoordinatorClient(bootstrap, read_client_security(mine)).plan_segments(asked)
    assert len(planned.plans) == 1
    reader = BatchReader(parse_options(table), schema_of(["value"]))
    (batch,) = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert batch.to_pydict() == {"value": [b"record"]}


def test_whoever_is_refused_is_told_why_and_where_to_look(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine"
    sasl = served.by_protocol["SASL_PLAINTEXT"]
    cases = [
        (sasl, librdkafka("SASL_PLAINTEXT", "SCRAM-SHA-512", "wrong"),
         f"refused {USER} by SCRAM-SHA-512: Authentication failed"),
        (sasl, librdkafka("SASL_PLAINTEXT", "PLAIN", "wrong"), f"refused {USER} by PLAIN"),
        (sasl, librdkafka("SASL_PLAINTEXT", "SCRAM-SHA-256"),
         "does not take SCRAM-SHA-256, but PLAIN, SCRAM-SHA-512; write sasl.mechanism=PLAIN in"),
        (served.plain, librdkafka("SASL_PLAINTEXT", "PLAIN"), "has no log-in on that listener"),
    ]  # fmt: skip
    for bootstrap, lines, told in cases:
        properties(mine, served, lines)
        reached = ["--bootstrap", bootstrap, "--command-config", str(mine)]
        commands = [["topic", "list"], ["user", "list"], ["metadata", "dump"]]
        for words in [*commands, ["tier", "--once"]] if "wrong" in lines.values() else commands:
            assert main([*words, *reached]) == 1
            (line,) = capsys.readouterr().err.splitlines()
            assert told in line
            assert str(mine) in line
            assert "wrong" not in line
        with pytest.raises(LoginRefused, match=str(mine)):
            CoordinatorClient(bootstrap, read_client_security(mine)).plan_segments(WHATEVER_IS_DUE)
        table = parse_sink_options(
            {"bootstrap": bootstrap, "topic": "none", "commandConfig": str(mine)}
        )
        with pytest.raises(LoginRefused):
            Sink(table, ROWS).write(iter([]))


def test_a_client_that_does_not_log_in_is_not_served(served: Served) -> None:
    with pytest.raises(CommitFailed):
        CoordinatorClient(served.by_protocol["SASL_PLAINTEXT"]).plan_segments(WHATEVER_IS_DUE)


def test_a_broker_that_is_not_there_is_named(
    served: Served,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PATIENCE, 0)
    mine = properties(tmp_path / "mine", served, librdkafka("SASL_PLAINTEXT", "PLAIN"))
    nobody = f"127.0.0.1:{own_port()}"
    assert main(["topic", "list", "--bootstrap", nobody, "--command-config", str(mine)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert nobody in line
    assert "diskless serve" in line


def test_a_broker_that_was_started_a_moment_ago_is_waited_for(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when both commands are pasted into a shell together."""
    monkeypatch.setattr(PATIENCE, 600_000)
    mine = properties(tmp_path / "mine", served, librdkafka("SASL_PLAINTEXT", "PLAIN"))
    tried = threading.Event()
    connect = CoordinatorClient.connect

    def connecting(client: CoordinatorClient) -> None:
        try:
            connect(client)
        finally:
            tried.set()

    monkeypatch.setattr(CoordinatorClient, "connect", connecting)
    done: list[int] = []
    host, _, port = served.by_protocol["SASL_PLAINTEXT"].rpartition(":")
    with Gate((host, int(port))) as gate:
        gate.cut()
        command = ["user", "list", "--bootstrap", gate.address, "--command-config", str(mine)]
        thread = threading.Thread(target=lambda: done.append(main(command)))
        thread.start()
        assert tried.wait(120)
        gate.open()
        thread.join(120)
    assert done == [0]
