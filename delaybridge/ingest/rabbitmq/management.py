"""RabbitMQ's management API, for what AMQP does not show: bindings, and policies.

By default it is expected on the broker's host and the usual port, with the broker's user, and with
TLS if AMQP uses TLS. If it does not answer, ingest works without it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Iterable, Mapping
from errno import ECONNREFUSED
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from io import BytesIO
from ssl import create_default_context
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

from pika.connection import Parameters

from delaybridge.errors import printable

_TIMEOUT_S = 3.0
_AT_ONCE = 32  # requests, however many the sources are
_MOST_BYTES = 4 * 2**20
_PAGE = 500  # the most that RabbitMQ shows at once
_NOT_THERE = b'"Object Not Found"'  # not the 404 of another server
_IN_EVERY_VHOST = "amq.direct"  # an exchange
OFF = "off"
_PORT, _TLS_PORT = 15672, 15671


class ManagementError(Exception):
    """The management API refused or did not answer; the text is the reason."""


class Binding(NamedTuple):
    """A binding of an exchange to another one."""

    source: str
    routing_key: str
    arguments: dict[str, Any]


class Bound(NamedTuple):
    """What an exchange is bound to: a queue or another exchange."""

    destination_type: str
    destination: str
    routing_key: str
    arguments: dict[str, Any]


_B = TypeVar("_B", Binding, Bound)


class Policies(NamedTuple):
    """What policies ask of a queue. names: of those that apply, by the command that sets such."""

    definition: Mapping[str, Any]
    names: Mapping[str, str]


class Management:
    """The management API of one broker."""

    def __init__(self, parameters: Parameters, url: str = "") -> None:
        """url: where it is, if not on the broker's host; `off`: do not use it."""
        tls = parameters.ssl_options
        scheme, port = ("http", _PORT) if tls is None else ("https", _TLS_PORT)
        host = f"[{parameters.host}]" if ":" in parameters.host else parameters.host
        self.is_off = url == OFF
        self._url = url.rstrip("/") or f"{scheme}://{host}:{port}"
        self.vhost = parameters.virtual_host
        self._user = parameters.credentials
        self.user = str(getattr(self._user, "username", ""))
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._tls = None
        if self._url.startswith("https:"):
            self._tls = create_default_context() if tls is None else tls.context

    @classmethod
    def for_broker(cls, name: str, parameters: Parameters, given: Iterable[str]) -> Management:
        """The management API of a broker. given: `[BROKER=]URL` or `[BROKER=]off`."""
        for text in given:
            broker, _, url = text.rpartition("=")
            if broker in ("", name):
                return cls(parameters, url)
        return cls(parameters)

    async def exchange(self, name: str) -> dict[str, Any]:
        """Type, arguments and more of an exchange; nothing if there is no such exchange."""
        found = await self._ask(f"exchanges/{self._path(name)}", {})
        if not isinstance(found, dict):
            raise self._is_another()
        return found

    async def bound_to(self, exchange: str) -> list[Bound]:
        """What an exchange is bound to; nothing if there is no such exchange."""
        return await self._bindings(f"exchanges/{self._path(exchange)}/bindings/source", Bound)

    async def bindings_into(self, exchange: str) -> list[Binding]:
        """The bindings of exchanges to this one."""
        path = f"exchanges/{self._path(exchange)}/bindings/destination"
        return [each for each in await self._bindings(path, Binding) if each.source]

    async def bindings_to_queue(self, queue: str) -> list[Binding]:
        """The bindings of exchanges to a queue."""
        path = f"queues/{self._path(queue)}/bindings"
        return [each for each in await self._bindings(path, Binding) if each.source]

    async def policies(self, queue: str) -> Policies:
        """What policies ask of a queue; nothing if there is no such queue."""
        # The statistics of a queue are old by some seconds.
        found = await self._ask(f"queues/{self._path(queue)}?disable_stats=true", {})
        kinds = {"set_policy": "policy", "set_operator_policy": "operator_policy"}
        try:
            names = {
                command: str(found[kind]) for command, kind in kinds.items() if found.get(kind)
            }
            return Policies(dict(found.get("effective_policy_definition") or {}), names)
        except (AttributeError, TypeError, ValueError):
            raise self._is_another() from None

    async def messages(self, queue: str) -> str:
        """How many a queue had some seconds ago; `?` if that is not known."""
        found = await self._ask(f"queues/{self._path(queue)}?columns=messages", {})
        return str(found.get("messages", "?")) if isinstance(found, dict) else "?"

    async def queues_with(self, argument: str, ending: str) -> dict[str, str]:
        """Queues of such a name that have the argument -> its value."""
        found: dict[str, str] = {}
        path = f"queues/{quote(self.vhost, safe='')}?disable_stats=true&columns=name,arguments"
        path += f"&use_regex=true&name={quote(re.escape(ending) + '$', safe='')}"
        page, pages = 0, 1
        while page < pages:
            page += 1
            answer = await self._ask(f"{path}&page_size={_PAGE}&page={page}", {})
            try:
                pages = int(answer["page_count"])
                for each in answer["items"]:
                    value = dict(each["arguments"]).get(argument)
                    if isinstance(value, str):
                        found[str(each["name"])] = value
            except (KeyError, TypeError, ValueError):
                raise self._is_another() from None
        return found

    async def _bindings(self, path: str, kind: type[_B]) -> list[_B]:
        found = await self._ask(path, [])
        try:
            fields = [{**each, "arguments": dict(each["arguments"])} for each in found]
            return [kind(*(each[name] for name in kind._fields)) for each in fields]
        except (KeyError, TypeError, ValueError):
            raise self._is_another() from None

    def _path(self, name: str) -> str:
        return f"{quote(self.vhost, safe='')}/{quote(name, safe='')}"

    def _is_another(self) -> ManagementError:
        return ManagementError(f"{self._url}: is not RabbitMQ's management API")

    def _authorization(self) -> str:
        """The broker's user, with the password as it is now: it may be in a file."""
        try:
            secret = f"{self._user.username}:{self._user.password}"
        except ValueError as exc:
            raise ManagementError(str(exc)) from None
        return f"Basic {base64.b64encode(secret.encode()).decode()}"

    async def _ask(self, path: str, missing: Any) -> Any:
        """The answer; missing: what it is if the broker does not have that."""
        if (found := await self._answer(path)) is not None:
            return found
        # A proxy that decodes %2F asks for something else, which does not exist, either.
        if await self._answer(f"exchanges/{self._path(_IN_EVERY_VHOST)}") is None:
            raise self.shows_another()
        return missing

    def shows_another(self) -> ManagementError:
        """That it is the API of another broker, or is asked for something else."""
        return ManagementError(
            f"{self._url}: does not show this broker: is it another cluster's, or a proxy that "
            "decodes %2F?"
        )

    async def _answer(self, path: str) -> Any:
        """None: the broker does not have that."""
        if self.is_off:
            raise ManagementError("switched off by ingest.management")
        try:
            async with self._free, asyncio.timeout(_TIMEOUT_S):
                answer = HTTPResponse(_Received(await self._received(path)))  # type: ignore[arg-type]
            answer.begin()
            body = answer.read()
        except TimeoutError:
            raise ManagementError(f"{self._url}: no answer within {_TIMEOUT_S:.0f} s") from None
        except (OSError, ValueError, HTTPException) as exc:
            is_refused = f"[Errno {ECONNREFUSED}]" in str(exc)
            why = "nothing listens there" if is_refused else printable(str(exc))
            raise ManagementError(f"{self._url}: {why}") from None
        if answer.status == HTTPStatus.NOT_FOUND and _NOT_THERE in body:
            return None
        if answer.status != HTTPStatus.OK:
            raise ManagementError(f"{self._url}: {answer.status} {printable(answer.reason)}")
        try:
            if (found := json.loads(body)) is not None:
                return found
        except (ValueError, RecursionError):
            pass
        raise self._is_another()

    async def _received(self, path: str) -> bytes:
        """All that the server sends.

        By no thread: cancelled, a thread would read on, and the process would wait for it to end.
        """
        at = urlsplit(f"{self._url}/api/{path}")
        if at.scheme not in ("http", "https") or at.hostname is None:
            raise ValueError("not an address that begins with http:// or https://")
        host = at.netloc.rpartition("@")[2]
        lines = (
            f"GET {at.path}?{at.query} HTTP/1.1", f"Host: {host}", "Connection: close",
            f"Authorization: {self._authorization()}", "", "",
        )  # fmt: skip
        port = at.port or (80 if self._tls is None else 443)
        reader, writer = await asyncio.open_connection(at.hostname, port, ssl=self._tls)
        try:
            writer.write("\r\n".join(lines).encode())
            received = b""
            while len(received) < _MOST_BYTES and (piece := await reader.read(_MOST_BYTES)):
                received += piece
            return received
        finally:
            writer.transport.abort()


class _Received(BytesIO):
    """What `HTTPResponse` reads instead of a socket."""

    def makefile(self, _: str) -> BytesIO:
        return self
