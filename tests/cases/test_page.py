"""The page on cases lists the keys of case.toml as they are read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from annotated_types import Ge, Le
from pydantic.fields import FieldInfo

from fde_ray.cases.records import CaseMeta, Limits, Program, Units

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cases.md"
TABLES = {"limits": Limits, "program": Program, "units": Units}


def fields() -> Iterator[tuple[str, FieldInfo]]:
    for name, field in CaseMeta.model_fields.items():
        if name not in TABLES:
            yield name, field
            continue
        for part, own in TABLES[name].model_fields.items():
            yield f"{name}.{part}", own


def rows() -> dict[str, str]:
    """Return what the table says of the values of each key."""
    section = PAGE.read_text().partition("\n## case.toml\n")[2].partition("\n## ")[0]
    lines = [line.strip("|").split(" | ") for line in section.splitlines() if line[:3] == "| `"]
    return {key: line[-1] for line in lines for key in re.findall("`(.+?)`", line[0])}


FIELDS = dict(fields())


def test_the_page_lists_the_keys_in_the_order_of_the_record() -> None:
    plain_first = sorted(FIELDS, key=lambda key: "." in key)  # as TOML has it
    assert list(rows()) == plain_first


@pytest.mark.parametrize("key", FIELDS)
def test_the_page_tells_bounds_and_values(key: str) -> None:
    told, field = rows()[key], FIELDS[key]
    bounds = [one.ge if isinstance(one, Ge) else one.le for one in field.metadata
              if isinstance(one, Ge | Le)]  # fmt: skip
    if bounds:
        assert f"{bounds[0]} to {bounds[1]}" in told
    values = get_args(field.annotation)
    if values and all(isinstance(one, str) for one in values):
        assert re.findall("`(.+?)`", told) == list(values)


def test_only_the_program_may_be_left_out() -> None:
    records = (CaseMeta, *TABLES.values())
    optional = [n for r in records for n, f in r.model_fields.items() if not f.is_required()]
    assert optional == ["program"]
