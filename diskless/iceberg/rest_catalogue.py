"""Iceberg's REST catalogue, read-only, over the broker's HTTP port.

    GET        /v1/config                                      the routes there are
    GET        /v1/namespaces                                  namespaces of tables
    GET, HEAD  /v1/namespaces/{namespace}
    GET        /v1/namespaces/{namespace}/tables               names of tables
    GET, HEAD  /v1/namespaces/{namespace}/tables/{table}       a table's metadata

DuckDB, PyIceberg and Spark attach to `http://host:port`. A table's metadata are the file that its
pointer names, passed on as they are: nothing here knows Iceberg's formats. Only the tiering job
moves pointers, through the coordinator; there is no route that writes, `/v1/config` says so, and
other methods are answered with 405.

Where the port asks who is there (`diskless.web.http_gate`), whoever is nobody is answered 401.
Others see the tables of topics that they may DESCRIBE, and load those that they may READ (403);
what they may not see is answered as what there is not, to the byte. `POST /v1/oauth/tokens` gives a
token for a password. Nothing is given that opens the object store: rights on the bucket protect
bytes.

Where the port is bound to a loopback address, a request that names another host is
refused: a web page could otherwise have a browser on this machine ask, under a name of its own that
it lets point here.

Answers are JSON, errors in the protocol's form: 404 for a name that there is not, 403 for a foreign
host, 503 while the broker starts or the store does not answer, 500 for a damaged file. Lists may be
asked for by pages (`pageSize`, `pageToken`). Source: Iceberg's REST catalogue specification.
"""

import ipaddress
import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import structlog

from diskless.authorization import AclOperation
from diskless.health.http_server import HttpAnswer, HttpRequest
from diskless.iceberg.served_tables import ServedTable, TableDirectory
from diskless.ports import ClientInfo
from diskless.web.http_gate import GateClosed, HttpGate
from wal.errors import DisklessError, ObjectNotFound, ObjectStoreUnavailable, Retriable
from wal.stores.store_url import base_uri, parse_store_url

PREFIX: Final = "/v1/"
"""All its paths begin like this."""
TOKENS: Final = "/v1/oauth/tokens"
"""Where a password gets a token, as Iceberg's clients expect it."""

_ENDPOINTS: Final = (
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
)
_JSON: Final = "application/json"

log = structlog.get_logger(__name__)


class RestCatalogue:
    """The route of everything below PREFIX. It answers 503 until it is given a directory."""

    def __init__(self, address: str, gate: HttpGate | None = None) -> None:
        """`address`: what the server is bound to; `gate`: who is asked for rights, if anybody."""
        self._gate = gate
        self._is_loopback = ipaddress.ip_address(address.partition("%")[0]).is_loopback
        self._directory: TableDirectory | None = None

    def open(self, directory: TableDirectory) -> None:
        """Tables are shown from here on."""
        self._directory = directory

    async def route(self, request: HttpRequest) -> HttpAnswer:
        if self._is_loopback and is_foreign(request.host):
            return _refused(HTTPStatus.FORBIDDEN, "ForbiddenException", "a foreign Host")
        directory = self._directory
        if directory is None:
            return _starting()
        if self._gate is None:
            return await self._answer(request, directory, directory.tables())
        try:
            client = await self._gate.client(request)
            if client is None:
                refused = _refused(
                    HTTPStatus.UNAUTHORIZED, "NotAuthorizedException", "who is asking?"
                )
                return refused._replace(headers={"WWW-Authenticate": "Bearer"})
            tables = await _seen(self._gate, client, directory.tables())
            return await self._answer(request, directory, tables, client)
        except GateClosed:
            return _starting()

    async def _may_not_read(self, client: ClientInfo, topic: str) -> bool:
        gate = self._gate
        return gate is not None and await gate.refused(client, AclOperation.READ, topic)

    async def grant(self, request: HttpRequest) -> HttpAnswer:
        """The route of TOKENS, where passwords may be sent to."""
        assert self._gate is not None
        try:
            return await self._gate.grant(request)
        except GateClosed:
            return _starting()

    async def _answer(
        self,
        request: HttpRequest,
        directory: TableDirectory,
        tables: Sequence[ServedTable],
        client: ClientInfo | None = None,
    ) -> HttpAnswer:
        """`tables`: those that may be seen. Raises GateClosed."""
        parts = [unquote(part) for part in urlsplit(request.target).path.split("/")[2:]]
        query = parse_qs(urlsplit(request.target).query, keep_blank_values=True)
        match parts:
            case ["config"]:
                return _answer(_config(directory.store_url))
            case ["namespaces"]:
                parent = query.get("parent", [""])[0]
                return _answer(_namespaces(tables, query) if not parent else {"namespaces": []})
            case ["namespaces", namespace]:
                if namespace not in _names(tables):
                    return _no_namespace(namespace)
                return _answer({"namespace": [namespace], "properties": {}})
            case ["namespaces", namespace, "tables"]:
                if namespace not in _names(tables):
                    return _no_namespace(namespace)
                return _answer(_tables(tables, namespace, query))
            case ["namespaces", namespace, "tables", name]:
                table = next((one for one in tables if one[:2] == (namespace, name)), None)
                if table is None:
                    return _refused(
                        HTTPStatus.NOT_FOUND,
                        "NoSuchTableException",
                        f"Table does not exist: {namespace}.{name}",
                    )
                is_loaded = request.method != "HEAD"
                if client is not None and is_loaded and await self._may_not_read(client, name):
                    return _refused(HTTPStatus.FORBIDDEN, "ForbiddenException", "READ on the topic")
                return await _loaded(directory, table)
        return _refused(HTTPStatus.NOT_FOUND, "NoSuchEndpointException", "no such path")


