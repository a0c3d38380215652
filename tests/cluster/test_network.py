"""A lab takes addresses that nobody uses, and says so when there are none."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest

from cluster.lab.network import CANDIDATES, Network, chosen_network, parsed_routes
from fde_ray.model.errors import UserError


def test_first_block_is_taken_on_an_empty_machine() -> None:
    assert chosen_network([]).block == IPv4Network("10.250.0.0/16")


@pytest.mark.parametrize(
    "used",
    [
        pytest.param("10.250.0.1/32", id="an-address-inside"),
        pytest.param("10.250.128.0/17", id="a-part"),
        pytest.param("10.250.0.0/15", id="a-larger-block"),
    ],
)
def test_block_in_use_is_left_alone(used: str) -> None:
    assert chosen_network([IPv4Network(used)]).block != IPv4Network("10.250.0.0/16")


def test_default_route_is_in_nobodys_way() -> None:
    assert chosen_network([IPv4Network("0.0.0.0/0")]).block == CANDIDATES[0]


def test_full_machine_gets_one_sentence_that_says_what_to_do() -> None:
    with pytest.raises(UserError, match="ip route show"):
        chosen_network([IPv4Network("10.0.0.0/8")])


def test_parts_of_a_block_do_not_overlap() -> None:
    network = Network(CANDIDATES[0])
    link = IPv4Network((int(network.block.network_address), 30))
    parts = [link, network.simulated_pods, network.services, network.pods]
    for number, part in enumerate(parts):
        assert part.subnet_of(network.block)
        assert not any(part.overlaps(other) for other in parts[number + 1 :])
    assert network.node in link
    assert network.machine in link
    assert network.api_service in network.services
    assert network.dns_service in network.services


def test_routes_are_read_as_the_system_prints_them() -> None:
    document = """[{"dst":"default","gateway":"192.0.2.1","dev":"eth0","flags":[]},
        {"dst":"192.0.2.0/24","dev":"eth0"},{"type":"local","dst":"192.0.2.2","dev":"eth0"},
        {"type":"broadcast","dst":"192.0.2.255","dev":"eth0","table":"local"}]"""
    found = parsed_routes(document)
    assert found == [IPv4Network(n) for n in ("192.0.2.0/24", "192.0.2.2/32", "192.0.2.255/32")]


def test_machine_without_routes_is_empty() -> None:
    assert parsed_routes("") == []
    assert parsed_routes("[ ]") == []
