"""The command line of delaybridge.

`--help` must be quick: only click is imported here. A command's module is imported when the command
is called, the clients of Redis and the brokers when they are used.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from delaybridge import __version__
from delaybridge.cli.failure import INTERRUPTED, Exit, json_asked, report_of, show_origin
from delaybridge.cli.grammar import COMPLETE_VARIABLE, CONTEXT, Group
from delaybridge.cli.output import Output, drop_stdout, wants_color
from delaybridge.cli.session import Session
from delaybridge.cli.stderr import never_fail

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# name -> (module under delaybridge.cli, what it does)
COMMANDS = {
    "schedule": ("schedule", "Accept a message now, to be delivered later."),
    "message": ("messages", "List, show, cancel and reschedule messages."),
    "dead": ("dead", "Messages that were given up: list, bring back, discard."),
    "destination": ("destinations", "All messages of one destination at once."),
    "scan": ("fleet", "Run a worker: publish messages when they are due."),
    "ingest": ("ingest", "Read delay exchanges or delay topics into the store."),
    "stats": ("fleet", "Count messages by state."),
    "worker": ("fleet", "The running workers."),
    "bucket": ("fleet", "The buckets and who owns them."),
    "health": ("health", "Check that messages go out on time; exits with 0 or 1."),
    "doctor": ("doctor", "Check Redis, brokers, clock and workers; say what to change."),
    "config": ("config", "Show and check the settings."),
    "completion": ("completion", "Print the script that makes a shell complete commands."),
    "demo": ("demo", "Watch it work: two workers, one of them killed, a verdict."),
}


class Root(Group):
    """The group of all commands, imported one by one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which a new user needs them."""
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, its module imported now."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"delaybridge.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands, from the table and without importing them; then options."""
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=about)
            for name, (_, about) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in --help, from the table and without importing a command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])


@click.group(cls=Root, context_settings=CONTEXT, subcommand_metavar="COMMAND ...")
@click.option("--redis", metavar="URL", help="Redis, as redis://127.0.0.1:6379/0.")
@click.option("--namespace", metavar="NS", help="Which fleet: the prefix of every key.")
@click.option(
    "--broker",
    "brokers",
    metavar="[NAME=]URL",
    multiple=True,
    help="A broker, as amqp://HOST or kafka://HOST:9092; without NAME it is named after its kind. "
    "Repeat for each broker.",
)
@click.option(
    "--config", metavar="FILE", help="Settings; else $DELAYBRIDGE_CONFIG, else ./delaybridge.toml."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One JSON object per line, errors too; may follow the command.",
)
@click.option("--no-color", is_flag=True, help="Never colour the output; the same as NO_COLOR.")
@click.option("-v", "--verbose", is_flag=True, help="Log more; show where an error came from.")
@click.version_option(__version__, message="delaybridge %(version)s")
@click.pass_context
def root(ctx: click.Context, /, as_json: bool, no_color: bool, **options: Any) -> None:
    """Publish a message now, have it arrive on a RabbitMQ exchange or a Kafka topic later.

    Durations are written 500ms, 15s, 15m, 1h30m, 7d or PT15M; times as 2030-01-31T09:00:00Z.
    Every option below has an environment variable: DELAYBRIDGE_REDIS_URL,
    DELAYBRIDGE_NAMESPACE, DELAYBRIDGE_BROKERS__RABBITMQ, DELAYBRIDGE_CONFIG.

    Exit codes: 0 done, 1 failed, 2 refused (nothing was done), 3 not found, 4 conflict, 5 Redis or
    broker unreachable, 6 partly done, 130 interrupted.
    """
    ctx.obj = Session(Output(as_json, wants_color(refused=no_color)), **options)


def main(args: list[str] | None = None) -> int:
    """Run one command line and return its exit code. Raises nothing and shows no traceback."""
    never_fail()
    _never_fail_to_encode()
    given = sys.argv[1:] if args is None else args
    try:
        return int(_flushed(_run(given), given))
    except BrokenPipeError:
        drop_stdout()
        return int(Exit.DONE)


def _flushed(code: int, args: list[str]) -> int:
    """The exit code, once the result is written; a full disk is a failure."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as exc:
        drop_stdout()  # the interpreter would try once more, and exit with 120
        if code == Exit.DONE:
            return report_of(exc).show(as_json=json_asked(args))
    return code


def _run(args: list[str]) -> int:
    if asked := os.environ.get(COMPLETE_VARIABLE):
        from click.shell_completion import shell_complete

        return shell_complete(root, {}, "delaybridge", COMPLETE_VARIABLE, asked)
    try:
        with root.make_context("delaybridge", list(args)) as ctx:
            code = root.invoke(ctx)
            return Exit.DONE if code is None else code
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED.show(as_json=json_asked(args))
    except BrokenPipeError:
        raise
    except Exception as exc:
        if "-v" in args or "--verbose" in args:
            show_origin(exc)
        return report_of(exc).show(as_json=json_asked(args))


def _never_fail_to_encode() -> None:
    """In a C locale a result is printed with escapes rather than not at all."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
