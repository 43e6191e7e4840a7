"""A group of commands whose help shows the whole first sentence of each."""

from __future__ import annotations

import click

#: No first sentence is longer. click cuts them at the width of the terminal.
_LONGEST = 1_000


class CommandGroup(click.Group):
    """A group that lists its commands with whole sentences, which continue below themselves."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            shown = {
                name: entry
                for name, entry in commands.items()
                if entry is not None and not entry.hidden
            }
            formatter.write_dl(
                [(name, entry.get_short_help_str(_LONGEST)) for name, entry in shown.items()]
            )
