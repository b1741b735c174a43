"""A schema registry of the HTTP interface that stock serializers know, in a thread of the test."""

import base64
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import IPPROTO_TCP, TCP_NODELAY
from types import TracebackType
from typing import Any, Self


class SchemaRegistry:
    """Keeps what is registered. `fails`, `answers`, `drips`: one that cannot be relied on."""

    def __init__(self, *, credentials: str = "") -> None:
        self.credentials = credentials
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.fails = False
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        """What to say for a path, instead of what there is."""
        self.drips: threading.Semaphore | None = None
        """Answers are sent a byte at a time, each when this lets it."""
        self.asked: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def register(self, subject: str, schema: Any, kind: str = "AVRO", **more: Any) -> int:
        """The id of the schema, which it may have had before."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        content = {"schema": text, "schemaType": kind, **more}
        schema_id = next(
            (number for number, known in self.schemas.items() if known == content),
            len(self.schemas) + 1,
        )
        self.schemas[schema_id] = content
        versions = self.subjects.setdefault(subject, [])
        if schema_id not in versions:
            versions.append(schema_id)
        return schema_id

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str) -> tuple[int, Any]:
        if found := re.fullmatch(r"/schemas/ids/(\d+)", path):
            content = self.schemas.get(int(found[1]))
            return (200, _shown(content)) if content else (404, {"error_code": 40403})
        if found := re.fullmatch(r"/subjects/([^/]+)/versions(?:/(\d+|latest))?", path):
            versions = self.subjects.get(found[1], [])
            if not versions:
                return 404, {"error_code": 40401}
            if found[2] is None:
                return 200, list(range(1, len(versions) + 1))
            version = len(versions) if found[2] == "latest" else int(found[2])
            if version > len(versions):
                return 404, {"error_code": 40402}
            schema_id = versions[version - 1]
            shown = _shown(self.schemas[schema_id])
            return 200, {"subject": found[1], "version": version, "id": schema_id, **shown}
        return 404, {"error_code": 404}


def _shown(content: dict[str, Any]) -> dict[str, Any]:
    """As registries do, which leave the name of Avro out."""
    return {key: value for key, value in content.items() if (key, value) != ("schemaType", "AVRO")}


def _handler(registry: SchemaRegistry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            registry.asked.append(path)
            wanted = "Basic " + base64.b64encode(registry.credentials.encode()).decode()
            if registry.fails:
                self._say(500, {}, b"{}")
            elif registry.credentials and self.headers.get("Authorization") != wanted:
                self._say(401, {}, b"{}")
            elif path in registry.answers:
                self._say(*registry.answers[path])
            else:
                status, content = registry.answer(path)
                self._say(status, {}, json.dumps(content).encode())

        def do_POST(self) -> None:
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found = re.fullmatch(r"/subjects/([^/]+)(/versions)?", self.path.partition("?")[0])
            assert found is not None
            schema_id = registry.register(
                found[1], content["schema"], content.get("schemaType", "AVRO")
            )
            version = registry.subjects[found[1]].index(schema_id) + 1
            answer = {
                "id": schema_id,
                "subject": found[1],
                "version": version,
                **_shown(registry.schemas[schema_id]),
            }
            self._say(200, {}, json.dumps(answer).encode())

        def _say(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if registry.drips is None:
                self.wfile.write(body)
                return
            self.connection.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
            for byte in body:
                registry.drips.acquire()
                self.wfile.write(bytes([byte]))

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
