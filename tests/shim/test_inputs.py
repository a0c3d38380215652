"""What a shim is told is checked before it acts on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fde_ray.model.session import SessionInputs
from fde_ray.shim.claims import clean_claim, clean_entries, clean_text, exit_of
from fde_ray.shim.inputs import BadInput, read_config, read_inputs
from fde_ray.shim.mailbox import Letter, Mailbox
from tests.sandbox.fake_plane import FakePlane


def test_inputs_of_the_model_are_read(tmp_path: Path) -> None:
    record = SessionInputs.model_validate(FakePlane(tmp_path).inputs)
    inputs = read_inputs(record.jsonable())
    assert inputs.mounts[0].at == "/workspace"
    assert inputs.limits.time_s == record.limits.time_s


@pytest.mark.parametrize(
    "changes",
    [
        {"workdir": "relative"},
        {"workdir": "/a/../b"},
        {"workdir": "/"},
        {"collect": "/usr/lib"},
        {"mounts": [{"archive": "visible", "at": "/proc"}]},
        {"mounts": [{"archive": "visible"}]},
        {"files": [{"at": "/etc/passwd", "text": ""}]},
        {"limits": {}},
        {"limits": None},
        {"model": None, "settings": 5},
        {"heartbeat_s": "often"},
    ],
)
def test_bad_inputs_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        read_inputs(FakePlane(tmp_path).inputs | changes)


def test_config_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}")
    path.chmod(0o644)
    with pytest.raises(BadInput, match="0600"):
        read_config(str(path))


@pytest.mark.parametrize("value", [{}, [], {"runtime": {"name": "x", "odd": 1}}, {"runtime": 5}])
def test_bad_config_is_refused(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(value))
    path.chmod(0o600)
    with pytest.raises(BadInput):
        read_config(str(path))


@pytest.mark.parametrize(
    ("letter", "oom", "kind"),
    [
        (Letter("stop", {"reason": "time_limit"}), 0, None),
        (Letter("stop", {"reason": "cancelled"}), 0, None),
        (Letter("stop", {"reason": "agent_resource", "detail": "disk"}), 0, "agent_resource"),
        (Letter("stop", {"reason": "own_time_limit"}), 0, "time_limit"),
        (Letter("exit", {"kind": "step_limit"}), 0, "step_limit"),
        (Letter("exit", {"kind": "submitted"}), 0, "agent_error"),
        (Letter("exit", {"kind": 7}), 0, "agent_error"),
        (Letter("exit", {"kind": "agent_error", "exit_code": -9}), 2, "agent_resource"),
        (Letter("closed"), 0, "agent_error"),
        (Letter("closed"), 1, "agent_resource"),
    ],
)
def test_exit_of_a_letter(letter: Letter, oom: int, kind: str | None) -> None:
    found = exit_of(letter, oom)
    assert (found and found["kind"]) == kind


@pytest.mark.parametrize(
    "message", [{}, {"type": "start"}, {"type": ["turn"]}, {"type": None, "text": "x"}]
)
def test_word_that_is_neither_turn_nor_exit_is_no_claim(message: dict[str, Any]) -> None:
    assert clean_claim(message) is None


def test_claim_keeps_nothing_but_bounded_values() -> None:
    turn = {"type": "turn", "text": "x" * (2 << 20), "entries": [{"odd": [[]]}], "more": {"a": 1}}
    assert clean_claim(turn) == {
        "type": "turn",
        "channel": "text",
        "text": "x" * (1 << 20),
        "entries": [{"question": "", "header": "", "options": []}],
    }
    ended = {"type": "exit", "kind": "k" * 100, "detail": 5, "exit_code": True, "more": [1]}
    assert clean_claim(ended) == {
        "type": "exit",
        "kind": "k" * 50,
        "detail": "",
        "exit_code": None,
    }
    assert (clean_claim({"type": "exit", "exit_code": -9}) or {})["exit_code"] == -9


def test_claims_of_any_shape_become_clean_entries() -> None:
    assert clean_entries(None) == clean_entries("x") == clean_entries([1, None]) == []
    assert clean_entries([{"question": "q\ud800", "options": ["a", 5]}, {"options": "no"}]) == [
        {"question": "q?", "header": "", "options": ["a", ""]},
        {"question": "", "header": "", "options": []},
    ]
    assert len(clean_entries([{}] * 1000)) == 100
    assert clean_text(5, 10) == ""
    assert clean_text("x" * 20, 10) == "x" * 10


def test_stop_goes_before_claims_and_stays() -> None:
    mail = Mailbox()
    mail.claim(Letter("turn"))
    mail.stop("time_limit")
    mail.stop("finished")
    assert mail.next().fields["reason"] == "time_limit"
    assert mail.next().kind == "stop"
    assert mail.over.is_set()
