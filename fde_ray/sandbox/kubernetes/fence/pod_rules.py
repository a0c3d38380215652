"""Rules about a pod as a whole."""

from __future__ import annotations

from collections.abc import Iterator

from fde_ray.sandbox.kubernetes import contract as c

from .rules import Weakness, cel, each
from .settings import FenceSettings

_OURS = [c.LABEL_MANAGED, c.LABEL_RUN, c.LABEL_ATTEMPT, c.LABEL_SPEC]
_ALL_OURS = [*_OURS, c.LABEL_ROLE, c.LABEL_SHARD, c.LABEL_SWEEP, c.LABEL_CANARY]
_SHARDS = "^([0-9]|[1-9][0-9]|1[0-9][0-9]|2[0-4][0-9]|25[0-5])$"
_ANNOTATIONS = [c.PREFIX, "kueue.x-k8s.io/", "openshift.io/"]
_ANNOTATION_NAMES = [
    "cluster-autoscaler.kubernetes.io/safe-to-evict",
    "karpenter.sh/do-not-disrupt",
]
_SIZES = ["cpu", "memory", "ephemeral-storage"]


def identity() -> Iterator[Weakness]:
    old = "oldObject.metadata.?labels.orValue({})"
    yield Weakness(
        "changed_labels",
        f"request.operation != 'UPDATE' || {cel(_ALL_OURS)}.all(k,"
        f" variables.labels[?k].orValue('') == {old}[?k].orValue('')"
        f" && (k in variables.labels) == (k in {old}))",
        "the labels of a run pod never change: network rules and supervisors go by them",
    )
    yield Weakness(
        "role",
        f"variables.role in {cel(c.ROLES)}",
        f"label {c.LABEL_ROLE} must be one of {', '.join(c.ROLES)}",
    )
    yield Weakness(
        "labels",
        f"variables.labels[?{cel(c.LABEL_MANAGED)}].orValue('') == {cel(c.MANAGED)}"
        f" && (variables.canary || {cel(_OURS)}.all(k, variables.labels[?k].orValue('') != ''))",
        f"a run pod carries the labels {', '.join(_OURS)}",
    )
    yield Weakness(
        "shard",
        f"variables.canary ? !({cel(c.LABEL_SHARD)} in variables.labels)"
        f" : variables.labels[?{cel(c.LABEL_SHARD)}].orValue('').matches({cel(_SHARDS)})",
        f"label {c.LABEL_SHARD} must be 0 to 255, and no canary has one",
    )
    known = f"k in {cel(_ANNOTATION_NAMES)} || {cel(_ANNOTATIONS)}.exists(p, k.startsWith(p))"
    yield Weakness(
        "annotations",
        "request.operation != 'CREATE' ||"
        f" object.metadata.?annotations.orValue({{}}).all(k, {known})",
        "annotations steer networks and runtimes: a run pod has those of this project alone",
    )


def host() -> Iterator[Weakness]:
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        yield Weakness(
            field,
            f"!variables.spec.?{field}.orValue(false)",
            "a run pod shares nothing of its node",
        )
    yield Weakness(
        "hostPort",
        each("c.?ports.orValue([]).all(p, p.?hostPort.orValue(0) == 0)"),
        "no port of the node leads to a run pod",
    )
    yield Weakness(
        "hostAliases",
        "variables.spec.?hostAliases.orValue([]).size() == 0",
        "a run pod knows no names",
    )
    yield Weakness(
        "shareProcessNamespace",
        "!variables.spec.?shareProcessNamespace.orValue(false)",
        "the agent must not see the shim's processes",
    )


