"""Publish a message now, have it arrive on a RabbitMQ exchange or a Kafka topic later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names as in _HOMES
    from delaybridge.client import AsyncClient as AsyncClient
    from delaybridge.client import Client as Client
    from delaybridge.errors import ConfigError as ConfigError
    from delaybridge.errors import DelayBridgeError as DelayBridgeError
    from delaybridge.errors import DelayOutOfRange as DelayOutOfRange
    from delaybridge.errors import MessageConflict as MessageConflict
    from delaybridge.errors import MessageError as MessageError
    from delaybridge.errors import MessageInFlight as MessageInFlight
    from delaybridge.errors import NotDurable as NotDurable
    from delaybridge.errors import StoreDamaged as StoreDamaged
    from delaybridge.errors import StoreDenied as StoreDenied
    from delaybridge.errors import StoreError as StoreError
    from delaybridge.errors import StoreFull as StoreFull
    from delaybridge.errors import StoreMisnamed as StoreMisnamed
    from delaybridge.errors import StoreNewer as StoreNewer
    from delaybridge.errors import StoreUnavailable as StoreUnavailable
    from delaybridge.errors import StoreWiped as StoreWiped
    from delaybridge.gathering import Debounce as Debounce
    from delaybridge.gathering import Throttle as Throttle
    from delaybridge.message import Answer as Answer
    from delaybridge.message import Limits as Limits
    from delaybridge.message import Message as Message
    from delaybridge.message import MessagePlan as MessagePlan
    from delaybridge.message import OnConflict as OnConflict
    from delaybridge.message import State as State
    from delaybridge.operate.views.destinations import Place as Place
    from delaybridge.operate.views.destinations import Places as Places
    from delaybridge.operate.views.horizon import Cell as Cell
    from delaybridge.operate.views.horizon import Horizon as Horizon
    from delaybridge.operate.views.listing import Page as Page
    from delaybridge.operate.views.series import Lateness as Lateness
    from delaybridge.operate.views.series import Point as Point
    from delaybridge.operate.views.series import Rates as Rates
    from delaybridge.operate.views.series import Recent as Recent
    from delaybridge.operate.views.series import Series as Series
    from delaybridge.operate.views.stats import Stats as Stats
    from delaybridge.operate.views.tally import DestinationCounts as DestinationCounts
    from delaybridge.operate.views.tally import Tally as Tally
    from delaybridge.recurring.definitions import Backfilled as Backfilled
    from delaybridge.recurring.definitions import Recurring as Recurring
    from delaybridge.settings.settings import Settings as Settings
    from delaybridge.store.messages.scheduling import Receipt as Receipt
    from delaybridge.store.messages.selection import Selected as Selected
    from delaybridge.store.messages.selection import Selection as Selection
    from delaybridge.store.namespace.rules import Rule as Rule
    from delaybridge.store.protocol.stored import Stored as Stored

__version__ = "0.1.0"

_HOMES = {
    "client": "AsyncClient Client",
    "errors": (
        "ConfigError DelayBridgeError DelayOutOfRange MessageConflict MessageError MessageInFlight "
        "NotDurable StoreDamaged StoreDenied StoreError StoreFull StoreMisnamed StoreNewer "
        "StoreUnavailable StoreWiped"
    ),
    "gathering": "Debounce Throttle",
    "message": "Answer Limits Message MessagePlan OnConflict State",
    "settings.settings": "Settings",
    "recurring.definitions": "Backfilled Recurring",
    "operate.views.destinations": "Place Places",
    "operate.views.horizon": "Cell Horizon",
    "store.namespace.rules": "Rule",
    "store.messages.scheduling": "Receipt",
    "store.messages.selection": "Selected Selection",
    "operate.views.series": "Lateness Point Rates Recent Series",
    "operate.views.stats": "Stats",
    "store.protocol.stored": "Stored",
    "operate.views.tally": "DestinationCounts Tally",
    "operate.views.listing": "Page",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}
__all__ = [*sorted(_HOME), "__version__"]


def __getattr__(name: str) -> Any:
    """Import on first use: `delaybridge --help` must not pay for Redis."""
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module 'delaybridge' has no attribute {name!r}")
    return getattr(import_module(f"delaybridge.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """Name what completion offers, imported or not."""
    return [*globals(), *_HOME]
