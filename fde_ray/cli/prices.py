"""`fde-ray prices …`: list, check and compare price tables; price old calls anew."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .setting import JsonOption, ProfileOption

if TYPE_CHECKING:
    from fde_ray.metering.compute_prices import ComputePriceTable
    from fde_ray.metering.prices import PriceTable
    from fde_ray.metering.quotes import Quote
    from fde_ray.metering.repricing import RepricedLine
    from fde_ray.model.ledgers import LedgerLine
    from fde_ray.model.profile import Profile

app = typer.Typer(
    no_args_is_help=True,
    help="Price tables: what models cost, and what a sweep would have cost by another table.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
TableOption = Annotated[
    Path | None,
    typer.Option(
        "--prices",
        metavar="FILE",
        help="A price table (YAML); default: the profile's, else the one that ships.",
        show_default=False,
    ),
]
RATES = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")


@app.command()
def ls(
    prices: TableOption = None,
    profile: ProfileOption = None,
    json_: JsonOption = False,
) -> None:
    """List the models of a table with what they cost now, in US dollars per million tokens.

    Example: fde-ray prices ls

    Example: fde-ray prices ls --prices my_prices.yaml --json
    """
    from fde_ray.model.wording import counted

    from .output import emit_json, note, table

    found, now = _table(prices, profile), _now()
    rows = [_listed(name, price.quote_at(now)) for name, price in found.models.items()]
    if json_:
        emit_json({"version": found.version, "hash": found.hash, "models": rows})
        return
    table(
        ["model", *RATES, "checked", "note"],
        [[str(row[key] or "") for key in ("model", *RATES, "checked", "note")] for row in rows],
    )
    note(f"table {found.version}, hash {found.hash[:12]}, {counted(len(rows), 'model')}")


@app.command()
def check(
    spec: Annotated[
        str | None,
        typer.Argument(
            metavar="[SPEC]",
            help="A SweepSpec (YAML file) or a preset: say which of its models have no price.",
            show_default=False,
        ),
    ] = None,
    prices: TableOption = None,
    nodes: Annotated[
        Path | None,
        typer.Option(
            "--nodes",
            metavar="FILE",
            help="A price table of nodes to check too; default: the profile's `compute: {prices}`.",
            show_default=False,
        ),
    ] = None,
    profile: ProfileOption = None,
    json_: JsonOption = False,
) -> None:
    """Check a table, and that it prices every model of a sweep. Exit code 1: a model has no price.

    Example: fde-ray prices check --prices my_prices.yaml --nodes my_nodes.yaml

    Example: fde-ray prices check main
    """
    from datetime import UTC, datetime

    from fde_ray.metering.price_checks import doubts, unpriced_in
    from fde_ray.model.wording import counted

    from .output import emit_json, note, say, table
    from .setting import spec_from

    found, now = _table(prices, profile), _now()
    machines = _nodes(nodes, profile)
    doubtful = doubts(found, datetime.fromtimestamp(now, UTC).date())
    lacking = [] if spec is None else unpriced_in(spec_from(spec).spec, found, now)
    if json_:
        emit_json(
            {
                "version": found.version,
                "hash": found.hash,
                "models": len(found.models),
                "nodes": {
                    "version": machines.version,
                    "hash": machines.hash,
                    "types": len(machines.nodes),
                },
                "doubts": [one._asdict() for one in doubtful],
                "unpriced": [one._asdict() for one in lacking],
            }
        )
    else:
        models = counted(len(found.models), "model")
        say(f"table {found.version} is well formed: {models}, hash {found.hash}")
        if machines.nodes:
            kinds = f"{len(machines.nodes)} types, hash {machines.hash}"
            say(f"table of nodes {machines.version} is well formed: {kinds}")
        for doubt in doubtful:
            say(f"look at {doubt.model}: {doubt.text}")
        if lacking:
            rows = [[one.model, " ".join(one.roles), one.reason] for one in lacking]
            table(["no price", "roles", "why"], rows)
        elif spec is not None:
            say(f"every model of {spec} has a price")
    if lacking:
        note("these models are refused; add prices, or set `unpriced_models: allow` in the profile")
        raise typer.Exit(1)


@app.command()
def diff(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="A price table.")],
    after: Annotated[
        Path | None,
        typer.Argument(
            metavar="[AFTER]", help="Another one; default: the profile's.", show_default=False
        ),
    ] = None,
    profile: ProfileOption = None,
    json_: JsonOption = False,
) -> None:
    """Show how two tables differ, value by value.

    Example: fde-ray prices diff old_prices.yaml new_prices.yaml
    """
    from fde_ray.metering.price_checks import differences
    from fde_ray.metering.prices import load_prices

    from .output import emit_json, note, table

    old, new = load_prices(before), _table(after, profile)
    found = differences(old, new)
    if json_:
        emit_json(
            {
                "before": {"version": old.version, "hash": old.hash},
                "after": {"version": new.version, "hash": new.hash},
                "differences": [one._asdict() for one in found],
            }
        )
        return
    if not found:
        note("the two tables say the same of every model")
        return
    rows = [[one.model, one.what, _shown(one.before), _shown(one.after)] for one in found]
    table(["model", "what", f"in {old.version}", f"in {new.version}"], rows)


@app.command()
def reprice(
    ledger: Annotated[
        str,
        typer.Argument(
            metavar="SWEEP|PATH",
            help="A submitted sweep, or a ledger in files: ledger.jsonl, or a pulled folder.",
        ),
    ],
    prices: TableOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write a line for each call, with its old and its new cost (JSON lines).",
            show_default=False,
        ),
    ] = None,
    profile: ProfileOption = None,
    json_: JsonOption = False,
) -> None:
    """Say what the calls of a sweep would have cost by another table. No row is changed.

    Each call is priced by the time of its end. Unknown stays unknown, with its reason.

    Example: fde-ray prices reprice demo-1a2b3c4d --prices new_prices.yaml

    Example: fde-ray prices reprice results/demo-1a2b3c4d --prices new_prices.yaml --json
    """
    from fde_ray.metering.repricing import by_model, repriced

    from .output import emit_json, note, table

    by = _table(prices, profile)
    lines = repriced(_ledger(ledger, profile), by)
    groups = by_model(lines)
    reasons = sorted({line.reason for line in lines if line.nanousd is None})
    if out is not None:
        _write(out, lines)
    if json_:
        emit_json(
            {
                "version": by.version,
                "hash": by.hash,
                "models": [{**one.jsonable(), "change": one.change_nanousd} for one in groups],
                "unpriced": reasons,
            }
        )
        return
    if not groups:
        note("no call that was charged")
        return
    table(
        ["role", "model", "calls", "was", f"by {by.version}", "change"],
        [
            [
                one.role,
                one.model,
                f"{one.calls:,}",
                _sum(one.was_nanousd, one.was_unpriced, one.calls),
                _sum(one.nanousd, one.unpriced, one.calls),
                "unknown" if one.change_nanousd is None else _signed(one.change_nanousd),
            ]
            for one in groups
        ],
    )
    for reason in reasons:
        note(f"unpriced: {reason}")


def _table(path: Path | None, profile: Path | None) -> PriceTable:
    from fde_ray.metering.prices import load_prices

    from .costing import table_of
    from .setting import profile_from

    return table_of(profile_from(profile)) if path is None else load_prices(path)


def _nodes(path: Path | None, profile: Path | None) -> ComputePriceTable:
    from fde_ray.metering.compute_prices import load_compute_prices

    from .setting import profile_from

    named = profile_from(profile).compute.prices if path is None else str(path)
    return load_compute_prices(Path(named).expanduser() if named else None)


def _now() -> float:
    from fde_ray.model.clock import SystemClock

    return SystemClock().now()


def _listed(name: str, quote: Quote | None) -> dict[str, Any]:
    row: dict[str, Any] = {"model": name, **dict.fromkeys(RATES)}
    if quote is None:
        return {**row, "checked": None, "source": "", "note": "no price yet"}
    rates = quote.per_million
    said = f"free: {quote.reason}" if quote.free else f"unpriced: {quote.reason}"
    more = [f"over {t.prompt_tokens_over:,} tokens dearer" for t in quote.tiers]
    more += [f"{' '.join(w.hours_utc)} UTC at other rates" for w in quote.windows]
    for key in RATES:
        amount: Decimal | None = getattr(rates, key)
        row[key] = None if amount is None else str(amount)
    note = said if quote.free or quote.unpriced else "; ".join(more)
    return {**row, "checked": quote.checked, "source": quote.source, "note": note}


def _ledger(name: str, profile: Path | None) -> list[LedgerLine]:
    from fde_ray.metering.ledger_files import lines_in, skipped_in

    from .output import note
    from .setting import profile_from, wait_for

    place = Path(name)
    if place.exists():
        for path in skipped_in(place):
            note(f"skipped {path.name}: no part of a ledger has such a name")
        return lines_in(place)
    return wait_for(_stored(profile_from(profile), name))


async def _stored(profile: Profile, sweep: str) -> list[LedgerLine]:
    from .costing import ledger_of
    from .setting import system

    async with system(profile) as runtime:
        found = [line async for line in ledger_of(runtime, sweep)]
    return sorted(found, key=lambda line: line.place)


def _write(path: Path, lines: list[RepricedLine]) -> None:
    from fde_ray.model.base import canonical_json

    from .output import note
    from .report import write_file

    write_file(path, "".join(canonical_json(line) + "\n" for line in lines).encode())
    note(f"{len(lines):,} calls: {path}")


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return ", ".join(str(one) for one in value) if isinstance(value, list) else str(value)


def _sum(nanousd: int, unpriced: int, calls: int) -> str:
    from fde_ray.analysis.spending_display import dollars

    if not unpriced:
        return dollars(nanousd)
    if unpriced == calls:
        return "unknown"
    return f"≥ {dollars(nanousd)} ({unpriced:,} unknown)"


def _signed(nanousd: int) -> str:
    from fde_ray.analysis.spending_display import dollars

    return ("-" if nanousd < 0 else "+") + dollars(abs(nanousd))
