"""Publish a message now, have it arrive on a RabbitMQ exchange or a Kafka topic later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delaybridge.client import AsyncClient, Client
    from delaybridge.errors import (
        ConfigError,
        DelayBridgeError,
        MessageConflict,
        MessageError,
        StoreError,
        StoreFull,
        StoreUnavailable,
    )
    from delaybridge.message import Answer, Limits, Message, OnConflict, State
    from delaybridge.store.calls import Receipt, Stored
    from delaybridge.store.selection import Selection

__version__ = "0.1.0"

_HOMES = {
    "store.calls": ("Receipt", "Stored"),
    "client": ("AsyncClient", "Client"),
    "errors": (
        *("ConfigError", "DelayBridgeError", "MessageConflict", "MessageError"),
        *("StoreError", "StoreFull", "StoreUnavailable"),
    ),
    "message": ("Answer", "Limits", "Message", "OnConflict", "State"),
    "store.selection": ("Selection",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Answer",
    "AsyncClient",
    "Client",
    "ConfigError",
    "DelayBridgeError",
    "Limits",
    "Message",
    "MessageConflict",
    "MessageError",
    "OnConflict",
    "Receipt",
    "Selection",
    "State",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "Stored",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import on first use: `delaybridge --help` must not pay for Redis."""
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module 'delaybridge' has no attribute {name!r}")
    return getattr(import_module(f"delaybridge.{_HOME[name]}"), name)
