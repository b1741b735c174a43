"""The demo from end to end, on a few thousand records: `make demo` in small."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from localstack import minio

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.clients
@pytest.mark.parametrize(
    "store",
    [
        "directory",
        pytest.param(
            "minio",
            marks=[
                pytest.mark.exhaustive,
                pytest.mark.skipif(minio.find() is None, reason=minio.HOW_TO_GET),
            ],
        ),
    ],
)
def test_the_demo_in_small_holds_every_comparison_and_leaves_no_process(
    store: str, tmp_path: Path
) -> None:
    arguments = ["--flights", "6000", "--weather", "6000", "--directory", str(tmp_path / "demo")]
    arguments += ["--store", store]
    demo = subprocess.run(
        [sys.executable, "-m", "demo", *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "comparisons held" in demo.stdout
    assert processes_that_mention(str(tmp_path)) == []


def processes_that_mention(text: str) -> list[list[str]]:
    """Command lines of live processes that name `text`."""
    command_lines = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
    return [line for line in command_lines if line and any(text in word for word in line)]
