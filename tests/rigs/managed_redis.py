"""A managed Redis: a proxy in front of a real one that refuses what each vendor refuses.

A refused request becomes a script that answers the refusal, so replies stay in order. Where scripts
may not call TIME the Redis user loses that right, and the proxy answers TIME itself. The texts of
refusals differ from Redis' own on purpose.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha1
from typing import Any

import redis
from hiredis import Reader, pack_command

from tests.rigs.lossy_proxy import LossyProxy

_LITERAL = re.compile(rb"redis\.p?call\('\w+'((?:, KEYS\[\d+\])+)[,)]")
_USED = re.compile(rb"KEYS\[(\d+)\]")
_NO_LIMIT = b"local cmsgpack = {pack = cmsgpack.pack, unpack = cmsgpack.unpack}\n"
_FACTS = b"# Server\r\nredis_version:7.2.4\r\n"  # all that some tell
_AWAY = ("CONFIG", "DEBUG", "SHUTDOWN", "REPLICAOF", "BGSAVE", "SAVE", "MONITOR", "ACL SETUSER")


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What a vendor refuses.

    commands: by name, or its first two words. time: whether scripts may call TIME. forgets: of how
    many calls of scripts one finds it gone. facts: whether INFO tells more than the version.
    literal: only scripts whose keys stand literally in them. exact: only calls whose keys are all
    used by the script, none empty.
    """

    commands: Sequence[str] = ()
    time: bool = True
    forgets: int = 0
    facts: bool = True
    literal: bool = False
    exact: bool = False
    limits: bool = True
    url_options: str = ""


PROFILES = {
    "elasticache": Profile(commands=(*_AWAY, "SYNC", "PSYNC", "CLUSTER MEET")),
    "memorystore": Profile(commands=("CONFIG GET", *_AWAY, "CLIENT KILL")),
    "redis-cloud": Profile(commands=(*_AWAY, "SELECT", "RESET", "CLIENT PAUSE", "WAITAOF")),
    "serverless": Profile(
        commands=(*_AWAY, "SELECT", "CLIENT LIST", "CLIENT PAUSE", "WAIT", "WAITAOF"),
        time=False, forgets=5, facts=False, url_options="?time_in_scripts=no",
    ),
    "upstash": Profile(
        commands=(*_AWAY, "CLIENT LIST", "WAITAOF", "SPUBLISH"), facts=False, exact=True
    ),
    "garnet": Profile(commands=("CONFIG GET", "WAITAOF"), limits=False),
    "tair": Profile(commands=(*_AWAY, "CLIENT KILL"), literal=True),
}  # fmt: skip


class ManagedRedis(LossyProxy):
    """Passes requests on to a Redis of the test's own, as a vendor would. refused: what it refused.

    The user of that Redis may lose a right.
    """

    def __init__(self, port: int, profile: Profile) -> None:
        self._profile, self.refused = profile, set[str]()
        self._sources, self._loaded_as = dict[bytes, bytes](), dict[bytes, bytes]()
        self._calls = 0
        if not profile.time:
            with redis.Redis(port=port) as admin:
                admin.execute_command("ACL", "SETUSER", "default", "-time")
        super().__init__(port)

    @property
    def url(self) -> str:
        return super().url + self._profile.url_options

    def _pass_requests(self, client: socket.socket, server: socket.socket) -> None:
        reader = Reader()
        with contextlib.suppress(OSError):
            while data := client.recv(65_536):
                reader.feed(data)
                asked = []
                while (words := reader.gets()) is not False:
                    asked.append(pack_command(tuple(self._passed(words))))
                server.sendall(b"".join(asked))
        self._cut(client, server)

    def _passed(self, words: list[bytes]) -> Sequence[Any]:
        """What the server is asked instead."""
        name = words[0].decode().upper()
        pair = f"{name} {words[1].decode(errors='replace').upper()}" if len(words) > 1 else name
        for refused in {name, pair} & {*self._profile.commands}:
            return self._refusal(refused, f"ERR this service does not offer `{refused}`")
        if name == "TIME" and not self._profile.time:
            now_us = time.time_ns() // 1000
            return "EVAL", "return ARGV", 0, now_us // 1_000_000, now_us % 1_000_000
        if name == "INFO" and not self._profile.facts:
            return "EVAL", "return ARGV[1]", 0, _FACTS
        if pair == "SCRIPT LOAD":
            return self._loaded(words)
        return self._called(words) if name == "EVALSHA" else words

    def _refusal(self, what: str, text: str) -> Sequence[Any]:
        self.refused.add(what)
        return "EVAL", "return redis.error_reply(ARGV[1])", 0, text

    def _loaded(self, words: list[bytes]) -> Sequence[Any]:
        code = re.sub(rb"--.*", b"", words[2])
        self._sources[_digest(words[2])] = code
        literal = b"".join(_LITERAL.findall(code)).count(b"KEYS")
        if self._profile.literal and literal != code.count(b"KEYS"):
            return self._refusal("script", "ERR bad lua script, keys are to be literal")
        own = words[2] if self._profile.limits else _NO_LIMIT + words[2]
        self._loaded_as[_digest(words[2])] = _digest(own)
        return [*words[:2], own]

    def _called(self, words: list[bytes]) -> Sequence[Any]:
        self._calls += 1
        if self._profile.forgets and self._calls % self._profile.forgets == 0:
            return "EVALSHA", "0" * 40, 0  # it has no such script
        keys = words[3 : 3 + int(words[2])]
        used = {int(number) for number in _USED.findall(self._sources.get(words[1], b""))}
        is_exact = all(keys) and used == {*range(1, len(keys) + 1)}
        if self._profile.exact and words[1] in self._sources and not is_exact:
            return self._refusal("keys", "ERR a key is locked in vain")
        return [words[0], self._loaded_as.get(words[1], words[1]), *words[2:]]


def _digest(source: bytes) -> bytes:
    return sha1(source).hexdigest().encode()
