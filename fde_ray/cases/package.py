"""Loads a case package, or says in one line which file is wrong and why.

A package is checked as a whole before anything of it is used: the manifest must name every file
with its hash, nothing else may lie in the folder, and each document must fit its record. Staging
goes on in `staging`, precomputed deliverables are read by `probes`.
"""

from collections.abc import Mapping
from pathlib import Path

from fde_ray.cases.authoring.mutants import read_mutant
from fde_ray.cases.authoring.strict_reader import tree_hash
from fde_ray.cases.foreign import (
    MAX_DATA_BYTES,
    as_record,
    read_file,
    read_json,
    read_text,
    read_toml,
    tree_files,
)
from fde_ray.cases.manifest import checked_manifest
from fde_ray.cases.programs import check_program, refuse_huge
from fde_ray.cases.records import (
    Case,
    CaseMeta,
    Point,
    PointAdmission,
    Reference,
    SubmissionSchema,
)
from fde_ray.model.base import sha256_hex
from fde_ray.model.errors import CaseError

SCORING_FILES = ("evaluator.py", "params.json", "reference.json", "submission_schema.json")
_REQUIRED = (
    "case.toml",
    "instruction.md",
    "sealed/information.md",
    "sealed/gt.json",
    "sealed/points.json",
    *(f"sealed/{name}" for name in SCORING_FILES),
)
_PARTS = ("case.toml", "instruction.md", "data", "sealed")
_ROOT_FILES = {"case.toml", "instruction.md", "MANIFEST.sha256"}
_ROOT_FOLDERS = {"data", "sealed", "authoring", "environment"}
_SEALED_FILES = {"information.md", "gt.json", "points.json", *SCORING_FILES}
_SEALED_FOLDERS = {"truth", "best_solution", "probes", "mutants", "calibration"}


class Cases(dict[str, Case]):
    """Cases by id; asking for an unknown id is a CaseError that names the known ones."""

    def __init__(self, root: Path, cases: Mapping[str, Case]) -> None:
        super().__init__(cases)
        self.root = root

    def __missing__(self, case_id: str) -> Case:
        known = ", ".join(sorted(self)) or "none"
        raise CaseError(self.root, f"no case {case_id!r}; known cases: {known}")


def load_cases(root: Path) -> Cases:
    """Return every package below `root` (folders named NNN_slug), by case id."""
    if not root.is_dir():
        raise CaseError(root, "is no folder of case packages")
    found: dict[str, Case] = {}
    for folder in sorted(root.iterdir()):
        if not folder.name[:3].isdigit() or not any((folder / part).exists() for part in _PARTS):
            continue
        case = load_case(folder)
        if case.case_id in found:
            raise CaseError(folder, f"case {case.case_id} exists twice")
        found[case.case_id] = case
    return Cases(root, found)


def load_case(path: Path) -> Case:
    """Return the package in folder `path`, fully checked."""
    root = path.absolute()
    if root.is_symlink() or not root.is_dir():
        raise CaseError(path, "is no case folder")
    files = list(tree_files(root))
    refuse_huge(root, files)
    names = [name for name, _ in files]
    for name in names:
        _refuse_unknown(root, name)
    for name in _REQUIRED:
        if name not in names:
            raise CaseError(root / name, "is missing")
    checked_manifest(root, names)
    meta = as_record(CaseMeta, read_toml(root / "case.toml"), root / "case.toml")
    if root.name != f"{meta.case_id}_{meta.slug}":
        raise CaseError(root / "case.toml", f"id and slug do not match the folder {root.name!r}")
    sealed = root / "sealed"
    information = read_text(sealed / "information.md")
    points = _points(sealed / "gt.json", information)
    _check_mutants(root, names)
    schema = _schema(sealed / "submission_schema.json")
    check_program(root, meta, schema)
    return Case(
        root=root,
        case_id=meta.case_id,
        meta=meta,
        instruction=read_text(root / "instruction.md"),
        information=information,
        points=points,
        submission_schema=schema,
        admission=_admission(sealed / "points.json", points),
        reference=as_record(
            Reference, read_json(sealed / "reference.json"), sealed / "reference.json"
        ),
        limits=meta.limits,
        visible_hash=tree_hash(visible_files(root, names)),
        information_hash=sha256_hex(read_file(sealed / "information.md")),
        gt_hash=sha256_hex(read_file(sealed / "gt.json")),
        scoring_hash=tree_hash(scoring_files(root, names)),
    )


def visible_files(root: Path, names: list[str]) -> list[tuple[str, bytes]]:
    """Return name and content of all that an agent may ever see."""
    chosen = [n for n in names if n == "instruction.md" or n.startswith("data/")]
    return [(name, read_file(root / name, max_bytes=MAX_DATA_BYTES)) for name in chosen]


def scoring_files(root: Path, names: list[str]) -> list[tuple[str, bytes]]:
    """Return name (below sealed/) and content of all that decides a score."""
    chosen = [f"sealed/{name}" for name in SCORING_FILES]
    chosen += [name for name in names if name.startswith("sealed/truth/")]
    return [
        (name.removeprefix("sealed/"), read_file(root / name, max_bytes=MAX_DATA_BYTES))
        for name in chosen
    ]


def _refuse_unknown(root: Path, name: str) -> None:
    parts = name.split("/")
    known = parts[0] in (_ROOT_FILES if len(parts) == 1 else _ROOT_FOLDERS)
    if parts[0] == "sealed":
        known = len(parts) > 1 and (
            parts[1] in (_SEALED_FILES if len(parts) == 2 else _SEALED_FOLDERS)
        )
    if not known:
        raise CaseError(root / name, "has no place in a case package")


def _points(path: Path, information: str) -> tuple[Point, ...]:
    registry = read_json(path)
    if not isinstance(registry, dict) or not registry:
        raise CaseError(path, "must be a non-empty object keyed by point")
    points = []
    for key, value in registry.items():
        if not isinstance(value, dict) or "key" in value:
            raise CaseError(path, f"{key}: must be an object without its own key")
        point = as_record(Point, {"key": key, **value}, path, f"{key}.")
        if point.answer not in information:
            raise CaseError(path, f"{key}.answer: is not a verbatim sentence of information.md")
        points.append(point)
    return tuple(points)


def _admission(path: Path, points: tuple[Point, ...]) -> tuple[PointAdmission, ...]:
    document = read_json(path)
    if not isinstance(document, dict) or list(document) != [point.key for point in points]:
        raise CaseError(path, "must hold the keys of gt.json, in the same order")
    records = []
    for key, value in document.items():
        if not isinstance(value, dict) or "key" in value:
            raise CaseError(path, f"{key}: must be an object without its own key")
        records.append(as_record(PointAdmission, {"key": key, **value}, path, f"{key}."))
    return tuple(records)


def _schema(path: Path) -> SubmissionSchema:
    schema = as_record(SubmissionSchema, read_json(path), path)
    for file in schema.files:
        names = [field.name for field in file.fields]
        names += [alias.name for field in file.fields for alias in field.renamings()]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise CaseError(path, f"{file.name}: {repeated[0]!r} names two fields")
    file_names = [n for file in schema.files for n in (file.name, *file.aliases)]
    if len(set(file_names)) != len(file_names):
        raise CaseError(path, "two files share a name or an alias")
    return schema


def _check_mutants(root: Path, names: list[str]) -> None:
    for name in names:
        if name.startswith("sealed/mutants/"):
            try:
                read_mutant(read_text(root / name), Path(name).stem)
            except RecursionError as error:
                raise CaseError(root / name, "is nested too deeply") from error
            except ValueError as error:
                raise CaseError(root / name, str(error)) from error
