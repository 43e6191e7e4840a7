"""Each command has examples in its help, and each can be typed as it stands."""

from __future__ import annotations

import shlex

import click
import pytest

from cmsspark import main
from cmsspark.main import EXAMPLES

LINES = [line for lines in EXAMPLES.values() for line in lines]


def test_every_command_has_examples() -> None:
    assert EXAMPLES.keys() == {*main.COMMANDS, *main.LAB}


@pytest.mark.parametrize("line", LINES)
def test_an_example_is_parsed_by_its_command(line: str) -> None:
    program, *words = shlex.split(line)
    assert program == "cmsspark"
    command: click.Command = main.command
    context = click.Context(command)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        assert found is not None, line
        command, words = found, words[1:]
        context = click.Context(command, parent=context, info_name=command.name)
    options = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= options, line


@pytest.mark.parametrize("name", ["status", "publish", "daily", "outbox"])
def test_help_shows_the_examples(name: str) -> None:
    command = main.command.get_command(click.Context(main.command), name)
    assert command is not None
    shown = command.get_help(click.Context(command, info_name=f"cmsspark {name}"))
    for line in EXAMPLES[name]:
        assert line in shown


@pytest.mark.parametrize("name", [*main.COMMANDS, *main.LAB])
def test_debug_which_a_bug_s_message_advises_is_an_option_of_each_command(name: str) -> None:
    group = main.command if name in main.COMMANDS else main.lab
    command = group.get_command(click.Context(group), name)
    assert command is not None

    def leaves(entry: click.Command) -> list[click.Command]:
        if isinstance(entry, click.Group) and not isinstance(entry, main.LazyGroup):
            return [leaf for child in entry.commands.values() for leaf in leaves(child)]
        return [] if isinstance(entry, main.LazyGroup) else [entry]

    for leaf in leaves(command):
        assert any("--debug" in param.opts for param in leaf.params), leaf.name
