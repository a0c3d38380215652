"""The names that a run pod, the fence around it and the programs inside it agree on."""

from __future__ import annotations

from fde_ray.model.session import SESSION_ROLES, SessionRole

PodRole = SessionRole

PREFIX = "fde-ray/"
LABEL_MANAGED = f"{PREFIX}managed"
LABEL_RUN = f"{PREFIX}run"
LABEL_ATTEMPT = f"{PREFIX}attempt"
LABEL_ROLE = f"{PREFIX}role"
LABEL_SHARD = f"{PREFIX}shard"
"""0..255, never changed: supervisors watch by it. Pods without it are nobody's run."""
LABEL_SPEC = f"{PREFIX}spec"
LABEL_SWEEP = f"{PREFIX}sweep"
"""The sweep that planned the run, for people who list pods; others may have come to want it."""
LABEL_CANARY = f"{PREFIX}canary"
"""On pods that carry no run but show what a pod of their role can reach."""
MANAGED = "fde-ray"

SOLVE: PodRole = "solve"
ROLES = SESSION_ROLES
GRADING = tuple(role for role in ROLES if role != SOLVE)

SHIM, AGENT, CANARY = "shim", "agent", "canary"
"""Container names; a run pod has the first two in this order, a canary only the last."""

PROGRAM = ("python3", "-I", "-S", "-B", "/opt/fde/fde-shim.pyz")
SHIM_COMMAND = (*PROGRAM, "shim", "--pod")
HEALTH_PORT, CONTROL_PORT, RELAY_PORT = 9201, 9202, 9203
RUNNER_COMMAND = (
    *PROGRAM,
    *("runner", "--pod"),
    *("--control", f"127.0.0.1:{CONTROL_PORT}"),
    *("--relay", f"http://127.0.0.1:{RELAY_PORT}"),
)
CANARY_COMMAND = (*PROGRAM, "canary")
"""What it is to try follows as further words."""

CONFIG_VARIABLE = "FDE_SHIM_CONFIG"
OWN_VOLUME, SHIM_TMP_VOLUME = "own", "shim-tmp"
"""Volumes that only the shim mounts."""
UID = 1000
NAMESERVER = "127.0.0.1"
"""Where nobody answers: pods resolve no names."""

PRIORITY_SOLVE, PRIORITY_GRADE = "fde-ray-solve", "fde-ray-grade"
OWNER_NAME = "fde-ray-owner"
"""The ConfigMap that owns every pod of a run namespace."""


def priority_class(role: PodRole) -> str:
    return PRIORITY_SOLVE if role == SOLVE else PRIORITY_GRADE
