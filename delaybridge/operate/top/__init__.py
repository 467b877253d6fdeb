"""`delaybridge top`: everything on one screen, live, with keys."""

from __future__ import annotations

import os
import sys

import click

from delaybridge.operate.terminal.failure import Exit, refused
from delaybridge.operate.terminal.grammar import DURATION, Command, option, pass_call
from delaybridge.operate.terminal.invocation import Invocation

_LEAST_MS = 200
_TICK_S = 1.0  # how long Redis has been silent is shown by the second
_INSTEAD = "use: delaybridge stats -i 1s"


@click.command("top", cls=Command)
@option("-i --interval", "How often to look.", to="every_ms", type=DURATION, default="1s")
@pass_call
def top(call: Invocation, every_ms: int) -> int:
    """Watch states, the next minute, destinations, workers and troubles on one screen.

    q ends it, ? shows its keys. Keys in lower case only look; P pauses or resumes the selected
    destination.
    """
    if every_ms < _LEAST_MS:
        raise refused("-i", f"{every_ms}ms is too often; at least {_LEAST_MS}ms")
    is_dumb = os.environ.get("TERM", "dumb") == "dumb"
    if call.output.json or is_dumb or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise refused("top", f"needs a terminal that it can draw on; {_INSTEAD}")
    with call.store() as store:  # names Redis' URL and the remedy if it is unreachable at first
        from delaybridge.store.namespace import registry

        store.run([registry.store_time()])
    try:
        _watch(call, every_ms / 1000)
    except (KeyboardInterrupt, EOFError):
        pass  # a usual end
    return Exit.DONE


def _watch(call: Invocation, every_s: float) -> None:
    from delaybridge import Client
    from delaybridge.operate.top.controls import View
    from delaybridge.operate.top.page import page
    from delaybridge.operate.top.picture import Watcher
    from delaybridge.operate.top.terminal import taken
    from delaybridge.settings.urls import redact

    settings, view = call.settings, View()
    about = f"{redact(settings.redis.url)}  {settings.namespace}"
    client = Client.from_settings(settings)
    with taken(color=call.output.color) as terminal:
        watcher = Watcher(client, every_s, terminal.wake)
        watcher.start()
        try:
            while not view.is_over:
                terminal.show(page(watcher.picture, view, *terminal.size, about))
                for key in terminal.wait(_TICK_S):
                    view.press(key)
                    page(watcher.picture, view, *terminal.size)  # the next key finds its lines
                if view.toggles:
                    watcher.toggle(view.toggles)
                elif view.looks_again:
                    watcher.refresh()
                view.toggles, view.looks_again = "", False
                view.note = watcher.outcome() or view.note
        finally:
            watcher.stop()
