"""Signing key, bootstrap secret, and every way to abuse a token."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import stat
from pathlib import Path
from typing import Any

import jwt
import pytest

from fde_ray.gateway.messages import Heartbeat, TokenRequest, TurnRequest
from fde_ray.gateway.tokens import TokenSigner, load_signing_key
from fde_ray.model.errors import Refusal, UserError
from fde_ray.model.session import AgentExit
from fde_ray.model.states import Channel, Phase, Scope, SolveEnd
from tests.gateway.planes import EXTRACT, SOLVE, Bench
from tests.store.builders import make_commit, make_inputs, run_id

OTHER = f"{run_id(2)}.1"


def test_the_key_is_made_once_and_kept_private(tmp_path: Path) -> None:
    first = load_signing_key(tmp_path / "home")
    again = load_signing_key(tmp_path / "home")
    assert (first.kid, first.secret) == (again.kid, again.secret)
    assert stat.S_IMODE((tmp_path / "home" / "plane.key").stat().st_mode) == 0o600
    assert first.secret.hex() not in f"{first!r} {TokenSigner(first, None)!r}"  # type: ignore[arg-type]


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    load_signing_key(tmp_path)
    os.chmod(tmp_path / "plane.key", 0o644)
    with pytest.raises(UserError, match="chmod 600"):
        load_signing_key(tmp_path)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"kid": "a", "secret": "zz"}', "\xff", "5"])
def test_a_broken_key_file_is_no_key(tmp_path: Path, content: str) -> None:
    path = tmp_path / "plane.key"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(UserError, match=r"no signing key|32 bytes"):
        load_signing_key(tmp_path)


async def test_the_same_nonce_gives_the_same_serial(bench: Bench) -> None:
    def claims(token: str) -> Any:
        return bench.signer.verify(token)

    one, same = await bench.token(), await bench.token()
    assert claims(one).serial == claims(same).serial
    other = bench.signer.serial(SOLVE, Scope.SOLVE, "another")
    assert other != claims(one).serial
    assert claims(one).models == ("offline/x",)


async def test_a_wrong_secret_gets_no_token(bench: Bench) -> None:
    for secret in ("0" * 64, bench.signer.bootstrap_secret(OTHER), "é" * 10):
        request = TokenRequest(subject=SOLVE, secret=secret, nonce="n", scope=Scope.SOLVE)
        with pytest.raises(Refusal) as caught:
            await bench.plane.issue_token(request)
        assert caught.value.status == 401


@pytest.mark.parametrize(
    ("subject", "scope", "code"),
    [
        (SOLVE, Scope.EXTRACT, "wrong_scope"),
        (EXTRACT, Scope.SOLVE, "wrong_scope"),
        (f"{run_id(1)}.7", Scope.SOLVE, "not_live"),
        ("../../etc", Scope.SOLVE, "not_live"),
    ],
)
async def test_a_token_is_only_for_a_living_session_and_its_scope(
    bench: Bench, subject: str, scope: Scope, code: str
) -> None:
    with pytest.raises(Refusal) as caught:
        await bench.token(subject, scope)
    assert caught.value.code == code


def _swapped_payload(token: str, **changes: Any) -> str:
    head, body, signature = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    forged = base64.urlsafe_b64encode(json.dumps(claims | changes).encode()).rstrip(b"=").decode()
    return f"{head}.{forged}.{signature}"


def _signed(key: bytes, kid: str = "k1", **changes: Any) -> str:
    claims = {
        "sub": SOLVE,
        "run": run_id(1),
        "role": "solve",
        "scope": "solve",
        "models": ["offline/x"],
        "exp": 2_000_000,
        "serial": "s",
    }
    return jwt.encode(claims | changes, key, algorithm="HS256", headers={"kid": kid})


@pytest.mark.parametrize(
    "make",
    [
        lambda token: "",
        lambda token: "x",
        lambda token: "a.b.c",
        lambda token: token + "x",
        lambda token: token * 100,
        lambda token: _swapped_payload(token, sub=OTHER),
        lambda token: _swapped_payload(token, exp=9_999_999_999),
        lambda token: _signed(b"t" * 32),
        lambda token: _signed(b"s" * 32, kid="k2"),
        lambda token: _signed(b"s" * 32, models=None),
        lambda token: _signed(b"s" * 32, admin=True),
        lambda token: _signed(b"s" * 32, scope="everything"),
        lambda token: jwt.encode({"sub": SOLVE, "exp": 9}, None, "none", headers={"kid": "k1"}),
    ],
    ids=[
        "empty", "short", "no base64", "longer", "huge", "other subject", "longer life",
        "other key", "other kid", "no models", "more claims", "unknown scope", "unsigned",
    ],
)  # fmt: skip
async def test_a_forged_token_is_not_valid(bench: Bench, make: Any) -> None:
    token = make(await bench.token())
    with pytest.raises(Refusal) as caught:
        await bench.plane.inputs(token)
    assert (caught.value.status, caught.value.code) == (401, "token_invalid")


async def test_a_token_expires_and_can_be_renewed_before(bench: Bench) -> None:
    token = await bench.token()
    bench.clock.at += 3000
    renewed = (await bench.plane.renew_token(token)).token
    bench.clock.at += 1000
    with pytest.raises(Refusal) as caught:
        await bench.plane.inputs(token)
    assert caught.value.code == "token_expired"
    assert (await bench.plane.inputs(renewed)).subject == SOLVE


async def test_a_token_of_another_run_does_not_fit_a_session(bench: Bench) -> None:
    token = _signed(b"s" * 32, run=run_id(2))
    with pytest.raises(Refusal) as caught:
        await bench.plane.inputs(token)
    assert caught.value.code == "not_yours"


async def is_open(call: Any) -> bool:
    (outcome,) = await asyncio.gather(call, return_exceptions=True)
    if not isinstance(outcome, Refusal):
        return True
    assert outcome.status == 403
    return False


@pytest.mark.parametrize("scope", [Scope.SOLVE, Scope.COLLECT])
async def test_each_scope_opens_its_routes_and_no_other(bench: Bench, scope: Scope) -> None:
    token = await bench.token(scope=scope)
    may = {
        "inputs": bench.plane.inputs(token),
        "started": bench.plane.started(token),
        "turn": bench.plane.post_turn(
            token, TurnRequest(turn_no=1, channel=Channel.TEXT, has_deliverable=False)
        ),
        "models": bench.plane.models(token),
        "heartbeat": bench.plane.heartbeat(token, Heartbeat()),
        "events": bench.plane.put_events(token, 0, b"x"),
        "evaluate": bench.plane.evaluate(token, b""),
        "exit": bench.plane.exit(token, AgentExit(kind="agent_error")),
    }
    opened = {name for name, call in may.items() if await is_open(call)}
    everywhere = {"heartbeat", "events", "exit"}
    solving = {"inputs", "started", "turn", "models"}
    assert opened == (everywhere | solving if scope is Scope.SOLVE else everywhere)


async def test_the_solve_scope_ends_with_solving_and_collect_lives_on(bench: Bench) -> None:
    solve = await bench.started()
    await bench.plane.exit(solve, AgentExit(kind="agent_error"))
    for call in (bench.plane.inputs(solve), bench.plane.commit(solve, make_commit(final=False))):
        with pytest.raises(Refusal) as caught:
            await call
        assert caught.value.code == "solve_ended"
    collect = await bench.token(scope=Scope.COLLECT)
    await bench.plane.commit(collect, make_commit())
    assert (await bench.plane.heartbeat(collect, Heartbeat())).reason == "finished"
    with pytest.raises(Refusal) as caught:
        await bench.plane.put_events(collect, 1, b"late")
    assert caught.value.code == "committed"


async def test_a_superseded_attempt_is_told_to_stop_and_gets_nothing(bench: Bench) -> None:
    token = await bench.started()
    await bench.store.close_attempt(SOLVE, bench.epoch, solve_end=SolveEnd.INFRA_LOST)
    await bench.store.move_run(run_id(1), bench.epoch, Phase.PROVISIONING, Phase.QUEUED)
    await bench.store.open_attempt(run_id(1), bench.epoch, make_inputs(f"{run_id(1)}.2"))
    beat = await bench.plane.heartbeat(token, Heartbeat())
    assert (beat.state, beat.reason) == ("stop", "superseded")
    with pytest.raises(Refusal) as caught:
        await bench.plane.inputs(token)
    assert caught.value.code == "not_live"


async def test_a_cancelled_run_is_told_so(bench: Bench) -> None:
    token = await bench.started()
    await bench.store.end_solving(SOLVE, SolveEnd.CANCELLED)
    beat = await bench.plane.heartbeat(token, Heartbeat())
    assert (beat.state, beat.reason) == ("stop", "cancelled")
