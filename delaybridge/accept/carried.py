"""A message that was tried elsewhere before it is stored here."""

from __future__ import annotations

from delaybridge.accept.accept import Accepted


class Carried(Accepted, frozen=True, gc=False):
    """A message that was tried elsewhere. tried, failing: of its attempts, as they are stored."""

    tried: str = ""
    failing: str = ""
