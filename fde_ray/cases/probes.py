"""Precomputed deliverables with their dialogue: played by scripted agents, run by admission."""

from pathlib import Path
from typing import Any

from fde_ray.cases.foreign import MAX_DATA_BYTES, as_record, read_file, read_json, tree_files
from fde_ray.cases.records import Case, Probe
from fde_ray.model.errors import CaseError

SYSTEM_PROBES = (
    "do_nothing",
    "literal",
    "greedy_full",
    "oracle_25",
    "oracle_50",
    "oracle_75",
    "reference",
)


def list_probes(case: Case) -> tuple[str, ...]:
    """Return the names of all probes, sorted."""
    folder = case.root / "sealed" / "probes"
    if not folder.is_dir():
        return ()
    return tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir()))


def load_probe(case: Case, name: str) -> Probe:
    """Return one probe with its files; an unknown name is a CaseError that lists the known ones."""
    known = list_probes(case)
    if name not in known:
        raise CaseError(case.root, f"no probe {name!r}; known probes: {', '.join(known) or 'none'}")
    folder = case.root / "sealed" / "probes" / name
    document = read_json(folder / "probe.json")
    if not isinstance(document, dict) or document.get("name") != name or "files" in document:
        raise CaseError(folder / "probe.json", f"must be an object with the name {name!r}")
    probe = as_record(Probe, {**document, "files": _files(folder)}, folder / "probe.json")
    _check_points(case, probe, folder / "probe.json")
    return probe


def _files(folder: Path) -> dict[str, bytes]:
    files = folder / "files"
    if not files.is_dir():
        return {}
    return {
        name: read_file(files / name, max_bytes=MAX_DATA_BYTES) for name, _ in tree_files(files)
    }


def _check_points(case: Case, probe: Probe, path: Path) -> None:
    keys = {point.key for point in case.points}
    mentioned: dict[str, Any] = {
        "knows": probe.knows,
        "covered": probe.covered,
        "per_round_covered": [key for keys_of in probe.per_round_covered for key in keys_of],
    }
    for field, values in mentioned.items():
        for key in values:
            if key not in keys:
                raise CaseError(path, f"{field}: {key!r} is no point of this case")
    if len(probe.per_round_covered) != len(probe.rounds):
        raise CaseError(path, "per_round_covered: needs one entry per round")
