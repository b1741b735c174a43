"""What the pages point at exists: links between pages, anchors in them, files of the repository."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

REPOSITORY: Final = Path(__file__).parents[2]
PAGES: Final = [
    *REPOSITORY.glob("*.md"),
    *(REPOSITORY / "docs").rglob("*.md"),
    *(REPOSITORY / "localstack").glob("*.md"),
]
PAGE_NAMES: Final = sorted(str(page.relative_to(REPOSITORY)) for page in PAGES)

_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_CODE: Final = re.compile(r"`([^`\n]+)`")
_PATH: Final = re.compile(
    r"(?:bench|demo|diskless|docs|localstack|metadata|scripts|tests|tiering|wal)/[\w./*-]*"
)
"""A path of the repository; `wal/3f/01J…`, `wal/<2 hex>` and the like are keys and do not match."""


def prose(name: str) -> str:
    """The page without its code blocks, whose paths are those of a user's machine."""
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def named_paths(text: str) -> Iterator[str]:
    for code in _CODE.findall(text):
        if _PATH.fullmatch(code):
            yield code


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PAGE_NAMES)
def test_every_link_of_a_page_leads_somewhere(name: str) -> None:
    page = REPOSITORY / name
    broken = []
    for link in _LINK.findall(prose(name)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("name", PAGE_NAMES)
def test_every_file_that_a_page_names_exists(name: str) -> None:
    missing = [path for path in named_paths(prose(name)) if not list(REPOSITORY.glob(path))]
    assert not missing


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("`wal/chunks/chunk.py`", ["wal/chunks/chunk.py"]),
        ("`wal/*_store.py`", ["wal/*_store.py"]),
        ("`wal/3f/01J…` and `wal/<2 hex>/<ULID>` and `wal.chunk.sync`", []),
    ],
)
def test_keys_and_settings_are_not_taken_for_files(code: str, expected: list[str]) -> None:
    assert list(named_paths(code)) == expected


def test_the_lineage_covers_every_document_and_cites_files_or_says_planned() -> None:
    text = prose("docs/lineage.md")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [
        "Default partition manager – architecture (Mofka)",
        "laminarmq segmented_log",
        "Thread-Per-Core Buffer Management (Redpanda iobuf)",
        "Kafka Purgatory Redesign",
        "KIP-1164: Diskless Coordinator",
    ]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| ") and not line.startswith("| section")
    ]
    assert len(rows) > 50
    for section, module, test in rows:
        tests = [path for path in named_paths(test) if path.startswith("tests/")]
        is_planned = "lanned" in module
        assert tests or is_planned or section.split(":")[0] in _WITHOUT_A_TEST, section


_WITHOUT_A_TEST: Final = {"Monitoring", "Test plan", "Rejected alternatives"}
