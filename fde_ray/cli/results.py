"""`fde-ray results …`: list, pull and verify results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .setting import JsonOption, ProfileOption

if TYPE_CHECKING:
    from fde_ray.model.profile import Profile
    from fde_ray.store.results import Finding

app = typer.Typer(
    no_args_is_help=True,
    help="List, pull and verify the results of a sweep.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
SweepArgument = Annotated[str, typer.Argument(metavar="SWEEP", help="Name of a submitted sweep.")]


@app.command()
def ls(sweep: SweepArgument, profile: ProfileOption = None, json_: JsonOption = False) -> None:
    """List every planned run of a sweep with its score.

    Example: fde-ray results ls demo-1a2b3c4d
    """
    from fde_ray.analysis.display import warnings

    from .output import emit_json, note, program, say, table
    from .setting import profile_from, wait_for

    rows = wait_for(_rows(profile_from(profile), sweep))
    if json_:
        emit_json(rows)
        return
    roles = dict.fromkeys(
        role for row in rows for role in (row["offline"] or "").split(",") if role
    )
    for warning in warnings(sorted(roles), unsafe=any(row["unsafe_sandbox"] for row in rows)):
        say(warning)
    header = ["run", "case", "condition", "system", "repeat", "status", "score", "valid", "recall"]
    table(
        header,
        [
            [
                row["run_id"][:12],
                row["case_id"],
                row["condition"],
                row["system"],
                str(row["repeat"]),
                row["status"],
                *(_cell(row[name]) for name in ("score", "valid", "recall")),
            ]
            for row in rows
        ],
    )
    if any(row["status"] == "result_missing" for row in rows):
        note(f"results are missing or spoilt; see: {program()} results verify {sweep}")
    aside = next((row["run_id"] for row in rows if row["status"] == "quarantined"), None)
    if aside is not None:
        note(f"runs were set aside; why: {program()} run explain {aside[:12]}")
        note(f"try them again: {program()} sweep resume {sweep}")
    note(f"next: {program()} run show RUN, where the first digits are enough")


@app.command()
def pull(
    sweep: SweepArgument,
    to: Annotated[
        Path, typer.Option("--to", metavar="FOLDER", help="Folder to write into.")
    ] = Path("results"),
    profile: ProfileOption = None,
    json_: JsonOption = False,
) -> None:
    """Copy a sweep's results into a folder; what is there already is not copied again.

    Writes <to>/<sweep>/{summary.json, runs.csv, runs.parquet, report.html, runs/<run>.json}.
    A result that is missing or spoilt ends it with exit code 1, after all others were copied.

    Example: fde-ray results pull demo-1a2b3c4d --to results
    """
    from .output import emit_json, note, program
    from .setting import profile_from, wait_for

    pulled = wait_for(_pulled(profile_from(profile), sweep, to))
    if json_:
        emit_json(pulled)
    else:
        counts = f"{pulled['written']} results written, {pulled['unchanged']} unchanged"
        note(f"{counts}, in {pulled['folder']}")
    if pulled["missing"]:
        note(f"{pulled['missing']} are missing or spoilt; see: {program()} results verify {sweep}")
        raise typer.Exit(1)


@app.command()
def verify(sweep: SweepArgument, profile: ProfileOption = None, json_: JsonOption = False) -> None:
    """Check that every result object is there and has the hash that its mark names.

    Example: fde-ray results verify demo-1a2b3c4d
    """
    from .output import emit_json, note, safe, say
    from .setting import profile_from, wait_for

    sound, findings = wait_for(_verified(profile_from(profile), sweep))
    if json_:
        emit_json({"sound": sound, "findings": [f.jsonable() for f in findings]})
    else:
        for finding in findings:
            say(safe(f"{finding.kind}  {finding.key}  {finding.reason}"))
        note(f"{sound} results are sound, {len(findings)} are not")
    if findings:
        raise typer.Exit(1)


async def _rows(profile: Profile, sweep: str) -> list[dict[str, Any]]:
    from fde_ray.analysis.tables import run_rows
    from fde_ray.engine.findings import findings_of

    from .setting import system

    async with system(profile) as runtime:
        found = await findings_of(runtime, sweep)
        return [dict(row) for row in run_rows(found.results, found.planned)]


async def _pulled(profile: Profile, sweep: str, to: Path) -> dict[str, Any]:
    from fde_ray.analysis.summary import summary, summary_json
    from fde_ray.analysis.tables import csv_text, run_rows
    from fde_ray.engine.findings import findings_of

    from .report import write_file, written
    from .setting import system

    async with system(profile) as runtime:
        found = await findings_of(runtime, sweep)
        folder = to / sweep
        rows = run_rows(found.results, found.planned)
        counts = [0, 0]
        for result in found.results:
            path = folder / "runs" / f"{result.run_id}.json"
            new = write_file(path, result.model_dump_json(indent=1).encode())
            counts[0 if new else 1] += 1
        made = summary_json(summary(found.results, found.planned))
        write_file(folder / "summary.json", made.encode())
        write_file(folder / "runs.csv", csv_text(rows).encode())
        write_file(folder / "runs.parquet", _parquet(rows))
        await written(runtime, sweep, folder / "report.html")
        return {
            "folder": str(folder),
            "written": counts[0],
            "unchanged": counts[1],
            "missing": sum(row["status"] == "result_missing" for row in rows),
        }


async def _verified(profile: Profile, sweep: str) -> tuple[int, list[Finding]]:
    from fde_ray.store.results import verify as verified

    from .setting import system

    async with system(profile) as runtime:
        await runtime.store.sweep(sweep, tenant=runtime.tenant)
        return await verified(runtime.objects, runtime.tenant, sweep)


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    page = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), page)
    return page.getvalue()


def _cell(value: bool | float | None) -> str:
    """Return a value for people; `--json` and `pull` have every digit."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else f"{value:.4f}"
