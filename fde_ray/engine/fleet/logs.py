"""Logs of a member: JSON lines in `<home>/logs/<name>.log`, so that no terminal shows them."""

from __future__ import annotations

import json
import logging
import logging.handlers

from fde_ray.model.clock import utc

from .config import FleetConfig

MAX_BYTES = 5_000_000
KEPT = 2
_STANDARD = set(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {k: v for k, v in record.__dict__.items() if k not in _STANDARD}
        line = {
            "at": utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **fields,
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to_home(config: FleetConfig, name: str) -> None:
    """Log what fde_ray says in this process from here on."""
    folder = config.home / "logs"
    folder.mkdir(mode=0o700, exist_ok=True)
    handler = logging.handlers.RotatingFileHandler(
        folder / f"{name}.log", maxBytes=MAX_BYTES, backupCount=KEPT, delay=True, encoding="utf-8"
    )
    handler.setFormatter(JsonLines())
    own = logging.getLogger("fde_ray")
    own.setLevel(logging.INFO)
    own.addHandler(handler)
