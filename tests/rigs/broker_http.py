"""A receiver of webhooks for tests of publishers."""

from __future__ import annotations

import base64
import json
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from delaybridge.message import Destination
from delaybridge.publish import HttpOptions, PublishOptions
from tests.rigs.broker import NetworkRig, Received
from tests.rigs.waiting import DEADLINE_S, until_async
from tests.servers.process import ServerProcess

PROGRAM = Path(__file__).parent / "programs/webhook.py"


class Webhook(ServerProcess):
    """The receiver; what it got is in files, so it survives a restart."""

    name = "webhook"

    def command(self) -> Sequence[str]:
        (self.folder / "got").mkdir(exist_ok=True)
        return [sys.executable, str(PROGRAM), str(self.port), str(self.folder / "got")]

    def is_ready(self) -> bool:
        try:
            self.ask("GET", "")
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        url = f"http://127.0.0.1:{self.port}/base/{path}"
        request = urllib.request.Request(url, body or None, method=method)
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            data: bytes = answer.read()
            return data

    def make(self, path: str, **behaviour: Any) -> str:
        self.ask("PUT", path, json.dumps(behaviour).encode())
        return path

    def got(self, path: str) -> list[dict[str, Any]]:
        """All that was posted there, in order; names of headers in lower case."""
        found = [json.loads(line) for line in json.loads(self.ask("GET", path))]
        for one in found:
            one["headers"] = {name.lower(): value for name, value in one["headers"]}
            one["body"] = base64.b64decode(one["body"])
        return found


class HttpRig(NetworkRig):
    """POSTs to a receiver in another process."""

    kind = "http"
    missing_reason = "http_404"
    oversize_reason = "http_413"
    is_ordered = False
    raising = (
        "delaybridge.publishers.http.lines:Lines.add",
        "delaybridge.publishers.http.lines:Lines.next",
        "delaybridge.publishers.http.lines:Lines.ended",
        "delaybridge.publishers.http.publisher:HttpPublisher._headers",
    )
    options = PublishOptions(http=HttpOptions(allow_private=True))

    def __init__(self) -> None:
        super().__init__()
        self.node = Webhook()

    def url(self) -> str:
        return f"http://127.0.0.1:{self.proxy_port}/base"

    def make(self, name: str | None = None) -> str:
        made: str = self.node.make(name or f"p-{uuid.uuid4().hex}")
        return made

    def read(self, address: str, at_least: int) -> list[Received]:
        return [
            Received(
                one["headers"]["delaybridge-id"],
                one["body"],
                int(one["headers"]["delaybridge-attempt"]),
            )
            for one in self.node.got(address)
        ]

    async def lose_confirm(self, to: Destination, total: int) -> None:
        await until_async(lambda: len(self.node.got(to.address)) == total, "all are posted")
