"""Captures the screen of `delaybridge top` under load, and puts it into docs/console.md.

    python -m tools.screen

Needs tmux. Two workers publish to `memory` while messages are scheduled.
"""

from __future__ import annotations

import random
import re
import sys
import time
from pathlib import Path

from bench.rig import BODY, Bench, open_bench, open_redis
from delaybridge import Message
from tests.rigs.tmux import Tmux

PAGE = Path(__file__).parents[1] / "docs" / "console.md"
SECONDS, PER_SECOND = 75, 400
# Spans of a delay in seconds, with how often they are drawn.
DELAYS = {(5, 60): 3, (30, 45): 2, (60, 7200): 5}
PLACES = {"memory:orders": 7, "memory:mails": 2, "memory:invoices": 1}


def load(bench: Bench) -> None:
    """Schedule messages for more than a minute, so that the rates of a minute are whole."""
    draw = random.Random(7)
    for second in range(SECONDS):
        began_s = time.monotonic()
        messages = []
        for _ in range(PER_SECOND):
            (span,) = draw.choices(list(DELAYS), list(DELAYS.values()))
            (place,) = draw.choices(list(PLACES), list(PLACES.values()))
            messages.append(Message(place, BODY, delay=round(draw.uniform(*span), 3)))
        if second == SECONDS - 10:
            bench.client.destinations.pause("memory:invoices")
        bench.client.schedule_many(messages)
        time.sleep(max(0.0, began_s + 1 - time.monotonic()))


def captured() -> str:
    """The first view after the load."""
    with open_redis() as redis, open_bench(redis.url, memory="memory://") as bench, Tmux() as tmux:
        bench.start_worker()
        bench.start_worker()
        bench.wait_until_owned(2)
        flags = ["--redis", redis.url, "--namespace", bench.namespace, "--broker", "memory://"]
        tmux.start([sys.executable, "-m", "delaybridge", *flags, "top"])
        load(bench)
        screen = tmux.shows("q quit", "memory:invoices is paused")
        tmux.press("q")
    # Its own port and namespace mean nothing to a reader.
    shown = f"{redis.url}  {bench.namespace}"
    usual = "redis://10.0.0.5:6379/0  delaybridge"
    title, *lines = screen.splitlines()
    title = title.replace(shown, usual.ljust(len(shown)))
    return "\n".join([title, *lines])


def main() -> None:
    """Replace the screen in the page."""
    block = "\n".join(line.rstrip() for line in captured().rstrip().splitlines())
    page = re.sub(
        r"(<!-- screen -->\n\n```text\n).*?(\n```\n\n<!-- /screen -->)",
        lambda found: f"{found[1]}{block}{found[2]}",
        PAGE.read_text(),
        flags=re.DOTALL,
    )
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
