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
SweepArgument = Annotated[str, typer.Argument(help="Name of a submitted sweep.")]


@app.command()
def ls(sweep: SweepArgument, profile: ProfileOption = None, json_: JsonOption = False) -> None:
    """List every planned run of a sweep with its score.

    Example: fde-ray results ls demo-1a2b3c4d
    """
    from .output import emit_json, table
    from .setting import profile_from, wait_for

    rows = wait_for(_rows(profile_from(profile), sweep))
    if json_:
        emit_json(rows)
        return
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


@app.command()
def pull(
    sweep: SweepArgument,
    to: Annotated[Path, typer.Option("--to", help="Folder to write into.")] = Path("results"),
    profile: ProfileOption = None,
    json_: JsonOption = False,
) -> None:
    """Copy a sweep's results into a folder; what is there already is not copied again.

    Writes <to>/<sweep>/{summary.json, runs.csv, runs.parquet, report.html, runs/<run>.json}.

    Example: fde-ray results pull demo-1a2b3c4d --to results
    """
    from .output import emit_json, note
    from .setting import profile_from, wait_for

    count, skipped, folder = wait_for(_pulled(profile_from(profile), sweep, to))
    if json_:
        emit_json({"folder": str(folder), "written": count, "unchanged": skipped})
    else:
        note(f"{count} results written, {skipped} unchanged, in {folder}")


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


async def _pulled(profile: Profile, sweep: str, to: Path) -> tuple[int, int, Path]:
    from fde_ray.analysis.summary import summary, summary_json
    from fde_ray.analysis.tables import csv_text, run_rows
    from fde_ray.engine.findings import findings_of

    from .report import written
    from .setting import system

    async with system(profile) as runtime:
        found = await findings_of(runtime, sweep)
        folder = to / sweep
        rows = run_rows(found.results, found.planned)
        counts = [0, 0]
        for result in found.results:
            new = _kept(folder / "runs" / f"{result.run_id}.json", result.model_dump_json(indent=1))
            counts[0 if new else 1] += 1
        _kept(folder / "summary.json", summary_json(summary(found.results, found.planned)))
        _kept(folder / "runs.csv", csv_text(rows))
        _write_parquet(folder / "runs.parquet", rows)
        await written(runtime, sweep, folder / "report.html")
        return counts[0], counts[1], folder


async def _verified(profile: Profile, sweep: str) -> tuple[int, list[Finding]]:
    from fde_ray.store.results import verify as verified

    from .setting import system

    async with system(profile) as runtime:
        await runtime.store.sweep(sweep, tenant=runtime.tenant)
        return await verified(runtime.objects, runtime.tenant, sweep)


def _kept(path: Path, text: str) -> bool:
    """Write `text` unless the file holds it; return whether it was written."""
    from fde_ray.model.errors import UserError

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            return False
        draft = path.with_name(f".{path.name}.part")
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    return True


def _write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows), path)


def _cell(value: Any) -> str:
    return "-" if value is None else str(value)
