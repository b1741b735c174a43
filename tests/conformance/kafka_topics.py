"""`kafka-topics.sh` as far as librdkafka's tests call it, in words of `diskless topic`.

Some of their tests do what they could ask of the client itself through the scripts of a Kafka
installation (`KAFKA_PATH`). `install` writes a directory that looks like one to them.
"""

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from diskless.cli.cli import main as diskless

REPOSITORY = Path(__file__).resolve().parents[2]


def install(home: Path, security: Mapping[str, str] | None = None) -> None:
    """Make `home` a KAFKA_PATH with the one script that is needed.

    `security` are the properties of a client that may do what is asked for.
    """
    script = home / "bin" / "kafka-topics.sh"
    script.parent.mkdir(parents=True, exist_ok=True)
    module = __spec__.name if __spec__ else __name__
    words = [sys.executable, "-m", module]
    if security:
        properties = home / "client.properties"
        properties.touch(mode=0o600)
        properties.write_text("".join(f"{key}={value}\n" for key, value in security.items()))
        words += ["--command-config", str(properties)]
    command = shlex.join(words)
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(REPOSITORY))} exec {command} "$@"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)


def arguments_of_diskless(arguments: Sequence[str]) -> list[str]:
    """What `diskless` has to be called with to do what `kafka-topics.sh ARGUMENTS` does."""
    parser = argparse.ArgumentParser(prog="kafka-topics.sh")
    action = parser.add_mutually_exclusive_group(required=True)
    for verb in ("create", "alter", "delete"):
        action.add_argument(
            f"--{verb}", dest="verb", action="store_const", const=verb, default=None
        )
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--command-config")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions")
    parser.add_argument("--replication-factor", help="any: the object store replicates")
    parser.add_argument("--config", action="append", default=[])
    asked = parser.parse_args(arguments)
    told = ["topic", asked.verb, asked.topic, "--bootstrap", asked.bootstrap_server]
    if asked.command_config is not None:
        told += ["--command-config", asked.command_config]
    if asked.partitions is not None:
        told += ["--partitions", asked.partitions]
    for pair in asked.config:
        told += ["--config", pair]
    return told


if __name__ == "__main__":
    sys.exit(diskless(arguments_of_diskless(sys.argv[1:])))
