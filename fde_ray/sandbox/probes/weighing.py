"""From what the pods printed and what was seen around them to the facts of each attempt. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from fde_ray.model.errors import shortened
from fde_ray.sandbox.kubernetes.contract import AGENT, SHIM

from . import planning
from .building import nonce_of
from .catalogue.workspace import ALONE
from .records import Attempt, Check, Control, Facts, Group, Said

Object = dict[str, Any]
LONGEST_GAP_S = 5.0
"""A neighbour that says nothing for longer was harmed."""
DEADLINE_S = 10.0
LOOSE = "loose pod"
_REGULAR, _FOLDER = "0", "5"


class Heard(NamedTuple):
    """What one pod left. pod: as it was at its end; began, ended: seconds since 1970."""

    pod: Object
    shim: Sequence[Object]
    agent: Sequence[Object]
    began: float
    ended: float
    node: Check


class Around(NamedTuple):
    """What was seen outside of all pods of a runtime. None: nobody could look."""

    tag: str
    namespace: str
    packets: frozenset[str] | None
    traces: frozenset[str] | None
    log: str | None
    """What the node's kernel noted meanwhile, and some time before."""
    plane: Object | None
    """What the run-plane wrote down (`gateway.proving.View`), and `subject`, whose pod it was."""
    beats: Sequence[float]
    """When the neighbour said that it is well."""


def facts_of(attempt: Attempt, heard: Mapping[str, Heard], around: Around) -> Facts:
    """heard: by name of the errand."""
    pod = _pod_of(attempt, heard)
    if pod is None:
        return Facts(absent=f"there is no {attempt.target or 'pod'} to try it on")
    is_shut = attempt.group is Group.PLANE or any(
        line.get("kind") == "gate" and line.get("shut") for line in pod.shim
    )
    if not is_shut and not _is_evicted(pod):
        return Facts(absent=f"its pod did not come to it: {_state(pod)}")
    said = said_of(attempt.id, pod)
    checks = [*_seen_outside(attempt, said, heard, around), *_looked_at(attempt, said, pod, around)]
    return Facts(said=said, controls=_controls(attempt, heard), checks=tuple(checks))


def said_of(name: str, heard: Heard) -> Said | None:
    for line in heard.agent:
        if line.get("id") == name and line.get("outcome") in ("done", "refused", "broken"):
            return Said(
                id=name,
                outcome=line["outcome"],
                evidence=shortened(str(line.get("evidence", "")), 300),
                took_s=float(line.get("took_s", 0.0)),
            )
    return None


def _pod_of(attempt: Attempt, heard: Mapping[str, Heard]) -> Heard | None:
    if attempt.group is Group.RESOURCES or attempt.id in ALONE:
        return heard.get(f"fenced-{attempt.id}")
    if attempt.control is Control.COLLECTED:
        return heard.get(f"fenced-{planning.TRAPS}")
    if attempt.group is Group.PLANE:
        return heard.get(f"plane-{planning.PLANE}")
    shared = {Group.NETWORK: planning.NETWORK, Group.DEADLINE: planning.DEADLINE}
    found = heard.get(f"fenced-{shared.get(attempt.group, planning.HOST)}")
    is_tried = found is not None and (said_of(attempt.id, found) or not attempt.target)
    return found if is_tried else None


def _controls(attempt: Attempt, heard: Mapping[str, Heard]) -> dict[str, Said]:
    pods = {
        Control.UNFENCED: ("no fence", f"free-{planning.NETWORK}"),
        Control.TWIN: ("no fence", f"free-{planning.NETWORK}"),
        Control.LOOSE: (LOOSE, f"loose-{planning.HOST}"),
        Control.LARGER: ("twice the limit", f"fenced-{attempt.id}{planning.LARGER}"),
    }
    if attempt.control not in pods:
        return {}
    word, name = pods[attempt.control]
    pod = heard.get(name)
    said = None if pod is None else said_of(attempt.id, pod)
    return {} if said is None else {word: said}


# --- what is seen from outside


