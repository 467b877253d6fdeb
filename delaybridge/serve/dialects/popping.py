"""Fetching jobs as the originals do: one at a time, of several topics, by a poll that may wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from delaybridge.errors import MessageError
from delaybridge.message import PULL
from delaybridge.serve.dialects.dialect import NO_PULL, Dialect, destination_of
from delaybridge.serve.http.disconnect import Ending
from delaybridge.serve.shared.call import Call
from delaybridge.serve.shared.polling import Poll
from delaybridge.store.messages.pulling import ReceivedMessage

_TTR_S = (1, 43_200)  # of a pull topic
_TOPICS = 100  # of one request
_DIGITS = 15
_FIRST_TTR = "30s"


def number_of(text: bytes | None) -> int:
    """What a header says; 0 if it is no number. Anybody may have written it: it may be huge."""
    if not text or not text.isdigit():
        return 0
    return int(text) if len(text) <= _DIGITS else 10**_DIGITS


class Pop(Poll):
    """An ASGI application: the first job of some topics that is due, waiting for up to `wait_s`."""

    def __init__(
        self,
        call: Call,
        topics: Sequence[str | tuple[str, str]],
        wait_s: float,
        shown: Callable[[ReceivedMessage | None], Any],
        dialect: Dialect,
        *,
        ttr: tuple[str, float] = ("ttr", 1.0),
    ) -> None:
        """Problem or MessageError if these are no pull topics.

        topics: also of (topic, subtopic). ttr: the header that has the time to run, and its unit in
        seconds.
        """
        if len(topics) > _TOPICS:  # each is asked for by itself
            what = f"{len(topics):,} topics; at most {_TOPICS}"
            raise MessageError("bad_value", "topic", what)
        places = [
            destination_of(call, *((topic,) if isinstance(topic, str) else topic))
            for topic in topics
        ]
        if not all(place.startswith(f"{PULL}:") for place in places):
            raise NO_PULL
        names = [place.removeprefix(f"{PULL}:") for place in dict.fromkeys(places)]
        super().__init__(call, names, wait_s)
        self._shown, self._dialect = shown, dialect
        self._header, self._unit_s = ttr

    async def answer(self, ending: Ending) -> Any:
        try:
            return await super().answer(ending)
        except Exception as exc:
            return self._dialect.refused(exc)

    def content(self, found: list[ReceivedMessage]) -> Any:
        return self._shown(found[0] if found else None)

    async def received(self) -> list[ReceivedMessage]:
        """A job, held for the time to run that it was stored with."""
        receive, extend = map(self.call.verb, ("topics.receive", "topics.extend"))
        for topic in self.topics:
            if some := await receive(topic, ttr=_FIRST_TTR):
                if asked := number_of(dict(some[0].headers).get(self._header)):
                    least, most = _TTR_S
                    await extend(some, ttr=max(least, min(asked * self._unit_s, most)))
                return list(some)
        return []
