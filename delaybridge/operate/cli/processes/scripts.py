"""`delaybridge scripts load`: for Redis servers where only operators may load scripts."""

from __future__ import annotations

import click

from delaybridge.operate.terminal.grammar import Group, pass_call
from delaybridge.operate.terminal.invocation import Invocation


@click.group(cls=Group)
def scripts() -> None:
    """Load the Lua scripts where workers may not."""


@scripts.command("load")
@pass_call
def load(call: Invocation) -> None:
    """Load every script on every master, for users without the right to.

    Needed again after an upgrade, and when a server was restarted or a replica took over.
    """
    from delaybridge.store.namespace import registry
    from delaybridge.store.namespace.placement import at
    from delaybridge.store.protocol.scripts import scripts as sources
    from delaybridge.store.protocol.verbs import plain

    with call.store() as store:
        store.run([registry.store_time()])  # from now on the masters are known
        nodes = store.nodes()
        for node in nodes:
            store.run([plain("SCRIPT LOAD", text, near=at(node)) for text, _ in sources().values()])
    data = {"scripts": len(sources()), "masters": len(nodes)}
    noun = "master" if len(nodes) == 1 else "masters"
    call.output.result(data, f"{len(sources())} scripts are loaded on {len(nodes)} {noun}")
