"""kombu: any of its transports, to a queue, as `kombu.Producer` would have published.

`kombu_thread` is a connection and its thread; this is what keeps one up. Confirmed means: the
transport's call has returned; with RabbitMQ, that the broker has confirmed.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import ssl
from collections.abc import Callable, Sequence
from importlib import import_module
from time import monotonic
from typing import Any
from urllib.parse import quote, unquote_plus

from delaybridge.errors import ConfigError, printable
from delaybridge.message import Delivery, Destination
from delaybridge.publish import (
    Fault,
    Outcome,
    PublishOptions,
    Report,
    Verdict,
    read_password,
)
from delaybridge.publish.kombu.thread import Courier, Question, kombu
from delaybridge.publish.link import CLOSED, CLOSING, UNCONFIRMED, LinkedPublisher, broker_refusal
from delaybridge.settings import password_file
from delaybridge.settings.password_file import PasswordFile
from delaybridge.settings.urls import redact, redact_text

CONNECT_TIMEOUT_S = 5.0
OPEN_TIMEOUT_S = 12.0  # two tries, and the handshake
ANSWER_TIMEOUT_S = 5.0
OVERDUE_S = 0.5  # a call may take so much longer than its own time-out
GOODBYE_TIMEOUT_S = 1.0
OPTION_PREFIX = "transport."


class KombuPublisher(LinkedPublisher):
    """A `Publisher` for the queues of one kombu URL: one message at a time, on a thread."""

    counts_connecting = True

    def __init__(
        self,
        name: str,
        url: str,
        arguments: dict[str, Any],
        file: PasswordFile | None = None,
        *,
        report: Report,
        on_change: Callable[[], None],
        options: PublishOptions,
    ) -> None:
        super().__init__(name, report=report, on_change=on_change)
        self._url, self._arguments, self._file = url, arguments, file
        self._timeout_s = options.confirm_timeout_s
        self._idle_s = options.heartbeat_s / 4
        self._courier: Courier | None = None
        self._flying: dict[Delivery, None] = {}  # given to the courier, without an outcome

    def _send(self, deliveries: Sequence[Delivery]) -> None:
        courier = self._courier
        if courier is None:
            self._refuse(deliveries)
            return
        self._flying.update(dict.fromkeys(deliveries))
        courier.send(deliveries)

    async def check(self, destination: Destination) -> str | None:
        """Why this destination would be refused as things stand, None if nothing is known."""
        courier = self._courier
        if self.unavailable is not None or courier is None:
            return self.unavailable or CLOSING
        question = Question(destination.address, asyncio.get_running_loop().create_future())
        courier.send([question])
        try:
            return await asyncio.wait_for(question.answer, ANSWER_TIMEOUT_S)
        except TimeoutError:
            return f"no_answer: within {ANSWER_TIMEOUT_S:g} s"

    def describe(self) -> str:
        """One line for people. No secrets."""
        text = f"kombu {kombu.__version__} at {redact(self._url)}, one message at a time"
        return text if self.unavailable is None else f"{text}: {self.unavailable}"

    def _is_idle(self) -> bool:
        return not self._flying

    async def _disconnect(self) -> None:
        courier = self._courier
        self._give_up(UNCONFIRMED, CLOSED)
        self._reports.flush()
        if courier is not None and courier.opened.done():
            # A call that does not return is left behind.
            await asyncio.wait([courier.ended], timeout=GOODBYE_TIMEOUT_S)

    # the thread

    async def _session(self) -> None:
        reason = await self._run()
        self._give_up(reason, reason)

    async def _run(self) -> str:
        """One courier from beginning to end; why it ended, or why it is given up."""
        try:
            url = self._url if self._file is None else _with_password(self._url, self._file.read())
        except ValueError as exc:
            return f"unreachable: {exc}"
        courier = self._courier = Courier(
            kombu.Connection(url, **self._arguments),
            self._collect,
            timeout_s=self._timeout_s,
            idle_s=self._idle_s,
        )
        await asyncio.wait(
            (courier.opened, courier.ended),
            timeout=OPEN_TIMEOUT_S,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not courier.opened.done() and not courier.ended.done():
            return f"unreachable: no answer within {OPEN_TIMEOUT_S:g} s"
        if not courier.ended.done():
            self._opened()
        while not courier.ended.done():
            since_s = courier.calling_since_s
            if since_s is not None and monotonic() - since_s > self._timeout_s + OVERDUE_S:
                return f"confirm_timeout: none within {self._timeout_s:g} s"
            await asyncio.wait([courier.ended], timeout=self._timeout_s / 4)
        return courier.ended.result()

    def _collect(self, courier: Courier) -> None:
        if courier is not self._courier:
            return  # given up, and its deliveries with it
        for delivery, outcome in courier.collect():
            del self._flying[delivery]
            self._reports.add([delivery], outcome)

    def _give_up(self, reason: str, unavailable: str) -> None:
        """What the thread is in the middle of ends unknown, what it had not begun is refused."""
        self._change(unavailable)
        if (courier := self._courier) is None:
            return
        waiting = courier.stop()
        self._collect(courier)
        self._courier = None
        refused = [item for item in waiting if isinstance(item, Delivery)]
        for item in waiting:
            if isinstance(item, Question) and not item.answer.done():
                item.answer.set_result(unavailable)
        for delivery in refused:
            del self._flying[delivery]
        self._reports.add(refused, broker_refusal(unavailable))
        flying, self._flying = self._flying, {}
        self._reports.add(flying, Outcome(Verdict.UNKNOWN, reason, Fault.BROKER))


def publisher(
    name: str,
    url: str,
    *,
    report: Report,
    on_change: Callable[[], None],
    options: PublishOptions,
) -> KombuPublisher:
    """A publisher for kombu+URL. Of its options `transport.NAME=VALUE` is a transport option.

    ConfigError for a transport that is unknown, needs another library, or confirms nothing.
    """
    bare, file = password_file.split(url)
    location, given = _without_options(bare.partition("+")[2])
    scheme = location.partition("://")[0].lower()
    _check_transport(name, scheme)
    if scheme == "amqp":  # it would be librabbitmq where that is installed, which confirms nothing
        location = "py" + location
    arguments: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "heartbeat": options.heartbeat_s,
        "ssl": _tls(name, scheme, given),
    }
    try:
        driver = kombu.Connection(location, **arguments).get_transport_cls()
    except Exception as exc:
        what = redact_text(printable(f"{type(exc).__name__}: {exc}"))[:120]
        raise ConfigError(f"brokers.{name}: kombu cannot use the URL: {what}") from None
    if driver.driver_name == "librabbitmq":
        raise ConfigError(f"brokers.{name}: librabbitmq confirms nothing; use kombu+amqp://")
    arguments["transport_options"] = {
        **_defaults(driver.driver_type, options),
        **given,
        **_FIXED.get(driver.driver_type, {}),
    }
    if file is not None:
        read_password(name, file)
    return KombuPublisher(
        *(name, location, arguments, file), report=report, on_change=on_change, options=options
    )


def _tls(name: str, scheme: str, given: dict[str, Any]) -> dict[str, Any] | bool:
    """kombu's argument `ssl`. `transport.ssl` adds to it, and cannot leave out a check unsaid."""
    defaults = _TLS.get(scheme)
    if "ssl" not in given or scheme not in (*_TLS, "amqp", "pyamqp", "redis"):
        return dict(defaults) if defaults else False
    asked = given.pop("ssl")
    if defaults is None:
        what = "transport.ssl on a scheme without TLS; use kombu+amqps:// or kombu+rediss://"
        raise ConfigError(f"brokers.{name}: {what}")
    if not isinstance(asked, dict) and asked is not True:
        what = "transport.ssl would send clear text; leave it out, or use a scheme without TLS"
        raise ConfigError(f"brokers.{name}: {what}")
    return defaults | (asked if isinstance(asked, dict) else {})


