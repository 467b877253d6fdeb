"""For publishers of other packages: how outcomes reach the event loop."""

from delaybridge.publish.link import Reports, call_on_loop

__all__ = ["Reports", "call_on_loop"]
