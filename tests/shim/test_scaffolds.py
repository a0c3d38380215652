"""The registry of scaffolds."""

from __future__ import annotations

import pytest

from fde_ray.model.errors import UserError
from fde_ray.model.specs import System
from fde_ray.model.states import Channel
from fde_ray.scaffolds import SCAFFOLDS, scaffold
from fde_ray.shim.agents import AGENTS


def system(name: str, model: str) -> System:
    return System(name="s", scaffold=name, model=model)


def test_every_scaffold_has_an_agent_program_and_a_lock() -> None:
    assert set(SCAFFOLDS) == set(AGENTS) == {"minimal", "scripted"}
    for name in SCAFFOLDS:
        found = scaffold(name)
        assert found.channel is Channel.TEXT
        assert len(found.lock_hash) == 64
        assert found.argv == ("agent", name)


def test_unknown_scaffold_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match="known: minimal, scripted"):
        scaffold("codex9")


def test_scripted_scaffold_needs_an_offline_model() -> None:
    scaffold("scripted").check(system("scripted", "offline/reference"))
    scaffold("minimal").check(system("minimal", "openai/any"))
    with pytest.raises(UserError, match="offline/"):
        scaffold("scripted").check(system("scripted", "openai/any"))
