"""The state's file: what a failed write leaves to the next one."""

from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from metadata.state.state import StateDatabase
from wal.errors import CorruptState, StorageFailed


async def count_of_topics(database: StateDatabase) -> int:
    return await database.read(
        lambda connection: connection.execute(text("SELECT count(*) FROM topics")).scalar_one()
    )


def add_topic(connection: Connection, number: int) -> None:
    connection.exec_driver_sql(
        "INSERT INTO topics VALUES (?, 1, ?, 't', 0)",
        (number, bytes([number])),
    )


@pytest.mark.parametrize("damage", ["it raises", "its statement fails", "it ends its transaction"])
async def test_a_write_that_fails_leaves_nothing_and_the_next_one_works(
    tmp_path: Path, damage: str
) -> None:
    async with StateDatabase(tmp_path / "state.sqlite", readers=1) as database:
        await database.open_or_create()
        await database.write(lambda connection: add_topic(connection, 1))

        def fails(connection: Connection) -> None:
            add_topic(connection, 2)
            if damage == "its statement fails":
                connection.exec_driver_sql("SELECT * FROM no_such_table")
            if damage == "it ends its transaction":
                connection.exec_driver_sql("ROLLBACK")
            raise StorageFailed("the disk is full")

        with pytest.raises((StorageFailed, CorruptState)):
            await database.write(fails)

        assert await count_of_topics(database) == 1
        await database.write(lambda connection: add_topic(connection, 3))
        assert await count_of_topics(database) == 2
