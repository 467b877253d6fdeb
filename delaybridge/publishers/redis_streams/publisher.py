"""Publishes to Redis Streams: one XADD per message, pipelined on one connection.

Confirmed means that Redis has added the entry. An error reply proves that it has not; a missing
reply proves nothing. The fields of an entry: docs/destinations.md.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

from redis.asyncio import ConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from delaybridge.errors import ConfigError, printable
from delaybridge.message import OWN_HEADERS, Delivery, Destination
from delaybridge.publish import CONFIRMED, Fault, Outcome, PublishOptions, Verdict
from delaybridge.publish.link import CLOSED, UNCONFIRMED, LinkedPublisher, broker_refusal
from delaybridge.publishers.redis_streams.outcomes import reason_of, refusal
from delaybridge.store.redis.redis_client import logged_in

CONNECT_TIMEOUT_S = 5.0
HEADER_PREFIX = "header:"

# Refused whenever writes are refused, and changes nothing, since the stream never exists.
_PROBE = ("XADD", "delaybridge:probe", "NOMKSTREAM", "*", "probe", "")
Asker = Delivery | asyncio.Future[Any]
"""The purpose of a reply: a message, or a question of the publisher itself."""


class SessionEnded(Exception):
    """The connection is given up. The text is the reason."""


class StreamsPublisher(LinkedPublisher):
    """A `Publisher` for the streams of one Redis. Confirmed means: XADD was answered.

    Its URL is redis[s]://HOST[:PORT][/DB] or unix:///PATH; ?maxlen=N trims each stream. rediss://
    verifies certificate and host name. ConfigError if the URL cannot be used.
    """

    def _configure(self, url: str, options: PublishOptions) -> None:
        self._pool, maxlen = _pool_of(self.name, url)
        self._trim = () if maxlen is None else ("MAXLEN", "~", maxlen)
        self._heartbeat_s = options.heartbeat_s
        self._outbox: list[tuple[tuple[Any, ...], Asker]] = []  # to be written
        self._written: deque[tuple[Asker, float]] = deque()  # to be answered; when written
        self._wake = asyncio.Event()
        self._about = "Redis"

    def _send(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            try:
                self._outbox.append((self._command(delivery), delivery))
            except Exception as exc:  # only this one is not written
                reason = f"unencodable: {type(exc).__name__}"
                self._reports.add([delivery], Outcome(Verdict.REFUSED, reason))
        self._wake.set()

    async def _check(self, destination: Destination) -> str | None:
        reply = await self._ask("TYPE", destination.address)
        if isinstance(reply, SessionEnded):
            return str(reply)
        is_known = isinstance(reply, bytes) and reply not in (b"none", b"stream")
        return f"wrong_type: it is a {reply.decode()}, not a stream" if is_known else None

    def _describe(self) -> str:
        to = self._pool.connection_kwargs
        at = to.get("path") or f"{to.get('host', 'localhost')}:{to.get('port', 6379)}"
        tls = "TLS" if "SSL" in self._pool.connection_class.__name__ else "no TLS"
        trim = f", trimmed to about {self._trim[-1]} entries" if self._trim else ""
        return f"{self._about} at {at}/{to.get('db', 0)}, {tls}, streams{trim}"

    # the connection

    async def _connect_until_lost(self) -> None:
        reason = await self._run()
        self._end(reason, reason)

    async def _run(self) -> str:
        """One connection from start to end; returns why it ended."""
        connection: Any = self._pool.make_connection()
        work: list[asyncio.Task[None]] = []
        try:
            await self._open(connection)
            work = [
                asyncio.create_task(part)
                for part in (self._read(connection), self._write(connection), self._watch())
            ]
            self._opened()
            await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for task in work:
                if task.done():
                    task.result()
        except SessionEnded as exc:
            return str(exc)
        except (RedisError, OSError) as exc:
            refused = refusal(exc)
            word = "connection_lost" if work else "unreachable"
            return refused.reason if refused is not None else reason_of(word, exc)
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            await connection.disconnect(nowait=True)
        return "connection_lost: ended"

    async def _open(self, connection: Any) -> None:
        """Connect, log in, and probe whether writes are taken; SessionEnded if not."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await connection.connect()
                self._about = server_text(
                    await _answer(connection, "INFO", "server"),
                    await _answer(connection, "INFO", "persistence"),
                )
                refused = refusal(await _answer(connection, *_PROBE))
        except TimeoutError:
            raise SessionEnded(f"unreachable: no answer within {CONNECT_TIMEOUT_S:g} s") from None
        if refused is not None and refused.fault is Fault.BROKER:
            raise SessionEnded(refused.reason)

    async def _write(self, connection: Any) -> None:
        now_s = asyncio.get_running_loop().time
        while True:
            await self._wake.wait()
            self._wake.clear()
            outbox, self._outbox = self._outbox, []
            at_s = now_s()
            self._written.extend((asker, at_s) for _, asker in outbox)
            packed = connection.pack_commands([command for command, _ in outbox])
            await connection.send_packed_command(packed, check_health=False)

    async def _read(self, connection: Any) -> None:
        while True:
            reply = await _reply(connection)
            if not self._written:
                raise SessionEnded("protocol: an unexpected reply")
            asker, _ = self._written.popleft()
            if isinstance(asker, Delivery):
                self._answered(asker, reply)
            elif not asker.done():
                asker.set_result(reply)
            if self.unavailable is not None and not self._written:
                raise SessionEnded(self.unavailable)  # the next session begins with a probe

    async def _watch(self) -> None:
        """End the session when a reply is overdue; send PING while it is idle."""
        now_s = asyncio.get_running_loop().time
        while True:
            oldest_s = self._written[0][1] if self._written else now_s()
            left_s = oldest_s + self._timeout_s - now_s()
            if left_s <= 0:
                raise SessionEnded(f"confirm_timeout: none within {self._timeout_s:g} s")
            await asyncio.sleep(min(left_s, self._heartbeat_s))
            if not self._written:
                self._ask("PING")

    # commands and answers

    def _command(self, delivery: Delivery) -> tuple[Any, ...]:
        record = delivery.record
        ours = (delivery.given_id, delivery.due_ms, delivery.attempt)
        fields: list[Any] = ["body", record.body or b""]
        for name, value in zip(OWN_HEADERS, ours, strict=True):
            fields += (name, value)
        if record.key is not None:
            fields += ("key", record.key)
        for name, header in record.headers:  # type: ignore[misc]  # pairs for this kind
            fields += (HEADER_PREFIX + name, header or b"")
        return ("XADD", delivery.destination.address, *self._trim, "*", *fields)

    def _ask(self, *command: str) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        self._outbox.append((command, future))
        self._wake.set()
        return future

    def _answered(self, delivery: Delivery, reply: Any) -> None:
        outcome = refusal(reply) or CONFIRMED
        self._reports.add([delivery], outcome)
        if outcome.fault is Fault.BROKER:
            self._change(outcome.reason)
            self._refuse_outbox(outcome.reason)

    def _end(self, reason: str, unavailable: str) -> None:
        """Deliveries that were written end unknown; the others are refused."""
        self._change(unavailable)
        written, self._written = self._written, deque()
        unknown = Outcome(Verdict.UNKNOWN, reason, Fault.BROKER)
        self._settle((asker for asker, _ in written), unknown)
        self._refuse_outbox(unavailable)

    def _abandon(self, reason: str) -> None:
        self._end(reason, reason)

    def _refuse_outbox(self, reason: str) -> None:
        outbox, self._outbox = self._outbox, []
        self._settle((asker for _, asker in outbox), broker_refusal(reason))

    def _is_idle(self) -> bool:
        return not (self._written or self._outbox)

    async def _disconnect(self) -> None:
        self._end(UNCONFIRMED, CLOSED)
        self._reports.flush()

    def _settle(self, askers: Iterable[Asker], outcome: Outcome) -> None:
        deliveries = []
        for asker in askers:
            if isinstance(asker, Delivery):
                deliveries.append(asker)
            elif not asker.done():
                asker.set_result(SessionEnded(outcome.reason))
        self._reports.add(deliveries, outcome)