def _seen_outside(
    attempt: Attempt, said: Said | None, heard: Mapping[str, Heard], around: Around
) -> list[Check]:
    """A packet that arrived convicts even a refusal; on runc every process is one of the node."""
    if not attempt.watched or said is None:
        return []
    if attempt.watched == "packet":
        return [_unseen("no packet came to the decoy", attempt, said, around.packets, around)]
    if said.outcome != "done":
        return []
    if attempt.watched == "plane":
        return [_plane_view(attempt, heard, around)]
    if attempt.watched == "log":
        return [_guests_log(attempt, said, heard, around)]
    return [_unseen("no process, link or mount on the node", attempt, said, around.traces, around)]


def _unseen(
    name: str, attempt: Attempt, said: Said, seen: frozenset[str] | None, around: Around
) -> Check:
    """Who sees nothing of an attempt must have seen its control."""
    if seen is None:
        return Check(name=name, holds=None, evidence="nobody could look")
    if nonce_of(around.tag, attempt.id, f"fenced {around.namespace}") in seen:
        return Check(name=name, holds=False, evidence="there was one")
    kind = "loose" if attempt.control is Control.LOOSE else "free"
    is_able = nonce_of(around.tag, attempt.id, f"{kind} {around.namespace}") in seen
    if attempt.control is Control.UNSAFE:
        is_able = bool(seen)
    if not is_able and said.outcome == "done":
        return Check(name=name, holds=None, evidence="but none of its control, either")
    return Check(name=name, holds=True)


def _plane_view(attempt: Attempt, heard: Mapping[str, Heard], around: Around) -> Check:
    """A turn reaches its own dialogue alone, and no commit comes before the agent's exit."""
    name = "the run-plane took only what is the agent's to say"
    view, pod = around.plane, heard[f"plane-{planning.PLANE}"]
    if view is None or said_of("all", pod) is None:
        return Check(name=name, holds=None, evidence=f"the pod did not go on: {_state(pod)}")
    nonce = nonce_of(around.tag, attempt.id, f"plane {around.namespace}")
    where = {run for run, turns in view["turns"].items() if any(nonce in t for t in turns)}
    if where - {view["subject"]}:
        return Check(name=name, holds=False, evidence="it reached the dialogue of another run")
    taken = [each["path"] for each in view["requests"] if each["status"] < 300]
    if "/v1/exit" not in taken:
        return Check(name=name, holds=None, evidence="the agent's exit was not seen")
    is_early = "/v1/commit" in taken[: taken.index("/v1/exit")]
    told = "in its own dialogue alone" if where else f"{len(taken)} requests in their order"
    return Check(name=name, holds=not is_early, evidence="an early commit" if is_early else told)


def _guests_log(attempt: Attempt, said: Said, heard: Mapping[str, Heard], around: Around) -> Check:
    name = "what it read is not the node's"
    control = _controls(attempt, heard).get(LOOSE)
    if not around.log or control is None or not _is_of(control.evidence, around.log):
        return Check(name=name, holds=None, evidence="the node's own could not be compared")
    return Check(name=name, holds=not _is_of(said.evidence, around.log))


def _is_of(lines: str, log: str) -> bool:
    """Whether the beginning of a line of the one is in the other."""
    return any(line.strip() and line.strip() in log for line in lines.split(" | "))


# --- pods, nodes and neighbours


def _looked_at(attempt: Attempt, said: Said | None, pod: Heard, around: Around) -> list[Check]:
    if attempt.group is Group.DEADLINE:
        return _after_the_deadline(attempt, pod)
    if attempt.group is Group.RESOURCES:
        return [_typed_end(said, pod), *_unharmed(pod, around)]
    if attempt.id in ALONE:
        return [_over_cap(pod), *_unharmed(pod, around)]
    if attempt.control is Control.COLLECTED:
        return [_collected(attempt, pod)]
    return []


def _unharmed(pod: Heard, around: Around) -> list[Check]:
    beats = [at for at in around.beats if pod.began - 2 <= at <= pod.ended + 2]
    gaps = [after - before for before, after in pairwise(beats)]
    name = "the neighbour went on"
    if not gaps:
        return [pod.node, Check(name=name, holds=None, evidence="it was not heard")]
    told = f"silent for {max(gaps):.1f} s at most"
    return [pod.node, Check(name=name, holds=max(gaps) < LONGEST_GAP_S, evidence=told)]


