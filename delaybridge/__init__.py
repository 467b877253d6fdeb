"""Publish a message now, have it arrive on a RabbitMQ exchange or a Kafka topic later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delaybridge.client import AsyncClient, Client
    from delaybridge.errors import (
        ConfigError,
        DelayBridgeError,
        DelayOutOfRange,
        MessageConflict,
        MessageError,
        StoreError,
        StoreFull,
        StoreUnavailable,
        StoreWiped,
    )
    from delaybridge.message import Answer, Limits, Message, OnConflict, State
    from delaybridge.store.scheduling import Receipt
    from delaybridge.store.selection import Selection
    from delaybridge.store.stats import Stats
    from delaybridge.store.stored import Stored
    from delaybridge.store.views import Page

__version__ = "0.1.0"

_HOMES = {
    "client": ("AsyncClient", "Client"),
    "errors": (
        "ConfigError",
        "DelayBridgeError",
        "DelayOutOfRange",
        "MessageConflict",
        "MessageError",
        "StoreError",
        "StoreFull",
        "StoreUnavailable",
        "StoreWiped",
    ),
    "message": ("Answer", "Limits", "Message", "OnConflict", "State"),
    "store.scheduling": ("Receipt",),
    "store.selection": ("Selection",),
    "store.stats": ("Stats",),
    "store.stored": ("Stored",),
    "store.views": ("Page",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Answer",
    "AsyncClient",
    "Client",
    "ConfigError",
    "DelayBridgeError",
    "DelayOutOfRange",
    "Limits",
    "Message",
    "MessageConflict",
    "MessageError",
    "OnConflict",
    "Page",
    "Receipt",
    "Selection",
    "State",
    "Stats",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "StoreWiped",
    "Stored",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import on first use: `delaybridge --help` must not pay for Redis."""
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module 'delaybridge' has no attribute {name!r}")
    return getattr(import_module(f"delaybridge.{_HOME[name]}"), name)
