"""Which outcome each of Redis' error replies means for a message.

Every error reply proves that its command changed nothing.
"""

from __future__ import annotations

from redis.exceptions import RedisError, ResponseError

from delaybridge.errors import DETAIL_LIMIT, printable
from delaybridge.publish import Fault, Outcome, Verdict

# First word of an error reply -> first word of the reason. These concern every write, so the
# publisher is unavailable until they end.
_TAKES_NOTHING = {
    "OOM": "full", "READONLY": "read_only", "LOADING": "loading", "MASTERDOWN": "read_only",
    "CLUSTERDOWN": "cluster_down", "TRYAGAIN": "cluster_down", "MISCONF": "persistence_failed",
    "NOREPLICAS": "too_few_replicas", "BUSY": "busy", "NOAUTH": "access_refused",
    "WRONGPASS": "access_refused",
}  # fmt: skip
_REFUSALS = {
    "WRONGTYPE": ("wrong_type", Fault.MESSAGE),
    "NOPERM": ("access_refused", Fault.DESTINATION),
    "MOVED": ("moved", Fault.DESTINATION),
    "ASK": ("moved", Fault.DESTINATION),
}


def refusal(reply: object) -> Outcome | None:
    """The outcome that an error reply means for its command; None if it is not an error reply.

    Fault.BROKER: Redis takes no writes now.
    """
    if not isinstance(reply, RedisError):
        return None
    word = reply.status_code or _text(reply).partition(" ")[0]
    if word in _TAKES_NOTHING:
        return Outcome(Verdict.REFUSED, reason_of(_TAKES_NOTHING[word], reply), Fault.BROKER)
    if not isinstance(reply, ResponseError):
        return None  # not a reply: the connection was lost
    ours, fault = _REFUSALS.get(word, ("rejected", Fault.MESSAGE))
    of_message = fault is Fault.MESSAGE
    return Outcome(Verdict.REFUSED, reason_of(ours, reply), fault, answered=of_message)


def reason_of(word: str, exc: Exception) -> str:
    """`word: text of the error`, printable and short."""
    code = getattr(exc, "status_code", None)
    text = _text(exc) or type(exc).__name__
    return f"{word}: {printable(f'{code} {text}' if code else text)}"[:DETAIL_LIMIT]


def _text(exc: Exception) -> str:
    """The text of Redis' reply, without the pipeline that redis-py adds to it."""
    return str(exc).rpartition(" of pipeline caused error: ")[2]
