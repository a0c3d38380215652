"""A lab of fixed folders and addresses: rendering it touches no machine."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path

import pytest

from cluster.lab.layout import Layout
from cluster.lab.network import Network


@pytest.fixture
def layout() -> Layout:
    return Layout(cache=Path("/cache/lab"), home=Path("/home/lab"))


@pytest.fixture
def network() -> Network:
    return Network(IPv4Network("10.250.0.0/16"))
