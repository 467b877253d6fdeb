"""`delaybridge front`: the AMQP front."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from delaybridge import __version__
from delaybridge.operate.terminal.grammar import NAME, Command, option, pass_call
from delaybridge.operate.terminal.invocation import Invocation

if TYPE_CHECKING:
    from delaybridge.operate.supervisor.child import ChildSpec
    from delaybridge.settings.settings import Settings


@click.command("front", cls=Command)
@option("--listen HOST:PORT", "Where clients connect. [default: front.listen, 127.0.0.1:5672]")
@option("--broker NAME", "Which of [brokers] it stands before. [default: front.broker]")
@option(
    "--processes N",
    "Processes that share the address. [default: front.processes, 1]",
    type=click.IntRange(1, 256),
)
@option("--adopt", "Also take an exchange D.due that no front has made. [default: front.adopt]")
@option("--no-ingest", "Do not read the intake queues here: another process does.")
@option("--name", "The process' name. [default: host and pid]", type=NAME)
@option(
    "--metrics-port PORT",
    "Serve /metrics and /health on this port. [default: metrics.port, 0: none]",
    type=click.IntRange(0, 65_535),
)
@pass_call
def front(
    call: Invocation, no_ingest: bool, name: str | None, metrics_port: int | None, **given: Any
) -> int:
    """Accept delayed exchanges from clients that cannot change.

    A proxy of AMQP before RabbitMQ: an exchange of type x-delayed-message can be declared, and is
    made of stock exchanges. SIGTERM and Ctrl-C drain.
    """
    given["adopt"] = given["adopt"] or None
    ingest = {"front": None if no_ingest else True}
    settings = call.load({"front": given, "ingest": ingest, "metrics": {"port": metrics_port}})
    from delaybridge.operate.cli.processes.scan import ingest_spec
    from delaybridge.operate.metrics.serving import served
    from delaybridge.operate.supervisor.supervisor import Supervisor

    call.note(f"delaybridge {__version__} front  (Ctrl-C drains, twice aborts)")
    for line in banner(settings):
        call.note(line)
    prepare = call.begin_log(settings)
    specs = front_specs(settings, name, prepare)
    if not no_ingest:
        specs.append(replace(ingest_spec(len(specs), name, prepare), waits=True))
    with served(settings, [each.process_name for each in specs]) as reports:
        return Supervisor(settings, specs, reports, lambda _: None).run()


def banner(settings: Settings) -> Iterator[str]:
    """The lines that a front prints when it starts; ConfigError if it cannot start."""
    from delaybridge.front.front import brokers_of

    first, of_vhosts = brokers_of(settings)
    nodes = ", ".join(settings.front.nodes) or f"{first.host}:{first.port}"
    vhosts = ", ".join(sorted(of_vhosts))
    yield f" front    {settings.front.listen} -> {nodes}  delayed exchanges in vhost {vhosts}"


def front_specs(
    settings: Settings, name: str | None, prepare: Callable[[], None]
) -> list[ChildSpec]:
    """The front's processes, as children of a supervisor."""
    from delaybridge.front.front import run_front
    from delaybridge.operate.cli.processes.scan import worker_exit_code
    from delaybridge.operate.parts.lists import front_parts
    from delaybridge.operate.supervisor.child import ChildSpec
    from delaybridge.store.namespace.registry import FRONT

    work = partial(run_front, parts=front_parts)
    names = [f"front-{number}" for number in range(settings.front.processes)]
    return [
        ChildSpec(each, name and f"{name}-{each}", work, FRONT, worker_exit_code, prepare)
        for each in names
    ]
