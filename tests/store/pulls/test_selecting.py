"""What people write behind --only and --where."""

from __future__ import annotations

import pytest

from fde_ray.model.errors import UserError
from fde_ray.store.pulls import Kind, Where, kinds_of


def test_kinds_are_listed_by_name() -> None:
    assert kinds_of("dialogues, workspaces") == {Kind.DIALOGUES, Kind.WORKSPACES}
    assert kinds_of("summaries,all") == set(Kind)


@pytest.mark.parametrize("text", ["", ",", "dialog", "summaries,x", "ALL"])
def test_unknown_kind_is_told_with_the_known_ones(text: str) -> None:
    with pytest.raises(UserError, match="choose from summaries, dialogues"):
        kinds_of(text)


@pytest.mark.parametrize("text", ["case", "case=", "=017", "colour=red", "case=017,nonsense"])
def test_condition_that_cannot_be_meant_is_told(text: str) -> None:
    with pytest.raises(UserError, match="write FIELD=VALUE with one of run, case"):
        Where.parsed([text])


def test_a_fact_that_is_not_known_fits_nothing() -> None:
    where = Where.parsed(["case=*"])
    assert where.needs({})
    assert not where.fits({})
    assert where.fits({"case": ""})
    assert Where().fits({})
