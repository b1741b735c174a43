"""What a segment says of its origin, and of its own checksum, from the footer alone."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiering_samples import SampleBatch, SampleRecord, file_store, plan_of, put_wal_object

from tiering import segment_writer
from tiering.roll import RollSettings, roll
from tiering.segment_format import SOURCES_BYTES_KEY, VERSION_KEY, footer_metadata
from tiering.segment_sources import SourceRange, decode_sources, encode_sources
from tiering.segment_verification import verify_segment
from wal.coordinates import ObjectKey
from wal.crc import crc32c
from wal.errors import CorruptSegment
from wal.ulid import encode_ulid, ulid_at, wal_object_key

_sources = st.lists(
    st.builds(
        SourceRange,
        st.integers(0, (1 << 128) - 1).map(lambda number: wal_object_key(encode_ulid(number))),
        st.integers(0, 1 << 40),
        st.integers(0, 1 << 40),
    ),
    max_size=10,
)


@given(_sources)
def test_sources_read_back_as_they_were_written(sources: list[SourceRange]) -> None:
    assert decode_sources("key", encode_sources(sources)) == sources


@pytest.mark.parametrize("data", [b"\0", b"\1" + bytes(13), b"\xff" * 12 + bytes(12)])
def test_what_is_no_sources_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptSegment, match="key"):
        decode_sources("key", data)


def test_objects_that_are_not_named_like_wal_objects_are_not_told() -> None:
    ulid = encode_ulid(7)
    named = SourceRange(wal_object_key(ulid), 1, 2)
    others = [named._replace(object_key=ObjectKey(key)) for key in ("wal/00/object", f"x/{ulid}")]
    assert decode_sources("key", encode_sources([others[0], named, others[1]])) == [named]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({VERSION_KEY: "1"}, "format version 1; this release reads version 2"),
        ({VERSION_KEY: "3"}, "format version 3; this release reads version 2"),
        ({SOURCES_BYTES_KEY: "1000000"}, "1000000 bytes of sources"),
        ({SOURCES_BYTES_KEY: None}, "incomplete: .*diskless.sources.bytes"),
    ],
)
def test_a_segment_of_another_version_or_without_sources_is_refused_by_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Mapping[str, str | None],
    problem: str,
) -> None:
    def footer(*told: Any, **more: Any) -> dict[str, str]:
        fields = {**footer_metadata(*told, **more), **change}
        return {key: value for key, value in fields.items() if value is not None}

    key = wal_object_key(encode_ulid(7))
    with file_store(tmp_path) as store:
        plan = plan_of(put_wal_object(store, key, [[SampleBatch([SampleRecord()])]]))
        with monkeypatch.context() as patch:
            patch.setattr(segment_writer, "footer_metadata", footer)
            roll(plan, store)
        with pytest.raises(CorruptSegment, match=f"{plan.object_key}: .*{problem}"):
            verify_segment(store, plan.object_key)


def test_a_segment_tells_its_sources_and_its_own_checksum(tmp_path: Path) -> None:
    rng = random.Random(1)
    keys = [wal_object_key(ulid_at(1_700_000_000_000 + at, rng)) for at in (0, 5)]
    batches = [SampleBatch([SampleRecord(value=b"%d" % at)] * 10) for at in range(6)]
    with file_store(tmp_path) as store:
        first = put_wal_object(store, keys[0], [batches[:2], batches[2:4]])
        second = put_wal_object(
            store, keys[1], [batches[4:5], batches[5:]], base_offset=40, gap=b"x"
        )
        plan = plan_of([*first, *second])
        segment = roll(plan, store, settings=RollSettings(row_group_bytes=1000)).segment
        footer = verify_segment(store, segment.object_key)
        stored = store.get(segment.object_key)
    assert len(footer.row_groups) > 1
    assert footer.object_crc32c == segment.crc32c == crc32c(stored)
    sources = stored[footer.footer_start - footer.sources_bytes : footer.footer_start]
    assert decode_sources("key", sources) == [
        # Neighbours in one object are one.
        SourceRange(keys[0], first[0].byte_offset, sum(extent.length_bytes for extent in first)),
        SourceRange(keys[1], second[0].byte_offset, second[0].length_bytes),
        SourceRange(keys[1], second[1].byte_offset, second[1].length_bytes),
    ]
