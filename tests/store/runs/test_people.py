"""Users, their hashed tokens, and the log of what they asked for."""

from __future__ import annotations

import pytest

from fde_ray.model.errors import UserError
from fde_ray.store.runs import Epoch, RunStore
from tests.store.builders import ManualClock


async def test_a_user_is_known_by_the_hash_of_the_token_until_it_is_revoked(
    store: RunStore, clock: ManualClock
) -> None:
    await store.add_user("ada", "researcher", "h1", tenant="local")
    found = await store.user_of_token("h1", tenant="local")
    assert found is not None
    assert (found.name, found.role, found.revoked_at) == ("ada", "researcher", None)
    assert await store.user_of_token("h1", tenant="other") is None
    assert await store.user_of_token("h2", tenant="local") is None
    clock.at += 5
    await store.revoke_user("ada", tenant="local")
    assert await store.user_of_token("h1", tenant="local") is None
    (row,) = await store.users(tenant="local")
    assert row.revoked_at == clock.at


async def test_a_token_is_replaced_only_after_it_was_revoked(store: RunStore) -> None:
    await store.add_user("ada", "researcher", "h1", tenant="local")
    with pytest.raises(UserError, match="revoke ada"):
        await store.add_user("ada", "admin", "h2", tenant="local")
    await store.revoke_user("ada", tenant="local")
    with pytest.raises(UserError, match="no user"):
        await store.revoke_user("ada", tenant="local")
    await store.add_user("ada", "admin", "h2", tenant="local")
    found = await store.user_of_token("h2", tenant="local")
    assert found is not None
    assert found.role == "admin"
    assert await store.user_of_token("h1", tenant="local") is None


async def test_who_was_let_in_and_put_out_is_in_the_log(store: RunStore) -> None:
    await store.add_user("ada", "researcher", "h1", tenant="local")
    with pytest.raises(UserError):
        await store.add_user("ada", "admin", "h2", tenant="local")
    await store.revoke_user("ada", tenant="local", by="root")
    with pytest.raises(UserError):
        await store.revoke_user("ada", tenant="local")
    await store.add_user("ada", "admin", "h2", tenant="local")
    rows = await store.audit(tenant="local")
    assert [(row.actor, row.action, row.target, row.detail) for row in rows] == [
        ("operator", "user add", "ada", "as admin"),
        ("root", "user revoke", "ada", ""),
        ("operator", "user add", "ada", "as researcher"),
    ]
    assert await store.audit(tenant="other") == []


async def test_the_log_keeps_its_order_and_cuts_foreign_text(
    store: RunStore, clock: ManualClock
) -> None:
    for n in range(3):
        clock.at += 1
        await store.note("ada", "pause", f"sweep-{n}", "allowed", tenant="local")
    await store.note("x" * 10_000, "cancel", "\0\ud800", "refused", tenant="local", detail="why")
    await store.note("bob", "pause", "s", "allowed", tenant="other")
    rows = await store.audit(tenant="local")
    assert [row.target for row in rows[1:]] == ["sweep-2", "sweep-1", "sweep-0"]
    assert (rows[0].outcome, rows[0].detail, len(rows[0].actor) < 300) == ("refused", "why", True)
    assert [row.seq for row in await store.audit(2, tenant="local")] == [rows[0].seq, rows[1].seq]


async def test_a_sweep_is_claimed_once(store: RunStore, epoch: Epoch) -> None:
    assert await store.owner_of("demo", tenant="local") == ""
    assert await store.claim_sweep("demo", "ada", tenant="local")
    assert not await store.claim_sweep("demo", "bob", tenant="local")
    assert await store.owner_of("demo", tenant="local") == "ada"
    assert await store.owners(tenant="local") == {"demo": "ada"}
    assert await store.owner_of("none", tenant="local") is None
