"""Tables fit the terminal and keep whole names elsewhere; numbers, shares and volumes
read the same everywhere.
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from contextlib import suppress

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmsspark.base.text import terminal
from cmsspark.base.text.terminal import (
    Coloured,
    hanging,
    middle,
    number,
    percent,
    printable,
    table,
    terminal_width,
    volume,
)

LONG = "/ZMM" + "x" * 200 + "/AOD"
PRINTS = """
from cmsspark.base.text import terminal
from cmsspark.base.text.terminal import Coloured, echo_table
row = (12_345, Coloured("done", "green"), "/ZMM" + "x" * 200 + "/AOD")
echo_table(("n", "state", "dataset"), [row], texts=(1, 2), full=(1,))
"""


def test_tables_line_up() -> None:
    assert table(("n", "name"), [(1_000, "a"), (None, "bb"), (2.5, "c")], texts=(1,)) == [
        "      n  name",
        "  1,000  a",
        "      –  bb",
        "    2.5  c",
    ]
    assert table(("a", "b"), [("x", 1)], indent="") == ["a  b", "x  1"]


@given(
    st.lists(
        st.tuples(st.text(max_size=60), st.text(max_size=60), st.integers(0, 10**9)), max_size=5
    ),
    st.integers(30, 120),
)
def test_a_table_is_never_wider_than_it_may_be(
    rows: list[tuple[str, str, int]], width: int
) -> None:
    lines = table(("dataset", "site", "accesses"), rows, texts=(0, 1), width=width)
    assert max(map(len, lines)) <= width
    assert [line.split()[-1] for line in lines[1:]] == [f"{count:,}" for _, _, count in rows]


def test_the_widest_text_gives_way_first_and_numbers_and_whole_columns_never_do() -> None:
    rows = [("20260115T060000Z-1a2b3c", "T2_US_MIT", 123_456_789, "/A" * 100)]
    for width in (100, 60, 45, 20):
        (line,) = table(
            ("run", "site", "read", "dataset"), rows, texts=(0, 1, 3), full=(0,), width=width
        )[1:]
        run, site, read, dataset = line.split()
        assert (run, read) == ("20260115T060000Z-1a2b3c", "123,456,789")
        assert "…" in dataset
        assert (site == "T2_US_MIT") == (width >= 60)
    assert table(("a", "b"), [("x" * 30, "y" * 26)], texts=(0, 1), width=44, indent="")[1] == (
        "x" * 10 + "…" + "x" * 10 + "  " + "y" * 10 + "…" + "y" * 10
    )


@given(st.text(max_size=50), st.integers(3, 60))
def test_a_shortened_text_keeps_both_ends(text: str, width: int) -> None:
    cut = middle(text, width)
    assert len(cut) == min(len(text), width)
    assert cut == text or (
        text.startswith(cut[: (width - 1) // 2]) and text.endswith(cut[(width - 1) // 2 + 1 :])
    )


@pytest.mark.parametrize(
    ("width", "headings", "below"),
    [
        (None, "run seconds job", ""),
        (60, "run seconds job", ""),
        (40, "run job", "columns hidden in this width: seconds"),
    ],
)
def test_columns_that_people_can_do_without_give_way_to_names(
    width: int | None,
    headings: str,
    below: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(terminal, "terminal_width", lambda: width)
    rows = [("20260115T060000", 1_234.5, "data_aggregation_of_a_day")]
    terminal.echo_table(("run", "seconds", "job"), rows, texts=(0, 2), full=(0,), optional=(1,))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == headings.split()
    assert lines[2:] == ([below] if below else [])
    assert max(map(len, lines)) <= (width or 100)
    assert ("data_aggregation_of_a_day" in lines[1]) == (width != 40)


@pytest.mark.parametrize("width", [40, 57, 80])
def test_a_text_beside_a_name_continues_below_itself(width: int) -> None:
    about = "Features and labels of each dataset at each site and week, from the stored days before a day"
    first, *others = hanging(f"  {'popularity_site':<16} ", about, 19, width).splitlines()
    assert first.startswith("  popularity_site  Features and")
    assert others and all(line[:19].isspace() and not line[19].isspace() for line in others)
    assert max(map(len, (first, *others))) <= width
    assert " ".join([first, *others]).split() == ["popularity_site", *about.split()]
    assert hanging("  a  ", about, 19, None) == f"  a  {about}" == hanging("  a  ", about, 19, 30)


def test_a_list_of_names_with_texts_shows_all_of_each_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    items = {
        "sieve": "the oldest object that was not used since the hand passed",
        "lru": "what was used first",
    }
    for width in (40, None):
        monkeypatch.setattr(terminal, "terminal_width", lambda width=width: width)
        terminal.echo_list(("policy", "evicts"), items)
        lines = capsys.readouterr().out.splitlines()
        assert " ".join(" ".join(lines).split()) == "policy evicts " + " ".join(
            f"{name} {text}" for name, text in items.items()
        )
        assert (len(lines) > 3) == (width == 40)
        assert max(map(len, lines)) <= (width or 100)


def test_colours_do_not_count_as_width() -> None:
    rows = [(Coloured("done", "green"), "a"), (Coloured("failed", "red"), "b")]
    assert [click.unstyle(line) for line in table(("", ""), rows, texts=(0, 1))[1:]] == [
        "  done    a",
        "  failed  b",
    ]


def test_in_a_pipe_names_are_whole_whatever_the_terminal_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment = {**os.environ, "COLUMNS": "40"}
    done = subprocess.run(
        [sys.executable, "-c", PRINTS], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.splitlines()[1] == f"12,345  done   {LONG}"
    monkeypatch.setenv("COLUMNS", "40")
    assert terminal_width() is None


def all_of(descriptor: int) -> bytes:
    """What was written to a terminal that is closed: a read gives what the kernel has
    passed on until then.
    """
    content = b""
    with suppress(OSError):
        while piece := os.read(descriptor, 10_000):
            content += piece
    return content


@pytest.mark.parametrize(("columns", "wanted"), [("57", 57), ("", 80), ("0", 80), ("x", 80)])
def test_on_a_terminal_no_line_is_wider_than_it_is(columns: str, wanted: int) -> None:
    ours, theirs = pty.openpty()
    try:
        environment = {**os.environ, "COLUMNS": columns}
        subprocess.run([sys.executable, "-c", PRINTS], stdout=theirs, check=True, env=environment)
        os.close(theirs)
        lines = all_of(ours).decode().splitlines()
    finally:
        os.close(ours)
    assert click.unstyle(lines[1]) != lines[1]
    assert [len(click.unstyle(line)) for line in lines][1:] == [wanted]


def test_numbers_are_reported_as_people_say_them() -> None:
    assert [
        volume(count) for count in (None, 0, 999, 1_500, 2_500_000, 3e9, 4e12, 5.25e15, 4.6e18)
    ] == [None, "0 B", "999 B", "1.5 kB", "2.5 MB", "3.0 GB", "4.0 TB", "5.2 PB", "4.6 EB"]
    assert [percent(share) for share in (None, 0, 0.00001, 0.5)] == [
        "–",
        "0.00%",
        "<0.01%",
        "50.00%",
    ]
    assert [number(value) for value in (None, 0, 1_234_567, 2.5)] == ["–", "0", "1,234,567", "2"]


def test_nothing_writes_elsewhere_on_the_terminal() -> None:
    assert [printable(text) for text in ("a\nb", "a\x1b[2Jé")] == ["a\\x0ab", "a\\x1b[2Jé"]
    assert table(("",), [("\x1b[2J",)]) == ["", "  \\x1b[2J"]
