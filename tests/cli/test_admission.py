"""What a person sees and sets of admission: reasons, breakers, priority and budget."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fde_ray.model.ids import CONTROLLER_SHARD
from fde_ray.store.runs import RunStore
from fde_ray.store.runs.breakers import BreakerRow, sweep_key
from tests.cli.conftest import CommandLine
from tests.cli.homes import SWEEP, WAITING


def with_breaker(home: Path) -> None:
    async def main() -> None:
        async with RunStore(home / "runs.sqlite") as store:
            lease = await store.take_lease(shards=[CONTROLLER_SHARD])
            key = sweep_key("local", SWEEP)
            row = BreakerRow(
                "sweep", key, "open", "shim_lost", "11 of the last 20", 1.0, None, 1, 0
            )
            await store.set_breakers([row], lease.epoch)
            await store.release_lease(lease)

    asyncio.run(main())


def test_explain_tells_the_reason_as_data(home: Path, cli: CommandLine) -> None:
    told = cli("run", "explain", WAITING, "--json").json
    assert told["phase"] == "queued"
    assert told["wait"]["reason"] == "capacity"
    assert "no supervisor holds its shard" in told["wait"]["detail"]


def test_paused_sweep_is_the_reason_of_its_runs(home: Path, cli: CommandLine) -> None:
    cli("sweep", "pause", SWEEP)
    told = cli("run", "explain", WAITING, "--json").json
    assert told["wait"] == {"reason": "paused", "detail": "its sweep is paused"}


def test_breaker_is_told_by_status_and_explain(home: Path, cli: CommandLine) -> None:
    with_breaker(home)
    (row,) = cli("sweep", "status", SWEEP, "--json").json
    (notice,) = row["notices"]
    assert "shim_lost, 11 of the last 20" in notice
    assert notice in cli("sweep", "status").err
    told = cli("run", "explain", WAITING)
    assert "It waits (breaker)" in told.out
    assert f"fde-ray sweep resume {SWEEP}" in told.out


def test_priority_and_budget_are_set_apart(home: Path, cli: CommandLine) -> None:
    assert cli("sweep", "set", SWEEP, "--budget-usd", "0.001").code == 0
    assert cli("sweep", "set", SWEEP, "--priority", "3", "--owner", "ann").code == 0
    told = cli("run", "explain", WAITING, "--json").json
    assert told["wait"]["reason"] == "budget"
    assert cli("sweep", "set", SWEEP, "--budget-usd", "0").code == 0
    assert cli("run", "explain", WAITING, "--json").json["wait"]["reason"] == "capacity"


def test_policy_of_an_unknown_sweep_is_refused_in_a_sentence(home: Path, cli: CommandLine) -> None:
    ended = cli("sweep", "set", "nothing", "--priority", "1")
    assert ended.code == 2
    assert "there is no sweep named 'nothing'" in ended.err
    assert "say what to set" in cli("sweep", "set", SWEEP).err
    for owner in ("", "a\nb"):
        assert cli("sweep", "set", SWEEP, "--owner", owner).code == 2
    assert cli("sweep", "set", SWEEP, "--priority", "11").code == 2


@pytest.mark.parametrize("amount", ["nan", "inf", "-inf", "-1", "1e-12", "1e10", "much"])
def test_a_budget_that_is_no_amount_is_refused_with_the_name_of_the_option(
    home: Path, cli: CommandLine, amount: str
) -> None:
    ended = cli("sweep", "set", SWEEP, "--budget-usd", amount)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert "'--budget-usd'" in ended.err
    assert amount in ended.err


def test_what_steers_a_sweep_says_as_json_what_was_done_and_what_follows(
    home: Path, cli: CommandLine
) -> None:
    done = cli("sweep", "set", SWEEP, "--priority", "2", "--json").json
    assert (done["set"], done["state"]) == ({"priority": 2}, "running")
    for action, state in (("pause", "paused"), ("cancel", "cancelled")):
        done = cli("sweep", action, SWEEP, "--json").json
        assert (done["done"], done["state"], done["at_work"]) == (action, state, False)
        assert done["next"] == f"fde-ray sweep resume {SWEEP}"
    assert cli("store", "restored", "--json").json["incarnation"] == 2
