"""The audit: every act that cannot be undone leaves two records, before it and after it.

If the first cannot be written, nothing is done. An act without a second record broke off: its
outcome is unknown.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.types import ASGIApp

from delaybridge.client.verbs import Scope
from delaybridge.errors import DelayBridgeError, MessageError, printable
from delaybridge.operate.views import audit
from delaybridge.serve.http.endpoint import Handler, Reply, Routes
from delaybridge.serve.http.problems import Problem, problem_of
from delaybridge.serve.shared.call import Call
from delaybridge.store.calls import Calls
from delaybridge.store.protocol.verbs import Steps
from delaybridge.times import format_time

_CHARS = 1000  # of one field
_NAMED = 100  # entries of an object
_CONTENT = frozenset({"body", "body_base64", "headers", "properties"})
_MOST = 500
_BROWSED_S, _BROWSERS = 600.0, 1000
_log = logging.getLogger("delaybridge")
routes = Routes()


class AuditRecord(msgspec.Struct, omit_defaults=True, rename={"from_": "from"}):
    """id: ends with `.others` if it was no admin. who: the name of the token. what: the request.
    asked: its body as JSON, lists as counts.

    from: the client's address. tenant: of the token; ids are named as it gave them. After the act:
    `act`, the id of the record before it, `status` and `answer`, as JSON; at the end of a job
    `what` is its verb.
    """

    id: str
    at: str
    who: str
    what: str
    from_: str = ""
    asked: str = ""
    tenant: str = ""
    act: str = ""
    status: str = ""
    answer: str = ""


class AuditPage(msgspec.Struct):
    """The latest first. next_cursor: of the records before these; null if there are none."""

    items: list[AuditRecord]
    next_cursor: str | None


class AuditQuery(msgspec.Struct, forbid_unknown_fields=True):
    """limit: 1 to 500."""

    limit: int = 100
    cursor: str = ""


async def audited(call: Call, handler: Handler, what: str) -> Reply | ASGIApp:
    """What the handler gives, noted before and after. DelayBridgeError: it was not begun."""
    asked = _text(_outline(msgspec.to_builtins(call.body))) if call.body is not None else ""
    record = {"who": call.who, "tenant": call.tenant, "what": what}
    record |= {"from": call.address, "asked": asked}
    act = await call.site.client.run(lambda calls: _write(calls, record, _is_operator(call)))
    problem: Problem | None = None
    try:
        found = await handler(call)
        reply = found if isinstance(found, Reply) or callable(found) else Reply(found)
    except Exception as exc:
        problem = problem_of(exc)
        reply = Reply(problem.content, problem.status)
    done = {"what": what, "act": act}
    if isinstance(reply, Reply):
        done |= {"status": str(reply.status), "answer": _text(reply.content)}
    await note(call, done)
    if problem is not None:
        raise problem
    return reply


async def note(call: Call, record: Mapping[str, str], *, is_act: bool = True) -> None:
    """Write a record of an act. If Redis refuses it, the log has it."""
    of_admin = is_act and _is_operator(call)
    record = {"who": call.who, "tenant": call.tenant, **record}
    try:
        await call.site.client.run(lambda calls: _write(calls, record, of_admin))
    except DelayBridgeError as exc:
        _log.error("the audit lacks %s: %s", printable(str(record)), exc)


async def note_browsing(call: Call, path: str) -> None:
    """Write who sees how the bodies of a list begin. A page refreshes it: one record is for ten
    minutes of a token with the list at this path."""
    seen, now_s, who = call.site.browsed, time.monotonic(), (call.who, call.address, path)
    if now_s - seen.get(who, -_BROWSED_S) >= _BROWSED_S:
        seen.pop(who, None)
        seen[who] = now_s
        if len(seen) > _BROWSERS:
            del seen[next(iter(seen))]
        await note_reading(call, f"each message in {path}", "beginning of the body")


async def note_reading(call: Call, what: str, part: str = "body") -> None:
    """Write who reads a body, and of what. Without tokens there is no name to note.

    Also an administrator's are with the others: a program that polls must push out no act.
    """
    if call.may_read_bodies and call.site.access.asks_tokens():
        told = {"what": f"read the {part} of {what}", "from": call.address}
        await note(call, told, is_act=False)


def _is_operator(call: Call) -> bool:
    return call.may is Scope.ADMIN and not call.tenant


def _write(calls: Calls, record: Mapping[str, str], of_admin: bool) -> Steps[str]:
    yield from calls.open()
    short = {name: printable(text)[:_CHARS] for name, text in record.items() if text}
    (id,) = yield [audit.write(calls.namespace, short, of_admin=of_admin)]
    return str(id)


def _text(content: Any) -> str:
    return "" if content is None else msgspec.json.encode(content).decode()


def _outline(asked: Any) -> Any:
    """Without the content of messages, and of what is long only how long it is."""
    if isinstance(asked, list) or (isinstance(asked, dict) and len(asked) > _NAMED):
        return len(asked)
    if not isinstance(asked, dict):
        return asked
    return {
        name: _outline(value)
        for name, value in asked.items()
        if value is not None and name not in _CONTENT
    }


@routes(
    "GET /v1/audit", "List acts that cannot be undone", scope=Scope.ADMIN, query=AuditQuery,
    is_safe=True,
)  # fmt: skip
async def records(call: Call) -> AuditPage:
    """Acts that cannot be undone: who, what, from where, and what came of it."""
    query: AuditQuery = call.query
    if not 1 <= query.limit <= _MOST:
        raise MessageError("bad_limit", "limit", f"give 1 to {_MOST}")
    before = audit.Position.read(query.cursor)
    if query.cursor and before is None:
        raise MessageError("bad_cursor", "cursor", "pass on next_cursor as it was")
    found = await call.site.client.run(lambda calls: _read(calls, before, query.limit))
    following = str(found[-1][0]) if len(found) == query.limit else None
    return AuditPage([_record(*each) for each in found], following)


def _read(calls: Calls, before: audit.Position | None, most: int) -> Steps[list[audit.Record]]:
    found = yield audit.read(calls.namespace, before, most)
    return audit.latest(found, most)


def _record(place: audit.Position, fields: Mapping[str, str]) -> AuditRecord:
    told = {"id": str(place), "at": format_time(place.ms)}
    return msgspec.convert({"who": "", "what": "", **fields, **told}, AuditRecord)