def server_text(*sections: Any) -> str:
    """Version and AOF setting, from the sections of INFO that Redis let us read."""
    text = "\n".join(
        found.decode(errors="replace") for found in sections if isinstance(found, bytes)
    )
    facts = dict(line.partition(":")[::2] for line in text.splitlines())
    version = printable(facts.get("redis_version", "of unknown version"))
    aof = {"0": ", appendonly no", "1": ", appendonly yes"}.get(facts.get("aof_enabled", ""), "")
    return f"Redis {version}{aof},"


async def _answer(connection: Any, *command: str) -> Any:
    await connection.send_command(*command, check_health=False)
    return await _reply(connection)


async def _reply(connection: Any) -> Any:
    """The next reply, which may be an error reply; raises if the connection is lost."""
    try:
        return await connection.read_response(timeout=math.inf, disconnect_on_error=False)
    except RedisError as exc:
        if refusal(exc) is None:
            raise
        return exc


def _pool_of(name: str, url: str) -> tuple[Any, str | None]:
    """redis-py's pool for the URL, which makes the connections, and the option maxlen."""
    bare, login = logged_in(url)
    base, _, query = bare.partition("?")
    given = dict(parse_qsl(query, keep_blank_values=True))
    maxlen = given.pop("maxlen", None)
    fixed: dict[str, Any] = {
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),  # redis-py's default would silently send again
        "socket_timeout": None,  # `_watch` knows when a reply is overdue
        "health_check_interval": 0,
        **login,
    }
    if not base.startswith("unix:"):
        fixed["socket_keepalive"] = True
    try:
        pool: Any = ConnectionPool.from_url(f"{base}?{urlencode(given)}", **fixed)
        pool.make_connection()  # connects to nothing, but refuses unknown options
    except (ValueError, TypeError, RedisError) as exc:
        raise ConfigError(f"brokers.{name}: {printable(str(exc))[:120]}") from None
    return pool, maxlen
