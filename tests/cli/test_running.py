"""Sweeps that really run, in a sandbox: their exit codes, and how an interrupted one goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from fde_ray.analysis.summary import summary
from fde_ray.cli.exits import ended
from fde_ray.cli.running import Outcome, finish
from tests.cli.conftest import CommandLine
from tests.cli.test_mistakes import SPEC

pytestmark = pytest.mark.sandbox

RUN = (sys.executable, "-c", "from fde_ray.cli.main import main; main()")
LONG_ENOUGH_S = 120
"""For a machine that is busy with other tests; a run takes a few seconds."""


@pytest.fixture
def spec(empty_home: Path, tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC.replace("literal", "do_nothing"))
    return path


def started(line: Sequence[object]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*RUN, *(str(one) for one in line)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )


def test_an_interrupted_sweep_goes_on_and_ends_with_all_results(
    spec: Path, cli: CommandLine
) -> None:
    with started(["sweep", "submit", spec, "--json"]) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if " graded" in line:  # the engine is at work
                process.send_signal(signal.SIGINT)
                break
        out, err = process.communicate(timeout=LONG_ENOUGH_S)
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-1] == (
        "fde-ray: interrupted; nothing is lost, go on with: fde-ray sweep resume mine"
    )

    with started(["sweep", "resume", "mine", "--json"]) as process:
        out, err = process.communicate(timeout=LONG_ENOUGH_S)
    assert process.returncode == 0, err
    summary = json.loads(out)
    assert (summary["planned"], summary["scored"]) == (1, 1)
    assert "next: fde-ray results ls mine" in err

    again = cli("sweep", "submit", spec, "--json")
    assert again.code == 0
    assert again.json == summary
    assert cli("sweep", "status", "mine", "--json").json[0]["complete"] is True
    assert "nothing to pause" in cli("sweep", "pause", "mine").err
    assert cli("results", "verify", "mine", "--json").json == {"sound": 1, "findings": []}


def test_a_stored_sweep_waits_until_it_is_resumed(spec: Path, cli: CommandLine) -> None:
    assert cli("sweep", "submit", spec, "--no-run", "--json").json == {"sweep": "mine", "new": True}
    assert "paused" in cli("sweep", "status").out
    shown = cli("report", "mine")
    assert shown.code == 0
    assert "0 of 1 planned run scored" in shown.out
    assert "no model call yet" in cli("cost", "mine").err
    assert "no fde-ray is at work" in cli("sweep", "cancel", "mine").err
    refused = cli("sweep", "pause", "mine")
    assert (refused.code, "is cancelled" in refused.err) == (2, True)
    assert "cancelled" in cli("sweep", "status").out


@pytest.mark.parametrize("complete", [True, False])
def test_the_exit_code_is_1_unless_every_run_has_a_result(
    complete: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = Outcome(summary([], []), Path("page.html"), complete)
    assert ended(lambda: finish(outcome, "mine", json_=True)) == (0 if complete else 1)
    shown = capsys.readouterr()
    assert json.loads(shown.out)["planned"] == 0
    assert ("not all runs have a result" in shown.err) is not complete


def test_a_new_sweep_tries_again_what_another_had_set_aside(
    spec: Path, tmp_path: Path, cli: CommandLine
) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text(
        "unpriced_models: allow\n"
        "endpoints:\n"
        '- {match: "nowhere/*", base_url: "http://127.0.0.1:9/v1", api_key_env: FDE_RAY_NO_KEY}\n'
    )
    asking = SPEC.replace("scripted, model: offline/literal", "minimal, model: nowhere/m")
    for attempt, name in enumerate(["mine", "renamed"], start=1):
        spec.write_text(asking.replace("name: mine", f"name: {name}"))
        submitted = cli("sweep", "submit", spec, "--profile", profile)
        assert submitted.code == 1
        assert "warning: endpoint nowhere/*: set the environment variable" in submitted.err
        (row,) = cli("results", "ls", name, "--json").json
        state = cli("run", "show", row["run_id"], "--json").json["state"]
        assert (state["phase"], state["attempts"]) == ("quarantined", attempt)
