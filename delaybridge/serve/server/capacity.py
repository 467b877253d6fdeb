"""How many connections a process can hold: each is an open file, and their number is limited."""

from __future__ import annotations

import logging
from typing import NamedTuple

from delaybridge.settings.settings import Settings
from delaybridge.worker.eventlog import say
from delaybridge.worker.open_files import open_files, raise_open_files

_BACKLOG = 2048
_OWN_FILES = 128  # for Redis, the ledger, the log and the files of pages
_TURNS = 4  # asyncio: accept, make the connection, close one, close its file


class Capacity(NamedTuple):
    """connections: the most of them. backlog: how many may wait to be accepted."""

    connections: int
    backlog: int


def capacity(connections: int, files: int) -> Capacity:
    """The capacity of a process that may open this many files, for the connections wanted.

    All that wait are accepted in one turn of the loop, and the connections that make room for them
    are closed some turns later. Files are kept back for that: without any, `accept` fails for
    every client.
    """
    most = min(connections, files - min(4 * _OWN_FILES, files // 2))
    spare = files - most
    return Capacity(most, min(_BACKLOG, (spare - min(_OWN_FILES, spare // 4)) // _TURNS))


def within_open_files(settings: Settings) -> Settings:
    """The settings with as many connections as can be open. If those are fewer, the log says so."""
    asked = settings.serve.connections
    raise_open_files(asked + _TURNS * _BACKLOG + _OWN_FILES)
    files = open_files()
    most = capacity(asked, files).connections
    if most == asked:
        return settings
    remedy = f"serve.connections is {asked}; raise the limit of open files (LimitNOFILE, ulimit -n)"
    say(logging.WARNING, "few_connections", connections=most, open_files=files, remedy=remedy)
    serve = settings.serve.model_copy(update={"connections": most})
    return settings.model_copy(update={"serve": serve})
