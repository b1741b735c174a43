"""kcat as a stock client: it sends lines that it is given, and prints what it reads.

What its command line cannot say is left out: a time of one's own, or a record that is empty and
has no key. Records that contain its delimiters cannot be sent either. It prints a header as
`name=value` with NULL for none, so values should hold no comma and no zero byte.
"""

import itertools
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from tests.support.clients import stock_clients as clients

__all__ = ["Kcat", "kcat_or_skip"]

FIELD: Final = b"\x1f"
END: Final = b"\x1e"
FORMAT: Final = "%t %o %T %K %S\n%k%s%h\n"
AT_ONCE: Final = 4


def kcat_or_skip() -> "Kcat":
    """Skips the test where kcat is not installed."""
    command = shutil.which("kcat")
    if command is None:
        pytest.skip("kcat is not installed")
    return Kcat(command)


class Kcat(clients.StockClient):
    """librdkafka behind a command line, in the version that came with it."""

    name = "kcat"

    def __init__(self, command: str) -> None:
        self.command: Final = command

    def run(self, bootstrap: str, *arguments: str, stdin: bytes = b"") -> bytes:
        """What it prints. Fails when it does."""
        finished = subprocess.run(
            [self.command, "-b", bootstrap, *arguments],
            input=stdin,
            capture_output=True,
            check=False,
            timeout=clients.TIMEOUT_S,
        )
        assert finished.returncode == 0, finished.stderr.decode()
        return finished.stdout

    def can_send(self, record: clients.Record) -> bool:
        content = (record.key or b"") + (record.value or b"")
        if FIELD in content or END in content:
            return False
        if record.value is None:
            return bool(record.key)
        return record.key is not None or bool(record.value)

    def send(
        self, bootstrap: str, topic: str, records: Sequence[clients.Record], how: clients.Sending
    ) -> list[int]:
        """The times of records are not sent, and offsets not told: all -1."""
        # Headers, and whether what is empty is null, go for a whole run.
        runs = itertools.groupby(records, lambda one: (one.headers, one.value is None))
        for (headers, with_null), run in runs:
            self.run(
                bootstrap,
                *("-P", "-t", topic, "-p", str(how.partition), "-z", how.codec),
                *("-K", FIELD.decode(), "-D", END.decode()),
                *("-X", f"acks={how.acks}"),
                *("-X", f"enable.idempotence={str(how.idempotent).lower()}"),
                *(["-Z"] if with_null else []),
                *_header_options(headers),
                stdin=b"".join(_line(record) for record in run),
            )
        return [-1] * len(records)

    def read(
        self, bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: int = 0
    ) -> list[clients.StoredRecord]:
        printed = self.run(
            bootstrap,
            *("-C", "-q", "-f", FORMAT, "-X", "fetch.wait.max.ms=20"),
            *("-t", topic, "-p", str(partition), "-o", str(offset), "-c", str(count)),
        )
        return [stored for _, stored in _records(printed)]

    def read_all(
        self, bootstrap: str, counts: Mapping[str, int]
    ) -> dict[str, list[clients.StoredRecord]]:
        """As many records of each topic, from processes of which a few run at once."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = pool.map(lambda topic: self.read(bootstrap, topic, counts[topic]), counts)
            return dict(zip(counts, found, strict=True))

    def read_in_group(
        self, bootstrap: str, counts: Mapping[str, int], group: str
    ) -> dict[str, list[clients.StoredRecord]]:
        """The same from one process, which is the only member of a group."""
        printed = self.run(
            bootstrap,
            *("-q", "-f", FORMAT, "-X", "fetch.wait.max.ms=20"),
            *("-X", "auto.offset.reset=earliest", "-X", "enable.partition.eof=false"),
            *("-c", str(sum(counts.values())), "-G", group, *counts),
        )
        found: dict[str, list[clients.StoredRecord]] = {topic: [] for topic in counts}
        for topic, stored in _records(printed):
            found[topic].append(stored)
        return found


def _header_options(headers: clients.Headers) -> Iterator[str]:
    for name, value in headers:
        yield "-H"
        yield name if value is None else f"{name}={value.decode()}"


def _line(record: clients.Record) -> bytes:
    value = record.value or b""
    return value + END if record.key is None else record.key + FIELD + value + END


def _records(printed: bytes) -> Iterator[tuple[str, clients.StoredRecord]]:
    at = 0
    while at < len(printed):
        end = printed.index(b"\n", at)
        topic, offset, time_ms, key_length, value_length = printed[at:end].split(b" ")
        at = end + 1
        parts: list[bytes | None] = []
        for length in (int(key_length), int(value_length)):
            parts.append(None if length < 0 else printed[at : at + length])
            at += max(length, 0)
        end = printed.index(b"\n", at)
        record = clients.Record(parts[0], parts[1], _headers(printed[at:end]), int(time_ms))
        at = end + 1
        yield topic.decode(), clients.StoredRecord(int(offset), record)


def _headers(printed: bytes) -> clients.Headers:
    if not printed:
        return ()
    pairs = [one.partition(b"=") for one in printed.split(b",")]
    return tuple((name.decode(), None if value == b"NULL" else value) for name, _, value in pairs)
