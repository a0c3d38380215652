"""SweepSpecs that ship with the project: the four sweeps of the paper, and `demo`.

`preset_text` gives the document; `fde_ray.model.documents` reads it.
"""

from __future__ import annotations

from importlib import resources

NAMES = ("demo", "information", "main", "oracle", "policy")


def preset_text(name: str) -> str:
    """Return the YAML of a preset; KeyError if there is none of that name."""
    if name not in NAMES:
        raise KeyError(name)
    return resources.files(__package__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")
