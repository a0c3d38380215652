"""Operations that shims of sandboxes ask for: tokens, inputs, turns, clocks, collection."""

from __future__ import annotations

from fde_ray.gateway.bulk import BULK
from fde_ray.gateway.collection import MAX_EVENT_FILES, MAX_PARTS
from fde_ray.gateway.messages import (
    Heartbeat,
    HeartbeatReply,
    JobReply,
    StartedReply,
    StartedRequest,
    TokenReply,
    TokenRequest,
    TurnReply,
    TurnRequest,
)
from fde_ray.gateway.ports import EvaluateReply
from fde_ray.gateway.turns import LONGEST_WAIT_S
from fde_ray.model.boxes import MAX_FOLDERS, BoxResult
from fde_ray.model.session import AgentExit, Commit, SessionInputs

from .operations import (
    BINARY,
    BYTES,
    DONE,
    GZIP,
    JSON,
    Operation,
    Reply,
    in_path,
    in_query,
    number,
    says,
    text,
)

JOB_ID = text("^[0-9A-Za-z]{1,64}$")
SHA256 = text("^[0-9a-f]{64}$")
WAIT_S = in_query(
    "wait_s",
    {"type": "number", "minimum": 0, "maximum": LONGEST_WAIT_S, "default": 0},
    "How long to wait for it, in seconds.",
)
_TURN_REPLIES = {
    200: Reply("What the agent is told.", {JSON: TurnReply}),
    202: Reply("The turn is kept and has no reply yet.", {JSON: TurnReply}),
}

SHIM_OPERATIONS = (
    Operation(
        "POST",
        "/v1/token",
        "issue_token",
        "Exchange the bootstrap secret of a session for a short token.",
        says(TokenReply),
        {JSON: TokenRequest},
        security="none",
    ),
    Operation("POST", "/v1/token/renew", "renew_token", "Renew a token.", says(TokenReply)),
    Operation("GET", "/v1/inputs", "inputs", "Read what the session is told.", says(SessionInputs)),
    Operation(
        "GET",
        "/v1/archives/{name}",
        "archive",
        "Read an archive that the inputs list.",
        {200: Reply("A tar file, compressed.", {GZIP: BINARY})},
        parameters=(in_path("name", {"type": "string", "minLength": 1}),),
    ),
    Operation(
        "POST",
        "/v1/started",
        "started",
        "Start the agent's clock; the first call counts.",
        says(StartedReply),
        {JSON: StartedRequest},
    ),
    Operation(
        "POST",
        "/v1/heartbeat",
        "heartbeat",
        "Tell that the session lives and read its clock.",
        says(HeartbeatReply),
        {JSON: Heartbeat},
    ),
    Operation(
        "POST",
        "/v1/turns",
        "post_turn",
        "Post a turn of the agent; a repeat gets the same reply.",
        _TURN_REPLIES,
        {JSON: TurnRequest},
    ),
    Operation(
        "GET",
        "/v1/turns/{turn_no}",
        "turn_reply",
        "Wait for the reply to a turn.",
        _TURN_REPLIES,
        parameters=(
            in_path("turn_no", number(0, 999_999_999)),
            WAIT_S,
        ),
    ),
    Operation(
        "POST",
        "/v1/exit",
        "exit",
        "Tell how the agent's side ended by itself.",
        DONE,
        {JSON: AgentExit},
    ),
    Operation(
        "PUT",
        "/v1/parts/{snapshot}/{seq}",
        "put_part",
        "Store one part of a snapshot.",
        DONE,
        {BYTES: BINARY},
        (
            in_path("snapshot", text("^[a-z0-9-]{1,40}$")),
            in_path("seq", number(0, MAX_PARTS - 1)),
            in_query("sha256", SHA256, "Of the body.", required=True),
        ),
    ),
    Operation(
        "POST", "/v1/commit", "commit", "Commit a snapshot's manifest.", DONE, {JSON: Commit}
    ),
    Operation(
        "PUT",
        "/v1/events/{seq}",
        "put_events",
        "Store a file of the session's own events.",
        DONE,
        {BYTES: BINARY},
        (in_path("seq", number(0, MAX_EVENT_FILES - 1)),),
    ),
)
BULK_OPERATIONS = tuple(one for one in SHIM_OPERATIONS if one.path in BULK)
GRADING_OPERATIONS = (
    Operation(
        "POST",
        "/v1/evaluate",
        "evaluate",
        "Run the evaluator on an extractor's output folder.",
        says(EvaluateReply),
        {GZIP: BINARY},
    ),
    Operation(
        "GET",
        "/v1/job",
        "next_job",
        "Wait for the next program that a grade's box is to run.",
        {
            200: Reply("A program; the same one until its end is told.", {JSON: JobReply}),
            202: Reply("There is none so far.", {JSON: JobReply}),
        },
        parameters=(WAIT_S,),
    ),
    Operation(
        "GET",
        "/v1/job/{job_id}/folders/{number}",
        "job_folder",
        "Read a folder of a program that the box has taken.",
        {200: Reply("A tar file, compressed.", {GZIP: BINARY})},
        parameters=(in_path("job_id", JOB_ID), in_path("number", number(0, MAX_FOLDERS - 1))),
    ),
    Operation(
        "POST",
        "/v1/job/{job_id}",
        "end_job",
        "Tell how a program ended; the first word counts.",
        DONE,
        {JSON: BoxResult},
        parameters=(in_path("job_id", JOB_ID),),
    ),
)
