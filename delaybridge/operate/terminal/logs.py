"""The log of a worker: one line per event on stderr, escaped, bounded, without secrets."""

from __future__ import annotations

import json
import logging

from delaybridge.errors import printable
from delaybridge.operate.terminal.streams import never_fail
from delaybridge.settings.urls import redact_text
from delaybridge.times import format_time

FIELD_CHARS = 256
LINE_CHARS = 2000
_TRACE_LINES = 60


class TextFormatter(logging.Formatter):
    """`2026-11-20T18:00:01.004Z published n=212`: the time in UTC, the rest as it was logged."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever the message holds; a traceback follows, indented."""
        level = f"{record.levelname}: " if record.levelno >= logging.WARNING else ""
        line = f"{format_time(int(record.created * 1000))} {level}{log_text(record.getMessage())}"
        return "\n".join([line, *(f"    {part}" for part in trace(self, record))])


class JsonFormatter(logging.Formatter):
    """The same as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """One object: ts, ts_ms, level, logger, event and its fields, message; traceback, a list.

        event and fields: of records logged with them (`eventlog.say`).
        """
        at_ms = int(record.created * 1000)
        data: dict[str, object] = {
            "ts": format_time(at_ms),
            "ts_ms": at_ms,
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if event := getattr(record, "event", None):
            fields = getattr(record, "fields", {})
            data |= {"event": event, **{name: _bounded(value) for name, value in fields.items()}}
        data["message"] = log_text(record.getMessage())
        if lines := trace(self, record):
            data["traceback"] = lines
        return json.dumps(data)


def configure(*, as_json: bool, verbose: bool) -> None:
    """Send delaybridge's log to stderr; with `verbose` also debug messages."""
    never_fail()
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("delaybridge").setLevel(logging.DEBUG if verbose else logging.INFO)
    # pika logs every lost connection with a traceback; our log has one line for it.
    logging.getLogger("pika").setLevel(logging.WARNING if verbose else logging.CRITICAL)


def log_text(text: str) -> str:
    """A log line: secrets masked, control characters escaped, long words and lines cut."""
    words = printable(redact_text(text[: 2 * LINE_CHARS])).split(" ")
    return _cut(" ".join(_cut(word, FIELD_CHARS) for word in words), LINE_CHARS)


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[:chars]}..."


def _bounded(value: object) -> object:
    """A field as JSON: text with secrets masked and cut, other values unchanged."""
    return _cut(redact_text(value), FIELD_CHARS) if isinstance(value, str) else value


def trace(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    """The traceback of a record, escaped; only the end of a long one."""
    if not record.exc_info:
        return []
    text = redact_text(formatter.formatException(record.exc_info))
    return [_cut(printable(line), FIELD_CHARS) for line in text.splitlines()[-_TRACE_LINES:]]
