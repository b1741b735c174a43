"""A Java installation of Kafka, as far as librdkafka's programs in Java need one.

Test 0098 has Kafka's own producer write what librdkafka reads. `install` gives a `KAFKA_PATH` the
script that runs a class of theirs, and the jars that they compile it with, which tests/jvm brings.
"""

import shlex
from pathlib import Path
from typing import Final

from tests.support.clients.jvm import (
    KAFKA_VERSIONS,
    JvmUnavailable,
    java_command,
    resolve,
)

_OPTIONS: Final = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def install(home: Path) -> str:
    """Returns what is missing for that; empty: nothing, and it is done."""
    try:
        java = java_command()
        jars = resolve("kafka-pom.xml", [{"kafka.version": KAFKA_VERSIONS[-1]}]).directory
    except JvmUnavailable as missing:
        return str(missing)
    home.mkdir(parents=True, exist_ok=True)
    libraries = home / "libs"
    libraries.unlink(missing_ok=True)
    libraries.symlink_to(jars, target_is_directory=True)
    script = home / "bin" / "kafka-run-class.sh"
    script.parent.mkdir(exist_ok=True)
    words = shlex.join([java, *_OPTIONS])
    # The caller's CLASSPATH is where its own classes are.
    classes = f'"$CLASSPATH":{shlex.quote(str(libraries))}"/*"'
    script.write_text(f'#!/bin/sh\nexec {words} -cp {classes} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return ""
