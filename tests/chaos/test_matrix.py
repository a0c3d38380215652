"""Every effect of every stage fails in every way, and the sweep ends as if nothing had happened.

A failing test prints its seed; CHAOS_SEED=<seed> plays the same walks again.
"""

from __future__ import annotations

import os
import random
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from .effects import Effect, Position
from .faults import Cell, Kind
from .walks import Walk, template, walked

SEED = os.environ.get("CHAOS_SEED") or str(random.SystemRandom().randrange(10**6))
CALM_WALKS = 2
FAULTS_A_WALK = 40
"""Of the short form; the long one has one fault a walk, and then some."""
ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "40"))
START_S = 1.0
"""A driver may end itself for want of a store before it works, and after; in between it waits."""


class Ground:
    """Where walks begin, and what they must come to."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._template = folder, folder / "template"
        template(self._template)
        calm = [self.walk("calm", (), 0) for _ in range(CALM_WALKS)]
        assert not any(walk.findings.faults for walk in calm), str(calm[0])
        self._results = calm[0].findings.results
        seen = [{effect for life in walk.lives for effect in life.effects} for walk in calm]
        self.effects: frozenset[Effect] = frozenset.intersection(*map(frozenset, seen))

    def walk(self, seed: str, wanted: Collection[Cell], most: int) -> Walk:
        return walked(self._template, self._folder / "home", seed, wanted, most)

    def check(self, walk: Walk) -> None:
        replay = f"CHAOS_SEED={SEED}\n{walk}"
        assert not walk.findings.faults, replay
        assert walk.findings.results == self._results, f"other results\n{replay}"
        for life in walk.lives:
            if life.gave_up is not None and life.effects[-1].stage != "done":
                assert life.lasted_s < START_S, f"{life.gave_up}\n{replay}"

    def hunt(self, cells: Collection[Cell], most: int) -> None:
        """Walk until every cell was struck; fail when one never comes by."""
        wanted = set(cells)
        while wanted:
            walk = self.walk(f"{SEED}/{len(wanted)}", wanted, most)
            self.check(walk)
            if not walk.struck:
                missed = "\n".join(map(str, sorted(wanted)))
                pytest.fail(f"never struck, CHAOS_SEED={SEED}:\n{missed}")
            wanted.difference_update(walk.struck)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("chaos"))


def positions(ground: Ground) -> Iterator[tuple[Effect, Position]]:
    return ((effect, position) for effect in sorted(ground.effects) for position in Position)


def test_the_story_of_the_matrix_has_effects_of_every_interface_in_every_stage(
    ground: Ground,
) -> None:
    interfaces = {effect.interface for effect in ground.effects}
    assert interfaces == {"store", "objects", "sandbox", "chat"}
    stages = {effect.stage for effect in ground.effects}
    assert stages >= {"queued", "provisioning", "solving", "collecting", "extracting"}
    assert stages >= {"scoring", "judging", "committing", "done"}
    calls = {effect.method for effect in ground.effects if effect.interface == "chat"}
    assert calls == {"complete", "exchange", "events"}


def test_every_effect_in_every_stage_may_fail_before_after_and_unheard(ground: Ground) -> None:
    rng = random.Random(SEED)
    kinds = (Kind.KILL, Kind.ERROR, Kind.ERROR)
    ground.hunt({Cell(*place, rng.choice(kinds)) for place in positions(ground)}, FAULTS_A_WALK)


@pytest.mark.slow
@pytest.mark.parametrize("kind", Kind)
def test_every_single_fault_leaves_no_trace(ground: Ground, kind: Kind) -> None:
    ground.hunt({Cell(*place, kind) for place in positions(ground)}, 1)


@pytest.mark.slow
@pytest.mark.parametrize("round_no", range(ROUNDS))
def test_faults_in_any_order_leave_no_trace(ground: Ground, round_no: int) -> None:
    rng = random.Random(f"{SEED}/{round_no}")
    cells = [Cell(*place, kind) for place in positions(ground) for kind in Kind]
    chosen = rng.sample(cells, rng.randint(2, 30))
    ground.check(ground.walk(f"{SEED}/{round_no}", chosen, len(chosen)))
