"""Whether Redis' rules and recurring definitions are those of the ledger, as far as Redis says.

A worker with a ledger notes in the hash `controls` under which run of the server it compared them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from delaybridge.errors import LedgerUnavailable
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.verbs import RedisCommand, Steps, plain


class Agreement(NamedTuple):
    """How far Redis agrees with the ledger: what `controls` says."""

    healed: str = ""
    rules: int = 0
    definitions: int = 0


def watched(namespace: str, asked: Sequence[RedisCommand[Any]]) -> list[RedisCommand[Any]]:
    """These commands, and what tells whether they were answered by what agrees with the ledger."""
    name = keys.controls(namespace)
    look = plain("HMGET", name, "healed", "rules", "definitions", parse=_read_agreement)
    return [look, *asked, look, registry.info("server", name)]


def agreed(found: Sequence[Any]) -> tuple[Agreement | None, Sequence[Any]]:
    """What the replies to `watched` tell, None: they do not agree; and those to the commands."""
    before, *own, after, about = found
    if any(isinstance(each, Exception) for each in (before, after, about)):
        return None, own
    run = about.get("run_id", "")
    # The name of the comparison tells that nothing was lost and brought back in between.
    is_same = before.healed == after.healed and after.healed.startswith(f"{run}:")
    return (before if is_same and run else None), own


def refuse_if_lost(namespace: str) -> Steps[None]:
    """Raise LedgerUnavailable if Redis may lack what the ledger has."""
    found = yield watched(namespace, [])
    if agreed(found)[0] is None:
        what = "Redis may have lost it, and workers bring it back from the ledger"
        raise LedgerUnavailable(f"ledger: {what}; nothing was changed: call again")


def _read_agreement(reply: Sequence[bytes | None]) -> Agreement:
    healed, *counts = reply
    rules, definitions = (int(each) if each and each.isdigit() else 0 for each in counts)
    return Agreement((healed or b"").decode(errors="replace"), rules, definitions)
