"""RabbitMQ's management API, for what AMQP cannot do: list bindings.

By default it is expected on the broker's host and the usual port, with the broker's user, and with
TLS if AMQP uses TLS. If it does not answer, ingest works without it.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

from pika.connection import Parameters

from delaybridge.errors import printable

_TIMEOUT_S = 3.0
_MOST_BYTES = 4 * 2**20
OFF = "off"
_PORT, _TLS_PORT = 15672, 15671


class ManagementError(Exception):
    """The management API refused or did not answer; the text is the reason.

    status: of its answer, 0 if there was none.
    """

    def __init__(self, reason: str, status: int = 0) -> None:
        super().__init__(reason)
        self.status = status


class Binding(NamedTuple):
    """Of an exchange to another one."""

    source: str
    routing_key: str
    arguments: dict[str, Any]


class Management:
    """The management API of one broker."""

    def __init__(self, parameters: Parameters, url: str = "") -> None:
        """url: where it is, if not on the broker's host; `off`: do not use it."""
        tls = parameters.ssl_options
        scheme, port = ("http", _PORT) if tls is None else ("https", _TLS_PORT)
        host = f"[{parameters.host}]" if ":" in parameters.host else parameters.host
        self.is_off = url == OFF
        self._url = url.rstrip("/") or f"{scheme}://{host}:{port}"
        self._vhost = quote(parameters.virtual_host, safe="")
        self._user = parameters.credentials
        https = [] if tls is None else [HTTPSHandler(context=tls.context)]
        self._opener = build_opener(ProxyHandler({}), *https)

    @classmethod
    def of(cls, name: str, parameters: Parameters, given: Iterable[str]) -> Management:
        """The management API of a broker. given: `[BROKER=]URL` or `[BROKER=]off`."""
        for text in given:
            broker, _, url = text.rpartition("=")
            if broker in ("", name):
                return cls(parameters, url)
        return cls(parameters)

    async def bound_to(self, exchange: str) -> set[str]:
        """The bindings of an exchange: `queue NAME` or `exchange NAME`."""
        found = await self._bindings(exchange, "source", ("destination_type", "destination"))
        return {f"{type} {name}" for type, name in found}

    async def bindings_into(self, exchange: str) -> list[Binding]:
        """The bindings of exchanges to this one; none if it does not exist."""
        try:
            found = await self._bindings(exchange, "destination", Binding._fields)
        except ManagementError as exc:
            if exc.status == HTTPStatus.NOT_FOUND:
                return []
            raise
        return [Binding(*each) for each in found if each[0]]

    async def _bindings(
        self, exchange: str, side: str, fields: Iterable[str]
    ) -> list[tuple[Any, ...]]:
        path = f"exchanges/{self._vhost}/{quote(exchange, safe='')}/bindings/{side}"
        answer = await self._ask(path)
        try:
            return [tuple(each[name] for name in fields) for each in json.loads(answer)]
        except (ValueError, KeyError, TypeError):
            raise ManagementError(f"{self._url}: is not RabbitMQ's management API") from None

    def _authorization(self) -> str:
        """The broker's user, with the password as it is now: it may be in a file."""
        try:
            secret = f"{self._user.username}:{self._user.password}"
        except ValueError as exc:
            raise ManagementError(str(exc)) from None
        return f"Basic {base64.b64encode(secret.encode()).decode()}"

    async def _ask(self, path: str) -> bytes:
        if self.is_off:
            raise ManagementError("switched off by ingest.management")
        headers = {"Authorization": self._authorization()}
        request = Request(f"{self._url}/api/{path}", headers=headers)

        def ask() -> Any:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                return answer.read(_MOST_BYTES)

        try:
            return bytes(await asyncio.to_thread(ask))
        except HTTPError as exc:
            text = f"{self._url}: {exc.code} {printable(exc.reason)}"
            raise ManagementError(text, exc.code) from None
        except (URLError, OSError, ValueError) as exc:
            reason = getattr(exc, "reason", exc)
            raise ManagementError(f"{self._url}: {printable(str(reason))}") from None
