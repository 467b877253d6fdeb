"""A bridge in memory: what a test makes, moves through time, and asks what was delivered."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from delaybridge.client import AsyncClient, Client
from delaybridge.client.requests import arguments_of
from delaybridge.errors import ConfigError, MessageError
from delaybridge.settings.settings import Settings
from delaybridge.settings.urls import DEFAULT_KINDS, SecretUrl, kinds_of
from delaybridge.store.namespace.rules import covers
from delaybridge.testing.amqp import listen
from delaybridge.testing.brokers import Arrivals, DeliveredMessage, NotingPublisher, time_of
from delaybridge.times import At, at_ms, delay_ms

if TYPE_CHECKING:
    from httpx import AsyncBaseTransport

    from delaybridge.serve.server.mounting import MountedApp

try:
    from delaybridge.testing.engine import Engine
    from delaybridge.testing.redis import MemoryRedis
except ModuleNotFoundError as exc:
    raise ConfigError(
        f'delaybridge.testing needs {exc.name}: pip install "delaybridge[testing]"'
    ) from exc

T = TypeVar("T")
_PATIENCE_S = 60  # its scripts are slower than those of Redis
Callback = Callable[[DeliveredMessage], Any]


class Bridge:
    """A whole bridge in this process, with neither Redis nor brokers, for tests of your own code.

        with Bridge() as bridge:
            bridge.client().schedule("rabbitmq:orders/close", b"42", delay="15m")
            bridge.advance("15m")
            [message] = bridge.delivered("rabbitmq:orders")

    Answers, errors and order are those of the real one: clients reach it through a URL, and the
    real engine delivers. Its clock stands still but for `advance`; only a call that schedules takes
    a millisecond of it, so that messages with equal delays keep the order of the calls.

    Args:
        settings: by default those in force: the environment, and `delaybridge.toml`. Redis, the
            brokers and the ledger that they name are never asked.
        now: where the clock begins; by default the present.

    url: the Redis of this bridge. settings: its settings. environment: the variables with which
    `Client.from_settings()`, the drop-ins and the command line reach it.
    """

    def __init__(self, settings: Settings | None = None, *, now: At = None) -> None:
        chosen = settings or Settings.load()
        now_ms = time.time_ns() // 1_000_000 if now is None else at_ms(now, field="now")
        self._clients: list[Client] = []
        self._callbacks: list[tuple[str, Callback]] = []
        self._listeners: dict[str, tuple[Callable[[], None], str]] = {}
        self._turn = threading.Lock()
        self._told = 0
        self._redis = MemoryRedis(now_ms)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.url = self._run(self._redis.listen())
        self.settings = chosen.model_copy(update={
            "durability": "memory",
            "retry": chosen.retry.model_copy(update={"jitter": 0.0}),  # each run is the same
            "redis": chosen.redis.model_copy(
                update={"url": SecretUrl(self.url), "timeout_s": _PATIENCE_S}
            ),
        })  # fmt: skip
        kinds = kinds_of(self.settings.brokers) if self.settings.brokers else DEFAULT_KINDS
        self._arrivals = Arrivals(kinds, lambda: self._redis.now_ms)
        self._engine = Engine(self._redis, self.settings, self._arrivals)
        self._redis.on_wait = lambda: threading.Thread(
            target=_let_leave, args=(self,), daemon=True
        ).start()
        _forget_shared_client()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End it, and close the clients that `client` made."""
        if self._loop.is_closed():
            return
        _forget_shared_client()
        for client in self._clients:
            client.close()
        with self._turn:  # else a thread that lets time pass would wait for ever
            self._run(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _close(self) -> None:
        await self._engine.close()
        self._redis.close()
        for close, _ in self._listeners.values():
            close()
        await asyncio.sleep(0)  # a turn, in which the transports close

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work on the bridge's own loop, which serves its Redis, too."""
        if self._loop.is_closed():
            work.close()
            raise RuntimeError("this bridge is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # how code reaches it

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the settings of your code; the fixture sets them."""
        brokers = self.settings.brokers.items()
        return {
            "DELAYBRIDGE_REDIS__URL": self.url,
            "DELAYBRIDGE_REDIS_URL": self.url,  # where this was set, both have to agree
            "DELAYBRIDGE_REDIS__PASSWORD_FILE": __file__,  # one that exists; any password is right
            "DELAYBRIDGE_NAMESPACE": self.settings.namespace,
            "DELAYBRIDGE_DURABILITY": "memory",
            "DELAYBRIDGE_REDIS__TIMEOUT_S": str(_PATIENCE_S),
            "DELAYBRIDGE_LEASE__TTL_MS": str(10_000 * _PATIENCE_S),  # it must be longer
            **{f"DELAYBRIDGE_BROKERS__{name.upper()}": str.__str__(url) for name, url in brokers},
        }

    def client(self) -> Client:
        """A client of this bridge, which is closed with it."""
        self._clients.append(Client(**arguments_of(self.settings)))
        return self._clients[-1]

    def async_client(self) -> AsyncClient:
        """A client for your event loop; close it there, as with `async with`."""
        return AsyncClient(**arguments_of(self.settings))

    def amqp_url(self, broker: str = "rabbitmq") -> str:
        """Where client libraries of RabbitMQ may connect: what they publish at once is delivered.

        Every exchange and queue exists there; nothing is consumed.
        """
        if broker not in self._listeners:
            self._listeners[broker] = self._run(listen(partial(self._arrivals.publish, broker)))
        return self._listeners[broker][1]

    def app(self) -> MountedApp:
        """The HTTP API and the console as an ASGI application, without tokens."""
        from delaybridge.serve import app

        return app(self.settings, trusted=True)

    def transport(self) -> AsyncBaseTransport:
        """The same for `httpx.AsyncClient(transport=...)`, whose end closes it."""
        import httpx

        app = self.app()
        made = httpx.ASGITransport(app)
        made.aclose = app.aclose  # type: ignore[method-assign]
        return made

    # time, and what it brings

    @property
    def now(self) -> datetime:
        """The time on its clock."""
        return time_of(self._redis.now_ms)

    def advance(self, span: timedelta | float | str) -> None:
        """Let this time pass: everything that becomes due is delivered, each at its time.

        Also what becomes due on the way: attempts after a failure, runs of recurring definitions,
        and what a callback of `on` schedules.
        """
        self._deliver(self._redis.now_ms + delay_ms(span, field="span"))

    def advance_to(self, at: datetime | str) -> None:
        """Let time pass until then; nothing happens if that is past."""
        self._deliver(at_ms(at))

    async def advance_async(self, span: timedelta | float | str) -> None:
        """As `advance`, for callbacks that are coroutine functions."""
        for callback, delivered in self._steps(self._redis.now_ms + delay_ms(span, field="span")):
            result = callback(delivered)
            if inspect.isawaitable(result):
                await result

    def delivered(self, place: str | None = None) -> list[DeliveredMessage]:
        """All that was delivered so far, in order, also what is due right now.

        place: `rabbitmq`, `rabbitmq:orders`, `kafka:events`, or a whole destination; by default
        everywhere. MessageError: no place is written like that.
        """
        wanted = None if place is None else self._arrivals.place(place)
        self._deliver(self._redis.now_ms)
        return [*self._arrivals.all] if wanted is None else self._arrivals.at(wanted)

    def on(self, place: str, callback: Callback) -> None:
        """Call this with each message delivered to the place from now on, as a consumer would be.

        It is called in the thread that lets time pass, and may schedule more.
        """
        self._callbacks.append((self._arrivals.place(place), callback))

    def fail(
        self, place: str, *, times: int | None = 1, error: str = "refused: by the test"
    ) -> None:
        """Let the next deliveries to the place fail; each is tried again, as its plan says.

        times: how many; None: all from now on; 0: none any more. error: begins with one word, as
        `unroutable: NO_ROUTE`. A broker that is away altogether: see `down`.
        """
        self._arrivals.fail(place, times, error)

    def down(self, broker: str, reason: str = "not_connected: by the test") -> None:
        """The broker takes nothing until `up`: its messages wait, which costs no attempt."""
        self._publisher(broker).unavailable = reason

    def up(self, broker: str) -> None:
        """The broker is there again."""
        self._publisher(broker).unavailable = None

    def _publisher(self, broker: str) -> NotingPublisher:
        if (found := self._engine.publishers.get(self._arrivals.place(broker))) is None:
            what = "a broker is away as a whole: give its name; for a narrower place see `fail`"
            raise MessageError("bad_destination", "broker", what)
        return found

    def _deliver(self, until_ms: int) -> None:
        for callback, delivered in self._steps(until_ms):
            if inspect.iscoroutine(result := callback(delivered)):
                result.close()
                raise TypeError("the callback is a coroutine function: await advance_async(...)")

    def _steps(self, until_ms: int) -> Iterator[tuple[Callback, DeliveredMessage]]:
        """Let time pass; each callback with what it is to be called with, between two instants."""
        while True:
            with self._turn:  # the engine cannot tell its own tasks from those of a second run
                is_over = self._run(self._engine.run(until_ms))
            for delivered in iter(self._untold, None):
                for place, callback in [*self._callbacks]:
                    if covers(place, delivered.destination, self._arrivals.kinds):
                        yield callback, delivered
            if is_over:
                return

    def _untold(self) -> DeliveredMessage | None:
        with self._turn:
            if self._told == len(self._arrivals.all):
                return None
            self._told += 1
            return self._arrivals.all[self._told - 1]


def _forget_shared_client() -> None:
    """Close the client that drop-ins share in this process: it leads to another bridge."""
    if (intercept := sys.modules.get("delaybridge.intercept")) is not None:
        if intercept.client_of_settings.cache_info().currsize:
            intercept.client_of_settings().close()
        intercept.client_of_settings.cache_clear()


def _let_leave(bridge: Bridge) -> None:
    """What is due now goes out: a call waits for that, while this has a thread of its own."""
    with bridge._turn:
        if not bridge._loop.is_closed():
            bridge._run(bridge._engine.run(bridge._redis.now_ms))
