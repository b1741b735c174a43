"""docs/security.md: the ten commands do what the page says of them."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer

from tests.support.live_broker import until
from tests.support.ports import own_port

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "security.md"
DIRECTORY_OF_COMMANDS: Final = str(Path(sys.executable).parent)
ADDRESS: Final = "127.0.0.1:9094"
TIMEOUT_S: Final = 120.0


def commands() -> list[str]:
    section = PAGE.read_text(encoding="utf-8").partition("## From nothing to SASL_SSL")[2]
    block = re.search(r"^```\n(.*?)^```\n", section, re.DOTALL | re.MULTILINE)
    assert block is not None
    return block[1].splitlines()


@contextmanager
def in_background(command: str, directory: Path) -> Iterator[None]:
    """Runs a broker until the block ends, which begins when it is ready."""
    log = directory / "broker.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            f"exec {command}",
            shell=True,
            cwd=directory,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(),
        )
        try:
            until(
                lambda: "ready" in log.read_text() or process.poll() is not None,
                "the broker",
            )
            assert process.poll() is None, log.read_text()
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(TIMEOUT_S)


def environment() -> dict[str, str]:
    path = f"{DIRECTORY_OF_COMMANDS}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "DISKLESS_HTTP_LISTEN": f"127.0.0.1:{own_port()}"}


def run(command: str, directory: Path) -> None:
    done = subprocess.run(
        f"umask 077; {command}",
        shell=True,
        cwd=directory,
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=environment(),
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"


def client(directory: Path, user: str, address: str, **more: Any) -> dict[str, Any]:
    lines = (directory / f"{user}.properties").read_text().splitlines()
    told = dict(line.split("=", 1) for line in lines)
    return {**told, "bootstrap.servers": address, **more}


def produced(options: dict[str, Any], topic: str) -> KafkaError | None:
    """Why a record was not taken; None: it was."""
    errors: list[KafkaError | None] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        errors.append(error)

    producer = Producer(options)
    producer.produce(topic, b"one", on_delivery=delivered)
    assert producer.flush(TIMEOUT_S) == 0
    return errors[0]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")
def test_ten_commands_make_a_broker_with_tls_users_and_rules(tmp_path: Path) -> None:
    listed = commands()
    assert len(listed) == 10
    assert listed[0] == "umask 077"
    address = f"127.0.0.1:{own_port()}"
    listed = [command.replace(ADDRESS, address) for command in listed]
    serve = next(at for at, command in enumerate(listed) if command.endswith(" &"))
    for command in listed[1:serve]:
        run(command, tmp_path)
    with in_background(listed[serve].removesuffix(" &"), tmp_path):
        for command in listed[serve + 1 :]:
            run(command, tmp_path)
        shop = client(tmp_path, "shop", address)
        assert produced(shop, "orders") is None
        refused = produced(shop, "other")
        assert refused is not None
        assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        reader = Consumer(
            client(
                tmp_path, "shop", address, **{"group.id": "shop-1", "auto.offset.reset": "earliest"}
            )
        )
        reader.subscribe(["orders"])
        message = reader.poll(TIMEOUT_S)
        reader.close()
        assert message is not None
        assert message.value() == b"one"
