"""Attempts on the run-plane itself, which the network lets an agent reach, with stolen tokens.

Each first uses a good token for what it is good for; unless that works, it proves nothing.
"""

from __future__ import annotations

import base64
import json
import time
from typing import Any

from .asking import asked, bearer, none_is_served, paths
from .syscalls import Job


def without_token(job: Job) -> str:
    return none_is_served(job["plane"], paths(), {}, {401, 403, 404, 405, 422})


def wrong_secret(job: Job) -> str:
    """Ask for a token with a secret that is made up, or of another run."""
    tries = [
        {"subject": job["subject"], "secret": "0" * 64},
        {"subject": job["subject"], "secret": ""},
        {"subject": job["other_subject"], "secret": job["own_secret"]},
        {"subject": "../" + job["subject"], "secret": job["own_secret"]},
    ]
    for each in tries:
        body = each | {"nonce": "stolen", "scope": "solve"}
        status, _ = asked(job["plane"], "POST", "/v1/token", body)
        if status < 300:
            return f"a token was given for {each['subject']}"
    raise PermissionError(f"{len(tries)} wrong secrets, and no token")


def forged_tokens(job: Job) -> str:
    """Sign a token with nothing, with an empty key, and with one's own."""
    head, claims, signature = job["token"].split(".")
    told = json.loads(base64.urlsafe_b64decode(claims + "=="))
    changed = _coded(told | {"sub": job["subject"], "scope": "collect", "exp": 2**31})
    tokens = [
        f"{_coded({'alg': 'none', 'typ': 'JWT'})}.{changed}.",
        f"{head}.{changed}.{signature}",
        f"{head}.{changed}.",
        f"{head}.{changed}.{base64.urlsafe_b64encode(b'x' * 32).rstrip(b'=').decode()}",
        "",
        "null",
        "x" * 9000,
    ]
    _must_be_good(job)
    for token in tokens:
        if asked(job["plane"], "GET", "/v1/inputs", None, bearer(token))[0] < 300:
            return f"it was taken: {token[:60]}"
    raise PermissionError(f"{len(tokens)} forged tokens, and none was taken")


def expired_token(job: Job) -> str:
    _must_be_good(job)
    return _refused_token(job, job["expired"])


def replayed_token(job: Job) -> str:
    """Use the token of a shim that another one has taken over from."""
    _must_be_good(job)
    return _refused_token(job, job["replayed"])


def other_roles(job: Job) -> str:
    """With a stolen token: the evaluator, hidden archives, and scopes that are not its own."""
    _must_be_good(job)
    names = ("sealed", "extract", "workspace", "..%2fsealed", "visible%2f..%2fsealed", "%2e%2e")
    paths = [("GET", f"/v1/archives/{name}") for name in names]
    paths += [("POST", "/v1/evaluate"), ("GET", "/metrics"), ("GET", "/docs"), ("GET", "/v1/runs")]
    paths += [("GET", "/openapi.json"), ("POST", "/v1/sweeps"), ("GET", "/v1/results")]
    return none_is_served(
        job["plane"], paths, bearer(job["token"]), {400, 401, 403, 404, 405, 409, 422}
    )


def other_runs(job: Job) -> str:
    """With a token of one run, name another in every way that a server might listen to."""
    _must_be_good(job)
    subject = job["subject"]
    spoken = [
        (f"/v1/inputs?subject={subject}", {}),
        (f"/v1/inputs?run={subject.partition('.')[0]}", {}),
        ("/v1/inputs", {"x-subject": subject, "x-fde-subject": subject, "x-run": subject}),
        ("/v1/inputs", {"cookie": f"subject={subject}"}),
        (f"/v1/runs/{subject.partition('.')[0]}/inputs", {}),
    ]
    for path, headers in spoken:
        _, data = asked(job["plane"], "GET", path, None, bearer(job["token"]) | headers)
        if f"The prompt of {subject}".encode() in data:
            return f"the inputs of another run came by {path}"
    raise PermissionError("a token speaks of its own run alone, whatever else is said")


def early_commit(job: Job) -> str:
    """With a stolen token of the solving scope: commit a final workspace of one's own choice."""
    _must_be_good(job)
    commit = {
        "snapshot": "final", "parts": [], "tree_hash": "0" * 64, "files": 0, "size_bytes": 0,
        "skipped": [], "final": True,
    }  # fmt: skip
    status, data = asked(job["plane"], "POST", "/v1/commit", commit, bearer(job["token"]))
    if status < 300:
        return "a final commit was taken while the agent solves"
    raise PermissionError(f"{status} {data[:120]!r}")


def stretched_clock(job: Job) -> str:
    """With a stolen token: claim held calls, start again, and see whether the clock runs on."""
    _must_be_good(job)
    headers = bearer(job["token"])
    beat = {"held": ["made-up"] * 3, "cpu_s": 0.0, "rss_bytes": 0}
    first = json.loads(asked(job["plane"], "POST", "/v1/heartbeat", beat, headers)[1])
    began = time.monotonic()
    asked(job["plane"], "POST", "/v1/started", {}, headers)
    for _ in range(3):
        time.sleep(1)
        last = json.loads(asked(job["plane"], "POST", "/v1/heartbeat", beat, headers)[1])
    passed, charged = time.monotonic() - began, first["remaining_s"] - last["remaining_s"]
    told = f"{passed:.1f} s went by and {charged:.1f} s were charged"
    if last["paused"] or charged < passed - 1:
        return told
    raise PermissionError(told)


def _must_be_good(job: Job) -> None:
    """The same request has to work with a good token, or its refusal says nothing."""
    status, data = asked(job["plane"], "GET", "/v1/inputs", None, bearer(job["token"]))
    if status != 200:
        raise ValueError(f"a good token is not taken, either: {status} {data[:80]!r}")


def _refused_token(job: Job, token: str) -> str:
    status, data = asked(job["plane"], "GET", "/v1/inputs", None, bearer(token))
    if status < 300:
        return "the token was taken"
    raise PermissionError(f"{status} {data[:120]!r}")


def _coded(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()
