"""Problems: every error as `application/problem+json` (RFC 9457), with our codes.

`status` follows from the code, `at` is the place in the request as msgspec writes it (`$.delay`).
"""

from __future__ import annotations

import difflib
import logging
import re
import secrets
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from delaybridge import errors
from delaybridge.errors import MessageError, printable
from delaybridge.settings.urls import redact_text

MEDIA = "application/problem+json"
RETRY_AFTER_S = 1
_DETAIL_CHARS = 600
_log = logging.getLogger("delaybridge")

_STATUS_OF_CODE = {
    "conflict": 409,
    "idempotency_conflict": 409,
    "in_flight": 409,
    "unknown_worker": 404,
    "unknown_broker": 404,
    "worker_too_old": 409,
    "body_too_large": 413,
    "message_too_large": 413,
    "batch_too_large": 413,
}
# The first match counts.
_STORE_ERRORS: tuple[tuple[type[Exception], int, str], ...] = (
    (errors.StoreFull, 507, "store_full"),
    (errors.NotDurable, 503, "not_durable"),
    (errors.LedgerUnavailable, 503, "ledger_unavailable"),
    (errors.StoreUnavailable, 503, "store_unavailable"),
    (errors.StoreWiped, 503, "store_wiped"),
    (errors.StoreError, 503, "store_error"),
)
# What is wrong with a value of another type, by the field's name.
_TYPE_CODES = {
    "delay": "bad_time",
    "due": "bad_time",
    "due_ms": "bad_time",
    "ttl": "bad_time",
    "id": "bad_id",
    "key": "bad_key",
    "priority": "bad_priority",
    "destination": "bad_destination",
    "body": "bad_body",
    "body_base64": "bad_base64",
    "headers": "bad_header",
    "properties": "bad_property",
    "limit": "bad_limit",
    "cursor": "bad_cursor",
}
_FIELD_OF_ARGUMENT = {"at": "due"}
_PLACE, _UNKNOWN_FIELD = " - at `", "unknown field `"  # in msgspec's errors
_NAME = re.compile(r"[a-z0-9_]*")


class ProblemAnswer(msgspec.Struct, rename={"kind": "type"}, omit_defaults=True):
    """Every error. code: a word for programs. detail: what is wrong, and the remedy.

    at: the place in the request, as `$.delay`.
    """

    kind: str
    title: str
    status: int
    code: str
    detail: str
    at: str | None = None


class Problem(Exception):
    """A refusal. code: one word for programs. at: the place in the request, as `$.delay`."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        at: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"{status} {code}: {detail}")
        self.status, self.code, self.at = status, code, at
        self.detail = printable(redact_text(detail))[:_DETAIL_CHARS]
        self.headers = headers or {}

    @property
    def content(self) -> ProblemAnswer:
        """The struct that is sent as JSON."""
        title = HTTPStatus(self.status).phrase
        at = None if self.at is None else printable(self.at)
        return ProblemAnswer("about:blank", title, self.status, self.code, self.detail, at)


def problem_of(exc: Exception) -> Problem:
    """The problem of any error that a handler raises. An unexpected one is logged."""
    if isinstance(exc, Problem):
        return exc
    if isinstance(exc, MessageError):
        field = _FIELD_OF_ARGUMENT.get(exc.field, exc.field)
        return Problem(_STATUS_OF_CODE.get(exc.code, 422), exc.code, exc.detail, f"$.{field}")
    if isinstance(exc, errors.ConfigError):
        return Problem(422, "bad_argument", str(exc))
    for kind, status, code in _STORE_ERRORS:
        if isinstance(exc, kind):
            return Problem(status, code, str(exc), None, {"Retry-After": str(RETRY_AFTER_S)})
    incident = secrets.token_hex(6)
    _log.error("incident %s: %s", incident, type(exc).__name__, exc_info=exc)
    detail = f"a bug in delaybridge, or a setting; the log has it as incident {incident}"
    return Problem(500, "internal", detail)


def at_item(problem: Problem, number: int) -> Problem:
    """The same problem, of one item of a batch."""
    inner = (problem.at or "$").removeprefix("$")
    at = f"$.messages[{number}]{inner}"
    return Problem(problem.status, problem.code, problem.detail, at, problem.headers)


def undecodable(exc: msgspec.MsgspecError, wanted: Any) -> Problem:
    """The problem of a body or a query that does not have the wanted type."""
    text = str(exc)
    if not isinstance(exc, msgspec.ValidationError):
        return Problem(400, "bad_json", f"{text}; send one JSON value in UTF-8")
    what, at = _parted(text)
    _, is_unknown, name = what.partition(_UNKNOWN_FIELD)
    if is_unknown:
        return Problem(422, "unknown_field", f"{what}{_hint(name[:-1], wanted)}", at)
    last = _NAME.match(at.rpartition(".")[2])
    return Problem(422, _TYPE_CODES.get(last[0] if last else "", "bad_value"), what, at)


def _parted(text: str) -> tuple[str, str]:
    """What is wrong, and where. The name of an unknown field is the client's, and may look like a
    place; msgspec's own is the last one, and has no backtick."""
    what, is_placed, place = text.rpartition(_PLACE)
    at = place.removesuffix("`")
    return (what, at) if is_placed and len(at) < len(place) and "`" not in at else (text, "$")


def _hint(name: str, wanted: Any) -> str:
    """The field that was probably meant."""
    fields = getattr(wanted, "__struct_fields__", ())
    near = difflib.get_close_matches(name[:100].lower(), fields, n=1)
    return f"; did you mean `{near[0]}`?" if near else f"; known are {', '.join(fields)}"
