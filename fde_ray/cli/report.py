"""`fde-ray report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .setting import HtmlOption, JsonOption, ProfileOption

if TYPE_CHECKING:
    from fde_ray.analysis.summary import SweepSummary
    from fde_ray.engine.runtime import Runtime
    from fde_ray.model.profile import Profile


def report(
    sweep: Annotated[str, typer.Argument(metavar="SWEEP", help="Name of a submitted sweep.")],
    profile: ProfileOption = None,
    json_: JsonOption = False,
    html: HtmlOption = None,
    complete_cases: Annotated[
        bool, typer.Option("--complete-cases", help="Leave cases with a missing score out.")
    ] = False,
) -> None:
    """Show the leaderboard of a sweep and write its HTML page.

    Example: fde-ray report demo-1a2b3c4d --html report.html
    """
    from fde_ray.analysis.terminal import leaderboard_text

    from .output import columns, emit_json, note, say
    from .setting import profile_from, wait_for

    summary, page = wait_for(_reported(profile_from(profile), sweep, html, complete_cases))
    if json_:
        emit_json(summary)
    else:
        say(leaderboard_text(summary, width=columns()))
    note(f"report: {page}")


async def written(
    runtime: Runtime, sweep: str, html: Path | None, *, complete_cases: bool = False
) -> tuple[SweepSummary, Path]:
    """Make the summary of a sweep and write its page."""
    from fde_ray.analysis.cost_page import short_tables
    from fde_ray.analysis.html import report_html
    from fde_ray.analysis.summary import summary
    from fde_ray.engine.findings import findings_of
    from fde_ray.model.clock import utc
    from fde_ray.protocol.deviations import DEVIATIONS

    from .costing import spending_of

    found = await findings_of(runtime, sweep)
    costs = short_tables(await spending_of(runtime, sweep))
    made = summary(
        found.results,
        found.planned,
        complete_cases=complete_cases,
        ledger_nanousd=costs[0].total.llm.nanousd,
    )
    page = report_html(
        found.results,
        found.planned,
        of=made,
        deviation_texts={d.key: d.choice for d in DEVIATIONS},
        costs=costs,
        generated_at=utc(runtime.clock.now()),
    )
    path = html or runtime.home.reports / f"{sweep}.html"
    write_file(path, page.encode())
    return made, path


def place_for(path: Path) -> Path:
    """Return `path` when a file can be written there; UserError tells why not."""
    import os

    from fde_ray.model.errors import UserError

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    if path.is_dir():
        raise UserError(f"cannot write {path}: it is a folder")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"cannot write {path}: permission denied")
    return path


def write_file(path: Path, content: bytes) -> bool:
    """Write a whole file or nothing; return False when it held just that before.

    What is no file (/dev/null, a pipe) is written to and stays what it is; a link's target is
    written.
    """
    from fde_ray.model.errors import UserError

    place_for(path)
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return True
        path = path.resolve()
        draft = path.with_name(f".{path.name}.part")
        if path.is_file() and path.read_bytes() == content:
            return False
        draft.write_bytes(content)
        draft.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    return True


async def _reported(
    profile: Profile, sweep: str, html: Path | None, complete_cases: bool
) -> tuple[SweepSummary, Path]:
    from .setting import system

    async with system(profile) as runtime:
        return await written(runtime, sweep, html, complete_cases=complete_cases)
