"""`fde-ray cost`: what a sweep's model calls and sandboxes cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from .setting import JsonOption, ProfileOption

if TYPE_CHECKING:
    from fde_ray.analysis.spending import By, Spending, SpendSummary
    from fde_ray.model.ledgers import LedgerLine
    from fde_ray.model.profile import Profile


def cost(
    sweep: Annotated[str, typer.Argument(metavar="SWEEP", help="Name of a submitted sweep.")],
    by: Annotated[
        str,
        typer.Option(
            "--by", metavar="WHAT", help="run, system, case, role, model or attempt: a line each."
        ),
    ] = "role",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="Write ledger.jsonl, cost_by_run.csv, compute_by_run.csv and cost_summary.json.",
            show_default=False,
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Write the cost page (HTML).", show_default=False
        ),
    ] = None,
    profile: ProfileOption = None,
    json_: JsonOption = False,
) -> None:
    """Show what a sweep cost: model calls and compute apart. Unknown is never shown as 0.

    "lost" is what attempts cost that count for nothing: those that our own troubles or a provider's
    ended. Compute needs a rate for this machine in the profile (`compute: {host: …}`).

    Example: fde-ray cost demo-1a2b3c4d

    Example: fde-ray cost my-sweep --by system

    Example: fde-ray cost my-sweep --by run --json

    Example: fde-ray cost my-sweep --out costs --html costs/cost.html
    """
    from fde_ray.analysis.spending import summarised

    from .output import emit_json, note
    from .setting import profile_from, wait_for

    kind = _by(by)
    read = wait_for(_read(profile_from(profile), sweep, with_ledger=out is not None))
    summary = summarised(read.spending, kind)
    if out is not None:
        _write_files(out, read, summary)
    if html is not None:
        _write_page(html, read.spending)
    if json_:
        emit_json(summary)
    else:
        _show(summary)
    for warning in summary.warnings:
        note(warning)
    for reason in summary.total.compute.unknown_reasons:
        note(f"compute is unknown: {reason}")


class _Read(NamedTuple):
    spending: Spending
    ledger: list[LedgerLine]


def _by(text: str) -> By:
    from fde_ray.analysis.spending import BYS
    from fde_ray.model.errors import UserError

    for known in BYS:
        if known == text:
            return known
    raise UserError(f"--by takes one of {', '.join(BYS)}, not {text[:40]!r}")


async def _read(profile: Profile, sweep: str, *, with_ledger: bool) -> _Read:
    from .costing import ledger_of, spending_of
    from .setting import system

    async with system(profile) as runtime:
        found = await spending_of(runtime, sweep)
        ledger = [line async for line in ledger_of(runtime, sweep)] if with_ledger else []
        return _Read(found, ledger)


def _show(summary: SpendSummary) -> None:
    from fde_ray.analysis.spending_display import cost_table, unpriced_text

    from .output import note, program, say, table

    if not summary.total.llm.calls and not summary.total.compute.sessions:
        note(f"no model call yet; see: {program()} sweep status {summary.sweep}")
        return
    shown = cost_table(summary)
    table(list(shown.header), [list(row) for row in (*shown.rows, shown.total) if row])
    for line in unpriced_text(summary):
        say(line)


def _write_files(folder: Path, read: _Read, summary: SpendSummary) -> None:
    from fde_ray.analysis.spending_files import compute_by_run_csv, cost_by_run_csv, summary_json
    from fde_ray.metering.ledger_files import ledger_bytes

    from .output import note
    from .report import write_file

    files = {
        "ledger.jsonl": ledger_bytes(read.ledger),
        "cost_by_run.csv": cost_by_run_csv(read.spending).encode(),
        "compute_by_run.csv": compute_by_run_csv(read.spending).encode(),
        "cost_summary.json": summary_json(summary).encode(),
    }
    for name, content in files.items():
        write_file(folder / name, content)
    note(f"{', '.join(files)}: {folder}")


def _write_page(path: Path, found: Spending) -> None:
    from fde_ray.analysis.cost_page import cost_html

    from .output import note
    from .report import write_file

    write_file(path, cost_html(found).encode())
    note(f"cost page: {path}")
