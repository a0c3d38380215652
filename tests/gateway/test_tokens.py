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
from pydantic import ValidationError

from fde_ray.gateway.messages import Heartbeat, TokenReply, TokenRequest, TurnRequest
from fde_ray.gateway.signing import KeyRing, SigningKey, load_keys, load_signing_key
from fde_ray.gateway.tokens import TokenSigner
from fde_ray.model.errors import Refusal, Superseded, UserError
from fde_ray.model.planes import TokensProfile
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
    collect = await bench.token(scope=Scope.COLLECT)
    assert claims(one).serial == claims(same).serial == claims(collect).serial == 1
    assert claims(one).models == ("offline/x",)


async def exchanged(
    bench: Bench, nonce: str, *, serial: int | None = None, signer: TokenSigner | None = None
) -> TokenReply:
    secret = (signer or bench.signer).bootstrap_secret(SOLVE)
    request = TokenRequest(
        subject=SOLVE, secret=secret, nonce=nonce, scope=Scope.SOLVE, serial=serial
    )
    return await bench.plane.issue_token(request)


async def test_a_second_shim_of_a_session_ends_the_tokens_of_the_first(bench: Bench) -> None:
    first = await exchanged(bench, "one")
    await bench.plane.started(first.token)
    second = await exchanged(bench, "two")
    assert (first.serial, second.serial) == (1, 2)
    for call in (
        bench.plane.inputs(first.token),
        bench.plane.heartbeat(first.token, Heartbeat()),
        bench.plane.renew_token(first.token),
    ):
        with pytest.raises(Refusal) as caught:
            await call
        assert (caught.value.status, caught.value.code) == (403, "replaced")
    assert (await bench.plane.inputs(second.token)).subject == SOLVE


async def test_of_two_shims_the_one_that_starts_the_agent_counts(bench: Bench) -> None:
    first, second = await exchanged(bench, "one"), await exchanged(bench, "two")
    for token in (first.token, second.token):
        assert (await bench.plane.inputs(token)).subject == SOLVE
    await bench.plane.started(second.token)
    with pytest.raises(Refusal, match="another shim"):
        await bench.plane.started(first.token)
    assert (await bench.store.session(SOLVE)).serial == 1
    # The one that lost does not come back with the serial that it had.
    with pytest.raises(Superseded):
        await exchanged(bench, "one", serial=first.serial)


async def test_a_shim_that_was_replaced_does_not_come_back(bench: Bench) -> None:
    first = await exchanged(bench, "one")
    await bench.plane.started(first.token)
    await exchanged(bench, "two")
    with pytest.raises(Superseded):
        await exchanged(bench, "one", serial=first.serial)


async def test_takeovers_of_drivers_touch_no_token(bench: Bench) -> None:
    token = await bench.started()
    for _ in range(2):
        await bench.store.take_lease()
    assert (await bench.plane.inputs(token)).subject == SOLVE


def ringed(bench: Bench, *kids: str) -> TokenSigner:
    """The signer of a plane that was started anew with these keys, the first of which signs."""
    secrets = {"k1": b"s" * 32, "k2": b"t" * 32}
    signer = TokenSigner(KeyRing([SigningKey(k, secrets[k]) for k in kids]), bench.clock)
    bench.plane._signer = signer
    return signer


async def test_keys_rotate_while_a_shim_lives(bench: Bench) -> None:
    old = bench.signer
    token = (await exchanged(bench, "n")).token
    ringed(bench, "k1", "k2")
    token = (await bench.plane.renew_token(token)).token
    ringed(bench, "k2", "k1")
    assert (await bench.plane.inputs(token)).subject == SOLVE
    # Its secret was made with the old key, and a new token has the new one.
    again = await exchanged(bench, "n", serial=1, signer=old)
    assert jwt.get_unverified_header(again.token)["kid"] == "k2"
    renewed = (await bench.plane.renew_token(token)).token
    ringed(bench, "k2")
    assert (await bench.plane.inputs(renewed)).subject == SOLVE
    with pytest.raises(Refusal, match="not valid"):
        await bench.plane.inputs(token)
    with pytest.raises(Refusal, match="secret"):
        await exchanged(bench, "n", signer=old)


def test_keys_of_the_profile_are_read_from_where_it_says(tmp_path: Path) -> None:
    (tmp_path / "new").write_text("ab" * 32 + "\n")
    profile = TokensProfile.model_validate(
        {
            "keys": [
                {"kid": "b", "secret_file": str(tmp_path / "new")},
                {"kid": "a", "secret_env": "OLD"},
            ]
        }
    )
    ring = load_keys(profile, tmp_path, {"OLD": "cd" * 32})
    assert (ring.current.kid, [key.kid for key in ring.all]) == ("b", ["b", "a"])
    assert "abab" not in repr(ring)
    for content, reason in (("xyz", "hex digits"), ("ab", "32 bytes"), (None, "cannot read")):
        (tmp_path / "new").unlink() if content is None else (tmp_path / "new").write_text(content)
        with pytest.raises(UserError, match=reason):
            load_keys(profile, tmp_path, {"OLD": "cd" * 32})
    with pytest.raises(UserError, match="OLD is not set"):
        load_keys(TokensProfile(keys=profile.keys[1:]), tmp_path, {})


@pytest.mark.parametrize(
    "wrong",
    [
        {"keys": [{"kid": "a"}]},
        {"keys": [{"kid": "a", "secret_env": "A", "secret_file": "f"}]},
        {"keys": [{"kid": "a", "secret_env": "A"}, {"kid": "a", "secret_env": "B"}]},
        {"keys": [{"kid": "no spaces", "secret_env": "A"}]},
        {"lifetime": "1s"},
    ],
)
def test_a_wrong_key_ring_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TokensProfile.model_validate(wrong)


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
        "serial": 1,
        "nonce": "n",
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
