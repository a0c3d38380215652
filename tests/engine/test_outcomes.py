"""How single runs end."""

from __future__ import annotations

from pathlib import Path

from fde_ray.model.states import GradeState, Phase
from tests.engine.drivers import make_spec, make_stage, marks, opened, result, submitted, worked
from tests.engine.virtual import played


def test_a_delivered_answer_is_extracted_scored_and_marked(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            (status,) = await worked(runtime, await submitted(runtime, make_spec()))
            assert status.is_complete
            found = await result(runtime)
            assert (found.grade, found.score, found.valid) == (GradeState.SCORED, 0.5, True)
            assert [route.route for route in found.routes] == [0, 1, 2]
            (mark,) = (await marks(runtime)).values()
            assert mark == (Phase.DONE.value, GradeState.SCORED.value)

    played(main)
