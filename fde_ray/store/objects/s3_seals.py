"""What an S3 object says about itself: its SHA-256, its size, and who made it.

The seal travels as the object's metadata, so that each reader can tell bytes that were changed, cut
or wrapped on the way, whatever checksums the store itself knows.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from fde_ray.model.base import Record
from fde_ray.model.objects import ChecksumMode

from .s3_errors import S3Trouble, Trouble

SHA256_KEY, SIZE_KEY, WRITER_KEY = "fde-sha256", "fde-size", "fde-writer"
_FRAMED = re.compile(rb"[0-9a-fA-F]{1,8}(?:;[ -~]*)?\r\n")


class Seal(Record):
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size_bytes: int = Field(ge=0)
    writer: str
    """Which call of `create` made the object: tells one's own work after a lost reply."""

    @property
    def metadata(self) -> dict[str, str]:
        return {
            SHA256_KEY: self.sha256,
            SIZE_KEY: str(self.size_bytes),
            WRITER_KEY: self.writer,
        }


def sealed(data: bytes, writer: str) -> Seal:
    return Seal(sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data), writer=writer)


def seal_of(reply: Mapping[str, Any]) -> Seal | None:
    """Return the seal in the reply to a GET or HEAD; None = the object was made by others."""
    found = {str(k).lower(): str(v) for k, v in (reply.get("Metadata") or {}).items()}
    try:
        return Seal(
            sha256=found[SHA256_KEY], size_bytes=int(found[SIZE_KEY]), writer=found[WRITER_KEY]
        )
    except (KeyError, ValueError):
        return None


def check_size(what: str, seal: Seal | None, size_bytes: int) -> None:
    """Raise trouble unless the object is as long as it was made."""
    if seal is not None and seal.size_bytes != size_bytes:
        raise S3Trouble(
            Trouble.CORRUPT,
            f"{what}: the store holds {size_bytes} bytes, {seal.size_bytes} were written",
        )


def check_sha256(what: str, seal: Seal | None, sha256: str) -> None:
    if seal is not None and seal.sha256 != sha256:
        raise S3Trouble(
            Trouble.CORRUPT, f"{what}: the bytes do not have the SHA-256 that was written"
        )


def is_framed(stored: bytes, written: bytes) -> bool:
    """Tell whether the store kept the framing of a chunked upload as part of the object."""
    return len(stored) > len(written) and _FRAMED.match(stored) is not None


def checksums(data: bytes | memoryview, mode: ChecksumMode) -> dict[str, str]:
    """Return the arguments that make the store check the bytes it receives."""
    if mode == "when_supported":
        return {"ChecksumSHA256": base64.b64encode(hashlib.sha256(data).digest()).decode()}
    md5 = hashlib.md5(data, usedforsecurity=False).digest()
    return {"ContentMD5": base64.b64encode(md5).decode()}
