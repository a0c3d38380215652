"""Scores a rolling order for cold mill 2 (case 017). Standard library only; reads, never writes."""

# canary 5f0c6a1e-7d43-4b8a-9a52-0c17b3e4d617
# ruff: noqa: I001
import datetime

# --- strict reader (vendored, do not edit) ---
import argparse
import csv
import hashlib
import io
import json
import math
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

MAX_MAGNITUDE = 1e12
MAX_NESTING = 20
MAX_COLUMNS = 200
MAX_DIGITS = 60
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")


class Structural(Exception):
    """A file or a column is missing; a better mapping of the same deliverable may cure it."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(code, detail)
        self.code, self.detail = code, detail


class Rejected(Exception):
    """The submission was read and is unacceptable as data; it scores 0."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(code, detail)
        self.code, self.detail = code, detail


class Violations:
    """Broken rules by code: how often, and where first."""

    def __init__(self) -> None:
        self._found: dict[str, list[Any]] = {}

    def __len__(self) -> int:
        return len(self._found)

    def add(self, code: str, where: str) -> None:
        self._found.setdefault(code, [0, where[:120]])[0] += 1

    def listing(self) -> list[dict[str, Any]]:
        return [
            {"code": code, "count": count, "first": first}
            for code, (count, first) in sorted(self._found.items())
        ]


def read_bytes(folder: str, name: str, *, max_bytes: int) -> bytes:
    """Return a regular file of `folder`; links, pipes, devices and big files are rejected."""
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise Rejected("format.path", name)
    path = Path(folder) / name
    try:
        if stat.S_ISLNK(path.lstat().st_mode):
            raise Rejected("format.link", name)
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Structural("missing_file", name) from None
    except OSError:
        raise Rejected("format.file", name) from None
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > max_bytes:
        os.close(handle)
        raise Rejected("format.size" if stat.S_ISREG(facts.st_mode) else "format.file", name)
    with os.fdopen(handle, "rb") as stream:
        content = stream.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise Rejected("format.size", name)
    return content


def read_text(folder: str, name: str, *, max_bytes: int) -> str:
    """Return the UTF-8 text of a file without its byte order mark."""
    try:
        text = read_bytes(folder, name, max_bytes=max_bytes).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Rejected("format.encoding", name) from None
    if "\0" in text:
        raise Rejected("format.encoding", name)
    return text


def read_table(
    folder: str, name: str, columns: Sequence[str], *, max_bytes: int, max_rows: int
) -> list[dict[str, str]]:
    """Return the rows of a CSV file; column order is free and further columns are kept as text."""
    text = read_text(folder, name, max_bytes=max_bytes)
    rows: list[dict[str, str]] = []
    header: list[str] | None = None
    try:
        for cells in csv.reader(io.StringIO(text, newline=""), strict=True):
            if not any(cell.strip() for cell in cells):
                continue
            if header is None:
                header = _header(cells, columns, name)
                continue
            if len(cells) != len(header):
                raise Rejected("format.csv", f"{name}: row {len(rows) + 1} has {len(cells)} cells")
            if len(rows) >= max_rows:
                raise Rejected("format.rows", f"{name}: more than {max_rows} rows")
            rows.append({key: cell.strip() for key, cell in zip(header, cells, strict=True)})
    except csv.Error as error:
        raise Rejected("format.csv", f"{name}: {error}") from None
    if header is None:
        raise Structural("missing_column", f"{name}: empty file")
    return rows


def _header(cells: list[str], columns: Sequence[str], name: str) -> list[str]:
    header = [cell.strip() for cell in cells]
    if len(header) > MAX_COLUMNS:
        raise Rejected("format.csv", f"{name}: more than {MAX_COLUMNS} columns")
    for column in columns:
        if column not in header:
            raise Structural("missing_column", f"{name}: {column}")
    if len(set(header)) != len(header):
        raise Rejected("format.duplicate", f"{name}: column named twice")
    return header


