"""Files as a destination: file:///FOLDER as broker URL, file:NAME appends to FOLDER/NAME.jsonl."""

import json
import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from delaybridge.errors import PublishUnavailable
from delaybridge.publish import CONFIRMED, Fault, Outcome, Verdict
from delaybridge.publish.reports import Reports


class FilePublisher:
    """A `delaybridge.publish.Publisher`. Confirmed means: on the disk."""

    def __init__(self, name, folder, report):
        self.name = name
        self.unavailable = None
        self._folder = folder
        self._reports = Reports(report)  # reports in a later turn of the loop, many at once

    async def connect(self):
        """PublishUnavailable if there is no such folder; a real broker would be tried again."""
        if not self._folder.is_dir():
            self.unavailable = f"unreachable: {self._folder} is not a folder"
            raise PublishUnavailable(f"{self.name}: {self.unavailable}")

    def publish(self, deliveries):
        """Never raises, never waits: a real broker's client does this on a thread or the loop."""
        for delivery in deliveries:
            self._reports.add([delivery], self._append(delivery))

    def _append(self, delivery):
        if self.unavailable is not None:  # not written, and the message is not at fault
            return Outcome(Verdict.REFUSED, self.unavailable, Fault.BROKER)
        if (reason := self._refusal(delivery.destination)) is not None:  # certainly not written
            return Outcome(Verdict.REFUSED, reason, Fault.MESSAGE)
        line = {"id": delivery.id, "due_ms": delivery.due_ms, "attempt": delivery.attempt}
        line["headers"] = [[n, v and v.decode("latin-1")] for n, v in delivery.record.headers]
        line["body"] = (delivery.record.body or b"").decode("latin-1")
        try:
            with open(self._folder / f"{delivery.destination.address}.jsonl", "a") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as exc:  # perhaps a part of it was: so it is unknown
            return Outcome(Verdict.UNKNOWN, f"failed: {exc}", Fault.DESTINATION)
        return CONFIRMED

    def _refusal(self, destination):
        return "bad_name: a slash" if "/" in destination.address else None

    async def check(self, destination):
        """Why this destination would be refused, as far as one can know."""
        return self.unavailable or self._refusal(destination)

    def describe(self):
        """For people."""
        return f"files in {self._folder}"

    async def close(self, timeout_s):
        """Nothing is ever on its way; what comes now is refused."""
        self.unavailable = "not_connected: closed"
        self._reports.flush()


def publisher(name, url, *, report, on_change, options):
    """What the entry point names. `on_change` is for those whose `unavailable` changes by itself.

    str.__str__: a URL shows itself without its password.
    """
    return FilePublisher(name, Path(unquote(urlsplit(str.__str__(url)).path)), report)
