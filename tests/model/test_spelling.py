"""Names are taken as Kubernetes takes them, and others are refused with a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from fde_ray.model.documents import parse_document
from fde_ray.model.errors import SpecError
from fde_ray.model.kubernetes import KubernetesProfile

LONGEST = ".".join(["x" * 63] * 3 + ["x" * 61])


def named(**names: Any) -> KubernetesProfile:
    return KubernetesProfile.model_validate({"image": "run", "pull": "Never"} | names)


@pytest.mark.parametrize("name", ["gvisor", "g", "0", "run.gvisor.dev", "a--b.c", LONGEST])
def test_a_runtime_class_is_a_subdomain(name: str) -> None:
    assert named(runtime_class=name).runtime_class == name


@pytest.mark.parametrize(
    "name", ["", ".", "a.", ".a", "a..b", "-a", "a.-b", "Kata", "kata_qemu", "kata\n", "é"]
)
def test_what_is_no_subdomain_is_refused_with_a_sentence(name: str) -> None:
    with pytest.raises(ValueError, match="is no such name: write small letters, digits") as caught:
        named(runtime_class=name)
    assert "[a-z" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.b", "A", "a-", "", "a\n", "a_b"])
def test_a_namespace_is_a_label(name: str) -> None:
    with pytest.raises(ValueError, match="with a letter or digit first and last") as caught:
        named(namespace=name)
    assert "[a-z" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "most"), [("namespace", 63), ("queue", 63), ("runtime_class", 253)]
)
def test_names_are_as_long_as_kubernetes_takes_them(key: str, most: int) -> None:
    named(**{key: "x" * most})
    for count in (most + 1, 10**6):
        with pytest.raises(ValueError, match=f"at most {most}"):
            named(**{key: "x" * count})


def test_a_document_tells_the_line_and_the_sentence() -> None:
    text = 'image: run\npull: Never\nnamespace: "my.runs"\n'
    with pytest.raises(SpecError) as caught:
        parse_document(text, KubernetesProfile, path="p.yaml")
    assert str(caught.value) == (
        "p.yaml:3: namespace: 'my.runs' is no such name: write small letters, digits and '-', with "
        "a letter or digit first and last"
    )
