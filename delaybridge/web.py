"""The HTTP API and the console, to be mounted in another application: `web.app()`."""

from delaybridge.serve import app

__all__ = ["app"]
