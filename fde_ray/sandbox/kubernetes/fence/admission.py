"""The policy by which the API server itself refuses weak pods, whoever asks for them."""

from __future__ import annotations

from .access import cluster_name
from .objects import Object, built, explained
from .rules import VARIABLES, Weakness
from .settings import FenceSettings
from .weaknesses import weaknesses

_VERSION = "admissionregistration.k8s.io/v1"


def admission(settings: FenceSettings) -> list[Object]:
    """Return the policy and what binds it to the run namespace."""
    name = cluster_name(settings, "pods")
    rules = [
        {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE", "UPDATE"],
            "resources": ["pods", "pods/ephemeralcontainers", "pods/resize"],
        }
    ]
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": rules},
        "variables": [{"name": key, "expression": each} for key, each in VARIABLES.items()],
        "validations": [_validation(each) for each in weaknesses(settings)],
    }
    here = {"kubernetes.io/metadata.name": settings.namespace}
    bound = {
        "policyName": name,
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": {"matchLabels": here}},
    }
    told = explained("refuses every pod of the run namespace that is weaker than a run pod")
    return [
        built(_VERSION, "ValidatingAdmissionPolicy", name, annotations=told, spec=spec),
        built(_VERSION, "ValidatingAdmissionPolicyBinding", name, spec=bound),
    ]


def _validation(weakness: Weakness) -> dict[str, str]:
    return {"expression": weakness.unless, "message": weakness.message}
