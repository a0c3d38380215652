"""What run pods are called and labelled: all of it follows from the session's subject."""

from __future__ import annotations

import re
from typing import NamedTuple

from fde_ray.model.base import sha256_hex
from fde_ray.model.ids import SHARDS

from .contract import PREFIX

SUBJECT = f"{PREFIX}subject"
"""An annotation: subjects hold what a label cannot."""
_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_HEX = frozenset("0123456789abcdef")


class PodIdentity(NamedTuple):
    """What a pod must bear to be taken for that of a session."""

    name: str
    run: str
    attempt: str
    shard: int


def pod_identity(role: str, subject: str) -> PodIdentity:
    """`attempt` is what tells this session from the others of its run."""
    run = run_of(subject)
    rest = subject[len(run) :].lstrip("./").replace("/", ".")
    name = f"fde-{role}-{sha256_hex(subject)[:16]}"
    return PodIdentity(name, label_value(run), label_value(rest or "1"), shard_of(subject))


def run_of(subject: str) -> str:
    return subject.partition("/")[0].partition(".")[0]


def shard_of(subject: str) -> int:
    """Return the shard of the subject's run, as `model.ids.shard_of` for every run id of ours."""
    head = run_of(subject)[:2]
    if len(head) < 2 or not _HEX.issuperset(head):
        head = sha256_hex(subject)[:2]
    return int(head, 16) % SHARDS


def label_value(text: str) -> str:
    """Return the text where it may stand in a label, else its hash."""
    return text if _LABEL.fullmatch(text) else sha256_hex(text)[:32]
