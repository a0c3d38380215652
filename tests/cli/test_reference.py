"""docs/cli.md says what the help says."""

from __future__ import annotations

from pathlib import Path

from fde_ray.cli.reference import reference

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def test_the_reference_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), (
        "run: python -m fde_ray.cli.reference > docs/cli.md"
    )
