"""Packages are installed where that may be done, and named where it may not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.lab.providing import provide
from fde_ray.model.errors import UserError

APT = """#!/bin/sh
echo "$@" >> "$APT_CALLS"
case "$1" in update) : > "$APT_CALLS.lists"; exit 0;; esac
[ -e "$APT_CALLS.$APT_NEEDS" ] || { echo "E: Unable to locate package" >&2; exit 100; }
for last; do :; done
: > "$APT_CALLS.has.$last"
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have an apt-get that installs once what `needs` names is there, and nobody asks sudo."""
    for name, text in (("apt-get", APT), ("sudo", '#!/bin/sh\nshift\nexec "$@"\n')):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("APT_CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("APT_NEEDS", "lists")
    monkeypatch.delenv("FDE_RAY_SKIP_APT", raising=False)
    return tmp_path / "calls"


def without(name: str, calls: Path) -> Callable[[], list[str]]:
    return lambda: [] if Path(f"{calls}.has.{name}").exists() else [name]


def test_nothing_is_asked_for_when_nothing_is_lacking(calls: Path) -> None:
    provide(list, print)
    assert not calls.exists()


@pytest.mark.parametrize("uid", [0, 1000])
def test_lists_are_refreshed_when_a_package_is_unknown(
    calls: Path, monkeypatch: pytest.MonkeyPatch, uid: int
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    said: list[str] = []
    provide(without("ipset", calls), said.append)
    assert said == ["installing ipset ..."]
    first, update, second = calls.read_text().splitlines()
    assert first == second
    assert first.endswith("DPkg::Lock::Timeout=300 -o Acquire::Retries=3 ipset")
    assert update.startswith("update")


def test_lists_are_left_alone_when_the_package_is_known(calls: Path) -> None:
    Path(f"{calls}.lists").touch()
    provide(without("ipset", calls), print)
    assert len(calls.read_text().splitlines()) == 1


def test_package_that_cannot_be_had_is_told_with_the_words_of_apt(
    calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APT_NEEDS", "miracle")
    with pytest.raises(UserError) as caught:
        provide(without("ipset", calls), print)
    assert str(caught.value) == (
        "missing on this machine: ipset (apt-get says: E: Unable to locate package). "
        "Install: apt-get install -y --no-install-recommends ipset"
    )


def test_nothing_is_installed_where_the_user_forbids_it(
    calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FDE_RAY_SKIP_APT", "1")
    with pytest.raises(UserError, match=r"^missing on this machine: ipset\. Install: apt-get"):
        provide(without("ipset", calls), print)
    assert not calls.exists()
