"""Who may ask the control-plane, and whose sweeps they may change."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from pydantic import ValidationError

from fde_ray.gateway.control import control_plane_app, submitted_spec
from fde_ray.gateway.oidc import KEPT_S, LEAST_BETWEEN_S, OidcDoor
from fde_ray.gateway.people import PREFIX, Person, TokenDoor, checked_name, new_token, token_hash
from fde_ray.model.errors import Refusal, UserError
from fde_ray.model.people import OidcProfile
from fde_ray.model.specs import SweepSpec
from fde_ray.model.states import Phase, SolveEnd
from fde_ray.store.objects import layout
from fde_ray.store.runs import RunStore
from tests.gateway.planes import Bench
from tests.gateway.test_control import SPEC
from tests.store.builders import GRADE, ManualClock, make_plan, run_id

ISSUER, AUDIENCE = "https://id.example", "fde-ray"
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())


async def user(store: RunStore, name: str, role: Any = "researcher") -> dict[str, str]:
    token = new_token()
    await store.add_user(name, role, token_hash(token), tenant="local")
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
async def client(bench: Bench) -> AsyncIterator[httpx.AsyncClient]:
    async def submit(spec: SweepSpec) -> bool:
        document = {"name": spec.name}
        return await bench.store.submit_sweep("local", spec.name, document, [make_plan(1)])

    door = TokenDoor(bench.store, "local")
    app = control_plane_app(bench.store, bench.objects, submit, door=door)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://control") as made:
        yield made


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/sweeps"),
        ("GET", "/v1/sweeps"),
        ("GET", "/v1/sweeps/demo"),
        ("POST", "/v1/sweeps/demo/cancel"),
        ("DELETE", "/v1/sweeps/demo"),
        ("GET", "/v1/runs/x"),
        ("GET", "/v1/results?sweep=demo"),
        ("GET", "/v1/me"),
    ],
)
@pytest.mark.parametrize("bearer", ["", "x", PREFIX, PREFIX + "x" * 40, "x" * 20_000, "a.b.c"])
async def test_nobody_gets_in_without_a_good_token(
    client: httpx.AsyncClient, method: str, path: str, bearer: str
) -> None:
    headers = {"authorization": f"Bearer {bearer}"} if bearer else {}
    assert (await client.request(method, path, headers=headers)).status_code == 401


async def test_a_token_is_in_no_table(bench: Bench, tmp_path: Path) -> None:
    headers = await user(bench.store, "ada")
    token = headers["authorization"].split()[1]
    await bench.store.close()
    files = [tmp_path / name for name in os.listdir(tmp_path) if name.startswith("runs.db")]
    assert files
    assert not any(token.encode() in path.read_bytes() for path in files)


async def test_a_revoked_user_is_out_at_once(client: httpx.AsyncClient, bench: Bench) -> None:
    headers = await user(bench.store, "ada")
    assert (await client.get("/v1/me", headers=headers)).json() == {
        "name": "ada",
        "role": "researcher",
    }
    await bench.store.revoke_user("ada", tenant="local")
    assert (await client.get("/v1/me", headers=headers)).status_code == 401


@pytest.mark.parametrize("action", ["pause", "resume", "cancel"])
async def test_only_the_owner_and_an_admin_change_a_sweep(
    client: httpx.AsyncClient, bench: Bench, action: str
) -> None:
    ada, bob = await user(bench.store, "ada"), await user(bench.store, "bob")
    root = await user(bench.store, "root", "admin")
    said = await client.post("/v1/sweeps", content=SPEC, headers=ada)
    assert said.status_code == 201
    told = (await client.get("/v1/sweeps", headers=bob)).json()["sweeps"]
    assert {row["name"]: row["owner"] for row in told} == {"demo": "", "small": "ada"}
    path = f"/v1/sweeps/small/{action}"
    refused = await client.post(path, headers=bob)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_yours")
    for headers in (ada, root):
        assert (await client.post(path, headers=headers)).status_code == 200
    # A sweep of the operator is nobody's but the admins'.
    assert (await client.post(f"/v1/sweeps/demo/{action}", headers=ada)).status_code == 403
    assert (await client.post(f"/v1/sweeps/demo/{action}", headers=root)).status_code == 200
    rows = [
        (r.actor, r.action, r.target, r.outcome)
        for r in await bench.store.audit(tenant="local")
        if r.action != "user add"
    ]
    assert rows[::-1] == [
        ("ada", "submit", "small", "allowed"),
        ("bob", action, "small", "refused"),
        ("ada", action, "small", "allowed"),
        ("root", action, "small", "allowed"),
        ("ada", action, "demo", "refused"),
        ("root", action, "demo", "allowed"),
    ]


async def test_a_cancelled_sweep_is_resumed_and_not_paused(
    client: httpx.AsyncClient, bench: Bench
) -> None:
    root = await user(bench.store, "root", "admin")

    async def asked(action: str) -> tuple[int, str]:
        said = await client.post(f"/v1/sweeps/demo/{action}", headers=root)
        return said.status_code, said.json().get("error", {}).get("reason", "")

    assert await asked("cancel") == (200, "")
    status, reason = await asked("pause")
    assert (status, "'demo' is cancelled" in reason, "resume it" in reason) == (409, True, True)
    assert (await bench.store.sweep("demo")).state == "cancelled"
    assert await asked("resume") == (200, "")
    assert await asked("pause") == (200, "")


async def test_what_is_refused_names_no_command_of_the_operators(
    bench: Bench, client: httpx.AsyncClient
) -> None:
    async def submit(spec: SweepSpec) -> bool:
        return await bench.store.submit_sweep("local", "demo", {"name": "other"}, [make_plan(1)])

    root = await user(bench.store, "root", "admin")
    unknown = await client.get("/v1/sweeps/nope", headers=root)
    assert unknown.status_code == 404
    assert unknown.json()["error"]["reason"] == "there is no sweep named 'nope'"
    app = control_plane_app(bench.store, bench.objects, submit)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://control") as other:
        differs = await other.post("/v1/sweeps", content=SPEC)
    reason = differs.json()["error"]["reason"]
    assert (differs.status_code, reason.endswith("; choose another name")) == (400, True)
    assert "--replace" not in reason


async def test_a_sweep_that_is_over_is_deleted_by_its_owner_and_results_stay(
    client: httpx.AsyncClient, bench: Bench
) -> None:
    store, objects = bench.store, bench.objects
    ada, bob = await user(store, "ada"), await user(store, "bob")
    assert await store.claim_sweep("demo", "ada", tenant="local")
    spec, result = layout.spec_key("local", "demo", 1), layout.result_key("local", run_id(1), GRADE)
    other = layout.spec_key("local", "demo2", 1)
    for key in (spec, result, other):
        await objects.create(key, b"{}")

    async def deleted(headers: dict[str, str]) -> tuple[int, str]:
        said = await client.delete("/v1/sweeps/demo", headers=headers)
        return said.status_code, said.json().get("error", {}).get("reason", "")

    assert (await deleted(bob))[0] == 403
    assert await deleted(ada) == (409, "sweep 'demo' is running; cancel it first")
    await store.set_sweep_state("demo", "cancelled")
    status, reason = await deleted(ada)
    assert (status, "have not ended" in reason) == (409, True)
    for n in (1, 2):
        await store.close_attempt(f"{run_id(n)}.1", bench.epoch, solve_end=SolveEnd.CANCELLED)
        await store.move_run(run_id(n), bench.epoch, Phase.PROVISIONING, Phase.CANCELLED)
    assert await deleted(ada) == (200, "")
    assert (await deleted(ada))[0] == 404
    assert await objects.list("") == sorted([result, other])
    assert (await store.run(run_id(1))).phase is Phase.CANCELLED
    # Its name is free again.
    assert await store.submit_sweep("local", "demo", {"name": "demo"}, [make_plan(1)])


async def test_submitting_the_sweep_of_another_gives_no_right_to_it(
    client: httpx.AsyncClient, bench: Bench
) -> None:
    ada, bob = await user(bench.store, "ada"), await user(bench.store, "bob")
    await client.post("/v1/sweeps", content=SPEC, headers=ada)
    assert (await client.post("/v1/sweeps", content=SPEC, headers=bob)).json()["new"] is False
    assert (await client.post("/v1/sweeps/small/cancel", headers=bob)).status_code == 403


async def test_a_document_that_takes_long_to_read_keeps_nobody_waiting(
    bench: Bench, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()

    def slow(data: bytes) -> SweepSpec:
        begun.set()
        assert go.wait(10)
        return submitted_spec(data)

    monkeypatch.setattr("fde_ray.gateway.control.submitted_spec", slow)
    ada = await user(bench.store, "ada")
    submitting = asyncio.create_task(client.post("/v1/sweeps", content=SPEC, headers=ada))
    assert await asyncio.to_thread(begun.wait, 10)
    assert (await client.get("/v1/me", headers=ada)).json()["name"] == "ada"
    go.set()
    assert (await submitting).status_code == 201


async def test_claims_in_headers_and_bodies_make_nobody_another(
    client: httpx.AsyncClient, bench: Bench
) -> None:
    ada = await user(bench.store, "ada")
    await client.post("/v1/sweeps", content=SPEC, headers=ada)
    forged = {"x-user": "ada", "x-forwarded-user": "ada", "x-role": "admin", "cookie": "user=ada"}
    bob = await user(bench.store, "bob") | forged
    said = await client.post(
        "/v1/sweeps/small/cancel?user=ada&role=admin", headers=bob, json={"owner": "ada"}
    )
    assert said.status_code == 403


async def test_without_its_line_in_the_log_nothing_is_changed(
    client: httpx.AsyncClient, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fde_ray.model.errors import StoreError

    async def away(*args: object, **values: object) -> None:
        raise StoreError("away")

    root = await user(bench.store, "root", "admin")
    monkeypatch.setattr(bench.store, "note", away)
    assert (await client.post("/v1/sweeps/demo/cancel", headers=root)).status_code == 503
    assert (await bench.store.sweep("demo")).state == "running"


@pytest.mark.parametrize("name", ["", "Ada", "a b", "-a", "a" * 41, "oidc:ada", "a\n", "../x"])
def test_a_name_that_no_user_can_have(name: str) -> None:
    with pytest.raises(UserError, match="1 to 40"):
        checked_name(name)


# bearers of an identity provider


class Provider:
    """Serves its keys; counts the looks."""

    def __init__(self, *keys: tuple[str, Any]) -> None:
        self.keys, self.looks, self.is_away = dict(keys), 0, False

    def document(self) -> bytes:
        rows = []
        for kid, key in self.keys.items():
            algorithm = jwt.algorithms.ECAlgorithm if key is EC else jwt.algorithms.RSAAlgorithm
            row = json.loads(algorithm.to_jwk(key.public_key()))
            rows.append(row | {"kid": kid, "use": "sig", "alg": "ES256" if key is EC else "RS256"})
        return json.dumps({"keys": rows}).encode()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.looks += 1
        if self.is_away:
            raise httpx.ConnectError("away")
        return httpx.Response(200, content=self.document())


def bearer(
    clock: ManualClock, key: Any = RSA, kid: str = "k1", alg: str = "RS256", **changes: Any
) -> str:
    claims = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "exp": int(clock.now()) + 600,
        "email": "ada@example.org",
        "email_verified": True,
    }
    claims = {k: v for k, v in (claims | changes).items() if v is not None}
    return jwt.encode(claims, key, algorithm=alg, headers={"kid": kid})


def profile(**changes: Any) -> OidcProfile:
    fields = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": "https://id.example/keys"}
    return OidcProfile.model_validate(fields | changes)


def door(clock: ManualClock, provider: Provider, **changes: Any) -> OidcDoor:
    return OidcDoor(profile(**changes), clock, httpx.MockTransport(provider))


async def test_a_bearer_of_the_provider_names_a_person(clock: ManualClock) -> None:
    provider = Provider(("k1", RSA), ("k2", EC))
    opened = door(clock, provider, admins=["root@example.org"])
    assert await opened.person(bearer(clock)) == Person("oidc:ada@example.org", "researcher")
    root = bearer(clock, EC, "k2", "ES256", email="root@example.org")
    assert await opened.person(root) == Person("oidc:root@example.org", "admin")
    assert provider.looks == 1


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"iss": "https://evil.example"}, 401),
        ({"aud": "another"}, 401),
        ({"aud": None}, 401),
        ({"exp": 1}, 401),
        ({"exp": None}, 401),
        ({"exp": "soon"}, 401),
        ({"nbf": 9_000_000_000}, 401),
        ({"email": None}, 401),
        ({"email": ["ada@example.org"]}, 401),
        ({"email": "a" * 300}, 401),
        ({"email_verified": False}, 401),
        ({"email_verified": None}, 401),
        ({"email_verified": "true"}, 401),
        ({"email": "eve@example.com"}, 403),
        ({"email": "eve@evilexample.org.evil"}, 403),
        ({"key": OTHER}, 401),
        ({"kid": "k9"}, 401),
        ({"key": "secret" * 10, "alg": "HS256"}, 401),
        ({"key": "", "alg": "none"}, 401),
    ],
)
async def test_a_bearer_that_is_not_good(
    clock: ManualClock, changes: dict[str, Any], status: int
) -> None:
    opened = door(clock, Provider(("k1", RSA)), allowed=["@example.org"])
    with pytest.raises(Refusal) as caught:
        await opened.person(bearer(clock, **changes))
    assert caught.value.status == status


async def test_a_public_key_is_no_shared_secret(clock: ManualClock) -> None:
    """The old trick: sign with HMAC, and the provider's public key as the secret."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    pem = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    head = jwt.utils.base64url_encode(b'{"alg":"HS256","kid":"k1"}')
    body = jwt.utils.base64url_encode(json.dumps({"iss": ISSUER, "aud": AUDIENCE}).encode())
    import hashlib
    import hmac

    mac = hmac.new(pem, head + b"." + body, hashlib.sha256).digest()
    forged = b".".join((head, body, jwt.utils.base64url_encode(mac))).decode()
    with pytest.raises(Refusal, match="not taken"):
        await door(clock, Provider(("k1", RSA))).person(forged)


