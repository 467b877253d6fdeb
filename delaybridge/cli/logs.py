"""The log of a worker: one line per event on stderr, escaped, without secrets."""

from __future__ import annotations

import json
import logging
import time

from delaybridge.errors import printable
from delaybridge.urls import redact_text

FIELD_CHARS = 256


class TextFormatter(logging.Formatter):
    """`18:00:01.004 published n=212`: the time in UTC, the rest as it was logged."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever the message holds; a traceback follows, indented."""
        moment = time.strftime("%H:%M:%S", time.gmtime(record.created))
        level = f"{record.levelname}: " if record.levelno >= logging.WARNING else ""
        line = f"{moment}.{int(record.msecs):03d} {level}{shown(record.getMessage())}"
        return "\n".join([line, *(f"    {part}" for part in trace(self, record))])


class JsonFormatter(logging.Formatter):
    """The same as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """One object: ts_ms, level, logger, message, and a traceback as a list."""
        data: dict[str, object] = {
            "ts_ms": int(record.created * 1000),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact_text(record.getMessage()),
        }
        if lines := trace(self, record):
            data["traceback"] = lines
        return json.dumps(data)


def configure(*, as_json: bool, verbose: bool) -> None:
    """Send delaybridge's log to stderr; with `verbose` also what is only for the curious."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("delaybridge").setLevel(logging.DEBUG if verbose else logging.INFO)
    # pika logs every lost connection as an error with its traceback; ours says it once.
    logging.getLogger("pika").setLevel(logging.WARNING if verbose else logging.CRITICAL)


def shown(text: str) -> str:
    """A log line: secrets masked, everything escaped, each `name=value` of bearable length."""
    words = (
        word if len(word) <= FIELD_CHARS else f"{word[:FIELD_CHARS]}..." for word in _words(text)
    )
    return " ".join(words)


def _words(text: str) -> list[str]:
    return printable(redact_text(text)).split(" ")


def trace(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    """The traceback of a record, escaped line by line."""
    if not record.exc_info:
        return []
    text = redact_text(formatter.formatException(record.exc_info))
    return [printable(line) for line in text.splitlines()]