def read_json(folder: str, name: str, *, max_bytes: int) -> Any:
    """Return a JSON document without duplicate keys, odd numbers or deep nesting."""
    text = read_text(folder, name, max_bytes=max_bytes)
    if _nesting(text) > MAX_NESTING:
        raise Rejected("format.nesting", name)
    try:
        return json.loads(
            text,
            object_pairs_hook=_unique_pairs,
            parse_constant=_no_constant,
            parse_int=_json_integer,
            parse_float=_json_float,
        )
    except ValueError:
        raise Rejected("format.json", name) from None


def _nesting(text: str) -> int:
    deepest = depth = 0
    quoted = escaped = False
    for char in text:
        if quoted:
            quoted = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            quoted = True
        elif char in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "]}":
            depth -= 1
    return deepest


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise Rejected("format.duplicate", "a JSON key stands twice in one object")
    return record


def _no_constant(word: str) -> Any:
    raise Rejected("format.number", word)


def _json_integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise Rejected("format.number", text[:20])
    return int(_bounded(int(text), text))


def _json_float(text: str) -> float:
    return float(_bounded(float(text), text))


def _bounded(value: float, text: str) -> float:
    if not math.isfinite(value) or abs(value) > MAX_MAGNITUDE:
        raise Rejected("format.number", text[:40])
    return value


def as_number(value: Any, where: str) -> float:
    """Return a finite number of at most 1e12; booleans, blanks, nan and inf are rejected."""
    if isinstance(value, str):
        text = value.strip()
        if len(text) > MAX_DIGITS or not _NUMBER.fullmatch(text):
            raise Rejected("format.number", f"{where}: {text[:20]!r}")
        value = float(text)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Rejected("format.number", f"{where}: not a number")
    return float(_bounded(value, where))


def as_integer(value: Any, where: str, low: int | None = None, high: int | None = None) -> int:
    """Return a whole number (`12` and `12.0` are the same), kept inside [low, high] if given."""
    number = as_number(value, where)
    if number != int(number):
        raise Rejected("format.number", f"{where}: not a whole number")
    whole = int(number)
    if (low is not None and whole < low) or (high is not None and whole > high):
        raise Rejected("format.range", f"{where}: {whole}")
    return whole


def as_key(value: Any, where: str) -> str:
    """Return a non-empty text of at most 200 characters."""
    if not isinstance(value, str) or not value.strip() or len(value) > 200:
        raise Rejected("format.key", where)
    return value.strip()


def without_repeats(keys: Iterable[str], code: str) -> None:
    """Reject with `code` when a key stands twice."""
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            raise Rejected(code, key[:40])
        seen.add(key)


def tree_hash(entries: Iterable[tuple[str, bytes]]) -> str:
    """Return the SHA-256 over the sorted lines `<sha256 of content>  <name>`."""
    lines = sorted(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in entries)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def scoring_entries(sealed_dir: str, evaluator: str) -> list[tuple[str, bytes]]:
    """Return name and content of all that decides a score."""
    root = Path(sealed_dir)
    names = ["params.json", "reference.json", "submission_schema.json"]
    truth = [path for path in root.glob("truth/**/*") if path.is_file()]
    names += [path.relative_to(root).as_posix() for path in truth]
    entries = [(name, (root / name).read_bytes()) for name in names]
    return [*entries, ("evaluator.py", Path(evaluator).read_bytes())]


def quality_of(raw: float, reference: float, direction: str) -> float:
    """Return how `raw` compares with the reference, 1.0 when they are equal; never clipped."""
    if direction == "min":
        return reference / max(raw, 1e-9)
    return max(0.0, raw / reference)