def is_foreign(host: str) -> bool:
    """Whether a Host header names something else than this machine; nothing is not foreign."""
    if not host:
        return False
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return not (name == "localhost" or ipaddress.ip_address(name).is_loopback)
    except ValueError:
        return True


async def _loaded(directory: TableDirectory, table: ServedTable) -> HttpAnswer:
    try:
        metadata = await directory.metadata(table)
    except (ObjectStoreUnavailable, Retriable) as error:
        log.warning("a table's metadata cannot be read now", table=table.name, error=str(error))
        return _refused(
            HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailableException", "the object store"
        )
    except (ObjectNotFound, DisklessError) as error:
        log.error("a table's metadata cannot be read", table=table.name, error=str(error))
        return _refused(
            HTTPStatus.INTERNAL_SERVER_ERROR, "InternalServerError", "the metadata are damaged"
        )
    location = json.dumps(f"{base_uri(directory.store_url)}/{table.location}").encode()
    body = b'{"metadata-location": %b, "metadata": %b, "config": {}}' % (location, metadata)
    return HttpAnswer(HTTPStatus.OK, body, _JSON)


async def _seen(
    gate: HttpGate, client: ClientInfo, tables: Sequence[ServedTable]
) -> Sequence[ServedTable]:
    hidden = await gate.hidden(client, AclOperation.DESCRIBE, {table.name for table in tables})
    return [table for table in tables if table.name not in hidden] if hidden else tables


def _starting() -> HttpAnswer:
    return _refused(HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailableException", "starting")


def _config(store_url: str) -> Mapping[str, Any]:
    """Defaults are hints, and a client's own settings win; credentials are not among them."""
    location = parse_store_url(store_url)
    defaults = {}
    if location.endpoint_url:
        defaults["s3.endpoint"] = location.endpoint_url
    if location.region:
        defaults["client.region"] = defaults["s3.region"] = location.region
    return {"defaults": defaults, "overrides": {}, "endpoints": list(_ENDPOINTS)}


def _names(tables: Sequence[ServedTable]) -> Sequence[str]:
    return sorted({table.namespace for table in tables})


def _namespaces(tables: Sequence[ServedTable], query: Mapping[str, list[str]]) -> Mapping[str, Any]:
    names, following = _page(_names(tables), query)
    return {"namespaces": [[name] for name in names], **following}


def _tables(
    tables: Sequence[ServedTable], namespace: str, query: Mapping[str, list[str]]
) -> Mapping[str, Any]:
    every = [table.name for table in tables if table.namespace == namespace]
    names, following = _page(every, query)
    identifiers = [{"namespace": [namespace], "name": name} for name in names]
    return {"identifiers": identifiers, **following}


def _page(
    names: Sequence[str], query: Mapping[str, list[str]]
) -> tuple[Sequence[str], Mapping[str, str]]:
    """Those behind the page token, which is a name, and the token of the next page if any."""
    if "pageToken" not in query:
        return names, {}
    token, size = query["pageToken"][0], query.get("pageSize", [""])[0]
    behind = [name for name in names if name > token]
    if not size.isdecimal() or not 0 < int(size) < len(behind):
        return behind, {}
    page = behind[: int(size)]
    return page, {"next-page-token": page[-1]}


def _answer(content: Mapping[str, Any]) -> HttpAnswer:
    return HttpAnswer(HTTPStatus.OK, json.dumps(content).encode(), _JSON)


def _no_namespace(namespace: str) -> HttpAnswer:
    message = f"Namespace does not exist: {namespace}"
    return _refused(HTTPStatus.NOT_FOUND, "NoSuchNamespaceException", message)


def _refused(status: HTTPStatus, kind: str, message: str) -> HttpAnswer:
    error = {"message": message, "type": kind, "code": status.value}
    return HttpAnswer(status, json.dumps({"error": error}).encode(), _JSON)
