"""What agents say is kept as it is, or the same stands in for it whatever the database."""

from __future__ import annotations

import math

import pytest

from fde_ray.model.session import Part
from fde_ray.store.errors import Unstorable
from fde_ray.store.runs import Epoch, Heartbeat, RunStore
from fde_ray.store.runs.statements import storable_texts
from tests.store.builders import SHA, make_turn

HOSTILE = "a\0b\x01\u2028\U0001f600\ufffe'\"%s\\ "


async def test_text_in_json_loses_nothing(store: RunStore, subject: str) -> None:
    await store.record_turn(subject, make_turn(text=HOSTILE))
    await store.record_handle(subject, {"x": HOSTILE})
    (turn,) = await store.dialogue(subject)
    assert turn.text == HOSTILE  # type: ignore[union-attr]
    assert (await store.session(subject)).handle == {"x": HOSTILE}


async def test_plain_text_keeps_all_but_what_a_database_refuses(
    store: RunStore, subject: str, epoch: Epoch
) -> None:
    await store.close_attempt(subject, epoch, detail=HOSTILE + "\ud800")
    assert (await store.session(subject)).detail == HOSTILE.replace("\0", "\ufffd") + "\ufffd"


async def test_text_of_a_key_is_found_again(store: RunStore, subject: str) -> None:
    nonce = "n\0\udfff"
    assert await store.token_serial(subject, nonce) == 1
    assert await store.token_serial(subject, nonce) == 1
    assert await store.token_serial(subject, "other") == 2


async def test_long_text_is_kept(store: RunStore, subject: str) -> None:
    text = "é" * 3_000_000
    await store.record_turn(subject, make_turn(text=text))
    assert len((await store.dialogue(subject))[0].text) == len(text)  # type: ignore[union-attr]


@pytest.mark.parametrize("number", [2**63, 10**30])
async def test_number_beyond_64_bits_is_refused_in_a_sentence(
    store: RunStore, subject: str, number: int
) -> None:
    with pytest.raises(Unstorable) as caught:
        await store.record_part(subject, "final", Part(seq=number, sha256=SHA, size=1))
    assert "\n" not in str(caught.value)
    greatest = Part(seq=2**63 - 1, sha256=SHA, size=2**63 - 1)
    await store.record_part(subject, "final", greatest)
    assert await store.parts(subject, "final") == (greatest,)


async def test_number_that_is_none_is_unknown(store: RunStore, subject: str) -> None:
    await store.beat("r", [Heartbeat(subject, 1.0, math.nan, 1)])
    assert (await store.session(subject)).cpu_s is None
    await store.beat("r", [Heartbeat(subject, 1.0, math.inf, 1)])
    assert (await store.session(subject)).cpu_s == math.inf


async def test_times_come_back_to_the_last_bit(store: RunStore, subject: str) -> None:
    at = 1_700_000_000.123456789
    assert await store.mark_agent_started(subject, at) == at
    assert (await store.session(subject)).agent_started_at == at


def test_parameters_that_need_no_change_are_not_copied() -> None:
    values = ("a", 1, None, "é")
    assert storable_texts(values) is values
    assert storable_texts(("a\0", 1)) == ("a\ufffd", 1)
