"""`fde-ray sweep pause|cancel|set`: what a stored sweep may do from now on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .setting import JsonOption, NameArgument, ProfileOption

if TYPE_CHECKING:
    from fde_ray.model.profile import Profile

Action = Literal["pause", "cancel"]
NANOUSD = 1_000_000_000
MOST_USD = 1e9


def pause(name: NameArgument, profile: ProfileOption = None, json_: JsonOption = False) -> None:
    """Admit no further run; live runs finish.

    Example: fde-ray sweep pause my-sweep
    """
    _steer("pause", name, profile, json_=json_)


def cancel(name: NameArgument, profile: ProfileOption = None, json_: JsonOption = False) -> None:
    """Stop the sweep's runs that no other sweep wants. Finished results stay.

    Example: fde-ray sweep cancel my-sweep
    """
    _steer("cancel", name, profile, json_=json_)


def dollars(text: str) -> float:
    """Return an amount that a budget may have."""
    import math

    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MOST_USD:
        raise typer.BadParameter(f"{text!r} is no amount between 0 and {MOST_USD:,.0f} dollars")
    if 0 < value < 1 / NANOUSD:
        raise typer.BadParameter(f"{text} is less than the least amount, {1 / NANOUSD:g} dollars")
    return value


def set_policy(
    name: NameArgument,
    priority: Annotated[
        int | None,
        typer.Option(
            min=-10, max=10, help="Its share among the owner's sweeps: each step doubles it."
        ),
    ] = None,
    budget_usd: Annotated[
        float | None,
        typer.Option(
            parser=dollars,
            metavar="USD",
            help="What it may cost before no run starts; 0 = no limit.",
        ),
    ] = None,
    owner: Annotated[
        str | None, typer.Option(metavar="USER", help="Whose share and quota it counts for.")
    ] = None,
    profile: ProfileOption = None,
    json_: JsonOption = False,
) -> None:
    """Say how a sweep stands among others: priority, budget, owner. The rest stays as it is.

    Example: fde-ray sweep set my-sweep --priority 2 --budget-usd 50
    """
    from fde_ray.model.errors import UserError

    from .output import emit_json, note, program
    from .setting import profile_from, wait_for

    given = {"priority": priority, "budget_usd": budget_usd, "owner": owner}
    changes = {key: value for key, value in given.items() if value is not None}
    if not changes:
        raise UserError("say what to set: --priority, --budget-usd or --owner")
    if owner is not None and not (owner.strip() and owner.isprintable()):
        raise UserError("--owner: write a name of printable characters")
    state = wait_for(_changed(profile_from(profile), name, priority, budget_usd, owner))
    if json_:
        following = f"{program()} sweep status {name}"
        emit_json({"sweep": name, "set": changes, "state": state, "next": following})
    else:
        note(f"sweep {name}: noted; what has started goes on")


async def _changed(
    profile: Profile, name: str, priority: int | None, budget_usd: float | None, owner: str | None
) -> str:
    """Set what is not None; return the state of the sweep."""
    from .setting import system

    async with system(profile) as runtime:
        await runtime.store.set_sweep_policy(
            name,
            tenant=runtime.tenant,
            owner=owner,
            priority=priority,
            budget_nanousd=None if budget_usd is None else round(budget_usd * NANOUSD),
        )
        return (await runtime.store.sweep(name, tenant=runtime.tenant)).state


def _steer(action: Action, name: str, path: Path | None, *, json_: bool) -> None:
    from .output import emit_json, note
    from .running import resuming
    from .setting import profile_from, wait_for

    told = wait_for(_steered(action, profile_from(path), name))
    following = None if told["state"] == "finished" else resuming(name, path)
    if json_:
        emit_json({**told, "next": following})
        return
    if following is None:
        note(f"sweep {name} has ended; there is nothing to {action}")
        return
    acts = (
        "the running fde-ray acts on it within seconds"
        if told["at_work"]
        else "no fde-ray is at work here; the next one acts on it"
    )
    note(f"sweep {name}: {action} noted; {acts}")
    note(f"next: {following} goes on with it")


async def _steered(action: Action, profile: Profile, name: str) -> dict[str, Any]:
    """Pause or cancel a sweep; return what was done, its state, and whether anyone is at work."""
    from fde_ray.engine.controller import Controller
    from fde_ray.model.errors import UserError

    from .setting import system

    async with system(profile) as runtime:
        controller = Controller(runtime)
        status = await controller.status(name)
        at_work = await runtime.store.lease_holder() is not None
        if status.is_finished:
            return {"sweep": name, "done": None, "state": "finished", "at_work": at_work}
        if action == "pause" and status.sweep.state == "cancelled":
            raise UserError(
                f"sweep {name} is cancelled; `fde-ray sweep resume {name}` goes on with it"
            )
        await (controller.pause(name) if action == "pause" else controller.cancel(name))
        state = (await controller.status(name)).sweep.state
        return {"sweep": name, "done": action, "state": state, "at_work": at_work}
