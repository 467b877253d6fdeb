"""`delaybridge serve`: the HTTP API."""

from __future__ import annotations

import importlib.util
from functools import partial

import click

from delaybridge.cli.failure import refused
from delaybridge.cli.grammar import Command, option, pass_call
from delaybridge.cli.invocation import Invocation

_NEEDED = ("starlette", "uvicorn", "httptools", "jinja2")
_DIALECTS = ("mykit", "youzan", "delay-queue")


def has_web() -> bool:
    """Whether everything that it needs is installed."""
    return all(importlib.util.find_spec(name) for name in _NEEDED)


@click.command("serve", cls=Command)
@option("--host HOST", "Where to listen. [default: serve.host, 127.0.0.1]")
@option(
    "--port PORT",
    "The port; 0: any free one. [default: serve.port, 8645]",
    type=click.IntRange(0, 65_535),
)
@option("--base-path PATH", "What stands before each path. [default: serve.base_path, /]")
@option("--token-file FILE", "One token a line: TOKEN [read|write|admin [NAME]].")
@option("--env-label TEXT", "A word at the top of every page of the console, as PROD.")
@option("--read-only", "Change nothing, whatever a token allows.")
@option(
    "--compat DIALECT",
    f"Also speak the HTTP of another delay queue: {', '.join(_DIALECTS)}.",
    type=click.Choice(_DIALECTS),
)
@option(
    "--processes N",
    "Processes that share the port. [default: serve.processes, 1]",
    type=click.IntRange(1, 256),
)
@pass_call
def serve(call: Invocation, read_only: bool, **given: str | int | None) -> None:
    """Serve the console (/), the HTTP API, its page (/docs) and its description (/openapi.json).

    Start as many as you like, on as many hosts. SIGTERM and Ctrl-C drain: what is under way is
    answered first.
    """
    if not has_web():
        raise refused("serve", 'it needs: pip install "delaybridge[web]"', "config")
    settings = call.load({"serve": {**given, "read_only": read_only or None}})
    from delaybridge.cli.logs import configure
    from delaybridge.web.serving import serve as run

    for caution in settings.cautions():
        call.note(f"warning: {caution}")
    prepare = partial(configure, as_json=call.output.json, verbose=call.verbose)
    prepare()
    run(settings, prepare)
