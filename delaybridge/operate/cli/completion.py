"""`delaybridge completion`: the script by which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from delaybridge.operate.terminal.grammar import COMPLETE_VARIABLE, Command

_SHELLS = ["bash", "zsh", "fish"]


@click.command("completion", cls=Command)
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that makes a shell complete commands and options.

    \b
    ~/.bashrc                   eval "$(delaybridge completion bash)"
    ~/.zshrc, after compinit    eval "$(delaybridge completion zsh)"
    ~/.config/fish/config.fish  delaybridge completion fish | source
    """
    kind = get_completion_class(shell)
    if kind is not None:
        click.echo(kind(ctx.find_root().command, {}, "delaybridge", COMPLETE_VARIABLE).source())