def volumes() -> Iterator[Weakness]:
    yield Weakness(
        "volume_type",
        "variables.volumes.all(v, has(v.emptyDir))",
        "volumes of a run pod are emptyDirs alone",
    )
    yield Weakness(
        "volume_size",
        "variables.volumes.all(v, has(v.emptyDir.sizeLimit)"
        " && quantity(v.emptyDir.sizeLimit).isGreaterThan(quantity('0')))",
        "each emptyDir needs a sizeLimit above 0",
    )
    private = cel([c.OWN_VOLUME, c.SHIM_TMP_VOLUME])
    yield Weakness(
        "private_volume",
        each(
            f"c.name == {cel(c.SHIM)} || c.?volumeMounts.orValue([]).all(m, !(m.name in {private}))"
        ),
        "the shim's own volumes are mounted in the shim alone",
    )
    yield Weakness(
        "mount_propagation",
        each("c.?volumeMounts.orValue([]).all(m, m.?mountPropagation.orValue('None') == 'None')"),
        "mounts of a run pod are not propagated",
    )
    yield Weakness(
        "devices",
        each(
            "c.?volumeDevices.orValue([]).size() == 0"
            f" && c.?resources.?limits.orValue({{}}).all(r, r in {cel(_SIZES)})"
        )
        + " && variables.spec.?resourceClaims.orValue([]).size() == 0",
        "a run pod has no devices",
    )


def scheduling(settings: FenceSettings) -> Iterator[Weakness]:
    yield Weakness(
        "runtime_class",
        f"variables.spec.?runtimeClassName.orValue('') == {cel(settings.runtime_class or '')}",
        f"runtimeClassName must be {settings.runtime_class or 'left out'}",
    )
    yield Weakness(
        "node_name",
        "request.operation != 'CREATE' || variables.spec.?nodeName.orValue('') == ''",
        "the scheduler chooses the node",
    )
    yield Weakness(
        "tolerations",
        "variables.spec.?tolerations.orValue([]).all(t, t.?key.orValue('') != ''"
        " && !t.key.startsWith('node-role.kubernetes.io/'))",
        "a run pod stays off the control plane's nodes",
    )
    limits, requests = "c.?resources.?limits.orValue({})", "c.?resources.?requests.orValue({})"
    sizes = cel(_SIZES)
    yield Weakness(
        "no_limits",
        each(f"{sizes}.all(r, r in {limits})"),
        f"each container has limits of {', '.join(_SIZES)}",
    )
    yield Weakness(
        "requests",
        each(
            f"{sizes}.all(r, r in {requests}"
            f" && quantity({requests}[r]).compareTo(quantity({limits}[r])) == 0)"
        ),
        "requests equal limits",
    )
    yield Weakness(
        "resize", "request.?subResource.orValue('') != 'resize'", "a run pod keeps its size"
    )
    grading = f"variables.canary || variables.role != {cel(c.SOLVE)}"
    yield Weakness(
        "priority_class",
        f"variables.spec.?priorityClassName.orValue('') =="
        f" ({grading} ? {cel(c.PRIORITY_GRADE)} : {cel(c.PRIORITY_SOLVE)})",
        f"priorityClassName is {c.PRIORITY_SOLVE} for solving, else {c.PRIORITY_GRADE}",
    )
    yield Weakness(
        "preemption",
        "variables.spec.?preemptionPolicy.orValue('') == 'Never'",
        "no run pod takes the place of another: its priority class must say Never",
    )


def names_and_ends() -> Iterator[Weakness]:
    dns = "variables.spec.?dnsConfig.?nameservers.orValue([])"
    yield Weakness(
        "dns",
        f"variables.spec.?dnsPolicy.orValue('') == 'None' && {dns} == {cel([c.NAMESERVER])}"
        " && variables.spec.?dnsConfig.?searches.orValue([]).size() == 0",
        f"dnsPolicy is None with the nameserver {c.NAMESERVER} alone",
    )
    yield Weakness(
        "deadline",
        "variables.spec.?activeDeadlineSeconds.orValue(0) > 0",
        "activeDeadlineSeconds must be set",
    )
    yield Weakness(
        "restart",
        "variables.spec.?restartPolicy.orValue('') == 'Never' && " + each("!has(c.restartPolicy)"),
        "nothing of a run pod is started twice",
    )
