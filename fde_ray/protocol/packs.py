"""Prompt packs: every text of every role, with declared placeholders (protocol rule 4).

A pack is a folder with `pack.toml` and one `<name>.txt` per text. Placeholders are written
`{{name}}`. The built-in pack is the contract: it says which texts exist, which half each belongs to
and which placeholders another pack must use or may leave out.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Literal

from pydantic import ValidationError

from fde_ray.model.base import Record, digest
from fde_ray.model.errors import UserError

MANIFEST = "pack.toml"
MAX_TEXT_BYTES = 200_000
_PLACEHOLDER = re.compile(r"\{\{([^{}]*)\}\}")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


class PackError(UserError):
    """A prompt pack, or a call that renders one of its texts, is wrong."""


class TextRule(Record):
    """What a text may contain. `half`: the id that its hash belongs to."""

    half: Literal["solve", "grade"] | None = None
    placeholders: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    """Offered to the text, but a pack may leave them out."""

    @property
    def offered(self) -> frozenset[str]:
        return frozenset((*self.placeholders, *self.optional))


class _Manifest(Record):
    format: Literal["fde_ray.pack/1"]
    texts: dict[str, TextRule]


class PromptPack:
    """A checked, immutable set of texts. PackError when it does not keep the contract."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        rules = contract()
        _check_names(texts, rules)
        for name, text in texts.items():
            _check_text(name, text, rules[name])
        self.texts: Mapping[str, str] = MappingProxyType(dict(texts))
        self.solve_hash = self._half_hash("solve")
        self.grade_hash = self._half_hash("grade")

    def render(self, name: str, **values: str) -> str:
        """Return the text with its placeholders filled; every offered value must be given."""
        rule = contract().get(name)
        if rule is None:
            raise PackError(f"no text is called {name!r}")
        wrong = set(rule.placeholders) - set(values) | set(values) - rule.offered
        if wrong:
            raise PackError(f"text {name!r}: value {sorted(wrong)[0]!r} is missing or not offered")
        return filled(self.texts[name], values)

    def _half_hash(self, half: str) -> str:
        rules = contract()
        return digest({n: t for n, t in self.texts.items() if rules[n].half == half})


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return `text` with each placeholder replaced once; values are never expanded again."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise PackError(f"placeholder {match[1]!r} has no value")
        return values[match[1]]

    return _PLACEHOLDER.sub(value, text)


def placeholders(text: str) -> frozenset[str]:
    return frozenset(_PLACEHOLDER.findall(text))


@cache
def contract() -> Mapping[str, TextRule]:
    """Return the rules of the built-in pack by text name."""
    return MappingProxyType(_manifest(_builtin_folder()).texts)


@cache
def builtin_pack() -> PromptPack:
    return load_pack(_builtin_folder())


def load_pack(folder: Traversable) -> PromptPack:
    """Return the pack of a folder (a path or a package resource); PackError names the fault."""
    declared = _manifest(folder).texts
    _check_names(declared, contract())
    texts = {name: _read(folder / f"{name}.txt") for name in declared}
    for name, text in texts.items():
        if placeholders(text) - declared[name].offered:
            raise PackError(f"text {name!r} uses a placeholder that {MANIFEST} does not declare")
        if set(declared[name].placeholders) - placeholders(text):
            raise PackError(f"text {name!r} lacks a placeholder that {MANIFEST} declares")
    return PromptPack(texts)


def _builtin_folder() -> Traversable:
    return files("fde_ray.protocol") / "packs_data" / "builtin"


def _manifest(folder: Traversable) -> _Manifest:
    try:
        return _Manifest.model_validate(tomllib.loads(_read(folder / MANIFEST)))
    except tomllib.TOMLDecodeError as error:
        raise PackError(f"{MANIFEST} is not TOML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise PackError(f"{MANIFEST}: {where}: {first['msg']}") from error


def _read(file: Traversable) -> str:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_TEXT_BYTES + 1)
        if len(data) > MAX_TEXT_BYTES:
            raise PackError(f"{file.name} is larger than {MAX_TEXT_BYTES} bytes")
        return data.decode("utf-8").replace("\r\n", "\n").rstrip("\n")
    except OSError as error:
        raise PackError(f"{file.name} cannot be read") from error
    except UnicodeDecodeError as error:
        raise PackError(f"{file.name} is not UTF-8 text") from error


def _check_names(found: Mapping[str, object], rules: Mapping[str, TextRule]) -> None:
    wrong = sorted(set(found) ^ set(rules))
    if wrong:
        state = "is missing" if wrong[0] in rules else "is not a text of a pack"
        raise PackError(f"text {wrong[0]!r} {state}")


def _check_text(name: str, text: str, rule: TextRule) -> None:
    if not text.strip():
        raise PackError(f"text {name!r} is empty")
    used = placeholders(text)
    odd = sorted(p for p in used if not _NAME.fullmatch(p))
    if odd:
        raise PackError(f"text {name!r}: {odd[0]!r} is not a placeholder name")
    if "{{" in _PLACEHOLDER.sub("", text):
        raise PackError(f"text {name!r}: a placeholder is not closed")
    if used - rule.offered:
        raise PackError(f"text {name!r}: placeholder {sorted(used - rule.offered)[0]!r} is unknown")
    missing = sorted(set(rule.placeholders) - used)
    if missing:
        raise PackError(f"text {name!r}: placeholder {missing[0]!r} is missing")
