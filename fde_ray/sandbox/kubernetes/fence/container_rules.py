"""Rules about what is inside a pod: programs, their privileges and their secrets."""

from __future__ import annotations

from collections.abc import Iterator

from fde_ray.sandbox.kubernetes import contract as c

from .rules import Weakness, cel, each
from .settings import FenceSettings

_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")


def credentials() -> Iterator[Weakness]:
    yield Weakness(
        "service_account_token",
        "!variables.spec.?automountServiceAccountToken.orValue(true)",
        "automountServiceAccountToken must be false",
    )
    yield Weakness(
        "service_account",
        "variables.spec.?serviceAccountName.orValue('default') in ['', 'default']",
        "a run pod is the namespace's default account, which has no rights",
    )
    yield Weakness(
        "service_links",
        "!variables.spec.?enableServiceLinks.orValue(true)",
        "enableServiceLinks must be false",
    )
    yield Weakness(
        "env_from",
        each("c.?envFrom.orValue([]).size() == 0"),
        "no environment of a run pod comes from other objects",
    )
    yield Weakness(
        "env_source",
        each("c.?env.orValue([]).all(e, !has(e.valueFrom))"),
        "each variable of a run pod is a literal",
    )
    yield Weakness(
        "secret_outside_shim",
        each(
            f"c.name == {cel(c.SHIM)}"
            f" || c.?env.orValue([]).all(e, e.name != {cel(c.CONFIG_VARIABLE)})"
        ),
        f"{c.CONFIG_VARIABLE} holds the run's secret and belongs to the shim alone",
    )
    yield Weakness(
        "environment",
        each(
            f"c.?env.orValue([]).map(e, e.name) =="
            f" (c.name == {cel(c.SHIM)} ? {cel([c.CONFIG_VARIABLE])} : [])"
        ),
        f"the shim has the variable {c.CONFIG_VARIABLE}, and nobody another one",
    )


def privileges(settings: FenceSettings) -> Iterator[Weakness]:
    of_each = {
        "privileged": ("!c.?securityContext.?privileged.orValue(false)", "no privileges"),
        "privilege_escalation": (
            "!c.?securityContext.?allowPrivilegeEscalation.orValue(true)",
            "allowPrivilegeEscalation must be false",
        ),
        "added_capabilities": (
            "c.?securityContext.?capabilities.?add.orValue([]).size() == 0",
            "no capability may be added",
        ),
        "capabilities": (
            "c.?securityContext.?capabilities.?drop.orValue([]) == ['ALL']",
            "each container drops ALL capabilities",
        ),
        "read_only_root": (
            "c.?securityContext.?readOnlyRootFilesystem.orValue(false)",
            "readOnlyRootFilesystem must be true",
        ),
        "proc_mount": (
            "c.?securityContext.?procMount.orValue('Default') == 'Default'",
            "/proc is masked as by default",
        ),
    }
    for name, (expression, told) in of_each.items():
        yield Weakness(name, each(expression), told)
    yield from _profiles()
    yield from _users(settings)


def _profiles() -> Iterator[Weakness]:
    default = "'RuntimeDefault'"
    yield Weakness(
        "seccomp",
        f"variables.context.?seccompProfile.?type.orValue('') == {default} && "
        + each(f"c.?securityContext.?seccompProfile.?type.orValue({default}) == {default}"),
        "the seccomp profile is RuntimeDefault",
    )
    yield Weakness(
        "apparmor",
        f"variables.context.?appArmorProfile.?type.orValue({default}) == {default} && "
        + each(f"c.?securityContext.?appArmorProfile.?type.orValue({default}) == {default}"),
        "the AppArmor profile is the runtime's",
    )
    yield Weakness(
        "selinux",
        "!has(variables.context.seLinuxOptions) && "
        + each("!has(c.securityContext) || !has(c.securityContext.seLinuxOptions)"),
        "SELinux labels are the runtime's",
    )
    yield Weakness(
        "sysctls",
        "variables.context.?sysctls.orValue([]).size() == 0",
        "a run pod changes no kernel setting",
    )


