"""Every picture of the pages, made from this version: `python -m tools.pictures`, three minutes.

The recording of the demo, the screen of `top`, the console in Chromium, and both drawings. Of the
console those are made that are there: for another one, touch `docs/images/console-PAGE-light.png`
(or `dark`, `phone`) first. Needs tmux, Redis, Chromium, and a machine that does nothing else.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tools import demo, rooms, screen, states

CONSOLE = ["pytest", "-q", "tests/acceptance/test_console.py", "-k", "demo", "--require=browser"]


def main() -> None:
    """Make them all."""
    demo.main()
    rooms.PICTURE.write_text(rooms.drawn())
    states.PICTURE.write_text(states.drawn())
    screen.main()
    env = {**os.environ, "PICTURES": "docs/images"}
    subprocess.run([sys.executable, "-m", *CONSOLE], env=env, check=True)


if __name__ == "__main__":
    main()
