"""Loaded by Python under `python -m tests.suites --delayed`: every exchange is a delayed one."""

from __future__ import annotations

import contextlib
from typing import Any

TYPES = ("direct", "fanout", "headers", "topic")
DELAYED = "x-delayed-message"


def _is_made(exchange: Any, kind: Any, passive: Any) -> bool:
    return bool(exchange) and not passive and kind in TYPES and not exchange.startswith("amq.")


def _patch(declare: Any, encoder: str, kind: str) -> None:
    """Before the method is encoded by this function of its class, change its type."""
    encode = getattr(declare, encoder)

    def changed(self: Any) -> Any:
        if _is_made(self.exchange, getattr(self, kind), self.passive):
            self.arguments = {**(self.arguments or {}), "x-delayed-type": getattr(self, kind)}
            setattr(self, kind, DELAYED)
        return encode(self)

    setattr(declare, encoder, changed)


with contextlib.suppress(ImportError):
    import pika.spec

    _patch(pika.spec.Exchange.Declare, "encode", "type")

with contextlib.suppress(ImportError):
    import pamqp.commands

    _patch(pamqp.commands.Exchange.Declare, "marshal", "exchange_type")

with contextlib.suppress(ImportError):
    import amqp  # type: ignore[import-untyped]

    _declare = amqp.Channel.exchange_declare

    def _changed(
        self: Any,
        exchange: Any,
        type: Any,
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = True,
        nowait: bool = False,
        arguments: Any = None,
        **more: Any,
    ) -> Any:
        if _is_made(exchange, type, passive):
            arguments, type = {**(arguments or {}), "x-delayed-type": type}, DELAYED
        flags = (passive, durable, auto_delete, nowait)
        return _declare(self, exchange, type, *flags, arguments, **more)

    amqp.Channel.exchange_declare = _changed
