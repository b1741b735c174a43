"""LocalStack's S3 on loopback, without its container: an S3 server that keeps nothing.

Owns the virtual environment `.venv-localstack` (LocalStack's pins would fight the broker's) and the
server's settings. `localstack/start` and `localstack/stop` are the commands;
`localstack.local_server` has what they do. Standard library only.

What it keeps:

- The server listens on 127.0.0.1 and, once installed, talks to nothing else: no telemetry, no
  certificate download, no DNS server.
- It writes below the state directory only, which is empty at each start.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from localstack.local_server import REPOSITORY, Launch, LocalServerError, Program, answers, main

VENV: Final = REPOSITORY / ".venv-localstack"
REQUIREMENTS: Final = Path(__file__).resolve().with_name("requirements.txt")
RUNTIME_MODULE: Final = "localstack.runtime.main"


def install() -> None:
    """Make `.venv-localstack` unless it holds exactly `requirements.txt` already. Needs network."""
    stamp = VENV / ".installed"
    wanted = REQUIREMENTS.read_text()
    if stamp.exists() and stamp.read_text() == wanted:
        stamp.touch()
        return
    print(f"== installing LocalStack in {VENV.name} (about a minute on a first run)", flush=True)
    pip_install = [_venv_python(), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(VENV)],
        [*pip_install, "--requirement", str(REQUIREMENTS)],
    ):
        if subprocess.run(command, check=False).returncode != 0:
            raise LocalServerError(f"installing LocalStack failed: {' '.join(command)}")
    stamp.write_text(wanted)


def _prepare(state_directory: Path, port: int) -> Launch:
    install()
    run_directory = state_directory / "run"
    shutil.rmtree(run_directory, ignore_errors=True)
    for name in ("home", "tmp", "filesystem"):
        (run_directory / name).mkdir(parents=True)
    return Launch(
        command=[_venv_python(), "-m", RUNTIME_MODULE],
        # `-m` puts the working directory first on the import path, where the repository's own
        # localstack/ must not stand for the installed package.
        working_directory=run_directory,
        environment={
            "HOME": str(run_directory / "home"),
            "TMPDIR": str(run_directory / "tmp"),
            # Without these two, LocalStack running inside some container takes itself for its own
            # image and writes to /var/lib.
            "OVERRIDE_IN_DOCKER": "0",
            "FILESYSTEM_ROOT": str(run_directory / "filesystem"),
            "SERVICES": "s3",
            "EAGER_SERVICE_LOADING": "1",
            "GATEWAY_SERVER": "hypercorn",
            "GATEWAY_LISTEN": f"127.0.0.1:{port}",
            "DNS_ADDRESS": "0",
            "DISABLE_EVENTS": "1",
            "SKIP_SSL_CERT_DOWNLOAD": "1",
        },
    )


def _is_ready(endpoint: str) -> bool:
    try:
        services = json.loads(answers(f"{endpoint}/_localstack/health") or b"")["services"]
    except ValueError:  # half an answer while it starts
        return False
    return services.get("s3") in ("available", "running")


def _clean(state_directory: Path) -> None:
    shutil.rmtree(state_directory / "run", ignore_errors=True)


def _venv_python() -> str:
    return str(VENV / "bin" / "python")


LOCALSTACK: Final = Program(
    name="LocalStack",
    state_directory=REPOSITORY / "build" / "localstack",
    # LocalStack takes any; these are MinIO's, so that both may be used side by side.
    credentials={
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    },
    mark=lambda state_directory: RUNTIME_MODULE,
    prepare=_prepare,
    is_ready=_is_ready,
    clean=_clean,
)

if __name__ == "__main__":
    sys.exit(main(LOCALSTACK, install))
