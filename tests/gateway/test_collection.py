"""Parts, manifests, events and archives."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from fde_ray.gateway.messages import Heartbeat
from fde_ray.model.errors import Refusal
from fde_ray.model.session import AgentExit, Commit, Part
from fde_ray.model.states import Scope
from fde_ray.store.objects import layout
from tests.gateway.planes import EXTRACT, SOLVE, Bench
from tests.store.builders import make_commit


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def part(data: bytes, seq: int = 0) -> Part:
    return Part(seq=seq, sha256=sha(data), size=len(data))


async def code_of(call: Any) -> str:
    with pytest.raises(Refusal) as caught:
        await call
    return caught.value.code


async def collecting(bench: Bench) -> str:
    token = await bench.started()
    await bench.plane.exit(token, AgentExit(kind="agent_error"))
    return await bench.token(scope=Scope.COLLECT)


async def test_parts_and_their_manifest_are_kept_once(bench: Bench) -> None:
    token = await collecting(bench)
    for _ in range(2):
        await bench.plane.put_part(token, "final", 0, sha(b"one"), b"one")
    await bench.plane.put_part(token, "final", 1, sha(b"two"), b"two")
    commit = make_commit(part(b"one"), part(b"two", 1))
    await bench.plane.commit(token, commit)
    await bench.plane.commit(token, commit)
    stored = await bench.objects.get(layout.manifest_key("local", SOLVE, "final"))
    assert Commit.model_validate_json(stored) == commit
    assert (await bench.plane.heartbeat(token, Heartbeat())).reason == "finished"


async def test_a_part_with_other_bytes_or_a_wrong_hash_is_refused(bench: Bench) -> None:
    token = await collecting(bench)
    await bench.plane.put_part(token, "final", 0, sha(b"one"), b"one")
    assert await code_of(bench.plane.put_part(token, "final", 0, sha(b"x"), b"x")) == "part_differs"
    assert await code_of(bench.plane.put_part(token, "final", 1, sha(b"y"), b"x")) == "bad_hash"
    assert await code_of(bench.plane.put_part(token, "final", 1, sha(b""), b"")) == "too_large"


async def test_an_archive_beyond_its_limit_is_refused(bench: Bench) -> None:
    token = await collecting(bench)
    half = b"x" * (2**19 + 1)
    await bench.plane.put_part(token, "final", 0, sha(half), half)
    call = bench.plane.put_part(token, "final", 1, sha(half), half)
    assert await code_of(call) == "archive_too_large"
    await bench.plane.put_part(token, "final", 0, sha(half), half)
    await bench.plane.put_part(token, "other", 0, sha(half), half)


@pytest.mark.parametrize("snapshot", ["../x", "a/b", "", "A", "x" * 41, ".tmp-x"])
async def test_a_snapshot_has_a_plain_name(bench: Bench, snapshot: str) -> None:
    token = await collecting(bench)
    call = bench.plane.put_part(token, snapshot, 0, sha(b"x"), b"x")
    assert await code_of(call) == "bad_request"


async def test_a_final_commit_comes_after_the_end_and_lists_what_is_there(bench: Bench) -> None:
    solving = await bench.started()
    early = bench.plane.commit(solving, make_commit())
    assert await code_of(early) == "still_solving"
    await bench.plane.put_part(solving, "s1", 0, sha(b"one"), b"one")
    await bench.plane.commit(solving, make_commit(part(b"one"), snapshot="s1", final=False))
    token = await collecting(bench)
    missing = make_commit(part(b"never"))
    assert await code_of(bench.plane.commit(token, missing)) == "part_missing"
    unordered = make_commit(part(b"one", 1))
    assert await code_of(bench.plane.commit(token, unordered)) == "parts_unordered"
    await bench.plane.commit(token, make_commit())
    again = bench.plane.commit(token, make_commit(tree_hash="b" * 64))
    assert await code_of(again) == "commit_differs"
    late = bench.plane.put_part(token, "final", 0, sha(b"x"), b"x")
    assert await code_of(late) == "committed"


async def test_events_are_kept_once(bench: Bench) -> None:
    token = await bench.token()
    await bench.plane.put_events(token, 0, b"gz")
    await bench.plane.put_events(token, 0, b"gz")
    assert await code_of(bench.plane.put_events(token, 0, b"other")) == "events_differ"
    assert await code_of(bench.plane.put_events(token, 10**7, b"x")) == "too_large"


async def test_only_listed_archives_are_served_and_parts_are_joined(bench: Bench) -> None:
    from fde_ray.gateway.collection import Collection
    from fde_ray.gateway.ports import Session

    token = await collecting(bench)
    for place, data in enumerate((b"one", b"two")):
        await bench.plane.put_part(token, "final", place, sha(data), data)
    await bench.plane.commit(token, make_commit(part(b"one"), part(b"two", 1)))
    await bench.objects.create("local/cases/visible/abc", b"case")
    archives = {
        "visible": "local/cases/visible/abc",
        "workspace": layout.manifest_key("local", SOLVE, "final"),
    }
    extractor = await bench.token(EXTRACT)
    assert await code_of(bench.plane.archive(extractor, "visible")) == "unknown_archive"
    session = await bench.plane._sessions.find(EXTRACT)
    assert session is not None
    listed = session.inputs.evolve(archives=archives)
    reader = Collection(bench.store, bench.objects, "local")
    told = Session(**{**dict(session), "inputs": listed})

    async def whole(name: str) -> bytes:
        return b"".join([c async for c in await reader.archive(told, name)])

    assert (await whole("visible"), await whole("workspace")) == (b"case", b"onetwo")


async def test_only_an_extraction_try_may_evaluate(bench: Bench) -> None:
    assert await code_of(bench.plane.evaluate(await bench.token(), b"x")) == "no_evaluator"
    token = await bench.token(EXTRACT)
    assert (await bench.plane.evaluate(token, b"tar")).first
    assert bench.evaluated == [(EXTRACT, b"tar")]
