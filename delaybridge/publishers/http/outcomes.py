"""What an answer, or the lack of one, says about a message."""

from __future__ import annotations

import re
import time
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import aiohttp

from delaybridge.publish import CONFIRMED, Fault, Outcome, Verdict
from delaybridge.publishers.http.addresses import AddressRefused

_LONGEST_WAIT_S = 86_400
_SECONDS = re.compile(r"[0-9]+(\.[0-9]*)?", re.ASCII)
_MAY_HELP = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
# The receiver takes nothing now, whatever the message.
_OVERLOADED = (
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)


def outcome_of(status: int, retry_after: str | None) -> Outcome:
    """2xx: confirmed. 4xx but 408 and 429: certainly refused. Everything else is unknown."""
    if 200 <= status < 300:
        return CONFIRMED
    reason = f"http_{status}: {_phrase(status)}"
    if 400 <= status < 500 and status not in _MAY_HELP:
        return Outcome(Verdict.REFUSED, reason, answered=True)
    fault = Fault.DESTINATION if status in _OVERLOADED else Fault.MESSAGE
    # What else is unknown may be said by a proxy in front of a receiver that is down.
    is_its_own = status == HTTPStatus.INTERNAL_SERVER_ERROR
    return Outcome(Verdict.UNKNOWN, reason, fault, wait_ms(retry_after), answered=is_its_own)


def outcome_of_error(exc: Exception, timeout_s: float) -> Outcome:
    """A POST without an answer. Refused only if no connection was made, so nothing was written.

    After a time-out the fault is the destination's, as after 503: each further message would hold a
    connection for as long.
    """
    if isinstance(exc, aiohttp.ClientConnectorError | AddressRefused):
        return Outcome(Verdict.REFUSED, reason_of("unreachable", exc), Fault.BROKER)
    if isinstance(exc, aiohttp.ConnectionTimeoutError):
        what = f"unreachable: no connection within {timeout_s:g} s"
        return Outcome(Verdict.REFUSED, what, Fault.BROKER)
    if isinstance(exc, TimeoutError):
        what = f"confirm_timeout: none within {timeout_s:g} s"
        return Outcome(Verdict.UNKNOWN, what, Fault.DESTINATION)
    return Outcome(Verdict.UNKNOWN, reason_of("connection_lost", exc), Fault.BROKER)


def reason_of(word: str, exc: BaseException) -> str:
    """The word and the cause, without what the other side wrote."""
    cause = exc.__cause__ or exc
    text = cause.strerror if isinstance(cause, OSError) and cause.strerror else type(exc).__name__
    return f"{word}: {cause if isinstance(cause, AddressRefused) else text}"


def wait_ms(retry_after: str | None) -> int:
    """How long the answer asks to wait: seconds or a date, a day at most; 0 if it does not say."""
    if not retry_after:
        return 0
    try:
        if _SECONDS.fullmatch(retry_after):
            wait_s = float(retry_after)
        else:
            wait_s = parsedate_to_datetime(retry_after).timestamp() - time.time()
    except Exception:  # a receiver may write anything, and the parser raises more than ValueError
        return 0
    return int(max(0.0, min(wait_s, _LONGEST_WAIT_S)) * 1000)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "unknown status"
