"""The certificate that a server shows, read again when its files change."""

from __future__ import annotations

import logging
import os
import ssl
from pathlib import Path
from typing import NamedTuple

from fde_ray.model.clock import Clock
from fde_ray.model.errors import UserError

log = logging.getLogger(__name__)

LOOK_S = 60.0
"""Between two looks at the files: they are renewed weeks before they run out."""


class TlsFiles(NamedTuple):
    """PEM files: the chain, its own certificate first, and the key, which has no password."""

    certificate: Path
    key: Path


class Certificate:
    """UserError unless the files hold a certificate and its key."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._seen = self._state()
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._load(self.context)

    async def renewed(self, clock: Clock) -> None:
        """Follow the files; connections that are open keep what they have."""
        while True:
            await clock.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Take what the files hold by now; files that are no good are told of and left alone."""
        try:
            seen = self._state()
            if seen == self._seen:
                return
            # Tried first: a key that does not fit would take the place of the one that does.
            self._load(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))
            self._load(self.context)
        except UserError as error:
            log.warning("certificate_kept", extra={"reason": str(error)})
            return
        self._seen = seen
        log.info("certificate_renewed")

    def _load(self, context: ssl.SSLContext) -> None:
        certificate, key = self._files
        try:
            # Asked for a password, OpenSSL would ask the terminal.
            context.load_cert_chain(certificate, key, password="")
        except (OSError, ValueError) as error:
            told = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise UserError(
                f"{certificate} and {key} are no certificate and its key in PEM: {told}"
            ) from error

    def _state(self) -> tuple[tuple[int, int], ...]:
        try:
            found = [os.stat(path) for path in self._files]
        except OSError as error:
            raise UserError(f"cannot read {error.filename}: {error.strerror}") from error
        return tuple((one.st_mtime_ns, one.st_ino) for one in found)
