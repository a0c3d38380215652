"""Every mistake ends in one line that says what to do, and in exit code 2."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path

import pytest

from fde_ray.cli import listing
from fde_ray.model.profile import Profile
from tests.cli.conftest import CommandLine, Ended
from tests.cli.homes import GOOD, SWEEP, WAITING

SPEC = """\
schema: fde_ray.sweep/1
name: mine
cases: ["017"]
conditions: [hidden]
repeats: 1
customer: {model: offline/customer}
panel: {models: [offline/e-1, offline/e-2, offline/e-3, offline/e-4, offline/e-5]}
systems:
  - {name: literal, scaffold: scripted, model: offline/literal}
"""

LINES = {
    "unknown command": ("swep", "did you mean 'sweep'"),
    "unknown subcommand": ("sweep stat", "did you mean 'status'"),
    "unknown option": ("sweep status --jsn", "--json"),
    "option before the command": ("--json sweep status", "options follow the command"),
    "engine before the command": ("--engine ray demo", "--engine (options follow the command"),
    "missing argument": ("run show", "'run'"),
    "value out of range": ("demo --repeats 0", "--repeats"),
    "unknown engine": ("demo --engine dask", "--engine takes inline or ray"),
    "unknown sweep": ("results ls nope", "sweep status"),
    "unknown sweep in status": ("sweep status nope", "sweep status"),
    "unknown sweep in report": ("report nope", "sweep status"),
    "unknown sweep in cost": ("cost nope", "sweep status"),
    "unknown sweep in pull": ("results pull nope", "sweep status"),
    "unknown sweep in verify": ("results verify nope", "sweep status"),
    "unknown sweep to pause": ("sweep pause nope", "sweep status"),
    "unknown sweep to cancel": ("sweep cancel nope", "sweep status"),
    "unknown sweep to resume": ("sweep resume nope", "sweep status"),
    "unknown run": ("run show ffffff", "results ls"),
    "too few digits": ("run logs ab", "at least 4"),
    "two runs begin alike": (f"run explain {WAITING[:4]}", "more digits"),
    "no such spec": ("sweep plan nofile.yaml", "presets: demo"),
    "spec is a folder": ("sweep plan .", "is a folder"),
    "no such profile": ("sweep status --profile nofile.yaml", "cannot read nofile.yaml"),
    "profile without an end": ("doctor --profile /dev/zero", "larger than"),
    "profile is a folder": ("sweep status --profile .", "cannot read"),
    "unknown case": ("case show 999", "known cases: 017"),
    "case not in the spec": ("sweep plan demo --case 099", "it has 017, 036"),
    "unknown rule": ("case check 017 --rule Z9", "a1 to a22"),
    "page in a folder's place": (f"report {SWEEP} --html .", "is a folder"),
    "page where nothing can be": (f"report {SWEEP} --html /proc/x/y.html", "cannot write"),
    "pull where nothing can be": (f"results pull {SWEEP} --to /proc/x", "cannot write"),
    "demo page where nothing can be": ("demo --html /proc/x/y.html", "cannot write"),
}

DOCUMENTS = {
    "empty": ("", "is empty"),
    "not YAML": ("name: [x", ":1:"),
    "not a mapping": ("- a", "mapping"),
    "not text": ("\udcff\udcfe", "utf-8"),
    "unknown key": (SPEC + "repats: 3\n", ":10: unknown key 'repats'"),
    "number for a name": (SPEC.replace('"017"', "017"), ":3: cases.0: write it in quotes"),
    "no name": (SPEC.replace("mine", "My Sweep"), "is no name: up to 63 small letters"),
    "panel too small": (SPEC.replace(", offline/e-5", ""), "at least 5 needed, not 4"),
    "panel too large": (SPEC.replace("e-5]", "e-5, offline/e-6]"), "at most 5 allowed, not 6"),
    "bad unit": (SPEC + "limits: {time: 10 fortnights}\n", "12h"),
    "unknown case": (SPEC.replace('"017"', '"099"'), ":3: unknown case '099'; known: 017"),
    "second case unknown": (
        SPEC.replace('"017"', '"017",\n  "099"'),
        ":4: unknown case '099'; known: 017",
    ),
    "unknown agent model": (
        SPEC.replace("scripted, model: offline/literal", "minimal, model: nowhere/m"),
        ":9: unknown model 'nowhere/m'",
    ),
    "unknown customer model": (
        SPEC.replace("offline/customer", "nowhere/m"),
        ":6: unknown model 'nowhere/m'",
    ),
    "unknown panel model": (
        SPEC.replace("offline/e-3", "nowhere/m"),
        ":7: unknown model 'nowhere/m'",
    ),
    "unknown condition": (SPEC.replace("[hidden]", "[hiden]"), "oracle:25"),
    "unknown scaffold": (SPEC.replace("scripted", "scriptd"), ":9: unknown scaffold 'scriptd'"),
    "unknown probe": (SPEC.replace("offline/literal", "offline/litral"), ":9: system 'literal'"),
    "unknown prompt pack": (SPEC + "prompt_pack: mine\n", "prompt pack 'mine'"),
    "hostile name": (SPEC.replace("name: mine", 'name: "\\e[2J"'), "name"),
    "a tag that runs code": ("a: !!python/object/apply:os.system [ls]", "tag"),
    "an endless alias": ("a: &a [*a]", "yaml"),
}


def one_line(ended: Ended, says: str) -> None:
    assert ended.code == 2
    assert ended.out == ""
    assert ended.err.startswith("fde-ray: ")
    assert ended.err.count("\n") == 1
    assert ended.err.rstrip("\n").isprintable()
    assert says in ended.err.lower()


@pytest.mark.parametrize(("line", "says"), LINES.values(), ids=LINES.keys())
def test_mistakes_are_answered_in_one_line(
    line: str, says: str, home: Path, cli: CommandLine
) -> None:
    one_line(cli(*line.split()), says)


@pytest.mark.parametrize(("text", "says"), DOCUMENTS.values(), ids=DOCUMENTS.keys())
def test_bad_specs_name_file_and_fault(
    text: str, says: str, empty_home: Path, cli: CommandLine, tmp_path: Path
) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    one_line(cli("sweep", "plan", path), says)


def test_a_model_of_a_matching_endpoint_needs_no_known_provider(
    empty_home: Path, cli: CommandLine, tmp_path: Path
) -> None:
    spec, profile = tmp_path / "spec.yaml", tmp_path / "profile.yaml"
    spec.write_text(SPEC.replace("scripted, model: offline/literal", "minimal, model: nowhere/m"))
    profile.write_text('endpoints: [{match: "nowhere/*", base_url: "http://127.0.0.1:9/v1"}]')
    ended = cli("sweep", "plan", spec, "--profile", profile, "--json")
    assert (ended.code, len(ended.json["runs"])) == (0, 1)


def test_available_leaves_out_what_is_not_here(
    empty_home: Path, cli: CommandLine, tmp_path: Path
) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        SPEC.replace('"017"', '"017", "099"')
        + "  - {name: later, scaffold: opencode, model: offline/literal}\n"
    )
    assert cli("sweep", "plan", spec).code == 2
    ended = cli("sweep", "plan", spec, "--available", "--json")
    assert [(run["case"], run["system"]) for run in ended.json["runs"]] == [("017", "literal")]
    one_line(cli("sweep", "plan", "main", "--available"), "none of the 18 systems")


def test_bad_profiles_name_file_and_line(
    empty_home: Path, cli: CommandLine, tmp_path: Path
) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text("tenant: local\nendpints: []\n")
    one_line(cli("sweep", "status", "--profile", path), "profile.yaml:2: unknown key 'endpints'")


def test_a_name_that_is_taken_by_another_spec_is_refused(
    empty_home: Path, cli: CommandLine, tmp_path: Path
) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    assert cli("sweep", "submit", path, "--no-run").code == 0
    path.write_text(SPEC.replace("repeats: 1", "repeats: 2"))
    one_line(cli("sweep", "submit", path, "--no-run"), "choose another name")


@pytest.mark.parametrize("place", ["/proc/nothing/here", "/dev/null", "file"])
def test_a_state_folder_that_cannot_be_is_told(
    place: str, cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("a file")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FDE_RAY_HOME", place)
    one_line(cli("sweep", "status"), "fde_ray_home")
    doctor = cli("doctor")
    assert doctor.code == 1
    assert "FAILS state folder" in doctor.out


def test_a_file_that_is_no_run_store_is_left_alone(empty_home: Path, cli: CommandLine) -> None:
    empty_home.mkdir()
    (empty_home / "runs.sqlite").write_text("my diary\n")
    one_line(cli("sweep", "status"), "move the file away")
    assert (empty_home / "runs.sqlite").read_text() == "my diary\n"


def test_a_database_of_another_program_is_left_alone(empty_home: Path, cli: CommandLine) -> None:
    empty_home.mkdir()
    with sqlite3.connect(empty_home / "runs.sqlite") as other:
        other.execute("create table recipes (name text)")
    other.close()
    one_line(cli("sweep", "status"), "choose another home")


def test_a_second_process_on_one_state_folder_is_refused(
    home: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fde_ray.store.runs.leases import process_start

    parent = os.getppid()
    asyncio.run(_held_by(home, parent, process_start(parent) or ""))
    ended = cli("sweep", "resume", SWEEP)
    assert ended.code == 2
    assert ended.err.splitlines()[-1].startswith(f"fde-ray: another fde-ray (process {parent} ")
    assert cli("sweep", "status").code == 0


async def _held_by(home: Path, pid: int, started: str) -> None:
    import socket

    from fde_ray.engine.runtime import opened_runtime
    from fde_ray.store.runs.rows import LeaseOwner

    async with opened_runtime(Profile(home=str(home)), environ={}) as runtime:
        owner = LeaseOwner("other", socket.gethostname(), pid, started)
        await runtime.store.take_lease(owner)


def test_without_a_sandbox_the_fix_is_named(
    home: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ended = cli("sweep", "resume", SWEEP)
    assert ended.code in (1, 2)
    assert "bubblewrap" in ended.err
    assert "Traceback" not in ended.err


def test_what_nobody_foresaw_is_one_line_and_a_file(
    home: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("a bug\x1b[2J")

    monkeypatch.setattr(listing, "store_rows", broken)
    ended = cli("results", "ls", SWEEP)
    assert ended.code == 1
    assert ended.err.count("\n") == 1
    assert "\x1b" not in ended.err
    assert "Traceback" in (home / "last-error.txt").read_text()


def test_an_interrupted_command_says_so(
    home: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(listing, "store_rows", interrupted)
    ended = cli("results", "ls", SWEEP)
    assert (ended.code, ended.err) == (130, "fde-ray: interrupted\n")


def test_a_run_id_is_no_pattern(home: Path, cli: CommandLine) -> None:
    one_line(cli("run", "show", f"%{GOOD[:6]}"), "no run")
