"""Every call of a client, without I/O.

A call is a generator that yields commands and is sent their replies; a store drives it
(`Store.complete`, `AsyncStore.complete`).
"""

from __future__ import annotations

from delaybridge.store.changes import Changes
from delaybridge.store.definitions import Definitions
from delaybridge.store.destinations import Controls
from delaybridge.store.facts import Inspection
from delaybridge.store.horizon import Outlook
from delaybridge.store.mix import Mixing
from delaybridge.store.pulling import Pulling
from delaybridge.store.remote import RemoteControl
from delaybridge.store.series import History
from delaybridge.store.stats import Counting
from delaybridge.store.tally import Tallying
from delaybridge.store.views import Views


class Calls(
    Inspection, Definitions, Changes, Views, Counting, Outlook, Mixing, Tallying, Controls,
    RemoteControl, History, Pulling,
):  # fmt: skip
    """The calls of one namespace."""
