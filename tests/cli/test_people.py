"""People and the control-plane, from `user add` to what the log says of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fde_ray.engine.serving import PlaneKind, Serving, opened_process
from fde_ray.model.profile import Profile
from tests.cli.conftest import CommandLine


@pytest.fixture
def server(home: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a control-plane on the small state folder."""
    address = f"unix:{tmp_path}/c.sock"
    serving = Serving(PlaneKind.CONTROL, address, f"unix:{tmp_path}/a.sock", grace_s=1)
    ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        end = asyncio.Event()
        async with opened_process(Profile(home=str(home)), serving) as process:
            running = asyncio.create_task(process.run(end, ready.set), name="control")
            await asyncio.to_thread(stop.wait)
            end.set()
            await running

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="control-plane")
    thread.start()
    assert ready.wait(30)
    yield address
    stop.set()
    thread.join(30)
    assert not thread.is_alive()


def added(cli: CommandLine, name: str, *options: str) -> str:
    told = cli("user", "add", name, *options, "--json")
    assert told.code == 0, told.err
    token: str = told.json["token"]
    return token


def test_a_token_is_shown_once(cli: CommandLine, home: Path) -> None:
    token = added(cli, "ada")
    assert token.startswith("fdeu_")
    listed = cli("user", "ls")
    assert "ada" in listed.out
    assert token not in listed.out + cli("user", "ls", "--json").out
    again = cli("user", "add", "ada")
    assert (again.code, "user revoke ada" in again.err) == (2, True)
    assert cli("user", "revoke", "ada").code == 0
    assert cli("user", "revoke", "ada").code == 2
    (row,) = cli("user", "ls", "--json").json
    assert row["revoked"] is not None


@pytest.mark.parametrize("line", [("add", "No Name"), ("add", "ada", "--role", "king")])
def test_a_user_that_cannot_be(cli: CommandLine, home: Path, line: tuple[str, ...]) -> None:
    told = cli("user", *line)
    assert (told.code, told.out) == (2, "")


def test_a_person_asks_from_afar(
    cli: CommandLine, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = added(cli, "root", "--role", "admin")
    ada = added(cli, "ada")
    monkeypatch.setenv("FDE_RAY_SERVER", server)
    monkeypatch.setenv("FDE_RAY_TOKEN", ada)
    sweeps = cli("remote", "status", "--json").json
    name = sweeps[0]["name"]
    assert cli("remote", "status", name, "--json").json["planned"] > 0
    here = cli("sweep", "status", name).out.splitlines()[1].split()[:2]
    assert cli("remote", "status", name).out.splitlines()[1].split()[:2] == here
    assert cli("remote", "status").out.splitlines()[1].split()[:2] == here
    assert cli("remote", "results", name, "--json").code == 0
    refused = cli("remote", "cancel", name)
    assert (refused.code, "belongs to the operator" in refused.err) == (2, True)
    monkeypatch.setenv("FDE_RAY_TOKEN", root)
    assert cli("remote", "pause", name).code == cli("remote", "resume", name).code == 0
    said = [(row["who"], row["action"], row["outcome"]) for row in cli("audit", "--json").json]
    assert said == [
        ("root", "resume", "allowed"),
        ("root", "pause", "allowed"),
        ("ada", "cancel", "refused"),
        ("operator", "user add", "allowed"),
        ("operator", "user add", "allowed"),
    ]
    assert "refused" in cli("audit").out


def test_who_was_let_in_and_put_out_is_in_the_log(cli: CommandLine, home: Path) -> None:
    assert "nobody was let in" in cli("audit").err
    added(cli, "root", "--role", "admin")
    assert cli("user", "revoke", "root").code == 0
    rows = [(row["action"], row["target"], row["detail"]) for row in cli("audit", "--json").json]
    assert rows == [("user revoke", "root", ""), ("user add", "root", "as admin")]


def test_errors_from_afar_point_to_commands_that_reach_there(
    cli: CommandLine, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FDE_RAY_SERVER", server)
    monkeypatch.setenv("FDE_RAY_TOKEN", added(cli, "root", "--role", "admin"))
    for line in (("status", "nope"), ("pause", "nope"), ("results", "nope"), ("delete", "nope")):
        told = cli("remote", *line)
        assert told.code == 2
        assert "no sweep named 'nope'; see `" in told.err
        assert "remote status`" in told.err
        assert "sweep status" not in told.err
    name = cli("remote", "status", "--json").json[0]["name"]
    assert cli("remote", "cancel", name).code == 0
    told = cli("remote", "pause", name)
    assert (told.code, "is cancelled" in told.err, "resume" in told.err) == (2, True, True)


def test_a_sweep_is_submitted_from_afar_and_is_its_submitters(
    cli: CommandLine, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FDE_RAY_SERVER", server)
    monkeypatch.setenv("FDE_RAY_TOKEN", added(cli, "ada"))
    told = cli("remote", "submit", "demo", "--json")
    assert told.code == 0, told.err
    name = told.json["name"]
    assert told.json["new"]
    owners = {row["name"]: row["owner"] for row in cli("remote", "status", "--json").json}
    assert owners[name] == "ada"
    early = cli("remote", "delete", name)
    assert (early.code, "cancel it first" in early.err) == (2, True)
    assert cli("remote", "cancel", name).code == 0
    spec = tmp_path / "s.yaml"
    spec.write_text("name: x\nendpoints: [{match: '*', base_url: http://127.0.0.1:1}]\n")
    refused = cli("remote", "submit", str(spec))
    assert refused.code == 2


@pytest.mark.parametrize(
    ("server", "token", "reason"),
    [
        ("", "t", "--server"),
        ("unix:/nowhere", "", "FDE_RAY_TOKEN"),
        ("unix:/nowhere", "t", "does not answer"),
        ("http://127.0.0.1:1", "t", "does not answer"),
        ("127.0.0.1:1", "t", "must begin with"),
        ("http://[", "t", ""),
    ],
)
def test_a_control_plane_that_cannot_be_asked(
    cli: CommandLine,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    server: str,
    token: str,
    reason: str,
) -> None:
    monkeypatch.setenv("FDE_RAY_TOKEN", token)
    told = cli("remote", "status", "--server", server)
    assert told.code in (1, 2)
    assert reason in told.err
    assert "internal error" not in told.err


@pytest.mark.parametrize(
    "line",
    [
        ("run-plane", "--listen", "nowhere"),
        ("run-plane", "--grace", "soon"),
        ("ingest",),
        ("control-plane", "--admin", "x:y"),
        ("control-plane", "--tls-cert", "/nowhere"),
        ("control-plane", "--tls-cert", "/nowhere", "--tls-key", "/nowhere"),
    ],
)
def test_a_plane_that_cannot_be_served(cli: CommandLine, home: Path, line: tuple[str, ...]) -> None:
    told = cli("serve", *line)
    assert (told.code, told.out) == (2, "")
