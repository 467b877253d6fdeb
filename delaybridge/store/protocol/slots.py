"""Slots of a Redis Cluster: which a key is in, and which server has it."""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Iterable, Sequence
from typing import Any

from delaybridge.settings.redis_servers import Address
from delaybridge.store.protocol.command import RedisCommand

SLOTS = 16_384
KEYLESS = frozenset({
    "PING", "TIME", "INFO", "SCRIPT LOAD", "CONFIG GET", "ROLE", "CLUSTER SLOTS", "CLUSTER INFO",
})  # fmt: skip
"""Plain commands whose first argument is no key. (That of PUBLISH and SUBSCRIBE counts as one.)"""

Table = Sequence[Address | None]
"""Slot -> its master."""


def slot_of(key: str) -> int:
    """The slot of a key: CRC-16 (XMODEM) of its hash tag, if it has one (Redis Cluster spec)."""
    begin = key.find("{")
    end = key.find("}", begin + 1) if begin >= 0 else -1
    tag = key[begin + 1 : end] if end > begin + 1 else key
    return crc_hqx(tag.encode(), 0) % SLOTS


def key_of(command: RedisCommand[Any]) -> str:
    """A key whose server is to run the command; empty: any server may."""
    if command.keys:
        return command.keys[0]
    if command.near or command.name in KEYLESS or not command.args:
        return command.near
    return str(command.args[0])


def read_table(reply: Iterable[Sequence[Any]], asked: str) -> Table:
    """The table in a reply to CLUSTER SLOTS. asked: the host that gave it."""
    table: list[Address | None] = [None] * SLOTS
    for first, last, master, *_ in reply:
        host, port = master[0], int(master[1])
        name = "" if host is None or host == b"?" else bytes(host).decode()
        table[int(first) : int(last) + 1] = [(name or asked, port)] * (int(last) - int(first) + 1)
    return table
