"""Problems: every error as `application/problem+json` (RFC 9457), with our codes.

`status` follows from the code, `at` is the place in the request as msgspec writes it (`$.delay`).
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Iterator, Mapping
from enum import Enum
from http import HTTPStatus
from typing import Any, Literal, get_args, get_origin

import msgspec

from delaybridge import errors
from delaybridge.errors import MessageError, nearest, printable
from delaybridge.settings.urls import redact_text
from delaybridge.times import got_delay

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
    (errors.StoreNewer, 503, "store_newer"),
    (errors.StoreError, 503, "store_error"),
)
# What is wrong with a value of another type, by the field's name.
_TYPE_CODES = {
    **{name: f"bad_{name}" for name in "id key priority destination body limit cursor".split()},
    "due": "bad_time", "due_ms": "bad_time", "body_base64": "bad_base64", "headers": "bad_header",
    "properties": "bad_property",
}  # fmt: skip
_DURATIONS = {"delay", "ttl", "by", "over", "wait", "ttr", "every", "spread"}
_NUMBERS = {"int": "a whole number", "float": "a number"}
_WORDS = _NUMBERS | {"str": "text", "bool": "a boolean", "array": "a list", "object": "an object"}
_WRITTEN = _WORDS | {"str": "text in quotes", "bool": "true or false", "null": ""}
_INSTEAD = {
    "body": "; JSON goes into body_json",
    "due": ', as "2030-01-31T09:00:00Z"; epoch ms go into due_ms',
    **dict.fromkeys(_DURATIONS, ', as "15m" or "1h30m"'),
}
_DIGITS = 20
_WRONG_TYPE = re.compile("Expected `([a-z |]+)`, got `([a-z]+)`")
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


def undecodable(exc: msgspec.MsgspecError, wanted: Any, raw: bytes = b"{}") -> Problem:
    """The problem of a body or a query that does not have the wanted type. raw: the body."""
    text = str(exc)
    if not isinstance(exc, msgspec.ValidationError):
        return Problem(400, "bad_json", f"{text}; send one JSON value in UTF-8")
    what, at = _parted(text)
    _, is_unknown, name = what.partition(_UNKNOWN_FIELD)
    kind = _kind_at(wanted, at)
    if is_unknown:
        return Problem(422, "unknown_field", f"{what}{_hint(name[:-1], kind)}", at)
    last = _NAME.match(at.rpartition(".")[2])
    name = last[0] if last else ""
    if wrong := _WRONG_TYPE.fullmatch(what):
        what = _wrong_type(name, at, wrong[1].split(" | "), wrong[2], raw)
    elif what.startswith("Invalid enum value"):
        what += f"; write one of {', '.join(_choices(kind))}"
    code = "bad_time" if name in _DURATIONS else _TYPE_CODES.get(name, "bad_value")
    return Problem(422, code, what, at)


def _wrong_type(name: str, at: str, kinds: list[str], got: str, raw: bytes) -> str:
    """What a value of another type should be; of a number, as which duration it is written."""
    if name in _DURATIONS and got in _NUMBERS and at == f"$.{name}":
        text = bytes(msgspec.json.decode(raw, type=dict[str, msgspec.Raw])[name]).decode()
        return got_delay(int(text) if len(text) < _DIGITS and text.isdigit() else text)
    wanted = filter(None, (_WRITTEN.get(kind, kind) for kind in kinds))
    return f"got {_WORDS.get(got, got)}; write {' or '.join(wanted)}{_INSTEAD.get(name, '')}"


def _kind_at(wanted: Any, at: str) -> Any:
    """The type that is wanted at a place, as `$.filter.state`."""
    for name in re.findall(r"\.([a-z0-9_]+)", at):
        wanted = next((f.type for f in _fields_in(wanted) if f.encode_name == name), None)
    return wanted


def _types_in(kind: Any) -> Iterator[Any]:
    yield kind
    for each in get_args(kind):
        yield from _types_in(each)


def _fields_in(kind: Any) -> list[Any]:
    """The fields of the struct in a type, such as `list[Struct] | None`."""
    structs = [each for each in _types_in(kind) if hasattr(each, "__struct_fields__")]
    return [field for each in structs for field in msgspec.structs.fields(each)]


def _choices(kind: Any) -> Iterator[str]:
    """The words that a field of this type takes."""
    for each in _types_in(kind):
        if isinstance(each, type) and issubclass(each, Enum):
            yield from (str(member.value) for member in each)
        elif get_origin(each) is Literal:
            yield from get_args(each)


def _parted(text: str) -> tuple[str, str]:
    """What is wrong, and where. The name of an unknown field is the client's, and may look like a
    place; msgspec's own is the last one, and has no backtick."""
    what, is_placed, place = text.rpartition(_PLACE)
    at = place.removesuffix("`")
    return (what, at) if is_placed and len(at) < len(place) and "`" not in at else (text, "$")


def _hint(name: str, wanted: Any) -> str:
    """The field that was probably meant."""
    fields = [field.encode_name for field in _fields_in(wanted)]
    near = nearest(name, fields)
    return f"; did you mean `{near[0]}`?" if near else f"; known are {', '.join(fields)}"
