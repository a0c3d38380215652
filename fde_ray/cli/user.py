"""`fde-ray user …` and `fde-ray audit`: who may ask the control-plane, and what they changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .setting import JsonOption, ProfileOption

if TYPE_CHECKING:
    from fde_ray.model.profile import Profile
    from fde_ray.store.runs.people import AuditRow, UserRow

app = typer.Typer(
    no_args_is_help=True,
    help="Let people ask the control-plane: add, list, revoke.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="a-z, 0-9, dot, dash, _.")]


@app.command()
def add(
    name: NameArgument,
    role: Annotated[
        str,
        typer.Option(
            metavar="researcher|admin",
            help="A researcher changes only the sweeps that they submitted.",
        ),
    ] = "researcher",
    profile: ProfileOption = None,
    json_: JsonOption = False,
) -> None:
    """Let a user in, and print the token. It is shown this once; only its hash is kept.

    Example: fde-ray user add ada
    """
    from fde_ray.gateway.people import checked_name, new_token, token_hash
    from fde_ray.model.errors import UserError

    from .output import emit_json, note, say
    from .setting import profile_from, system, wait_for

    if role not in ("researcher", "admin"):
        raise UserError(f"there is no role {role!r}; --role takes researcher or admin")
    token = new_token()

    async def change() -> None:
        async with system(profile_from(profile)) as runtime:
            await runtime.store.add_user(
                checked_name(name),
                role,  # type: ignore[arg-type]
                token_hash(token),
                tenant=runtime.tenant,
            )

    wait_for(change())
    if json_:
        emit_json({"name": name, "role": role, "token": token})
        return
    say(token)
    note(f"user {name}, {role}; the token is shown this once. Use it as FDE_RAY_TOKEN")


@app.command()
def ls(profile: ProfileOption = None, json_: JsonOption = False) -> None:
    """List the users.

    Example: fde-ray user ls
    """
    from fde_ray.model.clock import utc

    from .output import emit_json, note, program, table
    from .setting import profile_from, wait_for

    rows = [
        {
            "name": row.name,
            "role": row.role,
            "added": utc(row.created_at),
            "revoked": None if row.revoked_at is None else utc(row.revoked_at),
        }
        for row in wait_for(_users(profile_from(profile)))
    ]
    if json_:
        emit_json(rows)
        return
    if not rows:
        note(f"no user yet; add one with: {program()} user add NAME")
        return
    table(list(rows[0]), [[str(cell or "-") for cell in row.values()] for row in rows])


@app.command()
def revoke(name: NameArgument, profile: ProfileOption = None) -> None:
    """End a user's token at once. What they submitted goes on.

    Example: fde-ray user revoke ada
    """
    from .output import note
    from .setting import profile_from, system, wait_for

    async def change() -> None:
        async with system(profile_from(profile)) as runtime:
            await runtime.store.revoke_user(name, tenant=runtime.tenant)

    wait_for(change())
    note(f"the token of {name} is good no more")


def audit(
    last: Annotated[
        int, typer.Option("--last", min=1, max=100_000, help="How many, the latest first.")
    ] = 100,
    profile: ProfileOption = None,
    json_: JsonOption = False,
) -> None:
    """Show who asked the control-plane to change what, and who was let in.

    Example: fde-ray audit --last 20
    """
    from .output import emit_json, note, table
    from .setting import profile_from, wait_for

    rows = [_entry(row) for row in wait_for(_audit(profile_from(profile), last))]
    if json_:
        emit_json(rows)
        return
    if not rows:
        note("nobody was let in yet, and nobody has asked the control-plane to change anything")
        return
    table(list(rows[0]), [[str(cell) for cell in row.values()] for row in rows])


def _entry(row: AuditRow) -> dict[str, Any]:
    from fde_ray.model.clock import utc

    return {
        "at": utc(row.at),
        "who": row.actor,
        "action": row.action,
        "target": row.target,
        "outcome": row.outcome,
        "detail": row.detail,
    }


async def _users(profile: Profile) -> list[UserRow]:
    from .setting import system

    async with system(profile) as runtime:
        return await runtime.store.users(tenant=runtime.tenant)


async def _audit(profile: Profile, last: int) -> list[AuditRow]:
    from .setting import system

    async with system(profile) as runtime:
        return await runtime.store.audit(last, tenant=runtime.tenant)
