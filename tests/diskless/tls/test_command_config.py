"""How clients of ours connect: the properties they are given, and commands that use them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from diskless.cli.cli import main
from metadata.operations import WHATEVER_IS_DUE
from tests.support.brokers.live_broker import LiveBroker
from tests.support.security.certificates import Certificates
from tiering.coordinator_client import CoordinatorClient
from tiering.source.batch import BatchReader
from tiering.source.columns import schema_of
from tiering.source.options import parse_options
from wal.errors import CommitFailed, InvalidSettings
from wal.security.client_security import PLAINTEXT, read_client_security
from wal.security.security_protocol import SecurityProtocol

# kafka-python reads its schemas in a way that Python is giving up.
pytestmark = pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated")

MARKER = "nobody-may-see-this"


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[LiveBroker]:
    settings = {
        "listeners": "SSL://127.0.0.1:0",
        **certificates.listener(ssl_client_auth="required"),
    }
    with LiveBroker(tmp_path_factory.mktemp("commands") / "data", settings) as broker:
        yield broker


def written(path: Path, lines: dict[str, str], mode: int = 0o600) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    path.chmod(mode)
    return path


@pytest.fixture(params=["kafka", "librdkafka"])
def properties(request: pytest.FixtureRequest, tmp_path: Path, certificates: Certificates) -> Path:
    mine = certificates.signed("operator")
    if request.param == "kafka":
        lines = {
            "ssl.truststore.location": certificates.authority,
            "ssl.truststore.type": "PEM",
            "ssl.keystore.location": mine,
        }
    else:
        lines = {
            "ssl.ca.location": certificates.authority,
            "ssl.certificate.location": mine,
            "ssl.key.location": mine,
        }
    others = {"# a comment": "", "client.id": "not about security", "security.protocol": "ssl"}
    return written(tmp_path / "client.properties", {**others, **lines})


def test_commands_connect_as_they_are_told(
    broker: LiveBroker, properties: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reached = ["--bootstrap", broker.bootstrap, "--command-config", str(properties)]
    name = f"made-{properties.parent.name}"
    commands = [
        (["topic", "create", name], f"created {name}"),
        (["topic", "list"], name),
        (["topic", "describe", name], "configuration"),
        (["quota", "list"], "quota"),
        (["metadata", "dump", "--type", "PartitionCreated"], name),
    ]
    for words, told in commands:
        assert main([*words, *reached]) == 0, capsys.readouterr().err
        assert told in capsys.readouterr().out


def test_commands_without_a_certificate_are_refused(
    broker: LiveBroker, tmp_path: Path, certificates: Certificates,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    lines = {"security.protocol": "SSL", "ssl.ca.location": certificates.authority}
    bare = written(tmp_path / "bare.properties", lines)
    for more in ([], ["--command-config", str(bare)]):
        assert main(["topic", "list", "--bootstrap", broker.bootstrap, *more]) == 1
        assert broker.bootstrap in capsys.readouterr().err


def test_a_tiering_job_connects_as_it_is_told(
    broker: LiveBroker, properties: Path, certificates: Certificates
) -> None:
    mine = certificates.signed("producer")
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "security.protocol": "ssl",
            "ssl.ca.location": certificates.authority,
            "ssl.certificate.location": mine,
            "ssl.key.location": mine,
        }
    )
    topic = f"rolled-{properties.parent.name}"
    producer.produce(topic, b"record")
    assert producer.flush(60) == 0
    everything = WHATEVER_IS_DUE._replace(include_partial=True, topics=[topic])
    security = read_client_security(properties)
    planned = CoordinatorClient(broker.bootstrap, security).plan_segments(everything)
    assert len(planned.plans) == 1
    with pytest.raises(CommitFailed):
        CoordinatorClient(broker.bootstrap, PLAINTEXT).plan_segments(everything)
    # So does a reader of tables, its tasks included.
    table = {"bootstrap": broker.bootstrap, "topic": topic, "commandConfig": str(properties)}
    reader = BatchReader(parse_options(table), schema_of(["value"]))
    (batch,) = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert batch.to_pydict() == {"value": [b"record"]}


def test_a_host_that_its_certificate_does_not_name_is_not_trusted(
    broker: LiveBroker, properties: Path, tmp_path: Path
) -> None:
    there = f"localhost.localdomain:{broker.port}"
    asked = WHATEVER_IS_DUE._replace(topics=["no such topic"])
    lines = properties.read_text()
    for algorithm in ("none", ""):
        lax = tmp_path / "lax.properties"
        lax.write_text(f"{lines}ssl.endpoint.identification.algorithm={algorithm}\n")
        lax.chmod(0o600)
        assert not read_client_security(lax).checks_host
    strict = read_client_security(properties)
    assert strict.checks_host
    with pytest.raises(CommitFailed):
        CoordinatorClient(there, strict).plan_segments(asked)


def test_properties_that_cannot_be_used_are_refused_in_a_line(
    tmp_path: Path, certificates: Certificates
) -> None:
    mine = certificates.signed("operator")
    ssl = {"security.protocol": "SSL"}
    cases: list[tuple[dict[str, str], str]] = [
        ({"security.protocol": "TLS"}, "security.protocol=TLS: must be one of PLAINTEXT, SSL"),
        ({"ssl.keystore.pasword": "x"}, "ssl.keystore.pasword is not known here"),
        ({**ssl, "ssl.ca.location": "/nowhere"}, "ssl.ca.location: /nowhere cannot be used"),
        ({**ssl, "ssl.ca.location": mine, "ssl.certificate.location": certificates.authority},
         "cannot be used"),
        ({**ssl, "ssl.truststore.type": "JKS"}, "keytool -importkeystore"),
    ]  # fmt: skip
    for lines, told in cases:
        with pytest.raises(InvalidSettings) as refused:
            read_client_security(written(tmp_path / "p", lines))
        assert told in str(refused.value)
        assert "\n" not in str(refused.value)
    (tmp_path / "p").write_text(MARKER)
    with pytest.raises(InvalidSettings, match="line 1: this is not key=value") as refused:
        read_client_security(tmp_path / "p")
    assert MARKER not in str(refused.value)


def test_secrets_are_read_from_a_file_of_ones_own_only(tmp_path: Path) -> None:
    lines = {"security.protocol": "PLAINTEXT", "ssl.key.password": MARKER}
    security = read_client_security(written(tmp_path / "mine", lines))
    assert security.protocol is SecurityProtocol.PLAINTEXT
    assert security.key_password.reveal() == MARKER
    assert MARKER not in repr(security)
    with pytest.raises(InvalidSettings, match="chmod 600") as refused:
        read_client_security(written(tmp_path / "open", lines, 0o644))
    assert MARKER not in str(refused.value)
