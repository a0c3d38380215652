"""The five tools: what they do, and what they say to calls that are no good."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any

import pytest

from fde_ray.shim.agents import tools
from fde_ray.shim.agents.tools import TOOLS, Toolbox, ToolError


@pytest.fixture
def toolbox(tmp_path: Path) -> Toolbox:
    return Toolbox(str(tmp_path))


def test_five_tools_are_offered_in_the_openai_shape() -> None:
    names = [tool["function"]["name"] for tool in TOOLS]
    assert names == ["run", "read", "write", "edit", "list"]


def test_run_gives_output_and_exit_code(toolbox: Toolbox) -> None:
    assert toolbox.call("run", {"command": "echo a; echo b >&2; exit 4"}) == "a\nb\n\n[exit code 4]"


def test_run_is_killed_after_its_time(toolbox: Toolbox) -> None:
    began = time.monotonic()
    text = toolbox.call("run", {"command": "echo x; sleep 60 & sleep 60", "timeout_s": 0.3})
    assert text == "x\n\n[exit code none, killed after 0.3 s]"
    assert time.monotonic() - began < 10


def test_run_does_not_wait_for_what_it_left_behind(toolbox: Toolbox) -> None:
    began = time.monotonic()
    assert "[exit code 0]" in toolbox.call("run", {"command": "sleep 3 & echo started"})
    assert time.monotonic() - began < 2.9


def test_long_output_keeps_its_beginning_and_end(toolbox: Toolbox) -> None:
    text = toolbox.call("run", {"command": "echo first; head -c 100000 /dev/zero; echo last"})
    assert text.startswith("first")
    assert text.endswith("last\n\n[exit code 0]")
    assert "bytes left out" in text
    assert len(text) < tools.OUTPUT_LIMIT + 200


def test_write_read_edit_list(toolbox: Toolbox, tmp_path: Path) -> None:
    assert toolbox.call("write", {"path": "d/a.txt", "text": "one\ntwo\n"}) == "wrote 8 bytes"
    assert toolbox.call("read", {"path": "d/a.txt", "offset": 2}) == "two\n"
    assert toolbox.call("edit", {"path": "d/a.txt", "old": "two", "new": "2"}) == "replaced 1"
    data = base64.b64encode(b"\x00\xff").decode()
    toolbox.call("write", {"path": str(tmp_path / "b"), "base64": data})
    assert (tmp_path / "b").read_bytes() == b"\x00\xff"
    assert toolbox.call("list", {}) == "b  2\nd/"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("fly", {}),
        ("run", []),
        ("run", {}),
        ("run", {"command": 5}),
        ("run", {"command": "a\0b"}),
        ("run", {"command": "true", "timeout_s": "soon"}),
        ("run", {"command": "true", "timeout_s": -1}),
        ("read", {"path": "missing"}),
        ("read", {"path": "\0"}),
        ("read", {"path": ".", "offset": 1}),
        ("read", {"path": "x", "offset": "2"}),
        ("write", {"path": "x"}),
        ("write", {"path": "x", "text": "a", "base64": "YQ=="}),
        ("write", {"path": "x", "base64": "not base64!"}),
        ("write", {"text": "x"}),
        ("edit", {"path": "x", "old": "", "new": "a"}),
        ("edit", {"path": "x", "old": "a"}),
        ("list", {"path": "missing"}),
        ("list", {"path": 7}),
    ],
)
def test_bad_call_is_a_tool_error(toolbox: Toolbox, name: str, arguments: Any) -> None:
    with pytest.raises(ToolError):
        toolbox.call(name, arguments)


def test_edit_wants_one_place_unless_all_are_meant(toolbox: Toolbox, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"a\r\na\xff")
    with pytest.raises(ToolError, match="2 times"):
        toolbox.call("edit", {"path": "f", "old": "a", "new": "b"})
    toolbox.call("edit", {"path": "f", "old": "a", "new": "b", "all": True})
    assert (tmp_path / "f").read_bytes() == b"b\r\nb\xff"


def test_paths_are_translated_where_there_is_no_sandbox(tmp_path: Path) -> None:
    toolbox = Toolbox(str(tmp_path), {"/workspace": str(tmp_path)})
    toolbox.call("write", {"path": "/workspace/x", "text": "y"})
    assert (tmp_path / "x").read_text() == "y"
    assert toolbox.call("run", {"command": "cat /workspace/x"}).startswith("y")