async def test_an_address_in_a_bearer_is_never_asked(clock: ManualClock) -> None:
    provider = Provider(("k1", RSA))
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return provider(request)

    opened = OidcDoor(profile(), clock, httpx.MockTransport(answer))
    claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": int(clock.now()) + 60, "email": "a@b.c"}
    headers = {"kid": "k1", "jku": "https://evil.example/keys", "x5u": "https://evil.example/x"}
    token = jwt.encode(claims | {"email_verified": True}, RSA, algorithm="RS256", headers=headers)
    await opened.person(token)
    assert asked == ["https://id.example/keys"]


async def test_new_keys_are_found_and_unknown_ones_start_no_storm(clock: ManualClock) -> None:
    provider = Provider(("k1", RSA))
    opened = door(clock, provider)
    await opened.person(bearer(clock))
    for _ in range(20):
        with pytest.raises(Refusal):
            await opened.person(bearer(clock, EC, "k2", "ES256"))
    assert provider.looks == 1
    provider.keys["k2"] = EC
    clock.at += LEAST_BETWEEN_S
    await opened.person(bearer(clock, EC, "k2", "ES256"))
    assert provider.looks == 2


async def test_known_keys_stay_good_while_the_provider_is_away(clock: ManualClock) -> None:
    provider = Provider(("k1", RSA))
    opened = door(clock, provider)
    provider.is_away = True
    with pytest.raises(Refusal) as caught:
        await opened.person(bearer(clock))
    assert (caught.value.status, caught.value.code) == (503, "no_keys")
    provider.is_away = False
    clock.at += LEAST_BETWEEN_S
    await opened.person(bearer(clock))
    provider.is_away = True
    clock.at += KEPT_S
    await opened.person(bearer(clock))


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b'{"keys": [5]}', b"{" * 9999])
async def test_a_key_file_that_cannot_be_read_is_ours(
    clock: ManualClock, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(content)
    opened = OidcDoor(profile(jwks_url=None, jwks_file=str(path)), clock)
    with pytest.raises(Refusal) as caught:
        await opened.person(bearer(clock))
    assert caught.value.code == "no_keys"
    path.write_bytes(Provider(("k1", RSA)).document())
    clock.at += LEAST_BETWEEN_S
    assert (await opened.person(bearer(clock))).role == "researcher"


async def test_keys_come_over_a_real_connection(clock: ManualClock) -> None:
    from fastapi import FastAPI
    from fastapi.responses import Response

    from fde_ray.gateway.serve import served_on_port

    app, provider = FastAPI(), Provider(("k1", RSA))

    @app.get("/keys")
    async def keys() -> Response:
        return Response(provider.document())

    async with served_on_port(app, "127.0.0.1") as port:
        opened = OidcDoor(profile(jwks_url=f"http://127.0.0.1:{port}/keys"), clock)
        assert (await opened.person(bearer(clock))).name == "oidc:ada@example.org"


async def test_both_kinds_of_bearers_go_through_one_door(bench: Bench) -> None:
    clock = bench.clock
    both = TokenDoor(bench.store, "local", door(clock, Provider(("k1", RSA))))
    token = (await user(bench.store, "ada"))["authorization"].split()[1]
    assert (await both.person(token)).name == "ada"
    assert (await both.person(bearer(clock))).name == "oidc:ada@example.org"


@pytest.mark.parametrize(
    "wrong",
    [
        {"jwks_url": "http://id.example/keys"},
        {"jwks_url": "ftp://x"},
        {"jwks_url": None},
        {"jwks_file": "f"},
        {"issuer": ""},
    ],
)
def test_a_wrong_provider_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        profile(**wrong)
