"""The group of TLS measures what it says, on little."""

from pathlib import Path

import pytest

from bench.connections.tls import measure_handshakes, measure_produced, measure_resident, tls_bed
from bench.connections.tls_records import LIBRDKAFKA_PIECES, WHOLE_RECORDS, read_cost


def test_bytes_handshakes_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.chdir(tmp_path)
    with tls_bed() as bed:
        plain, secure = measure_produced(bed, rounds=1, produced_bytes=4 << 20)
        assert len(plain) == len(secure) == 1
        assert min(*plain, *secure) > 0
        assert measure_handshakes(bed, handshakes=100) > 0
        assert 0 < measure_resident(bed, connections=50, settle_s=0.1) < 1_000


async def test_small_records_cost_more_than_large_ones() -> None:
    pieces, whole = [await read_cost(one, 4 << 20) for one in (LIBRDKAFKA_PIECES, WHOLE_RECORDS)]
    assert pieces > whole > 0
