"""What a case package says, as records.

`Case` is the whole package after `package.load_case`; `Point` is one clarification point in
registry order; `SubmissionSchema` tells what the deliverable must look like and how an extractor
may rename it; `PointAdmission` holds what only the admission checks need.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from fde_ray.model.base import Record
from fde_ray.model.spelling import spelt

Text = Annotated[str, Field(min_length=1, max_length=4000)]
Name = Annotated[
    str,
    spelt(
        r"[a-z][a-z0-9_]{0,63}",
        "name: write up to 64 small letters, digits and '_', with a letter first",
    ),
]
FileName = Annotated[
    str,
    spelt(
        r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}",
        "file name: write up to 100 letters, digits, '.', '_' and '-', with a letter or digit "
        "first",
    ),
]
Code = Annotated[
    str,
    spelt(
        r"[a-z][a-z0-9_.]{0,63}",
        "code of a violation: write up to 64 small letters, digits, '_' and '.', with a letter "
        "first",
    ),
]
Sha256 = Annotated[str, spelt(r"[0-9a-f]{64}", "SHA-256: write 64 digits of 0-9 and a-f")]


class IssueType(StrEnum):
    """How the request falls short on a point."""

    MISSING = "missing"
    AMBIGUOUS = "ambiguous"
    INVALIDATED = "invalidated"
    CONFLICTING = "conflicting"


class ContentDomain(StrEnum):
    """What a point is about."""

    SCORING = "scoring_convention"
    CONSTRAINT = "constraint_rule"
    COMPUTATION = "computation_convention"
    DATA = "data_semantics"


class Point(Record):
    """One clarification point. `answer` stands verbatim in information.md."""

    key: Name
    requirement: Text
    issue_type: IssueType
    content_domain: ContentDomain
    rule_source: str | None
    answer: Text
    triggers: tuple[Text, ...] = Field(min_length=3, max_length=5)


class PointAdmission(Record):
    """How a point is put to the test. `naive` is what an engineer assumes who never asked."""

    key: Name
    param: Name
    value: str | int | float | bool | None
    alternatives: tuple[str | int | float | bool | None, ...] = Field(min_length=1)
    naive: str | int | float | bool | None
    effect: Literal["validity", "objective", "truth"]
    info_anchor: Text
    heading: Text
    rule_codes: tuple[str, ...]
    decoys: tuple[Text, ...] = Field(min_length=2)
    qualitative_answer: str | None = None
    quote: str | None = None
    min_drop: float = Field(ge=0, le=1)


class FieldAlias(Record):
    """Another name for a field; value in our unit = factor * value found."""

    name: Text
    factor: float = 1.0


class SchemaField(Record):
    name: Name
    type: Literal["integer", "number", "string", "boolean"]
    unit: str | None
    range: tuple[float, float] | None
    role: Literal[
        "decision", "grouping_key", "identifier", "order", "derived_checked", "informational"
    ]
    absence_means_zero: bool = False
    aliases: tuple[str | FieldAlias, ...] = ()

    def renamings(self) -> tuple[FieldAlias, ...]:
        """Return every alias as a record, in order."""
        return tuple(
            alias if isinstance(alias, FieldAlias) else FieldAlias(name=alias)
            for alias in self.aliases
        )


class SchemaFile(Record):
    """One file of the deliverable. `row_set` decision: which rows exist is itself an answer."""

    name: FileName
    format: Literal["csv", "json", "text"]
    row: Text
    row_set: Literal["graded", "decision"]
    sorted: bool
    aliases: tuple[FileName, ...] = ()
    fields: tuple[SchemaField, ...]


class SubmissionSchema(Record):
    schema_name: Literal["fde_ray.submission/1"] = Field(alias="schema")
    files: tuple[SchemaFile, ...] = Field(min_length=1)


class Limits(Record):
    """Bounds of one evaluator call and of one submission."""

    eval_s: int = Field(ge=1, le=900)
    eval_mib: int = Field(ge=16, le=16384)
    submission_mib: int = Field(ge=1, le=1024)


class Program(Record):
    """How a submitted program is run: once for each hidden instance, fed it on standard input.

    Beyond `instance_s` or `instance_mib` it has no answer. `params.json` repeats both limits as
    `program_instance_s` and `program_instance_mib`, so that `scoring_hash` covers them.
    """

    entry: FileName
    """One of the schema's files."""
    instance_s: int = Field(ge=1, le=900)
    instance_mib: int = Field(ge=16, le=8192)


