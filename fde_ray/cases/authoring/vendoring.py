"""Copies the shared block of `strict_reader` into evaluators, and tells when a copy has drifted."""

import hashlib
from pathlib import Path

BEGIN = "# --- strict reader (vendored, do not edit) ---"
END = "# --- end of strict reader ---"
_SOURCE = Path(__file__).with_name("strict_reader.py")


def block_of(text: str) -> str:
    """Return the vendored block, markers included; ValueError unless each marker stands once."""
    lines = text.splitlines(keepends=True)
    marks = [[i for i, line in enumerate(lines) if line.rstrip() == mark] for mark in (BEGIN, END)]
    if [len(found) for found in marks] != [1, 1] or marks[0][0] >= marks[1][0]:
        raise ValueError("the strict reader's marker lines must each stand once, in order")
    return "".join(lines[marks[0][0] : marks[1][0] + 1])


def block_hash(text: str) -> str:
    """Return the SHA-256 of the vendored block of `text`."""
    return hashlib.sha256(block_of(text).encode()).hexdigest()


def source_block() -> str:
    """Return the block as the package ships it."""
    return block_of(_SOURCE.read_text(encoding="utf-8"))


def vendored(text: str) -> str:
    """Return an evaluator's text with its block replaced by the current one."""
    return text.replace(block_of(text), source_block())


def revendor(evaluator: Path) -> bool:
    """Rewrite the block of an evaluator file; True when that changed the file."""
    before = evaluator.read_text(encoding="utf-8")
    after = vendored(before)
    if after == before:
        return False
    evaluator.write_text(after, encoding="utf-8", newline="\n")
    return True


def is_current(evaluator: Path) -> bool:
    """Tell whether an evaluator carries exactly the current block."""
    try:
        return (
            block_hash(evaluator.read_text(encoding="utf-8"))
            == hashlib.sha256(source_block().encode()).hexdigest()
        )
    except ValueError:
        return False
