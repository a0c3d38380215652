"""Every numbered rule of the protocol has at least one test named after it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

RULES = range(1, 32)
NAMED = re.compile(r"def test_rule_(\d\d)_")


@pytest.mark.parametrize("rule", RULES)
def test_rule_has_a_test_named_after_its_number(rule: int) -> None:
    tests = Path(__file__).parent.rglob("test_*.py")
    found = {int(number) for path in tests for number in NAMED.findall(path.read_text())}
    assert rule in found
