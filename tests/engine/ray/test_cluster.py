from __future__ import annotations

import socket

import pytest

from fde_ray.engine.ray.cluster import check_reachable
from fde_ray.model.errors import UserError


@pytest.mark.parametrize(
    "address", ["ray://127.0.0.1:10001", "127.0.0.1", ":6379", "127.0.0.1:port", "127.0.0.1:99999"]
)
def test_an_address_that_is_none_is_refused_at_once(address: str) -> None:
    with pytest.raises(UserError, match="it takes host:port of the head"):
        check_reachable(address, "hint")


def test_an_address_where_nobody_listens_is_told_within_seconds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_reachable(f"127.0.0.1:{port}", "hint")
    with pytest.raises(UserError, match=r"cannot join.*refused"):
        check_reachable(f"127.0.0.1:{port}", "cannot join")
