"""Whole runs against a real model: real sandbox, run-plane, ledger, grading.

The model is far too small to do the job; what counts is that every part meets a real one.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from fde_ray.engine.campaign import carried_out
from fde_ray.engine.controller import Controller
from fde_ray.engine.findings import findings_of
from fde_ray.engine.runtime import opened_runtime
from fde_ray.model.profile import Endpoint, Profile
from fde_ray.model.result import RunResult
from fde_ray.model.specs import SweepSpec
from fde_ray.model.states import GradeState, Phase, SolveEnd
from fde_ray.store.runs import CallRow

pytestmark = [pytest.mark.local_llm, pytest.mark.sandbox]

LONGEST_S = 600
REPLY_TOKENS = 32
"""Also the most that the server gives to who sets no limit (server.py)."""
LIMITS = {
    "time": "3m",
    "steps": 6,
    "pushes": 1,
    "pause_cap": "2m",
    "memory": "1GiB",
    "disk": "256MiB",
    "processes": 128,
    "archive": "64MiB",
}
FREE = """\
version: test.1
currency: USD
models:
  local/gemma: {free: true, reason: runs on this machine}
"""


LITERAL = {"name": "literal", "scaffold": "scripted", "model": "offline/literal"}
OFFLINE_PANEL = tuple(f"offline/extractor-{n}" for n in range(1, 6))


def sweep(
    name: str,
    condition: str,
    *systems: dict[str, Any],
    customer: str,
    panel: tuple[str, ...] = OFFLINE_PANEL,
    judges: tuple[str, ...] = OFFLINE_PANEL,
) -> SweepSpec:
    return SweepSpec.model_validate(
        {
            "name": name,
            "cases": ["017"],
            "conditions": [condition],
            "repeats": 1,
            "systems": systems,
            "limits": LIMITS,
            "customer": {"model": customer, "max_tokens": REPLY_TOKENS, "temperature": 0.0},
            "panel": {"models": panel, "time": "3m", "steps": 3},
            "judges": judges,
        }
    )


async def carried(
    folder: Path, endpoint: Endpoint, spec: SweepSpec, **profile: Any
) -> tuple[list[RunResult], dict[str, list[CallRow]]]:
    """Return the results of a sweep, and the calls of each system."""
    if shutil.which("bwrap") is None:
        pytest.fail("these tests need bubblewrap: sudo apt-get install -y bubblewrap")
    described = Profile.model_validate(
        {
            "home": str(folder / "home"),
            "endpoints": [endpoint],
            "sandbox": {"runtime": "bubblewrap"},
            "concurrency": {"runs": 1},
            "unpriced_models": "allow",
            **profile,
        }
    )
    async with opened_runtime(described) as runtime, asyncio.timeout(LONGEST_S):
        await Controller(runtime).submit(spec)
        (status,) = await carried_out(runtime, [spec.name])
        assert [run.phase for run in status.runs] == [Phase.DONE] * len(spec.systems)
        results = (await findings_of(runtime, spec.name)).results
        calls = {r.system: await runtime.store.calls_of(r.run_id) for r in results}
    return list(results), calls


async def test_a_real_model_drives_the_minimal_scaffold_to_a_grade(
    tmp_path: Path, endpoint: Endpoint
) -> None:
    settings = {"max_tokens": REPLY_TOKENS, "temperature": 0.0}
    gemma = {"scaffold": "minimal", "model": "local/gemma"}
    spec = sweep(
        "gemma",
        "hidden",
        {**gemma, "name": "whole", "settings": settings},
        {**gemma, "name": "streamed", "settings": {**settings, "stream": True}},
        customer="offline/customer",
    )
    results, calls = await carried(tmp_path, endpoint, spec)
    assert {r.system for r in results} == {"whole", "streamed"}
    for result in results:
        assert result.versions.sandbox["runtime"] == "bubblewrap"
        assert not result.unsafe_sandbox
        assert len(result.attempts) == 1
        assert result.solve_end in (
            SolveEnd.NO_DELIVERY,
            SolveEnd.SUBMITTED,
            SolveEnd.STEP_LIMIT,
            SolveEnd.TIME_LIMIT,
        )
        assert result.grade is not GradeState.PENDING
        assert "agent" not in result.offline
        assert "extractor" in result.offline
        agent = [call for call in calls[result.system] if call.role == "agent"]
        assert 1 <= len(agent) <= 6
        assert_counted_by_the_provider(agent)
        assert {(call.cost_nanousd, call.cost_reason) for call in agent} == {
            (None, "no price for 'local/gemma'")
        }
        (line,) = [line for line in result.cost if line.role == "agent"]
        assert line.cost_nanousd is None
        assert (line.calls, line.offline_calls) == (len(agent), 0)
        assert line.prompt_tokens is not None
        assert line.prompt_tokens > 500 * len(agent)


async def test_a_real_model_answers_as_the_customer(tmp_path: Path, endpoint: Endpoint) -> None:
    (tmp_path / "prices.yaml").write_text(FREE)
    spec = sweep("customer", "interact_req", LITERAL, customer="local/gemma")
    (result,), calls = await carried(tmp_path, endpoint, spec, prices=str(tmp_path / "prices.yaml"))
    assert result.solve_end is SolveEnd.SUBMITTED
    assert "customer" not in result.offline
    (round_,) = result.rounds
    (question,) = round_.questions
    assert question.answer.strip()
    assert not question.placeholder
    (call,) = [call for call in calls["literal"] if call.role == "customer"]
    assert_counted_by_the_provider([call])
    assert (call.cost_nanousd, call.cost_reason) == (0, "free: runs on this machine")
    (line,) = [line for line in result.cost if line.role == "customer"]
    assert (line.calls, line.offline_calls, line.cost_nanousd) == (1, 0, 0)


async def test_a_real_panel_that_answers_badly_still_leaves_a_whole_result(
    tmp_path: Path, endpoint: Endpoint
) -> None:
    spec = sweep(
        "panel",
        "interact_req",
        LITERAL,
        customer="offline/customer",
        panel=("local/gemma",) * 5,
        judges=("local/gemma", *OFFLINE_PANEL[:4]),
    )
    (result,), calls = await carried(tmp_path, endpoint, spec)
    assert "extractor" not in result.offline
    assert result.grade is not GradeState.PENDING
    assert all(route.vote is not None or route.vote_reason for route in result.routes)
    assert result.metrics is not None
    assert result.metrics.recall.value is not None
    for role in ("extractor", "judge"):
        real = [c for c in calls["literal"] if c.role == role and c.model == "local/gemma"]
        assert real
        assert_counted_by_the_provider(real)
        (line,) = [line for line in result.cost if line.role == role]
        assert line.cost_nanousd is None


def assert_counted_by_the_provider(calls: list[CallRow]) -> None:
    """Every call ends in a try that the server counted.

    The server answers 500 when the model writes half a tool call: it worked for that try and
    counted nothing, so that its row stays ambiguous, with an estimate.
    """
    last = {call.call_id: call for call in calls}
    for failed in (call for call in calls if call is not last[call.call_id]):
        assert (failed.state, failed.status) == ("ambiguous", 500), failed.detail
        assert failed.usage is not None
        assert failed.usage["source"] == "estimated"
    for call in last.values():
        assert (call.state, call.offline, call.model_returned) == ("finished", False, "gemma")
        assert call.usage is not None
        assert call.usage["source"] == "provider"
        assert 1 <= call.usage["completion_tokens"] <= REPLY_TOKENS
