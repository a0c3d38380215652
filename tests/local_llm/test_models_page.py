"""The examples of docs/models.md are documents that the program reads."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from fde_ray.metering.prices import PriceTable
from fde_ray.model.documents import parse_document
from fde_ray.model.profile import Profile
from fde_ray.model.specs import SweepSpec

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"


def examples(key: str, value: str) -> list[str]:
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [block for block in blocks if yaml.safe_load(block).get(key) == value]


def test_every_profile_on_the_page_is_read() -> None:
    profiles = [parse_document(t, Profile) for t in examples("schema", "fde_ray.profile/1")]
    assert [len(profile.endpoints) for profile in profiles] == [1, 3]


def test_the_sweep_on_the_page_meets_its_endpoint_and_its_price() -> None:
    (spec,) = [parse_document(t, SweepSpec) for t in examples("schema", "fde_ray.sweep/1")]
    (table,) = [parse_document(t, PriceTable) for t in examples("currency", "USD")]
    named = {spec.customer.model, *spec.panel.models, *(s.model for s in spec.systems)}
    assert named == {"local/gemma"} == set(table.models)
