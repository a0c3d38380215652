"""docs/gateway.md lists the routes and its profile is one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fde_ray.gateway.model_routes import ModelRoutes
from fde_ray.model.documents import parse_document
from fde_ray.model.profile import Profile

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "gateway.md").read_text()


def test_every_route_of_model_calls_is_on_the_page() -> None:
    table = PAGE.partition("## Protocols")[2].partition("\n\n## ")[0]
    nothing: Any = None
    for _, path, _ in ModelRoutes(nothing, nothing).table():
        assert path.partition("{")[0].rstrip("/") in table, path


def test_the_profile_on_the_page_is_one() -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    dialects = [endpoint.dialect for endpoint in parse_document(text, Profile).endpoints]
    assert dialects == ["messages", "gemini", "responses", "chat"]
