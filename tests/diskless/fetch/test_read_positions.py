"""Where readers stopped: found for the same bytes of the same object, bounded."""

from diskless.fetch.read_positions import ReadPositions
from metadata.operations import WalExtent
from wal.coordinates import CREATE_TIME, ByteOffset, ObjectKey, Offset

EXTENT = WalExtent(ObjectKey("wal/1"), ByteOffset(64), 5_000, Offset(10), Offset(99), 0, 0,
                   CREATE_TIME, 9_000)  # fmt: skip


def test_a_place_is_known_for_its_extent_and_offset_alone() -> None:
    positions = ReadPositions(10)
    positions.learn(EXTENT, 50, 1_234)
    assert positions.find(EXTENT, 50) == 1_234
    assert positions.find(EXTENT, 49) is None
    for other in (
        EXTENT._replace(object_key=ObjectKey("wal/2")),
        EXTENT._replace(byte_offset=ByteOffset(65)),
        EXTENT._replace(base_offset=Offset(11)),
    ):
        assert positions.find(other, 50) is None


def test_what_was_not_used_for_longest_is_forgotten_first() -> None:
    positions = ReadPositions(3)
    for offset in (11, 12, 13):
        positions.learn(EXTENT, offset, offset)
    assert positions.find(EXTENT, 11) == 11
    positions.learn(EXTENT, 12, 12)
    positions.learn(EXTENT, 14, 14)
    assert [positions.find(EXTENT, offset) for offset in (11, 12, 13, 14)] == [11, 12, None, 14]
    assert len(positions) == 3
