"""What a canary tells of the addresses that it was asked to try."""

from __future__ import annotations

import json
import socket
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from fde_ray.shim.canary import decoy, look_around, main, reaches

PLANE, SECRET = "10.0.0.7:8080", "10.0.0.1:443"


class Network:
    """Answers by the round; time goes by between rounds alone."""

    def __init__(self, *rounds: set[str]) -> None:
        self.rounds, self.now = list(rounds), 0.0

    def reaches(self, address: str) -> bool:
        return address in self.rounds[0]

    def sleep(self, _: float) -> None:
        self.now += 1.0
        if len(self.rounds) > 1:
            self.rounds.pop(0)

    def seen(self, limit_s: float = 20.0) -> dict[str, Any]:
        return look_around(
            [PLANE], [SECRET], self.reaches, rounds=3, over_s=5.0, limit_s=limit_s,
            clock=lambda: self.now, sleep=self.sleep,
        )  # fmt: skip


def test_fence_stands_when_its_rounds_are_clean_for_long_enough() -> None:
    network = Network({PLANE})
    assert network.seen() == {"reached": [], "missing": [], "closed_after_s": 0.0}
    assert network.now == 5.0


def test_fence_that_comes_late_is_timed() -> None:
    open_ = {PLANE, SECRET}
    network = Network(open_, open_, {PLANE})
    assert network.seen()["closed_after_s"] == 2.0
    assert network.now == 7.0


def test_leak_between_clean_rounds_begins_the_count_anew() -> None:
    network = Network({PLANE}, {PLANE}, {PLANE, SECRET}, {PLANE})
    assert network.seen()["closed_after_s"] == 3.0


def test_leak_that_stays_is_told_when_the_time_is_up() -> None:
    assert Network({PLANE, SECRET}).seen() == {
        "reached": [SECRET], "missing": [], "closed_after_s": None,
    }  # fmt: skip


def test_network_that_reaches_nothing_proves_nothing() -> None:
    assert Network(set()).seen() == {"reached": [], "missing": [PLANE], "closed_after_s": None}


def test_report_is_one_line_of_json_that_fits_a_termination_message(tmp_path: Path) -> None:
    report = tmp_path / "report"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        wanted, closed = (f"127.0.0.1:{each.getsockname()[1]}" for each in (server, deaf))
        code = main([
            "--open", wanted, "--closed", closed, "--rounds", "1", "--over", "0", "--limit", "5",
            "--report", str(report),
        ])  # fmt: skip
    text = report.read_text()
    assert (code, "\n" in text, len(text) < 4096) == (0, False, True)
    told = json.loads(text)
    assert (told["format"], told["reached"], told["missing"]) == (1, [], [])
    assert told["closed_after_s"] == 0.0
    assert told["at"] > 0


@pytest.mark.parametrize("text", ["", ":", "nonsense", "127.0.0.1:http", "127.0.0.1:70000"])
def test_what_is_no_address_is_not_reached(text: str) -> None:
    assert not reaches(text)


def test_decoy_answers_every_request() -> None:
    with decoy(0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            place = f"http://127.0.0.1:{server.server_address[1]}/any"
            with urllib.request.urlopen(place, timeout=5) as answer:
                assert answer.status == 200
        finally:
            server.shutdown()
            thread.join()
