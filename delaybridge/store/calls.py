"""Every call of a client, without I/O.

A call is a generator that yields commands and is sent their replies; a store drives it
(`Store.complete`, `AsyncStore.complete`).
"""

from __future__ import annotations

from delaybridge.operate.views.destinations import Controls
from delaybridge.operate.views.destinations_by_due import Mixing
from delaybridge.operate.views.horizon import Outlook
from delaybridge.operate.views.listing import Views
from delaybridge.operate.views.series import History
from delaybridge.operate.views.stats import Counting
from delaybridge.operate.views.tally import Tallying
from delaybridge.recurring.definitions import Definitions
from delaybridge.store.fleet.remote import RemoteControl
from delaybridge.store.messages.changes import Changes
from delaybridge.store.messages.pulling import Pulling
from delaybridge.store.namespace.facts import Inspection


class Calls(
    Inspection, Definitions, Changes, Views, Counting, Outlook, Mixing, Tallying, Controls,
    RemoteControl, History, Pulling,
):  # fmt: skip
    """The calls of one namespace."""
