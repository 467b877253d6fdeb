"""A client some of whose messages have a server that does not answer, or does not confirm."""

from __future__ import annotations

from typing import Any

import pytest

from delaybridge import Client
from delaybridge.store.protocol import keys


class Flaky:
    """A client one of whose buckets has a server that can fail.

    asked: the names of the commands that this server got.
    """

    def __init__(
        self, client: Client, namespace: str, bucket: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.client, self.asked = client, list[str]()
        self.error: Exception | None = None
        self._tag = keys.bucket_key(namespace, bucket, "messages").partition("}")[0]
        self._plain: Any = client._store.run_each
        monkeypatch.setattr(client._store, "run_each", self._run_each)

    def _run_each(self, commands: Any) -> list[Any]:
        """What has no good answer is executed all the same."""
        answers: list[Any] = self._plain(commands)
        for i, command in enumerate(commands):
            if str((command.keys or command.args)[0]).startswith(self._tag):
                self.asked.append(command.name)
                answers[i] = self.error or answers[i]
        return answers

    def fail(self, error: Exception) -> None:
        self.error = error
        self.asked.clear()
