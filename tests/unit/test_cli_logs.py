"""Lines of the log: bounded, without secrets, in text and JSON."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from delaybridge.operate.terminal.logs import (
    FIELD_CHARS,
    LINE_CHARS,
    JsonFormatter,
    TextFormatter,
    log_text,
)

CANARY = "S3CR3T-CANARY-88"


def record(text: str, **extra: Any) -> logging.LogRecord:
    found = logging.makeLogRecord({"levelno": 30, "levelname": "WARNING", "msg": text, **extra})
    found.created = 1_900_000_000.25
    return found


def test_a_line_of_the_log_is_bounded_and_without_secrets() -> None:
    line = log_text(f"lost url=redis://:{CANARY}@h reason={'x' * 1000}\nnext")
    assert CANARY not in line
    assert max(map(len, line.split(" "))) <= FIELD_CHARS + 3
    assert "\n" not in line
    assert len(log_text("word " * 10_000)) <= LINE_CHARS + 3


def test_a_log_in_text_has_a_date() -> None:
    line = TextFormatter().format(record("lease_lost buckets=0-15"))
    assert line == "2030-03-17T17:46:40.250Z WARNING: lease_lost buckets=0-15"


def test_a_log_in_json_has_fields_bounded_and_without_secrets() -> None:
    fields = {"n": 3, "reason": f"redis://:{CANARY}@h " + "x" * 1000, "buckets": [1, 2]}
    line = JsonFormatter().format(record("retried n=3", event="retried", fields=fields))
    logged = json.loads(line)
    assert (logged["event"], logged["n"], logged["buckets"]) == ("retried", 3, [1, 2])
    assert (logged["ts"], logged["ts_ms"]) == ("2030-03-17T17:46:40.250Z", 1_900_000_000_250)
    assert len(logged["reason"]) <= FIELD_CHARS + 3
    assert CANARY not in line
    long = json.loads(JsonFormatter().format(record("word " * 10_000)))
    assert len(long["message"]) <= LINE_CHARS + 3


def test_a_traceback_in_the_log_is_bounded() -> None:
    def deep(left: int) -> None:
        if not left:
            raise ValueError("x" * 10_000)
        deep(left - 1) if left % 2 else deep(left - 1)

    try:
        deep(200)
    except ValueError:
        logged = json.loads(JsonFormatter().format(record("broken", exc_info=sys.exc_info())))
    assert len(logged["traceback"]) <= 60
    assert max(map(len, logged["traceback"])) <= FIELD_CHARS + 3
    assert logged["traceback"][-1].startswith("ValueError: xxx")
