"""The limits of a broker, divided among its workers."""

import pytest

from diskless.config import Config, explain_all, load_config
from diskless.workers.divided_settings import DIVIDED, share_of


def test_a_single_worker_has_everything() -> None:
    config = load_config()
    assert share_of(config, 1) is config


@pytest.mark.parametrize("workers", [2, 3, 64])
def test_shares_add_up_to_what_was_set(workers: int) -> None:
    whole, share = load_config().values(), share_of(load_config(), workers).values()
    assert {key for key in whole if share[key] != whole[key]} <= DIVIDED
    for key in DIVIDED - {"object.cache.disk.bytes"}:
        one, all_of_it = share[key], whole[key]
        assert isinstance(one, int)
        assert isinstance(all_of_it, int)
        assert 0 < one < all_of_it
        if workers < 4:
            assert one == all_of_it // workers, key


def test_no_share_is_too_small_to_work_with() -> None:
    set_low = {
        "wal.puts.per.second.max": "1",
        "wal.buffer.max.bytes": str(20 << 20),
        "object.cache.memory.bytes": str(32 << 20),
        "queued.max.request.bytes": str(1 << 20),
        "wal.cache.max.bytes": "0",
    }
    share = share_of(load_config(overrides=set_low), 8)
    assert share.wal.puts_per_second_max == 1
    assert share.wal.buffer_max_bytes == 2 * share.wal.chunk_max_bytes
    assert share.cache.memory_bytes == 2 * share.cache.block_bytes
    assert share.server.queued_max_request_bytes == 1 << 20
    assert share.wal.cache_max_bytes == 0


def test_a_share_is_a_configuration_that_would_be_taken() -> None:
    def reloaded(config: Config) -> Config:
        texts = {key: str(config.values()[key]) for key in DIVIDED}
        return load_config(overrides=texts)

    share = share_of(load_config(), 16)
    assert {**reloaded(share).values()} == {**share.values()}


def test_what_a_listener_has_for_itself_is_divided_too() -> None:
    config = load_config(
        overrides={
            "listeners": "PLAIN://127.0.0.1:0",
            "listener.security.protocol.map": "PLAIN:PLAINTEXT",
            "inter.broker.listener.name": "PLAIN",
            "listener.name.plain.max.connection.creation.rate": "100",
            "listener.name.plain.max.connections": "50",
        }
    )
    share = share_of(config, 4)
    assert dict(share.per_listener["PLAIN"]) == {
        "max.connection.creation.rate": 25,
        "max.connections": 50,
    }


def test_every_divided_setting_exists() -> None:
    assert {key for key, _, _ in explain_all()} >= DIVIDED
