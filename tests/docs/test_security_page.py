"""docs/security.md: the ten commands do what the page says of them, and its tests are there."""

import ast
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

from tests.support.brokers.live_broker import until
from tests.support.ports import own_port

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "security.md"
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
        next_command = f"diskless topic list --bootstrap {address} --command-config FILE"
        assert next_command in (tmp_path / "broker.log").read_text()
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


def test_each_hole_that_was_found_elsewhere_has_tests() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## What went wrong elsewhere")[2]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    files = {path.name: path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    assert len(rows) >= 14
    for row in rows:
        named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", row)
        assert named, row
        for file, test in named:
            assert f"def {test}(" in files[file]


PROOFS: Final = re.compile(r"(^|_)(digest|mac|signature|proof|stored_key|server_key|password)$")
WHERE_PROOFS_ARE: Final = (
    "metadata/scram",
    "metadata/access_tokens.py",
    "diskless/sasl",
    "diskless/web",
    "wal/security",
)


def is_proof(node: ast.expr) -> bool:
    name = getattr(node, "attr", None) or getattr(node, "id", "")
    return PROOFS.search(name) is not None


def compared_proofs(source: str) -> list[int]:
    """Lines in which `==` or `!=` has a proof on either side."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Compare)
        and any(isinstance(one, ast.Eq | ast.NotEq) for one in node.ops)
        and any(map(is_proof, (node.left, *node.comparators)))
    ]


def test_proofs_are_compared_in_constant_time() -> None:
    assert compared_proofs("if final.proof != proof or mac == other: pass\nkey_id == 1") == [1, 1]
    paths = [path for name in WHERE_PROOFS_ARE for path in (ROOT / name, *(ROOT / name).rglob("*"))]
    modules = [path for path in paths if path.suffix == ".py"]
    assert len(modules) > 20
    assert {
        str(path): lines for path in modules if (lines := compared_proofs(path.read_text()))
    } == {}
