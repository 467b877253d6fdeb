"""The commands that mend a broker, complete: each can be pasted as it is."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence

from delaybridge.ingest.rabbitmq.deaths import expired
from delaybridge.ingest.routes import Route

RUN = "; run: "  # between a fault and its command
_WINS = "1000000"  # of several policies that match, the one of the highest priority applies
# A definition must not be empty. These say what the queues' arguments say.
_NO_EFFECT = {"set_policy": {"overflow": "reject-publish"}}
_NO_EFFECT["set_operator_policy"] = {"delivery-limit": 2**31 - 1}  # type: ignore[dict-item]


def unbind(vhost: str, exchange: str, kind: str, name: str) -> str:
    """Remove all bindings from an exchange to a queue or an exchange.

    `rabbitmqctl` has no command for that. Over AMQP or the management API it takes a user with
    `write` on the destination, which ingest's user does not have.
    """
    host, source, to = _erlang(vhost), _erlang(exchange), _erlang(name)
    code = (
        f'[rabbit_binding:remove(B, <<"rabbitmqctl">>) || B <- rabbit_binding:list_for_source('
        f"rabbit_misc:r({host}, exchange, {source})), "
        f"element(4, B) =:= rabbit_misc:r({host}, {kind}, {to})]."
    )
    return shlex.join(["rabbitmqctl", "eval", code])


def shield(vhost: str, route: Route, commands: Sequence[str]) -> str:
    """Keep all other policies off the queues of a source. commands: of `set_policy`, ..."""
    pattern = f"^{re.escape(route.queue)}({re.escape(expired(route).removeprefix(route.queue))})?$"
    return " && ".join(
        shlex.join(
            ["rabbitmqctl", command, *_of(vhost), "--priority", _WINS, "--apply-to", "queues"]
            + [route.queue, pattern, json.dumps(_NO_EFFECT[command])]
        )
        for command in commands
    )


def convert(route: Route) -> str:
    """Give a delay exchange today's form, whatever the settings of who runs it name."""
    return shlex.join(["delaybridge", "ingest", "rabbitmq", "--convert", f"{route}={route.target}"])


def rights(vhost: str, user: str, routes: Sequence[Route]) -> str:
    """Give the user of ingest what it needs for these sources, and nothing else."""
    sources, targets = (
        "|".join(dict.fromkeys(re.escape(name) for name in names))
        for names in ([r.source for r in routes], [r.target for r in routes])
    )
    own, out = f"^({sources})", f"^({sources})|^({targets})$"
    return shlex.join(["rabbitmqctl", "set_permissions", *_of(vhost), user, own, out, own])


def _of(vhost: str) -> list[str]:
    return [] if vhost == "/" else ["-p", vhost]


def _erlang(name: str) -> str:
    """A binary; as numbers if it has more than plain characters."""
    if re.fullmatch(r"[\w./~: -]*", name, re.ASCII):
        return f'<<"{name}">>'
    return f"<<{','.join(map(str, name.encode()))}>>"
