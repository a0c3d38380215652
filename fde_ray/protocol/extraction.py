"""What an extractor is told, and how its `_result.json` is read (protocol rules 19-21; A.9.4)."""

from __future__ import annotations

import json
import math

from pydantic import ValidationError

from fde_ray.model.grading import ExtractionReport

from . import replies
from .packs import PromptPack
from .replies import MalformedReply

RESULT_FILE = "_result.json"
SUMMARY_FILE = "_agent_summary.md"


def prompt(
    pack: PromptPack,
    schema_json: str,
    *,
    workspace: str,
    data_dir: str,
    instruction: str,
    information: str,
    output_dir: str,
    evaluator: str = "evaluate",
    executable: bool = False,
) -> str:
    """Return the extractor's whole prompt.

    Paths are absolute inside the sandbox; instruction and information are files. evaluator: the
    command that scores the output. executable: the case whose evaluator the extractor must not run.
    """
    if executable:
        verification = pack.render("extractor_verify_executable", evaluator=evaluator)
    else:
        verification = pack.render(
            "extractor_verify_standard",
            evaluator=evaluator,
            data_dir=data_dir,
            output_dir=output_dir,
        )
    return pack.render(
        "extractor_base",
        schema_json=schema_json.strip(),
        verification_block=verification,
        workspace=workspace,
        data_dir=data_dir,
        instruction=instruction,
        information=information,
        evaluator=evaluator,
        output_dir=output_dir,
    )


def parse_report(text: str) -> ExtractionReport:
    """Return the report; MalformedReply when a field is missing, mistyped or in doubt.

    Unknown keys at the top are left out; the four of the paper are all it must have.
    """
    value = replies.parse_object(text)
    known = {key: value[key] for key in ExtractionReport.model_fields if key in value}
    for key in ("status", "notes", "files_found", "files_normalized"):
        if key not in known:
            raise MalformedReply(f"{key!r} is missing")
    try:
        report = ExtractionReport.model_validate_json(json.dumps(known), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise MalformedReply(f"{where}: {first['msg']}") from error
    if any(factor == 0 or not math.isfinite(factor) for factor in report.unit_factors.values()):
        raise MalformedReply("a unit factor must not be 0")
    return report
