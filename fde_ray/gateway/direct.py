"""The planes without the wire: what the null sandbox calls, in the same event loop."""

from __future__ import annotations

from fde_ray.model.session import Commit
from fde_ray.model.states import Channel, Scope

from .messages import TokenRequest, TurnRequest
from .plane import Plane


class DirectGateway:
    """Fits `sandbox.null.DirectPlane`. `connect` it before the first session starts."""

    def __init__(self) -> None:
        self._planes: dict[str, Plane] = {}

    def connect(self, run_plane: Plane, grade_plane: Plane) -> None:
        self._planes = {"solve": run_plane, "collect": run_plane, "extract": grade_plane}

    async def token(self, subject: str, secret: str, scope: str) -> str:
        request = TokenRequest(subject=subject, secret=secret, nonce="direct", scope=Scope(scope))
        token = (await self._planes[scope].issue_token(request)).token
        return f"{scope} {token}"

    async def started(self, token: str) -> None:
        plane, bearer = self._of(token)
        await plane.started(bearer)

    async def turn(self, token: str, turn_no: int, text: str, has_deliverable: bool) -> str | None:
        plane, bearer = self._of(token)
        request = TurnRequest(
            turn_no=turn_no, channel=Channel.TEXT, text=text, has_deliverable=has_deliverable
        )
        reply = await plane.post_turn(bearer, request)
        while reply.status == "pending":
            reply = await plane.turn_reply(bearer, turn_no)
        return None if reply.action == "finish" else reply.message

    async def put_part(self, token: str, snapshot: str, seq: int, sha256: str, data: bytes) -> None:
        plane, bearer = self._of(token)
        await plane.put_part(bearer, snapshot, seq, sha256, data)

    async def commit(self, token: str, commit: Commit) -> None:
        plane, bearer = self._of(token)
        await plane.commit(bearer, commit)

    def _of(self, token: str) -> tuple[Plane, str]:
        scope, _, bearer = token.partition(" ")
        return self._planes[scope], bearer
