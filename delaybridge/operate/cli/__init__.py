"""The command line of delaybridge.

`--help` must be quick: only click is imported here. A command's module is imported when the command
is called, the clients of Redis and the brokers when they are used.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from typing import Any

import click

from delaybridge import __version__
from delaybridge.operate.terminal.failure import INTERRUPTED, Exit, failure_of, show_origin
from delaybridge.operate.terminal.grammar import COMPLETE_VARIABLE, CONTEXT, Group, option
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.terminal.output import Output
from delaybridge.operate.terminal.streams import drop_stdout, never_fail, wants_color

# name -> (module within this room, what it does), in the order in which a user needs them
COMMANDS = {
    "schedule": ("messages.schedule", "Accept a message now, to be delivered later."),
    "message": ("messages.messages", "List, show, cancel and reschedule messages."),
    "recurring": (
        "rules.recurring",
        "Messages sent again and again, by cron expression or interval.",
    ),
    "stats": ("watching.stats", "Count messages by state; rates and lateness."),
    "top": (".top", "Watch everything on one screen, with keys."),
    "horizon": ("watching.horizon", "Show how many messages fall due in the coming time."),
    "tail": ("watching.tail", "Print the events of all workers as they happen."),
    "health": ("watching.health", "Check that messages go out on time; exits with 0 or 1."),
    "doctor": ("watching.health", "Check Redis, brokers, clock and workers; say what to change."),
    "alarm": ("watching.health", "Whether Redis came back older, empty or without keys."),
    "destination": ("rules.destination", "Pause, limit, spread, purge what goes to a destination."),
    "dead": ("messages.messages", "Messages that were given up: list, bring back, discard."),
    "worker": ("watching.fleet", "The running workers: list, drain, reconnect."),
    "bucket": ("watching.fleet", "The buckets and who owns them."),
    "definitions": ("rules.definitions", "Export and import rules and recurring definitions."),
    "scan": ("processes.scan", "Run a worker: publish messages when they are due."),
    "ingest": ("processes.scan", "Read delay exchanges or delay topics into the store."),
    "front": ("processes.front", "Accept delayed exchanges from clients that cannot change."),
    "serve": ("processes.serve", "Serve the HTTP API, for every language."),
    "outbox": (
        "processes.outbox",
        "Move messages of an application's own transactions into Redis.",
    ),
    "demo": ("processes.demo", "Watch it work: two workers, one of them killed, a verdict."),
    "size": ("processes.size", "Say how much of everything a load needs."),
    "config": ("processes.config", "Show and check the settings."),
    "scripts": ("processes.scripts", "Load the Lua scripts where workers may not."),
    "ledger": (
        "messages.ledger",
        "The ledger's database: make its tables, restore or purge by it.",
    ),
    "plugin": ("rules.plugin", "Leave RabbitMQ's delayed-message plugin."),
    "completion": ("completion", "Print the script that makes a shell complete commands."),
}
# The first command of each section of --help.
_BEGINS = {"schedule": "Send", "stats": "Look"}
_BEGINS |= {"destination": "Steer", "scan": "Run", "demo": "Set up"}
_EARLIER = {"restore", "purge"}  # now of `ledger`; they still work, and nothing lists them


class Root(Group):
    """The group of all commands, which it lists from `COMMANDS` without importing them."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first argument names, its module imported now."""
        if args[0] in _EARLIER:
            _, group, args = self.resolve_command(ctx, ["ledger", *args])
            assert isinstance(group, Group)
            return group.resolve_command(ctx, args)
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            command = getattr(import_module(f".{COMMANDS[name][0]}", __name__), name)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands by section, in columns that are as wide in each."""
        width, title, sections = max(map(len, COMMANDS)), "", dict[str, list[tuple[str, str]]]()
        for name, (_, about) in COMMANDS.items():
            title = _BEGINS.get(name, title)
            sections.setdefault(title, []).append((name.ljust(width), about))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


_EXITS = "\n".join(f"{exit.value:5}  {exit.means}" for exit in Exit)


@click.group(
    cls=Root,
    commands={name: click.Command(name, short_help=about) for name, (_, about) in COMMANDS.items()},
    context_settings=CONTEXT,
    subcommand_metavar="COMMAND ...",
    epilog=f"\b\nExit codes:\n{_EXITS}",
)
@option("--redis URL", "Redis, as redis://127.0.0.1:6379/0.")
@option("--namespace NS", "Which fleet: the prefix of every key.")
@option(
    "--broker [NAME=]URL",
    "A broker, as amqp://HOST or kafka://HOST:9092; without NAME it is named after its kind. "
    "Repeat for each broker.",
    to="brokers",
    multiple=True,
)
@option("--config FILE", "Settings; else $DELAYBRIDGE_CONFIG, else ./delaybridge.toml.")
@option("--json", "One JSON object per line, errors too; may follow the command.", to="as_json")
@option("--no-color", "Never colour the output; the same as NO_COLOR.")
@option("-v --verbose", "Log more; show where an error came from.")
@click.version_option(__version__, message="delaybridge %(version)s")
@click.pass_context
def root(ctx: click.Context, /, as_json: bool, no_color: bool, **given: Any) -> None:
    """Publish a message now, have it arrive on a RabbitMQ exchange or a Kafka topic later.

    Durations are written 500ms, 15s, 15m, 1h30m, 7d or PT15M; times as 2030-01-31T09:00:00Z.
    Every option below has an environment variable: DELAYBRIDGE_REDIS_URL,
    DELAYBRIDGE_NAMESPACE, DELAYBRIDGE_BROKERS__RABBITMQ, DELAYBRIDGE_CONFIG.
    """
    ctx.obj = Invocation(Output(as_json, wants_color(refused=no_color)), **given)


def main(args: list[str] | None = None) -> int:
    """Run one command line and return its exit code. Raises nothing and shows no traceback."""
    never_fail()
    for stream in (sys.stdout, sys.stderr):  # in a C locale print escapes rather than fail
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    given = sys.argv[1:] if args is None else args
    if args is None:
        gc.set_threshold(
            10_000
        )  # what is imported stays: looking through it took a tenth of a start
    code = _run(given)
    if args is None:
        gc.freeze()  # nor is it looked through at the end
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as exc:
        drop_stdout()  # the interpreter would try once more, and exit with 120
        if code == Exit.DONE and not isinstance(exc, BrokenPipeError):
            return failure_of(exc).show(as_json="--json" in given)
    return code


def _run(args: list[str]) -> int:
    """The exit code of the command, or of the error that ended it, which is shown."""
    as_json = "--json" in args
    try:
        if asked := os.environ.get(COMPLETE_VARIABLE):
            from click.shell_completion import shell_complete

            return shell_complete(root, {}, "delaybridge", COMPLETE_VARIABLE, asked)
        with root.make_context("delaybridge", list(args)) as ctx:
            return root.invoke(ctx) or Exit.DONE
    except click.exceptions.NoArgsIsHelpError as exc:
        exc.show()
        return Exit.REFUSED
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except BrokenPipeError:  # the reader of stdout needs no more
        drop_stdout()
        return Exit.DONE
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED.show(as_json=as_json)
    except Exception as exc:
        if "-v" in args or "--verbose" in args:
            show_origin(exc)
        return failure_of(exc).show(as_json=as_json)
