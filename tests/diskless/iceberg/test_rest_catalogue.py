"""The routes of the catalogue, on tables that stand in for a broker's."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from diskless.health.http_server import HttpAnswer, HttpRequest
from diskless.iceberg.rest_catalogue import RestCatalogue, is_foreign
from diskless.iceberg.served_tables import FILE_BYTES_MAX, ReplicaTables, ServedTable
from wal.clock import ManualClock
from wal.coordinates import ObjectKey
from wal.errors import CorruptObject, ObjectNotFound, ObjectStoreUnavailable
from wal.stores.memory_store import MemoryStore
from wal.stores.object_store import BytesBody

LOCATION = ObjectKey("tables/x/metadata/00001.metadata.json")


class Tables:
    """Some tables, and metadata that can be had, or not."""

    def __init__(self, *names: tuple[str, str]) -> None:
        self._tables = sorted(ServedTable(namespace, name, LOCATION) for namespace, name in names)
        self.failure: Exception | None = None
        self.store_url = "s3://bucket/prefix?endpoint_url=http://minio:9000&region=eu"

    def tables(self) -> Sequence[ServedTable]:
        return self._tables

    def table(self, namespace: str, name: str) -> ServedTable | None:
        wanted = (namespace, name)
        return next((table for table in self._tables if table[:2] == wanted), None)

    async def metadata(self, table: ServedTable) -> bytes:
        if self.failure is not None:
            raise self.failure
        return b'{"format-version": 2}'


def catalogue(tables: Tables | None, address: str = "127.0.0.1") -> RestCatalogue:
    made = RestCatalogue(address)
    if tables is not None:
        made.open(tables)
    return made


def ask(served: RestCatalogue, target: str, host: str = "localhost:9644") -> HttpAnswer:
    request = HttpRequest("GET", target.partition("?")[0], "", host, target)
    return asyncio.run(served.route(request))


def content(served: RestCatalogue, target: str) -> Any:
    answer = ask(served, target)
    assert answer.status == 200
    assert answer.content_type == "application/json"
    return json.loads(answer.body)


SOME = Tables(("topics", "flights"), ("topics", "weather"), ("ops", "a.b-c_d"))


def test_the_config_lists_what_only_reads_and_gives_no_credentials() -> None:
    config = content(catalogue(SOME), "/v1/config?warehouse=lake")
    assert {endpoint.split()[0] for endpoint in config["endpoints"]} == {"GET", "HEAD"}
    assert config["defaults"] == {
        "s3.endpoint": "http://minio:9000",
        "client.region": "eu",
        "s3.region": "eu",
    }


def test_namespaces_and_tables_are_listed_by_name() -> None:
    served = catalogue(SOME)
    assert content(served, "/v1/namespaces") == {"namespaces": [["ops"], ["topics"]]}
    assert content(served, "/v1/namespaces?parent=ops") == {"namespaces": []}
    assert content(served, "/v1/namespaces/ops")["namespace"] == ["ops"]
    assert content(served, "/v1/namespaces/topics/tables")["identifiers"] == [
        {"namespace": ["topics"], "name": "flights"},
        {"namespace": ["topics"], "name": "weather"},
    ]


def test_pages_follow_each_other() -> None:
    served = catalogue(Tables(*(("n", f"t{number}") for number in range(5))))
    names, token = [], ""
    while True:
        target = f"/v1/namespaces/n/tables?pageSize=2&pageToken={token}"
        page = content(served, target)
        names += [entry["name"] for entry in page["identifiers"]]
        token = page.get("next-page-token", "")
        if not token:
            break
    assert names == ["t0", "t1", "t2", "t3", "t4"]


def test_a_table_is_its_metadata_file_and_where_it_lies() -> None:
    assert content(catalogue(SOME), "/v1/namespaces/ops/tables/a.b%2Dc_d") == {
        "metadata-location": f"s3://bucket/prefix/{LOCATION}",
        "metadata": {"format-version": 2},
        "config": {},
    }


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ("/v1/namespaces/nope", "NoSuchNamespaceException"),
        ("/v1/namespaces/nope/tables", "NoSuchNamespaceException"),
        ("/v1/namespaces/topics/tables/nope", "NoSuchTableException"),
        ("/v1/namespaces/ops/tables/flights", "NoSuchTableException"),
        ("/v1/namespaces/topics/tables/flights/metrics", "NoSuchEndpointException"),
        ("/v1/views", "NoSuchEndpointException"),
    ],
)
def test_what_there_is_not_is_404_in_the_protocols_form(target: str, kind: str) -> None:
    answer = ask(catalogue(SOME), target)
    assert answer.status == 404
    error = json.loads(answer.body)["error"]
    assert (error["type"], error["code"]) == (kind, 404)


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (ObjectStoreUnavailable("away"), 503),
        (ObjectNotFound("gone"), 500),
        (CorruptObject("large"), 500),
    ],
)
def test_a_store_that_is_away_is_not_a_damaged_table(failure: Exception, status: int) -> None:
    tables = Tables(("topics", "flights"))
    tables.failure = failure
    answer = ask(catalogue(tables), "/v1/namespaces/topics/tables/flights")
    assert answer.status == status
    assert json.loads(answer.body)["error"]["code"] == status


def test_before_the_broker_knows_its_tables_it_says_so() -> None:
    assert ask(catalogue(None), "/v1/namespaces").status == 503


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", False),
        ("localhost:9644", False),
        ("127.0.0.1:9644", False),
        ("127.1.2.3", False),
        ("[::1]:9644", False),
        ("", False),
        ("evil.example", True),
        ("evil.example:9644", True),
        ("localhost.evil.example", True),
        ("192.168.1.2:9644", True),
        ("[", True),
    ],
)
def test_on_loopback_a_foreign_host_is_refused(host: str, expected: bool) -> None:
    assert is_foreign(host) is expected
    answer = ask(catalogue(SOME), "/v1/namespaces", host)
    assert answer.status == (403 if expected else 200)


def test_elsewhere_any_host_is_served() -> None:
    assert ask(catalogue(SOME, "10.0.0.7"), "/v1/namespaces", "broker.example").status == 200


# --- metadata files ------------------------------------------------------------------------------


class CountingStore(MemoryStore):
    """Counts GETs, and holds them until it is told."""

    def __init__(self) -> None:
        super().__init__(clock=ManualClock())
        self.got = 0
        self.may_go_on = asyncio.Event()
        self.is_asked = asyncio.Event()

    async def get(self, key: ObjectKey) -> bytes:
        self.got += 1
        self.is_asked.set()
        await self.may_go_on.wait()
        return await super().get(key)


async def test_all_who_ask_for_a_file_share_one_get_and_it_is_kept() -> None:
    table = ServedTable("n", "t", LOCATION)
    async with CountingStore() as store:
        await store.put(LOCATION, BytesBody(b"{}"))
        tables = ReplicaTables(None, store, asyncio.get_running_loop())  # type: ignore[arg-type]
        asking = [asyncio.create_task(tables.metadata(table)) for _ in range(10)]
        await store.is_asked.wait()
        asking[0].cancel()
        store.may_go_on.set()
        assert await asyncio.gather(*asking[1:]) == [b"{}"] * 9
        assert await tables.metadata(table) == b"{}"
        assert store.got == 1


async def test_a_file_that_is_too_large_is_not_read() -> None:
    async with CountingStore() as store:
        await store.put(LOCATION, BytesBody(bytes(FILE_BYTES_MAX + 1)))
        tables = ReplicaTables(None, store, asyncio.get_running_loop())  # type: ignore[arg-type]
        with pytest.raises(CorruptObject, match="at most"):
            await tables.metadata(ServedTable("n", "t", LOCATION))
        assert not store.got
