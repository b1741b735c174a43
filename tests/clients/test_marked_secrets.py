"""A marker is put through every secret of a real broker process, and found nowhere afterwards.

The secrets: the password of an encrypted key, the first user's, a user's that a client sets by
SCRAM and sends by PLAIN, one that is wrong, one in a file of client properties, and the keys of S3.
Looked at: all output and logs, the audit log, what commands print, DescribeConfigs, metrics, the
metadata topic as it is served and dumped, everything in the bucket and in the data directory, the
arguments of the processes as `ps` shows them.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from demo.broker_process import DISKLESS, BrokerError, BrokerProcess
from diskless.config import Config
from tests.support.brokers.live_broker import until
from tests.support.ports import own_port
from tests.support.s3_servers import s3_client
from tests.support.security.certificates import Certificates
from wal.settings import settings_of

MARKER: Final = "mArKeR7c0ffee"
KEY_PASSWORD, ADMIN_PASSWORD, S3_KEY = (f"{MARKER}-{what}" for what in ("key", "admin", "s3"))
USER_PASSWORD, WRONG_PASSWORD = (f"{MARKER}-{what}" for what in ("user", "wrong"))
SECRETS: Final = {
    "ssl.key.password": KEY_PASSWORD,
    "listener.name.sasl_ssl.ssl.key.password": KEY_PASSWORD,
    "bootstrap.admin.password": ADMIN_PASSWORD,
}
"""Of every secret setting of a broker."""
TIMEOUT_S: Final = 60

# Who lists processes sees the command line that started one.
pytestmark = [pytest.mark.clients, pytest.mark.cold]


def encrypted(keystore: str) -> str:
    """The key store with its key under KEY_PASSWORD."""
    path = Path(keystore)
    content = path.read_bytes()
    key = load_pem_private_key(content, None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(KEY_PASSWORD.encode())
    )
    path.write_bytes(key + content[content.index(b"-----BEGIN CERT") :])
    return keystore


class Marked:
    """A broker whose secrets all have the marker."""

    def __init__(self, directory: Path, endpoint: str, bucket: str) -> None:
        certificates = Certificates(directory / "keys")
        self.directory = directory
        self.port = own_port()
        self.authority = certificates.authority
        self.settings = {
            "listeners": f"SASL_SSL://127.0.0.1:{self.port}",
            "ssl.keystore.location": encrypted(certificates.server),
            "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
            "connection.failed.authentication.delay.ms": "1",
            "bootstrap.admin": "admin",
            "authorizer": "acl",
            "super.users": "User:admin",
            "object.store.url": f"s3://{bucket}/p?endpoint_url={endpoint}",
            "diskless.metadata.log": "object",
            "log.level": "debug",
            "audit.log.file": str(directory / "audit.jsonl"),
        }
        self.environment = {
            **{
                f"DISKLESS_{key.upper().replace('.', '_')}": value for key, value in SECRETS.items()
            },
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": S3_KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        (directory / "work").mkdir()
        self.process = BrokerProcess(directory / "data", directory / "work", self.settings)
        self.said: list[str] = []
        """What commands printed, and what was served."""

    def client(self, user: str, password: str, mechanism: str) -> dict[str, str]:
        return {
            "bootstrap.servers": f"127.0.0.1:{self.port}",
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self.authority,
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }

    def run(self, *arguments: str, status: int = 0) -> None:
        done = subprocess.run(
            [DISKLESS, *arguments],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == status, done.stderr
        self.said += [done.stdout, done.stderr]

    def processes(self) -> Iterator[str]:
        """What `ps` shows of the broker and of its children."""
        ids = [str(self.process.pid)]
        for one in ids:
            ids += Path(f"/proc/{one}/task/{one}/children").read_text().split()
            yield Path(f"/proc/{one}/cmdline").read_bytes().decode()


@contextmanager
def marked(directory: Path, endpoint: str, bucket: str) -> Iterator[Marked]:
    made = Marked(directory, endpoint, bucket)
    made.process.start(made.environment)
    try:
        yield made
    finally:
        made.process.kill()


def work_with_secrets(broker: Marked) -> None:
    """Log in by each of them, or fail to."""
    admin = AdminClient(broker.client("admin", ADMIN_PASSWORD, "SCRAM-SHA-512"))
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    user = UserScramCredentialUpsertion("ann", credential, USER_PASSWORD.encode())
    for altered in admin.alter_user_scram_credentials([user]).values():
        altered.result(TIMEOUT_S)
    properties = broker.directory / "admin.properties"
    lines = broker.client("admin", ADMIN_PASSWORD, "SCRAM-SHA-512").items()
    properties.touch(mode=0o600)
    properties.write_text("".join(f"{key}={value}\n" for key, value in lines))
    at = ("--bootstrap", f"127.0.0.1:{broker.port}", "--command-config", str(properties))
    broker.run("acl", "add", "ann", "all", "topic:t", *at)
    broker.run("user", "list", *at)
    broker.run("metadata", "dump", *at)
    broker.run("config")
    producer = Producer(broker.client("ann", USER_PASSWORD, "PLAIN"))
    producer.produce("t", b"value")
    assert producer.flush(TIMEOUT_S) == 0
    wrong = AdminClient(broker.client("ann", WRONG_PASSWORD, "PLAIN"))
    with pytest.raises(KafkaException):
        wrong.list_topics(timeout=2)
    (described,) = admin.describe_configs(
        [ConfigResource(ConfigResource.Type.BROKER, "0")]
    ).values()
    entries = described.result(TIMEOUT_S)
    secrets = {
        setting.key
        for section in Config.__dataclass_fields__.values()
        if is_dataclass(section.default_factory)
        for _, setting in settings_of(section.default_factory)
        if setting.is_secret
    }
    assert secrets == {key.removeprefix("listener.name.sasl_ssl.") for key in SECRETS}
    for key in SECRETS:
        assert (entries[key].value, entries[key].is_sensitive) == (None, True), key
    broker.said += [f"{entry.name}={entry.value}" for entry in entries.values()]
    broker.said += read_metadata(broker)


def read_metadata(broker: Marked) -> Iterator[str]:
    """`__diskless_metadata`, as it is served."""
    settings = broker.client("admin", ADMIN_PASSWORD, "SCRAM-SHA-512")
    consumer = Consumer({**settings, "group.id": "g", "enable.partition.eof": True})
    consumer.assign([TopicPartition("__diskless_metadata", 0, 0)])
    count = 0
    while (message := consumer.poll(TIMEOUT_S)) is not None and message.error() is None:
        count += 1
        yield repr((message.key(), message.value()))
    assert count > 3
    consumer.close()


def test_no_secret_is_found_anywhere(moto_endpoint: str, moto_bucket: str, tmp_path: Path) -> None:
    with marked(tmp_path, moto_endpoint, moto_bucket) as broker:
        work_with_secrets(broker)
        with urlopen(f"{broker.process.http_url}/metrics") as answer:
            broker.said.append(answer.read().decode())
        assert 'mechanism="PLAIN",result="failure"' in broker.said[-1]
        broker.said += broker.processes()
        audit = tmp_path / "audit.jsonl"
        until(lambda: '"result":"failed"' in audit.read_text(), "the failed log-in")
    with pytest.raises(BrokerError):
        # Its own crash tells nothing either.
        broker.process.start(
            {
                **broker.environment,
                "DISKLESS_LISTENER_NAME_SASL_SSL_SSL_KEY_PASSWORD": WRONG_PASSWORD,
            }
        )
    assert not [text for text in broker.said if MARKER in text]
    own = {tmp_path / "admin.properties"}
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path not in own]
    assert audit in written
    assert tmp_path / "work" / "broker.log" in written
    assert not [path for path in written if MARKER.encode() in path.read_bytes()]
    s3 = s3_client(moto_endpoint)
    stored = [one["Key"] for one in s3.list_objects_v2(Bucket=moto_bucket)["Contents"]]
    assert any("/meta/secret/" in key for key in stored)
    for key in stored:
        assert MARKER.encode() not in s3.get_object(Bucket=moto_bucket, Key=key)["Body"].read(), key
    s3.close()