def _users(settings: FenceSettings) -> Iterator[Weakness]:
    numbers = " && ".join(
        f"variables.context.?{field}.orValue(0) == {c.UID}"
        for field in ("runAsUser", "runAsGroup", "fsGroup")
    )
    same = " && ".join(
        f"c.?securityContext.?{field}.orValue({c.UID}) == {c.UID}"
        for field in ("runAsUser", "runAsGroup")
    )
    yield Weakness(
        "root",
        f"variables.context.?runAsNonRoot.orValue(false) && {numbers} && "
        + each(f"{same} && c.?securityContext.?runAsNonRoot.orValue(true)"),
        f"user, group and fsGroup are {c.UID}, with runAsNonRoot",
    )
    yield Weakness(
        "more_groups",
        "variables.context.?supplementalGroups.orValue([]).size() == 0",
        "a run pod has no further groups",
    )
    if settings.user_namespaces:
        yield Weakness(
            "user_namespace",
            "!variables.spec.?hostUsers.orValue(true)",
            "hostUsers must be false",
        )


def programs(settings: FenceSettings) -> Iterator[Weakness]:
    yield Weakness(
        "init_containers",
        "variables.spec.?initContainers.orValue([]).size() == 0",
        "a run pod has no init containers",
    )
    yield Weakness(
        "ephemeral_containers",
        "variables.spec.?ephemeralContainers.orValue([]).size() == 0",
        "nothing is put into a run pod while it runs",
    )
    pair, alone = cel([c.SHIM, c.AGENT]), cel([c.CANARY])
    yield Weakness(
        "containers",
        f"variables.containers.map(c, c.name) == (variables.canary ? {alone} : {pair})",
        f"a run pod has the containers {c.SHIM} and {c.AGENT}, in this order",
    )
    yield Weakness(
        "same_image", each("c.image == variables.containers[0].image"), "both have one image"
    )
    if settings.images:
        allowed = f"{cel(settings.images)}.exists(i, c.image.startsWith(i))"
        yield Weakness("image", each(allowed), f"images are {' or '.join(settings.images)}")
    canary = c.CANARY_COMMAND
    begins = (
        f"c.?command.orValue([]).size() >= {len(canary)} && "
        f"{list(range(len(canary)))}.all(i, c.command[i] == {cel(canary)}[i])"
    )
    exact = (
        f"c.?command.orValue([]) == (c.name == {cel(c.SHIM)} ?"
        f" {cel(c.SHIM_COMMAND)} : {cel(c.RUNNER_COMMAND)})"
    )
    yield Weakness(
        "command",
        each(f"variables.canary ? {begins} : {exact}"),
        "containers start the programs of this project alone",
    )
    yield Weakness("args", each("c.?args.orValue([]).size() == 0"), "a command is all there is")
    yield Weakness(
        "terminal",
        each("!c.?stdin.orValue(false) && !c.?tty.orValue(false)"),
        "nobody types into a run pod",
    )


def hooks() -> Iterator[Weakness]:
    yield Weakness("lifecycle", each("!has(c.lifecycle)"), "a run pod has no start or stop hooks")
    by_http = " && ".join(f"(!has(c.{probe}) || has(c.{probe}.httpGet))" for probe in _PROBES)
    yield Weakness("probe_kind", each(by_http), "the kubelet asks a run pod by HTTP alone")
    at_home = " && ".join(
        f"(!has(c.{probe}) || c.{probe}.httpGet.?host.orValue('') == '')" for probe in _PROBES
    )
    yield Weakness("probe_host", each(at_home), "the kubelet asks the pod and no other host")
    asked = f"c.livenessProbe.httpGet.port == {c.HEALTH_PORT} && " + " && ".join(
        f"c.livenessProbe.?{field}.orValue({default}) <= {most}"
        for field, default, most in (
            ("periodSeconds", 10, 1),
            ("failureThreshold", 3, 2),
            ("timeoutSeconds", 1, 5),
            ("initialDelaySeconds", 0, 60),
            ("terminationGracePeriodSeconds", 30, 1),
        )
    )
    in_time = (
        f"c.startupProbe.httpGet.port == {c.HEALTH_PORT}"
        " && c.startupProbe.?periodSeconds.orValue(10)"
        " * c.startupProbe.?failureThreshold.orValue(3)"
        " + c.startupProbe.?initialDelaySeconds.orValue(0) <= 120"
    )
    yield Weakness(
        "kill_switch",
        each(
            f"c.name != {cel(c.AGENT)} || has(c.livenessProbe) && {asked}"
            f" && (!has(c.startupProbe) || {in_time})"
        ),
        f"the agent's liveness is asked each second at port {c.HEALTH_PORT}, and it ends at once",
    )
