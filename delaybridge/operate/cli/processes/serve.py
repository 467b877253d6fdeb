"""`delaybridge serve`: the HTTP API."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from delaybridge.operate.terminal.failure import refused
from delaybridge.operate.terminal.grammar import Group, option, pass_call
from delaybridge.operate.terminal.invocation import Invocation

_NEEDED = ("starlette", "uvicorn", "httptools", "jinja2")
_SCOPES = ("read", "write", "admin")


def has_web() -> bool:
    """Whether everything that it needs is installed."""
    return all(importlib.util.find_spec(name) for name in _NEEDED)


@click.group("serve", cls=Group, invoke_without_command=True, subcommand_metavar="[token new]")
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
    "--compat DIALECT", "Also speak the HTTP of another delay queue: mykit, youzan, delay-queue."
)
@option(
    "--processes N",
    "Processes that share the port. [default: serve.processes, 1]",
    type=click.IntRange(1, 256),
)
@pass_call
def serve(call: Invocation, read_only: bool, **given: str | int | None) -> None:
    """Serve the HTTP API, for every language.

    Also the console (/), the API's page (/docs) and its description (/openapi.json). Start as many
    as you like, on as many hosts. SIGTERM and Ctrl-C drain: what is under way is answered first.
    """
    if click.get_current_context().invoked_subcommand:
        names = ["read_only"] if read_only else [n for n in given if given[n] is not None]
        if names:
            raise refused(f"--{names[0].replace('_', '-')}", "it is for serving, not for a verb")
        return
    if not has_web():
        raise refused("serve", 'it needs: pip install "delaybridge[web]"', "config")
    settings = call.load({"serve": {**given, "read_only": read_only or None}})
    from delaybridge.serve.server.serving import serve as run

    run(settings, call.begin_log(settings))


@serve.group("token", cls=Group)
def token() -> None:
    """The tokens that requests need."""


@token.command("new")
@click.argument("scope", type=click.Choice(_SCOPES), default="admin")
@click.argument("name", default="")
@click.argument("tenant", default="")
@option("--token-file FILE", "Where its digest is written. [default: serve.token_file]")
@pass_call
def new(call: Invocation, scope: str, name: str, tenant: str, token_file: str | None) -> None:
    """Make a token that may do so much, print it, and write its digest to the file.

    It is shown this once: the file has SHA-256 of it. Servers that run know it at once. NAME is
    who it is in the audit; TENANT is whose messages it sees.
    """
    from delaybridge.client.verbs import Scope
    from delaybridge.serve.access.tokens import add_token

    settings = call.load({"serve": {"token_file": token_file}})
    file = settings.serve.token_file
    if not file:
        raise refused("serve.token_file", "say which file: --token-file FILE", "config")
    text = add_token(Path(file), Scope(scope), name, tenant, settings.tenants)
    made = {"token": text, "scope": scope, "name": name, "tenant": tenant, "file": file}
    call.output.result(made, text)
    call.note(f"its digest is in {file}; nothing shows the token again")
