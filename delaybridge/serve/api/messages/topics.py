"""Pull topics: consumers without a broker receive, finish, extend and release messages."""

from __future__ import annotations

import msgspec

from delaybridge.accept.destination import parse_destination
from delaybridge.client.surface import TABLE
from delaybridge.client.topics import MOST_RECEIVED, check_receiving
from delaybridge.errors import MessageError
from delaybridge.message import PULL
from delaybridge.serve.api.messages.shapes import as_text
from delaybridge.serve.http.endpoint import Routes
from delaybridge.serve.http.problems import Problem
from delaybridge.serve.shared.call import Call
from delaybridge.serve.shared.polling import Poll
from delaybridge.store.messages.pulling import ReceivedMessage
from delaybridge.times import delay_ms, format_time

_MOST_WAIT_MS = 60_000
_PATH = "/v1/topics/{topic}"
routes = Routes(is_for_tenants=True)


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """max: 1 to 1000 messages. wait: for the first one, up to 60s. ttr: the time to finish them."""

    max: int = 1
    wait: str = "0s"
    ttr: str = "30s"


class TopicMessage(msgspec.Struct):
    """receipt: for finish, extend and release. attempt: 1 for the first delivery.

    until: when it is due again unless it is finished. The body is text, or else `body_base64`.
    """

    id: str
    receipt: str
    body: str | None
    body_base64: str | None
    headers: list[tuple[str, str | None]]
    key: str | None
    key_base64: str | None
    attempt: int
    due: str
    due_ms: int
    until: str
    until_ms: int


class TopicMessages(msgspec.Struct):
    """The earliest first; none if there was none in time."""

    items: list[TopicMessage]


class Given(msgspec.Struct, forbid_unknown_fields=True):
    """A message as it was received."""

    id: str
    receipt: str


class Finished(msgspec.Struct, forbid_unknown_fields=True):
    """1 to 1000 received messages."""

    items: list[Given]


class Extended(Finished):
    """ttr: their new time to run, from now."""

    ttr: str = "30s"


class Released(Finished):
    """delay: after which they are due again."""

    delay: str = "0s"


class GivenResult(msgspec.Struct):
    """result: finished, extended, released; or unknown: it is not yours any more."""

    id: str
    result: str


class GivenResults(msgspec.Struct):
    """The result of each, in the same order."""

    items: list[GivenResult]


class _Receive(Poll):
    async def received(self) -> list[ReceivedMessage]:
        (topic,), asked = self.topics, self.call.body
        receive = self.call.verb("topics.receive")
        found: list[ReceivedMessage] = await receive(topic, limit=asked.max, ttr=asked.ttr)
        return found

    def content(self, found: list[ReceivedMessage]) -> TopicMessages:
        return TopicMessages([_shape(one) for one in found])


@routes(f"POST {_PATH}:receive", TABLE["topics.receive"], body=Wanted, answer=TopicMessages)
async def receive(call: Call) -> Poll:
    """Take due messages of a topic; with `wait`, once there are some.

    What is not finished within its ttr is due again. If the answer is lost, so are its messages
    until then.
    """
    wanted: Wanted = call.body
    check_receiving(call.path["topic"], wanted.max, wanted.ttr)
    wait_ms = delay_ms(wanted.wait, field="wait")
    if wait_ms > _MOST_WAIT_MS:
        raise MessageError("bad_time", "wait", f"got {wait_ms} ms; give at most 60s")
    return _Receive(call, [call.path["topic"]], wait_ms / 1000)


def _add(verb: str, body: type[Finished], text: str) -> None:
    """The route of a verb of received messages: the other fields of the body are its arguments."""
    row, further = TABLE[f"topics.{verb}"], body.__struct_fields__[1:]

    async def handler(call: Call) -> GivenResults:
        given = {name: getattr(call.body, name) for name in further}
        answers = await call.verb(f"topics.{verb}")(_pairs(call), **given)
        both = zip(call.body.items, answers, strict=True)
        return GivenResults([GivenResult(one.id, answer.value) for one, answer in both])

    handler.__doc__ = text
    routes(f"POST {_PATH}:{verb}", row, body=body)(handler)


_add("finish", Finished, "Say that received messages are done: they do not come again.")
_add("extend", Extended, "Have received messages for longer.")
_add("release", Released, "Give received messages back.")


def _pairs(call: Call) -> list[tuple[str, str]]:
    parse_destination(f"{PULL}:{call.path['topic']}", {})
    items = call.body.items
    if not 1 <= len(items) <= MOST_RECEIVED:
        what = f"{len(items)} items; give 1 to {MOST_RECEIVED}"
        raise Problem(422, "bad_items", what, "$.items")
    return [(one.id, one.receipt) for one in items]


def _shape(one: ReceivedMessage) -> TopicMessage:
    body, body_base64 = as_text(one.body)
    key, key_base64 = as_text(one.key)
    headers = [(name, as_text(value)[0]) for name, value in one.headers]
    return TopicMessage(
        one.id, one.receipt, body, body_base64, headers, key, key_base64, one.attempt,
        format_time(one.due_ms), one.due_ms, format_time(one.until_ms), one.until_ms,
    )  # fmt: skip
