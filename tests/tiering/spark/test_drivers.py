"""Which Spark a job runs on, by what it is told; no Spark is started."""

import pytest

from tiering.spark.drivers import start_driver
from wal.errors import InvalidSettings

SERVER = "sc://spark:15002"
SECRET = f"{SERVER}/;token=secret"


@pytest.mark.parametrize(
    ("master", "remote", "settings", "environment", "complaint"),
    [
        (SECRET, None, {}, None, f"{SERVER}/ is a Spark Connect server: give it as --remote"),
        (None, None, {"spark.master": SERVER}, None, "give it as --remote"),
        ("yarn", SECRET, {}, None, f"{SERVER}/ .* or with --master yarn"),
        (None, SERVER, {"spark.master": "yarn"}, None, f"{SERVER} .* or with --master yarn"),
        (
            "local[2]",
            None,
            {"spark.remote": SERVER},
            None,
            f"one Spark: .* {SERVER} ",
        ),
        ("local[2]", None, {}, SECRET, f"one Spark: .* {SERVER}/ "),
        (None, "spark://spark:7077", {}, None, "spark://spark:7077 is no Spark Connect server"),
        (None, None, {}, "local[2]", r"local\[2\] is no Spark Connect server"),
    ],
)
def test_what_names_no_one_spark_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    master: str | None,
    remote: str | None,
    settings: dict[str, str],
    environment: str | None,
    complaint: str,
) -> None:
    if environment:
        monkeypatch.setenv("SPARK_REMOTE", environment)
    with pytest.raises(InvalidSettings, match=complaint) as refused:
        start_driver(master, remote, settings)
    assert "secret" not in str(refused.value)
