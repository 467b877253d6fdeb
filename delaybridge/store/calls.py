"""Every call of the engine, without I/O: the one place that puts them together.

A call is a generator that yields commands and is sent their replies; a store drives it
(`Store.complete`, `AsyncStore.complete`). A call of an annex is a function whose first argument is
these calls, as `read_stats(calls)`.
"""

from __future__ import annotations

from delaybridge.store.messages.lookups import Lookups
from delaybridge.store.messages.pulling import Pulling
from delaybridge.store.messages.rewriting import Rewriting
from delaybridge.store.messages.scheduling import Scheduling
from delaybridge.store.namespace.steering import RuleChanges


class Calls(Scheduling, Rewriting, Lookups, Pulling, RuleChanges):
    """The calls of one namespace."""
