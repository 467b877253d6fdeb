"""`Idempotency-Key`: a request that may be sent again stores its message once."""

from __future__ import annotations

import hashlib
import hmac
from functools import partial

import msgspec

from delaybridge.accept.accept import accept
from delaybridge.client.requests import receipt_unless_conflict
from delaybridge.message import Answer, Message, OnConflict
from delaybridge.serve.api.messages.shapes import scheduled
from delaybridge.serve.http.endpoint import Reply
from delaybridge.serve.http.problems import Problem
from delaybridge.serve.shared.call import Call
from delaybridge.serve.shared.tenancy import Tenancy
from delaybridge.serve.stored.idempotency import Asked, Once, once
from delaybridge.store.calls import Calls
from delaybridge.store.messages.scheduling import Receipt
from delaybridge.store.protocol.verbs import Steps

HEADER = "idempotency-key"
_MOST_CHARS = 255
_REPLAYED = {"Idempotent-Replayed": "true"}


async def schedule_once(call: Call, message: Message, policy: OnConflict) -> Reply:
    """Schedule a message unless a request with the same key did; then the first answer again."""
    key = call.headers[HEADER]
    if not 1 <= len(key) <= _MOST_CHARS or not (key.isascii() and key.isprintable()):
        what = f"give 1 to {_MOST_CHARS} printable ASCII characters"
        raise Problem(422, "bad_idempotency_key", what, "$.Idempotency-Key")
    has_own_id = message.id is not None
    most = call.site.settings.serve.idempotency_keys

    def steps(calls: Calls) -> Steps[Once]:
        yield from calls.open()
        name = _name(calls.birth, call.digest, key)
        id = message.id if has_own_id else f"idem-{name}"
        own = msgspec.structs.replace(message, id=id, tenant=call.tenant)
        accepted = accept(own, calls.kinds, calls.limits)
        asked = Asked(name, _digest(has_own_id, policy, accepted), accepted, policy, has_own_id)
        return (
            yield from once(calls, asked, most, partial(_answer, Tenancy(call.tenant), message))
        )

    made = await call.site.client.run(steps)
    if made.is_repeat:
        return Reply(made.text, 200, _REPLAYED)
    is_new = msgspec.json.decode(made.text)["result"] == Answer.CREATED
    return Reply(made.text, 201 if is_new else 200)


def _name(birth: str, token: bytes, key: str) -> str:
    """The name of a key in the store. It cannot be guessed without the token's digest."""
    data = msgspec.msgpack.encode((token, key))
    return hmac.new(birth.encode(), data, hashlib.sha256).hexdigest()[:32]


def _answer(own: Tenancy, message: Message, receipt: Receipt) -> bytes:
    """The answer as it is sent; Problem or MessageConflict if nothing was stored."""
    return msgspec.json.encode(scheduled(receipt_unless_conflict(own.receipt(receipt), message)))


def _digest(*parts: object) -> str:
    return hashlib.sha256(msgspec.msgpack.encode(parts)).hexdigest()