class Units(Record):
    length: Text
    mass: Text
    time: Text
    money: Text


class CaseMeta(Record):
    """case.toml."""

    format: Literal["fde_ray.case/1"]
    id: int = Field(ge=1, le=999)
    slug: Name
    title: Text
    family: Literal["co", "ml"]
    subtype: Literal[
        "allocation", "cutting", "design", "energy", "inventory", "packing", "routing",
        "scheduling", "field", "forecasting", "process", "property", "risk", "yield",
    ]  # fmt: skip
    scenario_tags: tuple[Text, ...]
    version: Annotated[str, spelt(r"[0-9]+\.[0-9]+\.[0-9]+", "version: write one as 1.0.0")]
    direction: Literal["min", "max"]
    kind: Literal["artifact", "executable"]
    objective_text: Text
    hard_constraints: tuple[Code, ...]
    limits: Limits
    program: Program | None = None
    """Of executable cases alone."""
    seed_public: int
    canary: Annotated[
        str, spelt(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID in small letters")
    ]
    locale: Text
    units: Units
    licence: Text
    data_licences: tuple[Text, ...]

    @property
    def case_id(self) -> str:
        return f"{self.id:03d}"


class Reference(Record):
    """reference.json. `scored_with` hashes all that decides a score, but this file itself."""

    raw: float
    quality: float = Field(ge=1, le=1)
    components: dict[str, float]
    solver: Text
    seeds: tuple[int, ...]
    budget: Text
    best_bound: float | None
    noise: float = Field(ge=0)
    scored_with: Sha256


class Case(Record):
    """A loaded package. The four hashes are over contents and names, not over archives.

    visible_hash: instruction.md and data/**; information_hash: information.md; gt_hash: gt.json;
    scoring_hash: evaluator, schema, params, truth and reference, as the evaluator reports it.
    """

    root: Path
    case_id: str
    meta: CaseMeta
    instruction: str
    information: str
    points: tuple[Point, ...]
    submission_schema: SubmissionSchema
    admission: tuple[PointAdmission, ...]
    reference: Reference
    limits: Limits
    visible_hash: str
    information_hash: str
    gt_hash: str
    scoring_hash: str

    @property
    def slug(self) -> str:
        return self.meta.slug

    def point(self, key: str) -> Point:
        """Return the point with this key; KeyError if the case has none."""
        for point in self.points:
            if point.key == key:
                return point
        raise KeyError(key)


class ProbeExpectation(Record):
    """What the evaluator says to a probe. `score` is the exact repr of a float."""

    valid: bool
    score: Annotated[str, spelt(r"[0-9.e-]{1,32}", "number: write it as Python does")]
    stage: Literal["structure", "constraint", "quality"]


class Probe(Record):
    """A precomputed deliverable with the dialogue that a scripted agent would have had.

    covered, units, relevant_units and per_round_covered are what the questions amount to;
    files: the deliverable as the agent leaves it, by relative name.
    """

    name: Name
    knows: tuple[Name, ...]
    rounds: tuple[tuple[Text, ...], ...]
    summary: str
    layout: Literal["target", "foreign"]
    expect: ProbeExpectation
    covered: tuple[Name, ...]
    relevant_units: int = Field(ge=0)
    units: int = Field(ge=0)
    per_round_covered: tuple[tuple[Name, ...], ...]
    files: dict[str, bytes]
