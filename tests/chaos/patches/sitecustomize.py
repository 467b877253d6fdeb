"""Python imports this first in every process of a cell: it makes the change that is asked for."""

import os

if os.environ.get("CHAOS_CHANGE"):
    from tests.chaos.changes import make

    make(os.environ["CHAOS_CHANGE"])
