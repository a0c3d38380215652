"""`fde-ray case …`: list, show, check and push case packages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .setting import JsonOption, ProfileOption

if TYPE_CHECKING:
    from fde_ray.cases.admission import RuleResult
    from fde_ray.model.profile import Profile

app = typer.Typer(
    no_args_is_help=True,
    help="List, show, check and push case packages.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def ls(profile: ProfileOption = None, json_: JsonOption = False) -> None:
    """List the case packages.

    Example: fde-ray case ls
    """
    from fde_ray.engine.runtime import cases_of

    from .output import emit_json, note, table
    from .setting import profile_from

    cases = cases_of(profile_from(profile))
    rows = [
        {
            "case": case.case_id,
            "title": case.meta.title,
            "family": case.meta.family,
            "subtype": case.meta.subtype,
            "direction": case.meta.direction,
            "points": len(case.points),
            "version": case.meta.version,
        }
        for case in cases.values()
    ]
    if json_:
        emit_json(rows)
    elif rows:
        table(list(rows[0]), [[str(value) for value in row.values()] for row in rows])
    else:
        note("no case package there; `cases:` of the profile names the folder")


@app.command()
def show(
    case: Annotated[str, typer.Argument(metavar="CASE", help="Case id such as 017.")],
    profile: ProfileOption = None,
    sealed: Annotated[
        bool, typer.Option("--sealed", help="Also show the hidden requirements.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Show a case: the request, its data, its hashes; the hidden part only on demand.

    Examples:

      fde-ray case show 017

      fde-ray case show 017 --sealed --json
    """
    from fde_ray.cases.staging import data_files
    from fde_ray.engine.runtime import cases_of

    from .output import emit_json, safe, say
    from .setting import profile_from

    found = cases_of(profile_from(profile))[case]
    shown: dict[str, Any] = {
        "case": found.case_id,
        "title": found.meta.title,
        "version": found.meta.version,
        "data": list(data_files(found)),
        "visible_hash": found.visible_hash,
        "scoring_hash": found.scoring_hash,
        "instruction": found.instruction,
    }
    if sealed:
        shown["points"] = [point.jsonable() for point in found.points]
    if json_:
        emit_json(shown)
        return
    points, instruction = shown.pop("points", ()), shown.pop("instruction")
    for key, value in shown.items():
        say(safe(f"{key}: {', '.join(value) if isinstance(value, list) else value}"))
    say("\n" + safe(instruction, multiline=True).strip())
    for point in points:
        say(f"\n{point['key']}: " + safe(point["requirement"]))
        say("  the customer says: " + safe(point["answer"]))


@app.command()
def check(
    case: Annotated[
        str, typer.Argument(metavar="CASE", help="Case id, or the folder of a package.")
    ],
    rule: Annotated[
        list[str] | None,
        typer.Option(
            "--rule", metavar="RULE", help="Only this rule, such as A6.", show_default=False
        ),
    ] = None,
    profile: ProfileOption = None,
    json_: JsonOption = False,
) -> None:
    """Check whether a case has earned its place (rules A1 to A22).

    Examples:

      fde-ray case check 017

      fde-ray case check path/to/042_my_case --rule A2 --rule A6
    """
    from fde_ray.cases.admission import RULES, check_case
    from fde_ray.cases.package import load_case
    from fde_ray.engine.runtime import cases_of
    from fde_ray.llm.offline_matching import covers
    from fde_ray.model.errors import UserError

    from .output import emit_json, note
    from .setting import profile_from

    unknown = [one for one in rule or () if one not in RULES]
    if unknown:
        raise UserError(f"unknown rule {unknown[0]!r}; known: {RULES[0]} to {RULES[-1]}")
    folder = Path(case)
    found = load_case(folder) if folder.is_dir() else cases_of(profile_from(profile))[case]
    results = check_case(
        found,
        rules=rule,
        covers=lambda question, point: covers(question, point.requirement, point.triggers),
        progress=None if json_ else _print_rule,
    )
    if json_:
        emit_json([result.jsonable() for result in results])
    failed = [result.rule for result in results if result.ok is False]
    if failed:
        note(f"case {found.case_id} fails {', '.join(failed)}")
        raise typer.Exit(1)


@app.command()
def push(
    case: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CASE]...", help="Case ids; none = all.", show_default=False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be stored, and store nothing.")
    ] = False,
    profile: ProfileOption = None,
    json_: JsonOption = False,
) -> None:
    """Store the archives of cases: visible, extract and sealed, each below a prefix of its own.

    Sweeps do this by themselves; a cluster whose processes may not write these prefixes needs it.
    What is there already is left alone: a key is the hash of its content.

    Examples:

      fde-ray case push --profile cluster.yaml

      fde-ray case push 017 042 --dry-run
    """
    from .output import emit_json, note, table
    from .setting import profile_from, wait_for

    chosen = profile_from(profile)
    rows = wait_for(_pushed(chosen, case or (), dry_run=dry_run), go_on="fde-ray case push")
    if json_:
        emit_json(rows)
        return
    table(list(rows[0]), [[str(value) for value in row.values()] for row in rows])
    stored = sum(row["was"] == "stored" for row in rows)
    note("nothing was stored: a dry run" if dry_run else f"{stored} of {len(rows)} archives stored")


async def _pushed(profile: Profile, names: Sequence[str], *, dry_run: bool) -> list[dict[str, Any]]:
    import asyncio
    import os

    from fde_ray.engine.home import home_of
    from fde_ray.engine.material import packed_case
    from fde_ray.engine.runtime import cases_of
    from fde_ray.model.errors import UserError
    from fde_ray.store.objects.opening import opened_objects

    from .progress import ProgressLine

    cases = cases_of(profile)
    chosen = [cases[name] for name in names] or list(cases.values())
    if not chosen:
        raise UserError("no case package there; `cases:` of the profile names the folder")
    folder = home_of(profile, os.environ).objects
    rows = []
    async with opened_objects(profile.objects, folder, os.environ, probed=not dry_run) as objects:
        with ProgressLine() as line:
            for done, found in enumerate(chosen, start=1):
                for packed in await asyncio.to_thread(packed_case, found, profile.tenant):
                    is_new = not await objects.exists(packed.key)
                    if is_new and not dry_run:
                        is_new = await objects.create(packed.key, packed.archive.content)
                    news = "missing" if dry_run else "stored"
                    rows.append(
                        {
                            "case": found.case_id,
                            "kind": packed.kind,
                            "bytes": len(packed.archive.content),
                            "was": news if is_new else "there",
                            "key": packed.key,
                        }
                    )
                line.tell(f"{done}/{len(chosen)} cases")
    return rows


def _print_rule(result: RuleResult) -> None:
    from .output import safe, say

    mark = {True: "ok", False: "FAILS", None: "-"}[result.ok]
    say(safe(f"{result.rule:<4} {mark:<6} {result.detail}"))
