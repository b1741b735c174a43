"""A log-in in a file of properties: Kafka's names, librdkafka's, JAAS; what is refused."""

from pathlib import Path

import pytest

from wal.errors import InvalidSettings
from wal.security.client_login import ClientLogin, SaslMechanism
from wal.security.client_security import read_client_security
from wal.security.secret import Secret

SASL = "security.protocol=SASL_PLAINTEXT\n"
SCRAM = f"{SASL}sasl.mechanism=SCRAM-SHA-512\n"
PLAIN = f"{SASL}sasl.mechanism=PLAIN\n"
MODULES = "org.apache.kafka.common.security"
MARKER = "nobody-may-see-this"


def login_of(path: Path, text: str) -> ClientLogin | None:
    path.write_text(text)
    path.chmod(0o600)
    return read_client_security(path).login


@pytest.mark.parametrize(
    ("text", "mechanism", "user", "password"),
    [
        (f"{SCRAM}sasl.username=ann\nsasl.password=a = b\\\n", "SCRAM-SHA-512", "ann", "a = b\\"),
        (f"{SASL}sasl.mechanisms=plain\nsasl.username=ann\nsasl.password=b", "PLAIN", "ann", "b"),
        (
            f"{SCRAM}sasl.jaas.config={MODULES}.scram.ScramLoginModule required \\\n"
            '    username="ann" \\\n    password="b;\\\\"=c";\nclient.id=me\n',
            "SCRAM-SHA-512", "ann", 'b;"=c',
        ),
        (
            f"{PLAIN}sasl.jaas.config={MODULES}.plain.PlainLoginModule REQUIRED "
            "password='b\\u00e4' username=ann user_ann=x;",
            "PLAIN", "ann", "bä",
        ),
    ],
    ids=["username", "librdkafka", "Scram module", "Plain module"],
)  # fmt: skip
def test_properties_say_who_logs_in(
    text: str, mechanism: str, user: str, password: str, tmp_path: Path
) -> None:
    path = tmp_path / "p"
    expected = ClientLogin(
        mechanism=SaslMechanism(mechanism), user=user, password=Secret(password), source=str(path)
    )
    assert login_of(path, text) == expected


def test_who_logs_in_is_not_asked_where_nobody_does(tmp_path: Path) -> None:
    assert login_of(tmp_path / "p", f"sasl.password={MARKER}\nsecurity.protocol=SSL\n") is None


JAAS = "sasl.jaas.config"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (SASL, "sasl.mechanism=: must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        (f"{SASL}sasl.mechanism=GSSAPI", "sasl.mechanism=GSSAPI: must be one of PLAIN"),
        (f"{SCRAM}sasl.username=ann", "write sasl.username and sasl.password"),
        (f"{SCRAM}sasl.password={MARKER}", "write sasl.username and sasl.password"),
        (f"{SCRAM}sasl.username=ann\nsasl.password={MARKER}\n{JAAS}=x", "leave one out"),
        (f"{SCRAM}{JAAS}={MARKER}", f"write {MODULES}.scram.ScramLoginModule required"),
        (f'{SCRAM}{JAAS}={MODULES}.scram.ScramLoginModule required password="{MARKER}"',
         f"for SCRAM-SHA-512 write {MODULES}.scram.ScramLoginModule required"),
        (f'{SCRAM}{JAAS}={MODULES}.plain.PlainLoginModule required password="{MARKER}";',
         f"for SCRAM-SHA-512 write {MODULES}.scram.ScramLoginModule required"),
        (f'{PLAIN}{JAAS}={MODULES}.plain.PlainLoginModule required password="{MARKER}";',
         "write sasl.username and sasl.password"),
        (f"{SCRAM}{JAAS}={MODULES}.scram.ScramLoginModule required {MARKER}\\", "write org.apache"),
        (f"{SCRAM}sasl.passwort={MARKER}", "sasl.passwort is not known here"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_in_a_line(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings) as refused:
        login_of(tmp_path / "p", text)
    assert told in str(refused.value)
    assert str(tmp_path / "p") in str(refused.value)
    assert "\n" not in str(refused.value)
    assert MARKER not in str(refused.value)


@pytest.mark.parametrize("key", ["sasl.password", "sasl.jaas.config"])
def test_passwords_are_read_from_a_file_of_ones_own_only(key: str, tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_text(f"{PLAIN}{key}={MARKER}\n")
    path.chmod(0o644)
    with pytest.raises(InvalidSettings, match=f"{key}: others may read .* chmod 600") as refused:
        read_client_security(path)
    assert MARKER not in str(refused.value)


def test_a_password_shows_nowhere(tmp_path: Path) -> None:
    login = login_of(tmp_path / "p", f"{PLAIN}sasl.username=ann\nsasl.password={MARKER}")
    assert MARKER not in repr(login)