# Without these kombu checks no certificate, or no name in it.
_TLS: dict[str, dict[str, Any]] = {
    "rediss": {"ssl_cert_reqs": ssl.CERT_REQUIRED},
    "amqps": {"cert_reqs": ssl.CERT_REQUIRED, "server_hostname": None},  # None: the URL's
}
# Without these a confirm would mean less, or a message be sent twice without a word.
_FIXED = {
    "amqp": {"confirm_publish": True},
    "redis": {"retry_on_timeout": False},
}


def _defaults(driver: str, options: PublishOptions) -> dict[str, Any]:
    if driver != "redis":
        return {}
    return {
        "socket_timeout": options.confirm_timeout_s,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_keepalive": True,
    }


def _with_password(url: str, password: str) -> str:
    scheme, mark, rest = url.partition("://")
    user, _, location = rest.rpartition("@")
    return f"{scheme}{mark}{user}:{quote(password, safe='')}@{location}"


def _check_transport(name: str, scheme: str) -> None:
    known = import_module("kombu.transport").TRANSPORT_ALIASES
    if scheme not in known:
        near = difflib.get_close_matches(scheme, known, n=1)
        remedy = f"did you mean kombu+{near[0]}://?" if near else "use a scheme of kombu's own URLs"
        raise ConfigError(f"brokers.{name}: kombu has no transport {printable(scheme)!r}; {remedy}")


def _without_options(url: str) -> tuple[str, dict[str, Any]]:
    """The URL as kombu reads it, and the transport options that its query held."""
    location, _, query = url.partition("?")
    pieces = query.split("&") if query else []
    kept = [piece for piece in pieces if not piece.startswith(OPTION_PREFIX)]
    options = {}
    for piece in pieces:
        if piece.startswith(OPTION_PREFIX):
            name, _, value = piece.removeprefix(OPTION_PREFIX).partition("=")
            options[unquote_plus(name)] = _value(unquote_plus(value))
    return "?".join([location, "&".join(kept)] if kept else [location]), options


def _value(text: str) -> Any:
    """A number, true, false or JSON as such; else text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