def run_evaluator(
    argv: Sequence[str],
    *,
    case: str,
    version: str,
    direction: str,
    evaluator: str,
    load: Callable[[str, str], Any],
    judge: Callable[[Any, str, Violations], tuple[float | None, dict[str, Any]]],
) -> int:
    """Score one submission, print one JSON line and return the exit status.

    load reads what is ours; whatever it raises is our fault. judge returns the raw objective
    (None when it cannot be computed) and its components, and adds each broken rule to `found`.
    """
    parser = argparse.ArgumentParser(description=f"Score a submission for case {case}.")
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--submission-dir", required=True)
    parser.add_argument("--sealed-dir", default=str(Path(evaluator).resolve().parent))
    arguments = parser.parse_args(list(argv))
    found = Violations()
    result: dict[str, Any] = {"case": case, "version": version}
    raw: float | None = None
    components: dict[str, Any] = {}
    stage, status, quality = "structure", 0, None
    try:
        result["scoring_hash"] = tree_hash(scoring_entries(arguments.sealed_dir, evaluator))
        reference = read_json(arguments.sealed_dir, "reference.json", max_bytes=1 << 20)["raw"]
        world = load(arguments.data_dir, arguments.sealed_dir)
    except Exception as error:  # noqa: BLE001 - any surprise must end as exit 4
        return _our_fault(error)
    try:
        raw, components = judge(world, arguments.submission_dir, found)
        stage = "constraint" if len(found) else "quality"
    except Structural as error:
        found.add(error.code, error.detail)
        status = 3
    except Rejected as error:
        found.add(error.code, error.detail)
    except Exception as error:  # noqa: BLE001 - any surprise must end as exit 4
        return _our_fault(error)
    if raw is not None:
        quality = quality_of(raw, reference, direction)
        if not math.isfinite(quality):
            return _our_fault(ValueError("quality is not finite"))
    valid = stage == "quality"
    result.update(
        valid=valid,
        stage=stage,
        raw=raw,
        quality=quality,
        score=quality if valid else 0.0,
        components=components,
        violations=found.listing(),
    )
    sys.stdout.write(json.dumps(result, sort_keys=True, allow_nan=False) + "\n")
    return status


def _our_fault(error: Exception) -> int:
    sys.stderr.write(f"evaluator fault: {type(error).__name__}: {str(error)[:200]!r}\n")
    return 4


# --- end of strict reader ---

CASE, VERSION, DIRECTION = "017", "1.0.0", "min"
MAX_BYTES = 1 << 20
COLUMNS = ("position", "coil_id", "roll_change", "length_m")


def load(data_dir: str, sealed_dir: str) -> dict[str, Any]:
    """Return coils by id, changeover minutes and the hidden numbers."""
    params = read_json(sealed_dir, "params.json", max_bytes=MAX_BYTES)
    table = read_table(data_dir, "grades.csv", ["from_grade"], max_bytes=MAX_BYTES, max_rows=100)
    rows = read_table(data_dir, "coils.csv", ["coil_id"], max_bytes=MAX_BYTES, max_rows=1000)
    switch = {
        (row["from_grade"], grade): int(minutes)
        for row in table
        for grade, minutes in row.items()
        if grade != "from_grade"
    }
    return {
        "coils": {row["coil_id"]: coil(row, params) for row in rows},
        "switch": switch,
        "params": params,
    }


def coil(row: dict[str, str], params: dict[str, Any]) -> dict[str, Any]:
    """Return one coil in whole millimetres, micrometres, metres and minutes."""
    width, mass = int(row["width_mm"]), int(row["mass_kg"])
    exit_um = micrometres(row["exit_gauge_mm"])
    basis_um = micrometres(row[f"{params['length_gauge']}_gauge_mm"])
    cross = params["density_kg_m3"] * width * basis_um
    start = datetime.datetime.fromisoformat(params["week_start"])
    due = datetime.datetime.fromisoformat(row["promised_date"]) - start
    return {
        "width": width,
        "gauge": exit_um,
        "length": (2 * mass * 10**9 + cross) // (2 * cross),
        "grade": row["grade"],
        "exposed": row["finish"] == "E",
        "minutes": int(row["mill_minutes"]),
        "due": due.days * 1440 + due.seconds // 60 + params["promised_minute"],
    }


def micrometres(text: str) -> int:
    whole, _, fraction = text.partition(".")
    return int(whole) * 1000 + int((fraction + "000")[:3])


