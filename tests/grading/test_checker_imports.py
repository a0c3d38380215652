"""The checker runs where nothing of ours is installed."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from fde_ray.grading import checker

OPTIONAL = {"pyarrow"}


def test_checker_needs_only_the_standard_library() -> None:
    foreign = set()
    for path in Path(checker.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level <= 1, f"{path.name}:{node.lineno} climbs out of its folder"
                names = [] if node.level else [str(node.module)]
            else:
                continue
            foreign |= {name.partition(".")[0] for name in names} - sys.stdlib_module_names
    assert foreign == OPTIONAL
