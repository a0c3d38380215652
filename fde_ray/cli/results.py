"""`fde-ray results …`: list, pull, verify and compact results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .bucket import EndpointOption, FromOption, Source, TenantOption, sweep_named
from .setting import JsonOption, ProfileOption

app = typer.Typer(
    no_args_is_help=True,
    help="List, pull, verify and compact the results of a sweep. All but `ls` need the object "
    "store alone, no database.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
SweepArgument = Annotated[str, typer.Argument(metavar="SWEEP", help="Name of a submitted sweep.")]


@app.command()
def ls(
    sweep: Annotated[
        str | None,
        typer.Argument(metavar="[SWEEP]", help="Name of a sweep; not needed with --from."),
    ] = None,
    from_: FromOption = None,
    endpoint_url: EndpointOption = None,
    tenant: TenantOption = None,
    profile: ProfileOption = None,
    json_: JsonOption = False,
) -> None:
    """List every planned run of a sweep with its score.

    With --from, what the bucket alone tells: runs that have not ended are `pending`; without a
    sweep, the sweeps that are there.

    Examples:

      fde-ray results ls demo-1a2b3c4d

      fde-ray results ls demo-1a2b3c4d --from s3://bench/lab
    """
    from fde_ray.analysis.display import warnings
    from fde_ray.model.errors import UserError

    from .listing import bucket_rows, bucket_sweeps, store_rows
    from .output import emit_json, say
    from .setting import profile_from, wait_for

    source = Source(profile, from_, endpoint_url, tenant)
    if sweep is None:
        if from_ is None:
            raise UserError("name a sweep; `fde-ray sweep status` lists them")
        _show_sweeps(wait_for(bucket_sweeps(source)), json_=json_)
        return
    if from_ is None:
        rows = wait_for(store_rows(profile_from(profile), sweep))
    else:
        rows = wait_for(bucket_rows(source, sweep))
    if json_:
        emit_json(rows)
        return
    roles = dict.fromkeys(
        role for row in rows for role in (row["offline"] or "").split(",") if role
    )
    for warning in warnings(sorted(roles), unsafe=any(row["unsafe_sandbox"] for row in rows)):
        say(warning)
    _show_rows(rows)
    _hint(rows, sweep, source)


@app.command()
def pull(
    sweep: SweepArgument,
    to: Annotated[
        Path, typer.Option("--to", metavar="FOLDER", help="Folder to write into.")
    ] = Path("results"),
    from_: FromOption = None,
    endpoint_url: EndpointOption = None,
    tenant: TenantOption = None,
    only: Annotated[
        str,
        typer.Option(
            "--only",
            metavar="KINDS",
            help="What to copy, with commas: summaries, dialogues, judgings, calls, events, "
            "extractions, workspaces, or all. Summaries always come, first.",
        ),
    ] = "summaries",
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="FIELD=VALUE,…",
            help="Only runs that fit: run, case, condition, system, repeat, phase, grade; the same "
            "field twice = either value; * and ? stand for any text.",
            show_default=False,
        ),
    ] = None,
    parallel: Annotated[
        int, typer.Option("--parallel", min=1, max=64, help="Objects under way at once.")
    ] = 16,
    profile: ProfileOption = None,
    json_: JsonOption = False,
) -> None:
    """Copy a sweep's results into a folder; what is there already is not copied again.

    Writes <to>/<sweep>/{summary.json, runs.csv, report.html, tables/*.parquet,
    runs/<run>.<grade>.json}, and what else --only names. Needs no database. Every result is
    checked against its mark, every part of a workspace against its manifest. It may be killed at
    any time; the same command goes on. What is missing or spoilt ends it with exit code 1, after
    all else was copied.

    Examples:

      fde-ray results pull demo-1a2b3c4d --to results

      fde-ray results pull main-3 --from s3://bench/lab --only workspaces --where case=017
    """
    from fde_ray.model.wording import counted, is_or_are
    from fde_ray.store.pulls import Where, kinds_of

    from .output import emit_json, note, program, safe
    from .pulling import Order, pulled
    from .setting import wait_for

    source = Source(profile, from_, endpoint_url, tenant)
    order = Order(
        sweep, to / sweep_named(sweep), kinds_of(only), Where.parsed(where or ()), parallel
    )
    went = wait_for(pulled(source, order), go_on="the same command")
    if json_:
        emit_json(went)
    else:
        counts = f"{counted(went['written'], 'result')} written, {went['unchanged']} unchanged"
        others = counted(went["files_written"], "other file")
        files = f"; {others}" if went["files_written"] else ""
        note(f"{counts}{files}, in {went['folder']}")
        if where and not went["selected"]:
            note("no ended run fits --where")
    if went["missing"]:
        for finding in went["findings"][:5]:
            note(safe(f"{finding['kind']}  {finding['key']}  {finding['reason']}"))
        see = f"{program()} results verify {sweep}{source.options}"
        lost = went["missing"]
        note(f"{counted(lost, 'object')} {is_or_are(lost)} missing or spoilt; see: {see}")
        raise typer.Exit(1)


@app.command()
def verify(
    sweep: SweepArgument,
    from_: FromOption = None,
    endpoint_url: EndpointOption = None,
    tenant: TenantOption = None,
    parts: Annotated[
        bool,
        typer.Option(
            "--parts", help="Read every workspace too, part by part against its manifest."
        ),
    ] = False,
    pulled: Annotated[
        Path | None,
        typer.Option(
            "--pulled",
            metavar="FOLDER",
            help="Check the files that were pulled into FOLDER instead of the store.",
            show_default=False,
        ),
    ] = None,
    profile: ProfileOption = None,
    json_: JsonOption = False,
) -> None:
    """Check that every result object is there and has the hash that its mark names.

    Example: fde-ray results verify demo-1a2b3c4d
    """
    from fde_ray.model.wording import counted, is_or_are

    from .checks import checked_bucket, checked_folder
    from .output import emit_json, note, safe, say
    from .setting import wait_for

    if pulled is not None:
        sound, findings = checked_folder(pulled / sweep_named(sweep))
    else:
        source = Source(profile, from_, endpoint_url, tenant)
        sound, findings = wait_for(checked_bucket(source, sweep_named(sweep), parts=parts))
    if json_:
        emit_json({"sound": sound, "findings": [f.jsonable() for f in findings]})
    else:
        for finding in findings:
            say(safe(f"{finding.kind}  {finding.key}  {finding.reason}"))
        good = counted(sound, "result" if pulled is None else "file")
        note(f"{good} {is_or_are(sound)} sound, {len(findings)} {is_or_are(len(findings))} not")
    if findings:
        raise typer.Exit(1)


@app.command()
def compact(
    sweep: SweepArgument,
    from_: FromOption = None,
    endpoint_url: EndpointOption = None,
    tenant: TenantOption = None,
    profile: ProfileOption = None,
    json_: JsonOption = False,
) -> None:
    """Add what is new of a sweep to its Parquet tables in the object store.

    Writes <tenant>/sweeps/<sweep>/tables/{runs,routes,coverage,rounds,costs}-<batch>.parquet.

    Example: fde-ray results compact demo-1a2b3c4d
    """
    from fde_ray.model.wording import counted

    from .checks import compacted
    from .output import emit_json, note, safe
    from .setting import wait_for

    made = wait_for(compacted(Source(profile, from_, endpoint_url, tenant), sweep_named(sweep)))
    if json_:
        emit_json(made)
    else:
        note(f"{counted(made.added, 'run')} added, {made.covered} there before")
        for finding in made.findings[:5]:
            note(safe(f"{finding.kind}  {finding.key}  {finding.reason}"))
    if made.findings:
        raise typer.Exit(1)


def _show_sweeps(sweeps: list[dict[str, Any]], *, json_: bool) -> None:
    from .output import emit_json, table

    if json_:
        emit_json(sweeps)
        return
    table(["sweep", "ended"], [[row["sweep"], str(row["ended"])] for row in sweeps])


def _show_rows(rows: list[dict[str, Any]]) -> None:
    from .output import table

    header = ["run", "case", "condition", "system", "repeat", "status", "score", "valid", "recall"]
    table(
        header,
        [
            [
                row["run_id"][:12],
                *(
                    "-" if row[name] is None else str(row[name])
                    for name in ("case_id", "condition", "system", "repeat", "status")
                ),
                *(_cell(row[name]) for name in ("score", "valid", "recall")),
            ]
            for row in rows
        ],
    )


def _hint(rows: list[dict[str, Any]], sweep: str, source: Source) -> None:
    from .output import note, program

    if any(row["status"] == "result_missing" for row in rows):
        see = f"{program()} results verify {sweep}{source.options}"
        note(f"results are missing or spoilt; see: {see}")
    if source.place is not None:
        note(f"next: {program()} results pull {sweep}{source.options}")
        return
    aside = next((row["run_id"] for row in rows if row["status"] == "quarantined"), None)
    if aside is not None:
        note(f"runs were set aside; why: {program()} run explain {aside[:12]}")
        note(f"try them again: {program()} sweep resume {sweep}")
    note(f"next: {program()} run show RUN, where the first digits are enough")


def _cell(value: bool | float | None) -> str:
    """Return a value for people; `--json` and `pull` have every digit."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else f"{value:.4f}"
