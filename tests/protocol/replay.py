"""Traces of the model on a real Redis: each call's answer and the bucket after it, compared.

Each trace has a bucket of its own. All that a trace does goes in one pipeline, since the model
already knows every token and claim number.

A message that a client may schedule by `schedule_one` is scheduled by that first, and then by
`schedule` with the same stamp: the answers and the bucket are to be those of `schedule` alone.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import hiredis

from delaybridge.store.protocol import keys
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.scripts import packed, scripts
from tests.protocol.bucket import Content
from tests.protocol.owner_verbs import Reach
from tests.protocol.readings import READ, answer_of, content_of
from tests.protocol.requests import command_of, short_of
from tests.protocol.units import NAMES, ms_of
from tests.protocol.world import Event

BIRTH = "0123456789abcdef"
# Each of the first keys becomes equal to its fellow in the second half.
COPY = """
for i = 1, #KEYS / 2 do
  redis.call('DEL', KEYS[i])
  redis.call('COPY', KEYS[#KEYS / 2 + i], KEYS[i])
end
"""
# All of one message but its attempts; KEYS: `keys.BUCKET_KEYS`.
ERASE = """
for _, i in ipairs({1, 5, 6}) do
  redis.call('ZREM', KEYS[i], ARGV[1])
end
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[7], ARGV[1])
"""


class Difference(NamedTuple):
    """Where Redis and the model part."""

    at: int
    event: Event
    answer: Any
    content: Content

    def __str__(self) -> str:
        lines = [f"call {self.at} at tick {self.event.clock}: {self.event.call or self.event.verb}"]
        if self.answer != self.event.answer:
            lines.append(f"  answer: {self.answer}; model: {self.event.answer}")
        pairs = zip(Content._fields, self.content, self.event.content, strict=True)
        lines += [f"  {n}: {found}; model: {said}" for n, found, said in pairs if found != said]
        return "\n".join(lines)


class Connection:
    """It sends many requests at once, and waits for all their replies. An error is a reply."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=30)
        self._reader = hiredis.Reader()

    def close(self) -> None:
        self._socket.close()

    def ask(self, requests: Sequence[bytes]) -> list[Any]:
        self._socket.sendall(b"".join(requests))
        return [self.read() for _ in requests]

    def read(self) -> Any:
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(2**16))
        return reply


class Replay:
    """Traces on one Redis. mutated: script -> the text that it has instead of its own."""

    def __init__(self, url: str, namespace: str, mutated: dict[str, str] | None = None) -> None:
        self._redis, self._wakes = Connection(url), Connection(url)
        self._namespace, self._wake = namespace, keys.wake(namespace)
        self._wakes.ask([packed("SUBSCRIBE", self._wake)])
        texts = {verb: text for verb, (text, _) in scripts().items()} | (mutated or {})
        texts |= {"read": READ, "copy": COPY, "erase": ERASE}
        digests = self._redis.ask([packed("SCRIPT", "LOAD", text) for text in texts.values()])
        self._digests = dict(zip(texts, digests, strict=True))
        self._numbers = count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._redis.close()
        self._wakes.close()

    def difference(self, trace: list[Event], reach: Reach) -> Difference | str | None:
        """The first difference of a trace, None if there is none. reach: of its claims."""
        bucket = Bucket(self._namespace, next(self._numbers), BIRTH)
        own = [bucket.key(name) for name in keys.BUCKET_KEYS]
        replica = [f"{key}:replica" for key in own]
        read = self._script("read", own)
        requests = []
        for event in trace:
            requests += [self._first(bucket, event), self._request(bucket, event, reach), read]
        *replies, _, _ = self._redis.ask(
            [*requests, packed("UNLINK", *own, *replica), packed("PUBLISH", self._wake, "end")]
        )
        for at, event in enumerate(trace):
            answer, content = event.answer, content_of(replies[3 * at + 2], event.content)
            if isinstance(replies[3 * at + 1], Exception):
                answer = replies[3 * at + 1]
            elif event.call is not None:
                answer = answer_of(event.call, replies[3 * at + 1], event.answer)
            if (answer, content) != (event.answer, event.content):
                self._woken()
                return Difference(at, event, answer, content)
        said = [ms_of(event.woken) for event in trace if event.woken is not None]
        found = self._woken()
        return None if found == said else f"woken for {found}; model: {said}"

    def _first(self, bucket: Bucket, event: Event) -> bytes:
        """What a client sends before a call: `schedule_one`, if it may; else nothing."""
        command = event.call and short_of(bucket, event.call, event.clock)
        if not command:
            return packed("PING")
        return self._script(command.name, command.keys, command.args)

    def _request(self, bucket: Bucket, event: Event, reach: Reach) -> bytes:
        own = [bucket.key(name) for name in keys.BUCKET_KEYS]
        replica = [f"{key}:replica" for key in own]
        if event.call is not None:
            command = command_of(bucket, event.call, event.clock, reach)
            return self._script(command.name, command.keys, command.args)
        if event.verb == "lease_ends":
            return packed("DEL", bucket.key("lease"))
        if event.verb == "wiped":
            return packed("UNLINK", *own)
        if event.verb.startswith("erase "):
            return self._script("erase", own, [NAMES[int(event.verb.removeprefix("erase "))]])
        if event.verb.startswith("vanish "):
            return packed("DEL", bucket.key(event.verb.removeprefix("vanish ")))
        source, target = (own, replica) if event.verb == "replica_lags" else (replica, own)
        return self._script("copy", [*target, *source])

    def _script(self, verb: str, names: Sequence[str], args: Sequence[Any] = ()) -> bytes:
        return packed("EVALSHA", self._digests[verb], len(names), *names, *args)

    def _woken(self) -> list[int]:
        """The due times that an owner was woken for, until the end of a trace."""
        found = []
        while (text := self._wakes.read()[2]) != b"end":
            if text != b"fleet":
                found.append(int(text.split()[1]))
        return found
