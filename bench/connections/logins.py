"""Group `logins`: what clients cost a broker before it knows them.

- `scram_logins_per_s`: log-ins by SCRAM-SHA-512 that a second of the broker's processor time is
  enough for, each on a connection of its own, without TLS.
- `half_done_p99_ratio`: the time in which a TLS client that is known has its answer, 99 of 100,
  while 1,000 others keep half-done handshakes, by that time without them.
"""

import secrets
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Final

from bench.connections.connections import allow_files
from bench.connections.tls import TlsBed, tls_bed
from bench.tools.broker import BenchBroker, fresh_directory
from bench.tools.raw_client import API_VERSIONS
from bench.tools.report import Report
from demo.broker_process import free_port
from metadata.scram.client import ScramClient
from metadata.scram.credentials import ScramMechanism

LOGINS: Final = 1_000
CLIENTS: Final = 4
HALF_DONE: Final = 1_000
ASKED: Final = 4_000
ROUNDS: Final = 3
_USER: Final = "bench"
_PASSWORD: Final = "of the bench"
_MECHANISM: Final = ScramMechanism.SHA_512
_HANDSHAKE: Final = (17, 1)
_AUTHENTICATE: Final = (36, 1)
_STEP_S: Final = 0.2


def run_logins(report: Report) -> None:
    """Log-ins, then clients beside handshakes that do not end."""
    report.step(f"logins: {LOGINS:,} by SCRAM")
    with login_bed() as (broker, port):
        report.add("scram_logins_per_s", measure_logins(broker, port), "of a core")
    report.step(f"logins: a client beside {HALF_DONE:,} half-done handshakes")
    with tls_bed() as bed:
        ratios = measure_beside(bed)
        report.add_runs("half_done_p99_ratio", ratios, "", bound="≤ 2")


@contextmanager
def login_bed() -> Iterator[tuple[BenchBroker, int]]:
    """A broker with one user, and the port where clients log in."""
    with fresh_directory() as directory:
        password = directory / "password"
        password.touch(mode=0o600)
        password.write_text(_PASSWORD)
        plain, port = free_port(), free_port()
        settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{port}",
            "sasl.enabled.mechanisms": _MECHANISM.sasl_name,
            "bootstrap.admin": _USER,
            "bootstrap.admin.password": f"file:{password}",
            "max.connections.unauthenticated.per.ip": 1_000,
        }
        with BenchBroker(directory / "data", settings) as broker:
            yield broker, port


def measure_logins(broker: BenchBroker, port: int, *, logins: int = LOGINS) -> float:
    """Log-ins for a second of the broker's processor time."""
    log_in(port)
    used_s = broker.cpu_s()
    with ThreadPoolExecutor(CLIENTS) as clients:
        for done in [clients.submit(log_in, port) for _ in range(logins)]:
            done.result()
    return logins / (broker.cpu_s() - used_s)


def log_in(port: int) -> None:
    """Raises what the exchange raises when the broker does not let it in."""
    scram = ScramClient(_MECHANISM, _USER, _PASSWORD, secrets.token_hex(16))
    with socket.create_connection(("127.0.0.1", port)) as client:
        name = _MECHANISM.sasl_name.encode()
        _ask(client, _HANDSHAKE, struct.pack(">h", len(name)) + name)
        answer = _authenticated(client, scram.first())
        scram.verify(_authenticated(client, scram.final(answer)))


def _authenticated(client: socket.socket, token: bytes) -> bytes:
    """The broker's next token."""
    answer = _ask(client, _AUTHENTICATE, struct.pack(">i", len(token)) + token)
    code, message_length = struct.unpack_from(">hh", answer)
    if code:
        raise ConnectionError(f"the log-in was refused with code {code}")
    start = 4 + max(message_length, 0)
    (length,) = struct.unpack_from(">i", answer, start)
    return answer[start + 4 : start + 4 + length]


def _ask(client: socket.socket, api: tuple[int, int], body: bytes) -> bytes:
    """The answer's body."""
    request = struct.pack(">hhih", *api, 1, -1) + body
    client.sendall(struct.pack(">i", len(request)) + request)
    received = b""
    while len(received) < 4 or len(received) < 4 + struct.unpack_from(">i", received)[0]:
        more = client.recv(1 << 16)
        if not more:
            raise ConnectionError("the broker closed a connection")
        received += more
    return received[8:]


def measure_beside(
    bed: TlsBed, *, rounds: int = ROUNDS, asked: int = ASKED, half_done: int = HALF_DONE
) -> Sequence[float]:
    """How much longer 99 of 100 answers take beside half-done handshakes, of each round."""
    allow_files(2 * half_done)
    found = []
    context = bed.context()
    with bed.connect(context) as client:
        for _ in range(rounds):
            alone_s = _p99_s(client, asked)
            with half_done_handshakes(bed, context, half_done):
                found.append(_p99_s(client, asked) / alone_s)
    return found


def _p99_s(client: ssl.SSLSocket, asked: int) -> float:
    took = []
    for _ in range(asked):
        began = time.perf_counter()
        client.sendall(API_VERSIONS)
        client.recv(1 << 16)
        took.append(time.perf_counter() - began)
    return sorted(took)[len(took) * 99 // 100]


@contextmanager
def half_done_handshakes(bed: TlsBed, context: ssl.SSLContext, count: int) -> Iterator[None]:
    """Clients that said half of what begins a handshake; who is cut off comes again."""
    host, _, port = bed.secure.rpartition(":")
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=host)
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        pass
    hello = outgoing.read()

    def half_done() -> socket.socket:
        client = socket.create_connection((host, int(port)))
        client.sendall(hello[: len(hello) // 2])
        client.setblocking(False)
        return client

    ended = threading.Event()
    with ExitStack() as stack:
        clients = [stack.enter_context(half_done()) for _ in range(count)]

        def come_again() -> None:
            while not ended.wait(_STEP_S):
                for number, client in enumerate(clients):
                    try:
                        is_gone = not client.recv(1)
                    except BlockingIOError:
                        continue
                    except OSError:
                        is_gone = True
                    if is_gone:
                        client.close()
                        clients[number] = stack.enter_context(half_done())

        again = threading.Thread(target=come_again)
        again.start()
        try:
            yield
        finally:
            ended.set()
            again.join()
