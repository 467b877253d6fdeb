"""A program on the client that openapi-python-client makes: it schedules, shows, lists, cancels,
and is refused. Its argument is the server's address."""

from __future__ import annotations

import sys

from made.api.messages import (  # type: ignore[import-not-found]
    cancel_message,
    list_messages_by_due_time,
    schedule_many_messages,
    schedule_message,
    show_message,
)
from made.client import AuthenticatedClient  # type: ignore[import-not-found]
from made.models import Batch, NewMessage, NewMessageHeaders, ProblemAnswer  # type: ignore

api = AuthenticatedClient(base_url=sys.argv[1], token="none", raise_on_unexpected_status=True)
headers = NewMessageHeaders.from_dict({"kind": "close"})
message = NewMessage("memory:orders", delay="1h", body="{}", id="py/ä", headers=headers)
made = schedule_message.sync(client=api, body=message)
assert (made.id, made.result) == ("py/ä", "created"), made
shown = show_message.sync("py/ä", client=api)
assert (shown.body, shown.due_ms, shown.headers) == ("{}", made.due_ms, [["kind", "close"]]), shown
listed = list_messages_by_due_time.sync(client=api, id_prefix="py/", limit=10)
assert ([one.id for one in listed.items], listed.next_cursor) == (["py/ä"], None), listed
batch = Batch(
    [NewMessage("memory:a", delay="1s", body=""), NewMessage("nowhere", delay="1s", body="")]
)
items = schedule_many_messages.sync(client=api, body=batch).items
assert [items[0].result, items[1].code] == ["created", "bad_destination"], items
assert cancel_message.sync("py/ä", client=api).result == "cancelled"
gone = cancel_message.sync_detailed("py/ä", client=api)
assert isinstance(gone.parsed, ProblemAnswer), gone
assert (gone.status_code, gone.parsed.code, gone.parsed.at) == (404, "unknown", "$.id"), gone
sys.stdout.write("well\n")