def judge(
    world: dict[str, Any], submission_dir: str, found: Violations
) -> tuple[float | None, dict[str, Any]]:
    """Return the points of a schedule; None if it is no order of the coils at all."""
    rows = read_table(submission_dir, "schedule.csv", COLUMNS, max_bytes=MAX_BYTES, max_rows=5000)
    coils = world["coils"]
    entries = [entry(row, number) for number, row in enumerate(rows, start=1)]
    check_set([coil_id for _, coil_id, _, _ in entries], coils, found)
    if len(found):
        return None, {}
    check_fields(entries, world, found)
    if sorted(position for position, _, _, _ in entries) != list(range(1, len(entries) + 1)):
        found.add("position", "positions must be 1, 2, 3 ... without gaps")
        return None, {}
    order = [(coils[coil_id], coil_id, flag == 1) for _, coil_id, flag, _ in sorted(entries)]
    check_rules(order, world["params"], found)
    components = points(order, world["switch"], world["params"])
    return sum(components.values()), components


def entry(row: dict[str, str], number: int) -> tuple[int, str, float, float]:
    where = f"row {number}"
    return (
        as_integer(row["position"], f"{where} position"),
        as_key(row["coil_id"], f"{where} coil_id"),
        as_number(row["roll_change"], f"{where} roll_change"),
        as_number(row["length_m"], f"{where} length_m"),
    )


def check_set(ids: list[str], coils: dict[str, Any], found: Violations) -> None:
    seen: set[str] = set()
    for coil_id in ids:
        if coil_id not in coils:
            found.add("coil_set", f"unknown coil {coil_id}")
        elif coil_id in seen:
            found.add("coil_set", f"{coil_id} stands twice")
        seen.add(coil_id)
    for coil_id in coils:
        if coil_id not in seen:
            found.add("coil_set", f"{coil_id} is missing")


def check_fields(
    entries: list[tuple[int, str, float, float]], world: dict[str, Any], found: Violations
) -> None:
    tolerance = world["params"]["length_tolerance_m"]
    for position, coil_id, flag, length in entries:
        if flag not in (0, 1) or (position == 1 and flag == 1):
            found.add("roll_flag", coil_id)
        if abs(length - world["coils"][coil_id]["length"]) > tolerance:
            found.add("length_value", coil_id)


def check_rules(
    order: list[tuple[dict[str, Any], str, bool]], params: dict[str, Any], found: Violations
) -> None:
    """Walk through the roll sets: widths, metres rolled, exposed coils early."""
    rolled = place = 0
    before: dict[str, Any] | None = None
    for now, coil_id, change in order:
        if change:
            rolled = place = 0
        rolled += now["length"]
        place += 1
        if before and place > params["warm_up_coils"] and now["width"] > before["width"]:
            found.add("width_growth", coil_id)
        if rolled > params["roll_limit_km"] * 1000:
            found.add("roll_length", coil_id)
        if now["exposed"] and rolled > params["exposed_limit_km"] * 1000:
            found.add("exposed_window", coil_id)
        before = now


def points(
    order: list[tuple[dict[str, Any], str, bool]],
    switch: dict[tuple[str, str], int],
    params: dict[str, Any],
) -> dict[str, int]:
    total = {"changeover": 0, "width": 0, "gauge": 0, "roll_change": 0, "lateness": 0}
    clock = 0
    before: dict[str, Any] | None = None
    for now, _, change in order:
        if before:
            minutes = switch[before["grade"], now["grade"]]
            total["changeover"] += minutes
            clock += minutes
        if change:
            total["roll_change"] += params["roll_change_points"]
            clock += params["roll_change_min"]
        elif before:
            thin, thick = sorted((before["gauge"], now["gauge"]))
            total["width"] += abs(before["width"] - now["width"]) // params["width_step_mm"]
            total["gauge"] += params["gauge_points_per_tenth"] * ((thick - thin) * 10 // thin)
        clock += now["minutes"]
        late_hours = -(-max(0, clock - now["due"]) // 60)
        total["lateness"] += params["late_points_per_hour"] * late_hours
        before = now
    return total


if __name__ == "__main__":
    sys.exit(
        run_evaluator(
            sys.argv[1:],
            case=CASE,
            version=VERSION,
            direction=DIRECTION,
            evaluator=__file__,
            load=load,
            judge=judge,
        )
    )
