"""What each scripted agent asks, and what that amounts to."""

from __future__ import annotations

from dataclasses import dataclass

POINTS = ("harvest_moment", "titre_basis", "clock_zero", "error_scale", "void_batches")
NESTED = ("void_batches", "titre_basis", "harvest_moment", "clock_zero", "error_scale")
QUESTIONS = {
    "harvest_moment": "Which moment counts as harvest when the outcome of a run is taken?",
    "titre_basis": "Is titre stated per litre of whole broth or per litre of cell-free liquid?",
    "clock_zero": "Does the duration count from vessel fill or from inoculation?",
    "error_scale": "How are prediction errors judged, and which tolerance scales them?",
    "void_batches": "Are there alarm codes that make a batch void and must be left out?",
}
COMPOUND = "What counts as harvest of a run? Does its duration count from inoculation?"
COFFEE = "Which brand of coffee machine stands in your kitchen?"
SLIDES = "Shall my slides carry your corporate colours?"
VAGUE = "Anything else worth knowing?"


@dataclass(frozen=True)
class Dialogue:
    """Rounds of questions with the points each round covers; `idle` units cover none."""

    rounds: tuple[tuple[str, ...], ...] = ()
    per_round: tuple[tuple[str, ...], ...] = ()
    units: int = 0
    idle: int = 0

    @property
    def covered(self) -> tuple[str, ...]:
        reached = {key for keys in self.per_round for key in keys}
        return tuple(key for key in POINTS if key in reached)


def asked(*keys: str) -> tuple[str, ...]:
    return tuple(QUESTIONS[key] for key in keys)


DIALOGUES = {
    "do_nothing": Dialogue(),
    "literal": Dialogue(((VAGUE,),), ((),), 1, 1),
    "oracle_25": Dialogue(((*asked(*NESTED[:2]), COFFEE),), (NESTED[:2],), 3, 1),
    "oracle_50": Dialogue(((*asked(*NESTED[:3]), COFFEE, SLIDES),), (NESTED[:3],), 5, 2),
    "oracle_75": Dialogue(
        ((*asked(*NESTED[:2]), COFFEE), asked(*NESTED[2:4])),
        (NESTED[:2], NESTED[2:4]),
        5,
        1,
    ),
    "greedy_full": Dialogue(
        ((COMPOUND, *asked("titre_basis")), (*asked("error_scale", "void_batches"), SLIDES)),
        (("harvest_moment", "titre_basis", "clock_zero"), ("error_scale", "void_batches")),
        6,
        1,
    ),
    "reference": Dialogue((asked(*POINTS),), (POINTS,), 5, 0),
}
