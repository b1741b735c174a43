"""MinIO on loopback, without a container: an S3 server that keeps what it confirmed.

Owns the build of the server, made once for all checkouts in the user's cache directory, and its
settings. `make minio` builds; `localstack/start-minio` and `localstack/stop-minio` are the other
commands; `localstack.local_server` has what they do. Standard library only.

MinIO's licence is the GNU AGPL. It is started as a program of its own, as any S3 server would be;
nothing of it is linked, changed or passed on.

What it keeps:

- The server listens on 127.0.0.1 and talks to nothing else: it looks for no newer version.
- Its objects are in `data/` below the state directory and stay there when it stops: the next start
  from that directory has them.
- Signatures are checked: clients need the credentials that `start` prints.
"""

import base64
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from localstack.local_server import REPOSITORY, Launch, LocalServerError, Program, answers, main

VERSION: Final = "v0.0.0-20260212201848-7aac2a2c5b7c"
"""MinIO's releases are not named as Go's modules are; this is how Go names the commit of one."""
MODULE: Final = f"github.com/minio/minio@{VERSION}"
HOW_TO_GET: Final = (
    "no MinIO: `make minio` builds it once (needs Go), or put it on the PATH, or MINIO=/its/path"
)
PROGRESS_EVERY_S: Final = 10.0
ACCESS_KEY: Final = "test"
SECRET_KEY: Final = "test-secret"
"""MinIO takes no shorter one."""
KMS_KEY_NAME: Final = "test-key"
_KMS_KEY: Final = base64.b64encode(bytes(range(32))).decode()
"""A key service of one key, which MinIO plays by itself."""


def find() -> Path | None:
    """The server's program: what MINIO names, our own build, or what is on the PATH."""
    if named := os.environ.get("MINIO"):
        return Path(named)
    if _built().exists():
        return _built()
    found = shutil.which("minio")
    return Path(found) if found else None


def install() -> None:
    """Build the server unless there is one to be found. Needs Go, the network and minutes."""
    found = find()
    if found is not None:
        print(f"MinIO is {found}")
        return
    if shutil.which("go") is None:
        raise LocalServerError("building MinIO needs Go (Debian/Ubuntu: apt install golang)")
    target = _built()
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"== building {MODULE} for {target} (four minutes of a core, once)", flush=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as directory:
        command = ["nice", "go", "install", "-v", "-p", "2", "-trimpath", "-ldflags=-s -w", MODULE]
        _run_with_progress(command, {**os.environ, "GOBIN": directory}, target.with_name("log"))
        (Path(directory) / "minio").rename(target)
    print(f"MinIO is {target}")


def _built() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "diskless" / "minio" / VERSION / "minio"


def _run_with_progress(command: list[str], environment: dict[str, str], log: Path) -> None:
    """Run the build; tell now and then how far it is. Raises LocalServerError."""
    started = time.monotonic()
    ended = threading.Event()
    with (
        log.open("w") as output,
        subprocess.Popen(
            command, env=environment, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
        ) as process,
    ):
        counts = {"downloaded": 0, "compiled": 0}

        def tell() -> None:
            while not ended.wait(PROGRESS_EVERY_S):
                minutes, seconds = divmod(int(time.monotonic() - started), 60)
                print(
                    f"   {minutes}:{seconds:02}  modules downloaded: {counts['downloaded']},"
                    f" packages compiled: {counts['compiled']} of some 1,300",
                    flush=True,
                )

        teller = threading.Thread(target=tell)
        teller.start()
        try:
            assert process.stderr is not None
            for line in process.stderr:
                output.write(line)
                counts["downloaded" if line.startswith("go: downloading") else "compiled"] += 1
        finally:
            ended.set()
            teller.join()
    if process.returncode != 0:
        tail = "".join(f"    {line}\n" for line in log.read_text().splitlines()[-10:])
        raise LocalServerError(f"building MinIO failed; the end of {log}:\n{tail}")


def _prepare(state_directory: Path, port: int) -> Launch:
    program = find()
    if program is None:
        raise LocalServerError(HOW_TO_GET)
    if not os.access(program, os.X_OK):
        raise LocalServerError(f"{program} is no program that can be started")
    for name in ("home", "data"):
        (state_directory / name).mkdir(exist_ok=True)
    return Launch(
        command=[program, "server", "--address", f"127.0.0.1:{port}", _data(state_directory)],
        working_directory=state_directory,
        environment={
            "HOME": str(state_directory / "home"),
            "MINIO_ROOT_USER": ACCESS_KEY,
            "MINIO_ROOT_PASSWORD": SECRET_KEY,
            "MINIO_KMS_SECRET_KEY": f"{KMS_KEY_NAME}:{_KMS_KEY}",
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
        },
    )


def _data(state_directory: Path) -> str:
    return str(state_directory / "data")


MINIO: Final = Program(
    name="MinIO",
    state_directory=REPOSITORY / "build" / "minio",
    credentials={
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": "us-east-1",
    },
    mark=_data,
    prepare=_prepare,
    # Its /ready says yes before a bucket can be made.
    is_ready=lambda endpoint: answers(f"{endpoint}/minio/health/cluster") is not None,
)

if __name__ == "__main__":
    sys.exit(main(MINIO, install))
