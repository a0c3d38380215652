from __future__ import annotations

import pytest

from tests.grading.doubles import LocalRunOnce


@pytest.fixture
def sandbox() -> LocalRunOnce:
    return LocalRunOnce()
