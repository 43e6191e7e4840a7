"""``cmsspark help``: help on a topic or on a command."""

from __future__ import annotations

import click

from cmsspark.base.errors import Exit, UsageError
from cmsspark.base.text.spelling import suggestion
from cmsspark.base.text.terminal import hanging, terminal_width


def exit_codes() -> str:
    """Return the text of ``cmsspark help exit-codes``: the meaning and the next step of
    every exit code.
    """
    lines = ["Exit codes of run_spark and cmsspark:", ""]
    width = terminal_width()
    for code in Exit:
        lines.append(hanging(f"  {int(code):>2}  ", code.meaning, 6, width))
        lines.append(hanging("      next: ", code.next_step, 12, width))
    return "\n".join(lines)


#: The topic, and its line of help.
TOPIC, ABOUT = "exit-codes", "What each exit code means, and what to do next."


@click.command("help")
@click.argument("names", metavar="[TOPIC | COMMAND [SUBCOMMAND]]", nargs=-1)
@click.pass_context
def command(ctx: click.Context, names: tuple[str, ...]) -> None:
    """Show help on a topic (exit-codes) or on a command; without a name, list all
    topics and commands.
    """
    group = ctx.find_root()
    if not names:
        click.echo(group.get_help())
        formatter = group.make_formatter()
        with formatter.section("Topics (cmsspark help TOPIC)"):
            formatter.write_dl([(TOPIC, ABOUT)])
        click.echo(f"\n{formatter.getvalue()}", nl=False)
    elif names == (TOPIC,):
        click.echo(exit_codes())
    else:
        context = group
        for name in names:
            parent = context.command
            subcommand = (
                parent.get_command(context, name) if isinstance(parent, click.Group) else None
            )
            if subcommand is None:
                commands = parent.list_commands(context) if isinstance(parent, click.Group) else []
                topics = [] if context.parent else [TOPIC]
                raise UsageError(
                    f"there is no help on {' '.join(names)!r}",
                    found=", ".join([*topics, *commands])
                    or f"{context.command_path} has no subcommands",
                    next_step=suggestion(name, [*topics, *commands])
                    or "cmsspark help lists the topics and commands",
                )
            context = click.Context(subcommand, info_name=name, parent=context)
        click.echo(context.get_help())
