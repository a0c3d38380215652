"""The control-plane: what the CLI and a dashboard ask of sweeps. Pods never reach it.

It knows no provider key and starts nothing: a submitted sweep is planned by the callable it is
given and stored; whoever supervises finds it there.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from fde_ray.model.documents import parse_document
from fde_ray.model.errors import Refusal, SpecError, UserError, shortened
from fde_ray.model.failures import Fault
from fde_ray.model.profile import Profile
from fde_ray.model.specs import SweepSpec
from fde_ray.store.errors import KeyMissing
from fde_ray.store.objects import ObjectStore, layout
from fde_ray.store.runs import RunStore, SweepRow, SweepRun
from fde_ray.store.runs.people import Outcome
from fde_ray.store.runs.spec_differences import SpecDiffers
from fde_ray.store.runs.sweeps import SweepCancelled

from .app import plain_app
from .openapi import document
from .people import OPERATOR, Door, Person
from .requests import Handler, bearer_of, body_of, json_response

SPEC_BODY = 1_000_000
_STATES = {"pause": "paused", "resume": "running", "cancel": "cancelled"}
_UNKNOWN_KEY = re.compile(r"unknown key '([^'.]*)")

Submit = Callable[[SweepSpec], Awaitable[bool]]
"""Plan and store a sweep; False = the same sweep was there before."""


def control_plane_app(
    store: RunStore,
    objects: ObjectStore,
    submit: Submit,
    *,
    tenant: str = "local",
    door: Door | None = None,
) -> FastAPI:
    """Return the app. door: says who asks; None on a private socket, where it is the operator."""
    desk = Desk(store, objects, submit, tenant)
    table: list[tuple[str, str, Handler]] = [
        ("POST", "/v1/sweeps", desk.submit),
        ("GET", "/v1/sweeps", desk.sweeps),
        ("GET", "/v1/sweeps/{name}", desk.sweep),
        ("DELETE", "/v1/sweeps/{name}", desk.remove),
        ("POST", "/v1/sweeps/{name}/{action}", desk.change),
        ("GET", "/v1/runs/{run}", desk.run),
        ("GET", "/v1/results", desk.results),
        ("GET", "/v1/me", desk.me),
        ("GET", "/openapi.json", _document),
    ]
    return plain_app([(m, path, _admitted(handler, door)) for m, path, handler in table])


def _admitted(handler: Handler, door: Door | None) -> Handler:
    async def admitted(request: Request) -> Response:
        person = OPERATOR if door is None else await door.person(bearer_of(request))
        request.state.person = person
        return await handler(request)

    return admitted


async def _document(_request: Request) -> Response:
    return json_response(document("control-plane"))


def _person(request: Request) -> Person:
    person: Person = request.state.person
    return person


class Desk:
    def __init__(self, store: RunStore, objects: ObjectStore, submit: Submit, tenant: str) -> None:
        self._store, self._objects, self._tenant = store, objects, tenant
        self._submit = submit

    async def submit(self, request: Request) -> Response:
        person = _person(request)
        data = await body_of(request, SPEC_BODY)
        # A long document takes seconds to read.
        spec = await asyncio.to_thread(submitted_spec, data)
        await self._store.note(person.name, "submit", spec.name, "allowed", tenant=self._tenant)
        try:
            new = await self._submit(spec)
        except SpecDiffers as error:
            reason = f"{error.reason}; choose another name"
            raise Refusal(400, Fault.AGENT, reason, code="bad_spec") from error
        except UserError as error:
            raise Refusal(400, Fault.AGENT, str(error), code="bad_spec") from error
        if new and person is not OPERATOR:
            await self._store.claim_sweep(spec.name, person.name, tenant=self._tenant)
        return json_response({"name": spec.name, "new": new}, 201 if new else 200)

    async def sweeps(self, request: Request) -> Response:
        rows = [row for row in await self._store.sweeps() if row.tenant == self._tenant]
        owners = await self._store.owners(tenant=self._tenant)
        sweeps = [
            {**await self._sweep_json(row), "owner": owners.get(row.name, "")} for row in rows
        ]
        return json_response({"sweeps": sweeps})

    async def sweep(self, request: Request) -> Response:
        row = await self._known(str(request.path_params["name"]))
        runs = await self._store.runs_of_sweep(row.name, tenant=self._tenant)
        costs = await self._store.costs_of_sweep(row.name, tenant=self._tenant)
        breakers = await self._store.breakers()
        value = {
            **await self._sweep_json(row),
            "notices": [one.notice for one in breakers if one.holds(self._tenant, row.name)],
            "spec": row.spec,
            "runs": [_run_json(run) for run in runs],
            "cost": [line.jsonable() for line in costs],
        }
        return json_response(value)

    async def _sweep_json(self, row: SweepRow) -> dict[str, Any]:
        left = await self._store.open_work(row.name, tenant=self._tenant)
        return {
            "name": row.name,
            "state": row.state,
            "finished": not left.total(),
            "created_at": row.created_at,
        }

    async def change(self, request: Request) -> Response:
        state = _STATES.get(str(request.path_params["action"]))
        if state is None:
            raise Refusal(404, Fault.AGENT, "pause, resume or cancel", code="no_route")
        row = await self._known(str(request.path_params["name"]))
        await self._permit(_person(request), str(request.path_params["action"]), row.name)
        try:
            await self._store.set_sweep_state(row.name, state, tenant=self._tenant)  # type: ignore[arg-type]
        except SweepCancelled as error:
            raise Refusal(409, Fault.AGENT, str(error), code="cancelled") from error
        if state == "running":
            await self._store.close_breakers(row.name, tenant=self._tenant)
        return json_response({"name": row.name, "state": state})

    async def remove(self, request: Request) -> Response:
        """Forget a sweep that is cancelled and over. Results of its runs stay where they are."""
        row = await self._known(str(request.path_params["name"]))
        await self._permit(_person(request), "delete", row.name)
        try:
            await self._store.check_removable(row.name, tenant=self._tenant)
            # Before the row: what is left after a crash is deleted by a second request.
            for key in await self._objects.list(layout.sweep_prefix(self._tenant, row.name)):
                await self._objects.delete(key)
            await self._store.remove_sweep(row.name, tenant=self._tenant)
        except UserError as error:
            raise Refusal(409, Fault.AGENT, str(error), code="not_over") from error
        return json_response({"name": row.name, "state": "deleted"})

    async def _permit(self, person: Person, action: str, sweep: str) -> None:
        """Write down what is asked for; Refusal 403 unless the sweep is theirs to change."""
        owner = await self._store.owner_of(sweep, tenant=self._tenant)
        is_allowed = owner is not None and person.may_change(owner)
        outcome: Outcome = "allowed" if is_allowed else "refused"
        await self._store.note(person.name, action, sweep, outcome, tenant=self._tenant)
        if not is_allowed:
            reason = f"sweep {sweep!r} belongs to {owner or 'the operator'}"
            raise Refusal(403, Fault.AGENT, reason, code="not_yours")

    async def me(self, request: Request) -> Response:
        return json_response(_person(request)._asdict())

    async def run(self, request: Request) -> Response:
        row = await self._store.run(str(request.path_params["run"]))
        if row.tenant != self._tenant:
            raise Refusal(404, Fault.AGENT, "there is no such run", code="unknown")
        attempts = await self._store.attempts_of(row.run_id)
        value = {
            **row._asdict(),
            "attempts": [
                {
                    "attempt": one.number,
                    "state": one.state,
                    "solve_end": one.solve_end,
                    "failure": one.failure,
                    "detail": one.detail,
                }
                for one in attempts
            ],
        }
        return json_response(value)

    async def results(self, request: Request) -> Response:
        """Every `result.json` of a sweep, as it lies in the store."""
        row = await self._known(request.query_params.get("sweep", ""))
        found: list[Any] = []
        for run in await self._store.runs_of_sweep(row.name, tenant=self._tenant):
            try:
                key = layout.result_key(self._tenant, run.run_id, run.grade_id)
                found.append((await self._objects.get(key)).decode())
            except KeyMissing:
                continue
        body = '{"results":[' + ",".join(found) + "]}"
        return Response(body, media_type="application/json")

    async def _known(self, name: str) -> SweepRow:
        try:
            return await self._store.sweep(name, tenant=self._tenant)
        except UserError as error:
            # In words of our own: where to look is another command for whoever asks from afar.
            reason = f"there is no sweep named {shortened(name, 63)!r}"
            raise Refusal(404, Fault.AGENT, reason, code="unknown") from error


def submitted_spec(data: bytes) -> SweepSpec:
    """Return the spec; Refusal 400 names the line, and says when a key is the operator's."""
    try:
        return parse_document(data, SweepSpec)
    except SpecError as error:
        reason = error.reason
        unknown = _UNKNOWN_KEY.match(reason)
        if unknown and unknown[1] in Profile.model_fields:
            reason = f"{unknown[1]!r} belongs to the operator's profile, not to a sweep"
        where = "" if error.line is None else f"line {error.line}: "
        raise Refusal(400, Fault.AGENT, where + reason, code="bad_spec") from error


def _run_json(run: SweepRun) -> dict[str, Any]:
    return run._asdict()
