"""Credentials of MinIO that end, and a loopback endpoint that hands them out.

    with KeyEndpoint() as endpoint:
        endpoint.keys = temporary_keys(server.endpoint, "first", expires_in_s=3600)
        broker.start(endpoint.environment)
        revoke(server.endpoint, "first")

The endpoint is what a container has on ECS, EKS and such: `AWS_CONTAINER_CREDENTIALS_FULL_URI`.
"""

import hashlib
import json
import os
import threading
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Self
from urllib.parse import urlencode
from xml.etree import ElementTree

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

TIMEOUT_S: Final = 30.0
_XML: Final = "{https://sts.amazonaws.com/doc/2011-06-15/}"


def temporary_keys(minio_endpoint: str, kind: str, *, expires_in_s: float) -> Mapping[str, str]:
    """New keys of the server's owner, with a session token. All of a kind are revoked together.

    MinIO takes them for an hour; they say that they expire in `expires_in_s`.
    """
    form = {"Action": "AssumeRole", "Version": "2011-06-15", "DurationSeconds": "3600"}
    answer = _ask(f"{minio_endpoint}/", "sts", urlencode({**form, "TokenRevokeType": kind}))
    found = {
        name: node.text or ""
        for name in ("AccessKeyId", "SecretAccessKey", "SessionToken")
        for node in ElementTree.fromstring(answer).iter(f"{_XML}{name}")
    }
    expiration = datetime.now(UTC) + timedelta(seconds=expires_in_s)
    return {
        "AccessKeyId": found["AccessKeyId"],
        "SecretAccessKey": found["SecretAccessKey"],
        "Token": found["SessionToken"],
        "Expiration": expiration.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def revoke(minio_endpoint: str, kind: str) -> None:
    """From now on the server knows none of the keys of that kind."""
    query = urlencode({"user": os.environ["AWS_ACCESS_KEY_ID"], "tokenRevokeType": kind})
    _ask(f"{minio_endpoint}/minio/admin/v3/revoke-tokens/builtin?{query}", "s3", "")


def _ask(url: str, service: str, body: str) -> str:
    """The answer to a POST that the server's owner has signed."""
    headers = {
        "Content-Type": "application/x-www-form-urlencoded",
        "X-Amz-Content-SHA256": hashlib.sha256(body.encode()).hexdigest(),
    }
    request = AWSRequest(method="POST", url=url, data=body.encode(), headers=headers)
    owner = Credentials(os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
    SigV4Auth(owner, service, "us-east-1").add_auth(request)
    signed = urllib.request.Request(url, request.body, dict(request.headers), method="POST")
    with urllib.request.urlopen(signed, timeout=TIMEOUT_S) as answer:
        return str(answer.read().decode())


class KeyEndpoint:
    """Hands out `keys` to whoever asks."""

    def __init__(self) -> None:
        self.keys: Mapping[str, str] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(outer.keys).encode())

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: pytest shows what matters."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def environment(self) -> Mapping[str, str]:
        """For a process that is to ask here, and to find no keys elsewhere."""
        uri = f"http://127.0.0.1:{self._server.server_port}/keys"
        return {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": uri,
            "AWS_ACCESS_KEY_ID": "",
            "AWS_SECRET_ACCESS_KEY": "",
        }

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
