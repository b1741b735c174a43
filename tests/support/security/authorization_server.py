"""An authorization server of tests: keys, tokens signed with them, and HTTP where both are had.

issuer = Issuer()
issuer.token(sub="ann")                          a good one
with AuthorizationServer(issuer) as server:      http://127.0.0.1:PORT/jwks and /token
"""

import base64
import json
import ssl
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

ISSUER: Final = "https://issuer.example"
AUDIENCE: Final = "kafka"
CLIENT: Final = ("client", "client's own")
"""Who may ask for a token, and its secret."""


class Issuer:
    """A pair of keys with a name, and what is signed by it."""

    def __init__(self, key_id: str = "k1", *, is_rsa: bool = False) -> None:
        self.key_id: Final = key_id
        self.key: Final[Any] = (
            rsa.generate_private_key(65_537, 2_048)
            if is_rsa
            else ec.generate_private_key(ec.SECP256R1())
        )
        self.algorithm: Final = "RS256" if is_rsa else "ES256"

    def public(self, **members: Any) -> dict[str, Any]:
        """The public key as one of a set."""
        algorithm = RSAAlgorithm if self.algorithm == "RS256" else ECAlgorithm
        shown = algorithm.to_jwk(self.key.public_key(), as_dict=True)
        shown.pop("key_ops", None)
        return {**shown, "kid": self.key_id, "use": "sig", **members}

    def key_set(self) -> bytes:
        return json.dumps({"keys": [self.public()]}).encode()

    def claims(self, now_s: float | None = None, **claims: Any) -> dict[str, Any]:
        """Those of a good token for an hour, and these; None leaves one out."""
        now = int(time.time() if now_s is None else now_s)
        good = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "iat": now, "exp": now + 3_600}
        return {name: value for name, value in {**good, **claims}.items() if value is not None}

    def token(self, now_s: float | None = None, **claims: Any) -> str:
        return self.signed(self.claims(now_s, **claims))

    def signed(self, claims: Mapping[str, Any], **header: Any) -> str:
        return jwt.encode(
            dict(claims), self.key, self.algorithm, headers={"kid": self.key_id, **header}
        )


class AuthorizationServer:
    """Serves key sets, and tokens to CLIENT by the grant client_credentials."""

    def __init__(self, issuer: Issuer, context: ssl.SSLContext | None = None) -> None:
        self.issuer = issuer
        self.asked: list[str] = []
        """Paths, in the order in which they were asked for."""
        self.redirect = ""
        """Where every request for keys is sent instead."""
        self.content: bytes | None = None
        """What is served in place of the key set."""
        self.lives_s = 3_600
        self.user = "ann"
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self.path)
                if server.redirect:
                    self.send_response(302)
                    self.send_header("Location", server.redirect)
                    self.end_headers()
                    return
                content = server.content
                self._answer(200, server.issuer.key_set() if content is None else content)

            def do_POST(self) -> None:
                server.asked.append(self.path)
                form = self.rfile.read(int(self.headers["Content-Length"])).decode()
                status, answer = server.granted(
                    parse_qs(form), self.headers.get("Authorization", "")
                )
                self._answer(status, json.dumps(answer).encode())

            def _answer(self, status: int, content: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        scheme = "http"
        if context is not None:
            scheme = "https"
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url: Final = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"

    def granted(
        self, form: Mapping[str, list[str]], authorization: str
    ) -> tuple[int, Mapping[str, Any]]:
        kind, _, credentials = authorization.partition(" ")
        expected = base64.b64encode(":".join(CLIENT).encode()).decode()
        if form.get("grant_type") != ["client_credentials"]:
            return 400, {"error": "unsupported_grant_type"}
        in_form = (form.get("client_id", [""])[0], form.get("client_secret", [""])[0])
        if in_form != CLIENT and (kind, credentials) != ("Basic", expected):
            return 401, {"error": "invalid_client"}
        now = int(time.time())
        token = self.issuer.token(sub=self.user, exp=now + self.lives_s)
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": self.lives_s}

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
