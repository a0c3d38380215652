"""Text that agents and models wrote, made harmless to look at."""

from __future__ import annotations

TEXT_LIMIT = 4_000


def safe_text(text: str, *, limit: int = TEXT_LIMIT, multiline: bool = False) -> str:
    r"""Return `text` with every character that steers a display spelled out, as in `\x1b`.

    Controls, terminal escapes, bidi overrides, invisible and unassigned characters are spelled out;
    odd spaces become a space. Line ends stay when `multiline`, else they become a space too.
    At most `limit` characters of `text` are kept; how many were left out is said.
    """
    left_out = max(0, len(text) - limit)
    shown = "".join(_shown(c, multiline) for c in text[:limit].replace("\r\n", "\n"))
    return f"{shown} … ({left_out} more characters)" if left_out else shown


def _shown(character: str, multiline: bool) -> str:
    if character.isprintable():
        return character
    if character == "\n" and multiline:
        return character
    if character.isspace() and ord(character) not in _BREAKING:
        return " "
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


_BREAKING = {0x0B, 0x0C, 0x0D, 0x1C, 0x1D, 0x1E, 0x1F, 0x85, 0x2028, 0x2029}
"""Characters that `isspace` knows and that still break or control a line."""
