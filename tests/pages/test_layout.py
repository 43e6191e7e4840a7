"""The layout of pages: texts of others are only text, and a page is one file."""

from __future__ import annotations

import re

from markupsafe import Markup

from cmsspark.pages import layout
from cmsspark.pages.charts import bars

HOSTILE = "<script>alert(1)</script>\"'&\x1b[31m\udc80"


def hostile_page() -> str:
    parts = [
        layout.facts([(HOSTILE, HOSTILE)]),
        layout.section(
            HOSTILE,
            layout.table([HOSTILE], [[HOSTILE], [None]]),
            HOSTILE,
            about=HOSTILE,
            kind=HOSTILE,
        ),
        layout.items([HOSTILE, layout.badge("bad", HOSTILE), layout.code(HOSTILE)]),
        layout.picture(HOSTILE, HOSTILE, HOSTILE, bars([(HOSTILE, 1)], about=HOSTILE)),
        layout.bins([(HOSTILE, HOSTILE)], [(HOSTILE, HOSTILE, [(HOSTILE, HOSTILE, HOSTILE)])]),
        layout.months([(HOSTILE, [[(HOSTILE, 1, (HOSTILE,), HOSTILE, HOSTILE)]])]),
        HOSTILE,
    ]
    return layout.document(HOSTILE, parts, HOSTILE)


def test_every_part_escapes_what_it_shows() -> None:
    page = hostile_page()
    page.encode()
    assert page.count("&lt;script&gt;") > 20
    assert not re.search("<script|\x1b|\"'&[^l#aq]", page)


def test_a_page_is_one_file_that_runs_nothing() -> None:
    assert not re.search(
        r"<(script|link|img|iframe|object|form|base)\b|\bon\w+=\"|https?:|url\(|@import",
        hostile_page(),
    )
    assert "default-src 'none'" in hostile_page()


def test_html_of_ours_stays_html_and_nothing_is_a_dash() -> None:
    table = layout.table(("a", "b"), [(Markup("<b>1</b>"), None)], (0,))
    assert '<td class="text"><b>1</b></td><td>–</td>' in table and table.count('scope="col"') == 2
    assert "<thead>" not in layout.table((), [("a", "b")])


def test_a_wide_chart_scrolls_in_its_section() -> None:
    assert 'class="scroll" tabindex="0"><svg' in layout.section("a", bars([("a", 1)], about="x"))