def _typed_end(said: Said | None, pod: Heard) -> Check:
    name = "its end has a type"
    killed = _killed(pod)
    if killed:
        return Check(name=name, holds=True, evidence=killed)
    if said is not None and said.outcome == "refused":
        return Check(name=name, holds=True, evidence=f"refused inside: {said.evidence}")
    if said is not None and said.outcome == "done" and _ended(pod, AGENT).get("exitCode") == 0:
        return Check(name=name, holds=True, evidence=f"it had enough by itself: {said.evidence}")
    return Check(name=name, holds=False, evidence=_state(pod))


def _over_cap(pod: Heard) -> Check:
    """The collector's caps come first; where the pod's own limits do, its end has a type."""
    line = next((each for each in pod.shim if each.get("kind") == "over_cap"), None)
    name = "the collector or the pod refused by its caps"
    if line is not None:
        told = f"{line['detail']} after {line['took_s']} s"
        return Check(name=name, holds=True, evidence=told)
    killed = _killed(pod)
    return Check(name=name, holds=bool(killed), evidence=killed or _state(pod))


def _killed(pod: Heard) -> str:
    """Return what the cluster says of an agent that it ended for its greed; empty if it did not."""
    if _is_evicted(pod):
        return shortened(f"Evicted: {pod.pod['status'].get('message', '')}", 120)
    ended = _ended(pod, AGENT)
    if ended.get("reason") == "OOMKilled" or ended.get("exitCode") in (128, 137):
        return f"{ended.get('reason')}, exit {ended.get('exitCode')}"
    return ""


def _collected(attempt: Attempt, pod: Heard) -> Check:
    name = "collected as plain files"
    line = next(
        (e for e in pod.shim if e.get("kind") == "trap" and e.get("id") == attempt.id), None
    )
    if line is None:
        return Check(name=name, holds=None, evidence=f"nothing was collected: {_state(pod)}")
    faults = {
        "kinds": set(line["kinds"]) - {_REGULAR, _FOLDER},
        "modes": set(line["modes"]) - {"0o644", "0o755"},
        "names": line["bad_names"],
        "words of others": line["words"],
        "no harmless file": not line["plain"],
    }
    wrong = [f"{fault} {found or ''}" for fault, found in faults.items() if found]
    if wrong:
        return Check(name=name, holds=False, evidence=", ".join(wrong))
    told = f"{line['members']} members, {line['skipped']} left out"
    return Check(name=name, holds=True, evidence=told)


def _after_the_deadline(attempt: Attempt, pod: Heard) -> list[Check]:
    line = next((each for each in pod.shim if each.get("kind") == "killed"), None)
    if line is None:
        return [Check(name="the switch ended it", holds=None, evidence=_state(pod))]
    if attempt.id not in line["seen"]:
        return [Check(name="the switch ended it", holds=None, evidence="it never wrote")]
    is_quick = line["closed"] and line["took_s"] <= DEADLINE_S
    restarts = sum(
        each.get("restartCount", 0) for each in pod.pod["status"].get("containerStatuses", [])
    )
    return [
        Check(name="the switch ended it", holds=is_quick, evidence=f"after {line['took_s']} s"),
        Check(name="it writes no more", holds=attempt.id not in line["alive"]),
        Check(name="nothing was started again", holds=restarts == 0),
    ]


def _is_evicted(pod: Heard) -> bool:
    return bool(pod.pod.get("status", {}).get("reason") == "Evicted")


def _ended(pod: Heard, container: str) -> Object:
    for each in pod.pod.get("status", {}).get("containerStatuses", []):
        if each["name"] == container:
            return dict(each.get("state", {}).get("terminated") or {})
    return {}


def _state(pod: Heard) -> str:
    """Return in a few words how a pod is."""
    status = pod.pod.get("status", {})
    words = [str(status.get("phase", "unknown")), str(status.get("reason", ""))]
    for name in (SHIM, AGENT):
        ended = _ended(pod, name)
        if ended:
            words.append(f"{name} {ended.get('reason')} {ended.get('exitCode')}")
    for line in pod.shim:
        if line.get("kind") == "gate" and not line.get("shut"):
            words.append(f"the gate stayed open to {line.get('open')}")
    return shortened(" ".join(word for word in words if word), 200)
