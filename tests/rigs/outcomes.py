"""How a publish may end, in a test that plays the broker."""

from __future__ import annotations

from delaybridge.publish import Fault, Outcome, Verdict

NACK = Outcome(Verdict.UNKNOWN, "nack: 1", Fault.MESSAGE, answered=True)
UNROUTABLE = Outcome(Verdict.REFUSED, "unroutable: 312", Fault.MESSAGE, answered=True)
UNENCODABLE = Outcome(Verdict.REFUSED, "unencodable: a header", Fault.MESSAGE)
TIMED_OUT = Outcome(Verdict.UNKNOWN, "confirm_timeout: 10 s", Fault.MESSAGE)
NO_EXCHANGE = Outcome(Verdict.REFUSED, "no_exchange: 404", Fault.DESTINATION)
CLOSED_CHANNEL = Outcome(Verdict.UNKNOWN, "channel_closed: 404", Fault.DESTINATION)
NOT_CONNECTED = Outcome(Verdict.REFUSED, "not_connected: refused", Fault.BROKER)
CONNECTION_LOST = Outcome(Verdict.UNKNOWN, "connection_lost: reset", Fault.BROKER)
