"""A sweep whose spec changes reuses what is equal, grades anew without agents, stops the rest."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from fde_ray.engine.comparison import IN_STORE, Comparison, Kind
from fde_ray.engine.controller import Controller
from fde_ray.engine.runtime import Runtime
from fde_ray.engine.submission import Submission
from fde_ray.engine.versions import MAX_SPEC_BYTES, SpecVersions, latest_of
from fde_ray.model.errors import StoreError, UserError
from fde_ray.model.result import RunResult, canonical
from fde_ray.model.states import Phase
from fde_ray.store.objects import layout
from fde_ray.store.sweep_runs import read_runs
from tests.engine.drivers import (
    CASE,
    make_spec,
    make_stage,
    marks,
    opened,
    result,
    submitted,
    two_points,
    worked,
)
from tests.engine.test_sweeps import until, waiting_for
from tests.engine.virtual import played

OTHERS = {"models": ["offline/other", *["offline/extractor"] * 4]}


def counts(found: Comparison) -> dict[str, int]:
    return {kind.value: found.count(kind) for kind in Kind if found.count(kind)}


def reasons(found: Comparison) -> set[tuple[str, tuple[str, ...]]]:
    return {(change.kind.value, change.reasons) for change in found.changes}


SYSTEM = make_spec().systems[0].jsonable()
CHANGES: dict[str, tuple[dict[str, Any], dict[str, int], str]] = {
    "nothing": ({}, {"reuse": 2}, ""),
    "the_panel": ({"panel": {"panel_stop": "all"}}, {"regrade": 2}, "panel.panel_stop"),
    "the_judges": ({"judges": ["offline/j"] * 5}, {"regrade": 2}, "judges"),
    "a_limit": ({"limits": {"time": "20s"}}, {"rerun": 2}, "limits.time"),
    "the_customer": ({"customer": {"failure": "infra"}}, {"rerun": 2}, "customer.failure"),
    "a_name": ({"systems": [SYSTEM | {"name": "renamed"}]}, {"reuse": 2}, ""),
    "more_repeats": ({"repeats": 3}, {"reuse": 2, "add": 1}, "new in the spec"),
    "fewer_repeats": ({"repeats": 1}, {"reuse": 1, "drop": 1}, "no longer in the spec"),
    "the_series": ({"series": "again"}, {"rerun": 2}, "series"),
    "the_budget": ({"budget_usd_per_run": 1.0}, {"rerun": 2}, "budget_usd_per_run"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_diff_tells_for_each_run_what_becomes_of_it_and_why(tmp_path: Path, change: str) -> None:
    fields, expected, reason = CHANGES[change]

    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            await submitted(runtime, make_spec(repeats=2))
            found = await Submission(runtime).compare("small", make_spec(**{"repeats": 2} | fields))
            assert counts(found) == expected
            assert found.is_same == (set(expected) == {"reuse"})
            said = {one for change in found.changes for one in change.reasons}
            assert said == ({reason} if reason else set())
            assert sum(runs for _, _, runs, _ in found.groups()) == len(found.changes)

    played(main)


@pytest.mark.parametrize(
    ("part", "kind", "reason"),
    [
        ("visible_hash", "rerun", "case (instruction or data)"),
        ("information_hash", "rerun", "information"),
        ("gt_hash", "regrade", "gt"),
        ("scoring_hash", "regrade", "evaluator, truth or reference"),
    ],
)
def test_a_diff_names_the_part_of_the_case_that_changed(
    tmp_path: Path, part: str, kind: str, reason: str
) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            await submitted(runtime, make_spec())
        changed = {CASE: two_points()[CASE].evolve(**{part: "0" * 64})}
        async with opened(tmp_path, make_stage(), cases=changed) as runtime:
            found = await Submission(runtime).compare("small", make_spec())
            assert reasons(found) == {(kind, (reason,))}

    played(main)


def test_a_diff_sees_what_other_sweeps_have_made(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            spec = make_spec("other", limits={"time": "20s"})
            await worked(runtime, await submitted(runtime, spec, make_spec()))
            found = await Submission(runtime).compare("small", spec)
            assert reasons(found) == {
                ("reuse", (IN_STORE,)),
                ("drop", ("no longer in the spec",)),
            } or (reasons(found) == {("reuse", (IN_STORE,))})
            assert [one.finished for one in found.changes if one.kind is Kind.REUSE] == [True]

    played(main)


def test_a_diff_of_an_unknown_sweep_is_a_user_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            with pytest.raises(UserError, match="no sweep named 'small'"):
                await Submission(runtime).compare("small", make_spec())
            with pytest.raises(UserError, match="no sweep named 'small'"):
                await Submission(runtime).replace(make_spec())

    played(main)


def test_a_changed_panel_grades_anew_and_runs_no_agent_again(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage()
        async with opened(tmp_path, stage) as runtime:
            await worked(runtime, await submitted(runtime, make_spec(repeats=2)))
            before = await results(runtime)
            solved = list(stage.started_of("solve"))
            extracted = len(stage.started_of("extract"))
            spec = make_spec(repeats=2, panel={"panel_stop": "all"})
            done = await Submission(runtime).replace(spec)
            assert (done.kept, done.added, done.released) == (0, 2, 2)
            (status,) = await worked(runtime, ["small"])
            assert status.is_complete
            assert stage.started_of("solve") == solved
            assert len(stage.started_of("extract")) > extracted
            after = await results(runtime)
            assert {one.run_id for one in after} == {one.run_id for one in before}
            assert {one.grade_id for one in after}.isdisjoint(one.grade_id for one in before)
            for one in before:
                key = layout.result_key(runtime.tenant, one.run_id, one.grade_id)
                kept = RunResult.model_validate_json(await runtime.objects.get(key))
                assert canonical(kept) == canonical(one)
                costs = await runtime.store.costs_of_run(one.run_id, one.grade_id)
                assert tuple(costs) == one.cost
            assert len(await marks(runtime)) == 2

    played(main)


async def results(runtime: Runtime) -> list[RunResult]:
    from fde_ray.engine.findings import findings_of

    return list((await findings_of(runtime, "small")).results)


def test_a_replaced_spec_is_the_next_version_in_the_bucket(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            await submitted(runtime, make_spec())
            await Submission(runtime).replace(make_spec(repeats=2))
            assert (await Submission(runtime).replace(make_spec(repeats=2))).changed is False
            assert await Controller(runtime).submit(make_spec(repeats=2)) is False
            keys = await runtime.objects.list(layout.specs_prefix("local", "small"))
            names = sorted(key.rpartition("/")[2] for key in keys)
            assert names == ["1.json", "1.runs.json", "2.json", "2.runs.json"]
            listed = await read_runs(runtime.objects, "local", "small")
            assert listed is not None
            assert len(listed) == 2
            latest = await SpecVersions(runtime.objects, "local").latest("small")
            assert latest["repeats"] == 2

    played(main)


def test_a_submit_killed_before_the_bucket_heard_of_it_is_made_whole_by_the_next(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            await submitted(runtime, make_spec())
            for key in await runtime.objects.list(layout.specs_prefix("local", "small")):
                await runtime.objects.delete(key)
            assert await Controller(runtime).submit(make_spec()) is False
            assert len(await runtime.objects.list(layout.specs_prefix("local", "small"))) == 2

    played(main)


def test_runs_that_a_new_spec_lets_go_stop_and_their_sandboxes_end(tmp_path: Path) -> None:
    async def main() -> None:
        event: list[bool] = []
        stage = make_stage(waiting_for(event))
        async with opened(tmp_path, stage, concurrency={"runs": 2}) as runtime:
            await submitted(runtime, make_spec(repeats=4))
            working = asyncio.create_task(worked(runtime, ["small"]), name="working")
            await until(lambda: len(stage.started) == 2)
            ids = [run.run_id for run in await runtime.store.runs_of_sweep("small")]
            live = {subject.partition(".")[0] for subject in stage.started}
            kept = make_spec(repeats=1)
            await Submission(runtime).replace(kept)
            await runtime.clock.sleep(5)
            event.append(True)
            (status,) = await working
            assert status.is_complete
            assert len(status.runs) == 1
            phases = [(await runtime.store.run(run)).phase for run in ids]
            assert phases == [Phase.DONE, *[Phase.CANCELLED] * 3]
            assert len(stage.started_of("solve")) == len(live | {ids[0]})
            assert await runtime.store.open_sessions() == []
            assert all(stage.handle_of(subject) is None for subject in stage.started)

    played(main)


def test_a_run_that_another_sweep_wants_goes_on_when_one_lets_it_go(tmp_path: Path) -> None:
    async def main() -> None:
        event: list[bool] = []
        stage = make_stage(waiting_for(event))
        async with opened(tmp_path, stage) as runtime:
            await submitted(runtime, make_spec("one"), make_spec("two"))
            working = asyncio.create_task(worked(runtime, ["two"]), name="working")
            await until(lambda: bool(stage.started))
            await Submission(runtime).replace(make_spec("one", series="other"))
            await runtime.clock.sleep(3)
            event.append(True)
            (status,) = await working
            assert status.is_complete
            assert len(stage.started_of("solve")) == 1

    played(main)


def test_an_unfinished_run_is_graded_by_the_new_spec_only(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage()
        async with opened(tmp_path, stage) as runtime:
            await submitted(runtime, make_spec())
            changed = {CASE: two_points()[CASE].evolve(gt_hash="0" * 64)}
        async with opened(tmp_path, stage, cases=changed) as runtime:
            await Submission(runtime).replace(make_spec())
            (status,) = await worked(runtime, ["small"])
            assert status.is_complete
            (run,) = status.runs
            assert (await result(runtime)).versions.gt_hash == "0" * 64
            states = {g.grade_id: g.state.value for g in await runtime.store.grades_of(run.run_id)}
            assert states.pop(run.grade_id) == "scored"
            assert list(states.values()) == ["pending"]

    played(main)


def test_a_run_let_go_and_wanted_again_is_run(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage()
        async with opened(tmp_path, stage) as runtime:
            await submitted(runtime, make_spec(repeats=2))
            await Submission(runtime).replace(make_spec())
            await Submission(runtime).replace(make_spec(repeats=2))
            (status,) = await worked(runtime, ["small"])
            assert (status.is_complete, len(status.runs)) == (True, 2)

    played(main)


BAD_SPECS = {
    "empty": b"",
    "no_json": b"{",
    "no_object": b"[1]",
    "deep": b"[" * 100_000,
    "no_text": b"\xff\xfe",
}


@pytest.mark.parametrize("bad", BAD_SPECS)
def test_a_spoilt_spec_in_the_bucket_is_told_in_a_sentence(tmp_path: Path, bad: str) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            await runtime.objects.create(layout.spec_key("local", "small", 7), BAD_SPECS[bad])
            with pytest.raises(StoreError, match="spec 7 of sweep 'small' is no JSON"):
                await SpecVersions(runtime.objects, "local").latest("small")

    played(main)


def test_a_huge_spec_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            versions = SpecVersions(runtime.objects, "local")
            with pytest.raises(StoreError, match="no spec of sweep"):
                await versions.latest("small")
            huge = b" " * (MAX_SPEC_BYTES + 1)
            await runtime.objects.create(layout.spec_key("local", "small", 1), huge)
            with pytest.raises(StoreError, match="larger than"):
                await versions.latest("small")

    played(main)


def test_only_plain_numbers_count_as_versions() -> None:
    keys = ["a/1.json", "a/2.runs.json", "a/03.json", "a/x.json", f"a/{'9' * 30}.json", "a/12.json"]
    assert latest_of(keys) == 12
    assert latest_of([]) == 0


def test_plans_of_a_sweep_are_read_in_its_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            await submitted(runtime, make_spec(repeats=3))
            plans = await runtime.store.plans_of_sweep("small")
            assert [plan.repeat for plan in plans] == [1, 2, 3]
            assert json.loads(plans[0].model_dump_json())["sweep"] == "small"

    played(main)


def test_a_sweep_with_an_unpriced_model_is_not_taken_unless_the_operator_says_so(
    tmp_path: Path,
) -> None:
    secret = {"scaffold": "minimal", "model": "acme/secret"}
    unpriced = make_spec(systems=[SYSTEM | secret])

    async def main() -> None:
        async with opened(tmp_path / "one", make_stage()) as runtime:
            for change in (Submission(runtime).submit, Submission(runtime).replace):
                with pytest.raises(UserError, match=r"'acme/secret' \(agent\) has no price") as no:
                    await change(unpriced)
                assert "`free: true` for a model of your own" in str(no.value)
                assert "or set `unpriced_models: allow`" in str(no.value)
            assert await runtime.store.sweeps() == []
            assert await Submission(runtime).submit(make_spec())
        async with opened(tmp_path / "two", make_stage(), unpriced_models="allow") as runtime:
            assert await Submission(runtime).submit(unpriced)
        async with opened(tmp_path / "two", make_stage()) as runtime:
            with pytest.raises(UserError, match="cannot go on: 'acme/secret'"):
                await Controller(runtime).check(unpriced.name)

    played(main)
