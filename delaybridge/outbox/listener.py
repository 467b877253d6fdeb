"""Hears from PostgreSQL that rows were committed, on a connection of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import psycopg
from sqlalchemy import make_url

from delaybridge.backoff import Backoff
from delaybridge.ledger.sql.patient import connect
from delaybridge.outbox import table

_WAIT_S = 0.5  # so that it ends soon after it was closed
_RECONNECT_S = (0.1, 5.0)
_SILENCE_S = 5.0


class CommitListener:
    """Calls `on_news` when rows were committed. It reconnects by itself, silently.

    is_listening: False while it hears nothing; ask the table more often then.
    """

    def __init__(self, url: str, on_news: Callable[[], None], *, timeout_s: float) -> None:
        self.is_listening = False
        made = make_url(str.__str__(url)).set(drivername="postgresql")
        self._conninfo = made.render_as_string(hide_password=False)
        self._on_news, self._timeout_s = on_news, max(2, round(timeout_s))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outbox-listener", daemon=True)

    def start(self) -> None:
        """Begin to listen, in a thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop, and wait for the thread to end."""
        self._ended.set()
        self._thread.join(self._timeout_s + _WAIT_S)

    def _run(self) -> None:
        backoff = Backoff(*_RECONNECT_S)
        while not self._ended.is_set():
            try:
                self._listen()
            except psycopg.Error:
                pass  # the pump, which has the same database, says so
            self.is_listening = False
            self._ended.wait(backoff.next_s())

    def _listen(self) -> None:
        with connect(
            self._timeout_s, self._conninfo, autocommit=True, connect_timeout=self._timeout_s
        ) as connection:
            connection.execute(table.LISTEN)
            self.is_listening = True
            self._on_news()  # of what was committed before
            heard_s = time.monotonic()
            while not self._ended.is_set():
                for _ in connection.notifies(timeout=_WAIT_S, stop_after=1):
                    heard_s = time.monotonic()
                    self._on_news()
                if time.monotonic() - heard_s > _SILENCE_S:
                    connection.execute("SELECT 1")  # nothing else notices that it is dead
                    heard_s = time.monotonic()
