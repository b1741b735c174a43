"""An S3 server whose every PUT takes a while longer, as one in another building does.

    python -m bench.slow_s3 DELAY_MS      prints its address, then serves until it is killed

It is moto's, in memory. The delay comes before the request is looked at, in a thread of its own, so
that any number of PUTs wait side by side. It speaks HTTP/1.1: connections stay open.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

BUCKET: Final = "bench"
CREDENTIALS: Final[Mapping[str, str]] = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_DEFAULT_REGION": "us-east-1",
}
"""What a client of it has in its environment; any would do."""

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@contextmanager
def slow_s3(delay_ms: int) -> Iterator[str]:
    """The URL of a server that runs while this is entered."""
    command = [sys.executable, "-m", "bench.slow_s3", str(delay_ms)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def delayed(application: Application, delay_ms: int) -> Application:
    """`application`, which begins a PUT `delay_ms` late."""

    def serve(environment: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environment["REQUEST_METHOD"] == "PUT":
            time.sleep(delay_ms / 1_000)
        return application(environment, start)

    return serve


def serve(delay_ms: int) -> None:
    # Imported here: they take seconds, and who only asks for the server does not need them.
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Handler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, type: str, message: str, *args: object) -> None:
            """Nothing: it is measured beside."""

    application = delayed(DomainDispatcherApplication(create_backend_app), delay_ms)
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
