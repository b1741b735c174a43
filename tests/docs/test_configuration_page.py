"""docs/configuration.md is what the code prints."""

from dataclasses import fields
from pathlib import Path

from diskless.config import Config, explain_all
from diskless.config_reference import configuration_page
from diskless.topics.topic_configs import TOPIC_CONFIGS

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_what_the_code_prints() -> None:
    expected = configuration_page()
    command = "python -m diskless.config_reference > docs/configuration.md"
    assert PAGE.read_text(encoding="utf-8") == expected, (
        f"docs/configuration.md is stale; run `{command}`, which writes:\n\n{expected}"
    )


def test_the_page_has_every_key_once_and_nothing_else() -> None:
    lines = configuration_page().splitlines()
    keys = [line.split("`")[1] for line in lines if line.startswith("| `")]
    assert keys == [key for key, _, _ in explain_all()] + list(TOPIC_CONFIGS)
    headings = [line for line in lines if line.startswith("### ")]
    others = {"explicit", "per_listener"}
    assert len(headings) == len(fields(Config)) - len(others), "all sections"
