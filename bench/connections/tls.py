"""Group `tls`: what TLS costs a broker, on one that has a plain listener and a TLS listener.

- `tls_extra_core_s_per_gib`: the broker's processor time for a produced GiB over TLS, less that in
  plain text; both take turns on one broker.
- `tls_read_core_s_per_gib`, `tls_read_pieces_core_s_per_gib`: what of that is decrypting, with
  records of 16 KiB, and with those that librdkafka makes (`bench.connections.tls_records`).
- `tls_handshakes_per_s`: handshakes that a second of the broker's processor time is enough for, of
  clients with a certificate of their own, keys ECDSA P-256.
- `rss_per_tls_connection_kib`: growth of the broker's resident set while clients connect, ask for
  ApiVersions and stay.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socket import create_connection
from typing import Final, NamedTuple

import psutil
import trustme

from bench.connections.connections import SETTLE_S, allow_files
from bench.connections.tls_records import LIBRDKAFKA_PIECES, WHOLE_RECORDS, read_cost
from bench.tools import load
from bench.tools.broker import BenchBroker, fresh_directory
from bench.tools.raw_client import API_VERSIONS
from bench.tools.report import Report
from demo.broker_process import free_port

ROUNDS: Final = 3
PRODUCED_BYTES: Final = 384 << 20
PARTITIONS: Final = 12
RECORD_BYTES: Final = 1 << 10
CONNECTIONS: Final = 1_500
FIRST: Final = 100
HANDSHAKES: Final = 2_000
CLIENTS: Final = 4
READ_BYTES: Final = 128 << 20
_GIB: Final = 1 << 30


class TlsBed(NamedTuple):
    """A broker with two listeners, and what clients of it need."""

    broker: BenchBroker
    plain: str
    secure: str
    authority: Path
    client: Path

    def librdkafka(self) -> dict[str, str]:
        return {
            "security.protocol": "ssl",
            "ssl.ca.location": str(self.authority),
            "ssl.certificate.location": str(self.client),
            "ssl.key.location": str(self.client),
        }

    def connect(self, context: ssl.SSLContext) -> ssl.SSLSocket:
        """A client that was answered once."""
        host, _, port = self.secure.rpartition(":")
        plain = create_connection((host, int(port)))
        client = context.wrap_socket(plain, server_hostname=host)
        client.sendall(API_VERSIONS)
        if not client.recv(1 << 16):
            raise ConnectionError("the broker closed a connection")
        return client

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority))
        context.load_cert_chain(self.client)
        return context


@contextmanager
def tls_bed() -> Iterator[TlsBed]:
    with fresh_directory() as directory:
        signer = trustme.CA(key_type=trustme.KeyType.ECDSA)
        authority = directory / "ca.pem"
        signer.cert_pem.write_to_path(authority)
        for name in ("broker", "client"):
            signed = signer.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA)
            (directory / name).touch(mode=0o600)
            signed.private_key_and_cert_chain_pem.write_to_path(directory / name)
        plain, secure = (f"127.0.0.1:{free_port()}" for _ in range(2))
        settings = {
            "listeners": f"PLAINTEXT://{plain},SSL://{secure}",
            "ssl.keystore.location": directory / "broker",
            "ssl.truststore.location": authority,
            "ssl.client.auth": "required",
            "authorizer": "none",
            "ssl.handshakes.per.second.max": 100_000,
            "max.connections.per.ip": 10_000,
            "max.connections.per.user": 10_000,
            "num.partitions": PARTITIONS,
        }
        with BenchBroker(directory / "data", settings) as broker:
            yield TlsBed(broker, plain, secure, authority, directory / "client")


def run_tls(report: Report) -> None:
    """Bytes, handshakes, connections."""
    report.step("tls: the same records in plain text and over TLS, then handshakes")
    with tls_bed() as bed:
        plain, secure = measure_produced(bed)
        report.add_runs("tls_plain_core_s_per_gib", plain, "core-s/GiB")
        report.add_runs("tls_core_s_per_gib", secure, "core-s/GiB")
        extra = [one - other for one, other in zip(secure, plain, strict=True)]
        report.add_runs("tls_extra_core_s_per_gib", extra, "core-s/GiB", bound="≤ 0.6")
        for name, pieces, bound in (
            ("tls_read_core_s_per_gib", WHOLE_RECORDS, "≤ 0.6"),
            ("tls_read_pieces_core_s_per_gib", LIBRDKAFKA_PIECES, ""),
        ):
            cost = asyncio.run(read_cost(pieces, READ_BYTES))
            report.add(name, cost, "core-s/GiB", bound=bound)
        report.add("tls_handshakes_per_s", measure_handshakes(bed), "of a core")
    report.step(f"tls: {CONNECTIONS:,} connections that do nothing")
    with tls_bed() as bed:
        report.add("rss_per_tls_connection_kib", measure_resident(bed), "KiB", bound="≤ 60")


def measure_produced(
    bed: TlsBed, *, rounds: int = ROUNDS, produced_bytes: int = PRODUCED_BYTES
) -> tuple[Sequence[float], Sequence[float]]:
    """Core-seconds of the broker for a GiB, in plain text and over TLS, of each round."""
    load.create_topic(bed.plain, load.TOPIC, PARTITIONS)

    def produce(bootstrap: str, settings: dict[str, str]) -> float:
        used_s = bed.broker.cpu_s()
        measured = load.produce(
            bootstrap,
            record_bytes=RECORD_BYTES,
            total_bytes=produced_bytes,
            partitions=PARTITIONS,
            settings=settings,
        )
        return (bed.broker.cpu_s() - used_s) / measured.bytes * _GIB

    ways: list[Callable[[], float]] = [
        lambda: produce(bed.plain, {}),
        lambda: produce(bed.secure, bed.librdkafka()),
    ]
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for figures, way in zip(found, ways, strict=True):
            figures.append(way())
    return found


def measure_handshakes(bed: TlsBed, *, handshakes: int = HANDSHAKES) -> float:
    """Handshakes for a second of the broker's processor time."""
    context = bed.context()

    def shake() -> None:
        bed.connect(context).close()

    used_s = bed.broker.cpu_s()
    with ThreadPoolExecutor(CLIENTS) as clients:
        for done in [clients.submit(shake) for _ in range(handshakes)]:
            done.result()
    return handshakes / (bed.broker.cpu_s() - used_s)


def measure_resident(
    bed: TlsBed, *, connections: int = CONNECTIONS, settle_s: float = SETTLE_S
) -> float:
    """KiB for each connection."""
    allow_files(2 * connections)
    process = psutil.Process(bed.broker.pid)
    context = bed.context()
    with ExitStack() as stack:
        # What the first clients cost is not what each costs.
        for _ in range(min(FIRST, connections)):
            stack.enter_context(bed.connect(context))
        time.sleep(settle_s)
        before = process.memory_info().rss
        for _ in range(connections):
            stack.enter_context(bed.connect(context))
        time.sleep(settle_s)
        return float(process.memory_info().rss - before) / 1024 / connections
