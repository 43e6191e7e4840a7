"""Charts: right proportions, names that are only text, and words for those who do not see them."""

from __future__ import annotations

import itertools
import math
import re
import xml.etree.ElementTree as ET
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmsspark.pages import svg
from cmsspark.pages.charts import Line, bars, heat_map, plot, shares, stacked_days
from cmsspark.pages.svg import COLOURS, REST, WIDTH, Axis, Chart, si, standalone

HOSTILE = "/A</text><script>alert(1)</script>&\"'\x1b[31m\x00/B/C"
DAYS = [date(2026, 1, 1) + timedelta(days=number) for number in range(5)]


def drawn(chart: Chart) -> ET.Element:
    """The chart as XML; its text is what a reader sees."""
    return ET.fromstring(standalone(chart, "title", "what it is"))


def rects(chart: Chart, kind: str) -> list[ET.Element]:
    return [
        rect
        for rect in drawn(chart).iter("{http://www.w3.org/2000/svg}rect")
        if rect.get("class") == kind
    ]


def words(chart: Chart) -> str:
    return " ".join(text for text in drawn(chart).itertext())


@given(st.floats(0.001, 1e24))
def test_a_number_with_a_prefix_is_the_number_to_three_digits(value: float) -> None:
    match = re.fullmatch(r"([\d.e+-]+) ?([kMGTPEZY]?)", si(value))
    assert match
    size = {
        "": 1.0,
        "k": 1e3,
        "M": 1e6,
        "G": 1e9,
        "T": 1e12,
        "P": 1e15,
        "E": 1e18,
        "Z": 1e21,
        "Y": 1e24,
    }[match[2]]
    assert float(match[1]) * size == pytest.approx(value, rel=0.006)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (999, "999"),
        (999_999, "1 M"),
        (1_500, "1.5 k"),
        (None, "–"),
        (2.5e12, "2.5 T"),
        (3.46e18, "3.46 E"),
        (-1500, "-1.5 k"),
    ],
)
def test_numbers_are_written_with_si_prefixes(value: float | None, shown: str) -> None:
    assert si(value) == shown


def test_bars_are_as_long_as_their_numbers() -> None:
    chart = bars([("a", 400), ("b", 100), ("c", 0)], about="accesses")
    widths = [float(rect.get("width", "")) for rect in rects(chart, "c1")]
    assert widths == [WIDTH, WIDTH / 4, 1.0]
    assert chart.label == "accesses: a 400; b 100; c 0"


def test_days_are_stacked_and_a_missing_day_is_a_gap() -> None:
    series: dict[str, list[float | None]] = {
        "aaa": [10, 20, None, 0, 40],
        "eos": [10, 0, None, 5, 40],
    }
    chart = stacked_days(DAYS, series, about="accesses a day")
    first, second = (
        [float(rect.get("height", "")) for rect in rects(chart, kind)[:4]] for kind in ("c1", "c2")
    )
    # Beside the columns the legend has one rectangle of 10 in each colour.
    # Heights are written to a tenth.
    assert first[1] == pytest.approx(2 * first[0], abs=0.2) and first[3] == pytest.approx(
        4 * first[0], abs=0.3
    )
    assert second[0] == pytest.approx(first[0], abs=0.1) and second[1] == 0
    # One for the day, one for the legend.
    assert len(rects(chart, "gap")) == 2
    assert "2026-01-03: not stored" in words(chart)
    assert {"aaa", "eos", "2026-01-01", "2026-01-05"} <= set(
        words(chart).replace(",", " ").split()
    )


@pytest.mark.parametrize(
    "name", ["T2_" + "S" * 120, "i" * 200, "/" + "W" * 80 + "/Run2018A-v1/AOD", "Ü" * 99]
)
def test_a_long_name_does_not_reach_its_number(name: str) -> None:
    """Wide letters ran into the number at the right."""
    (label,) = [
        text
        for text in drawn(bars([(name, 2.3e18)], about="x")).iter(
            "{http://www.w3.org/2000/svg}text"
        )
        if text.get("class") == "name"
    ]
    assert label.text is not None and "…" in label.text
    assert svg.text_width(label.text) <= WIDTH - svg.text_width("2.3 E")
    assert svg.fitting("/ZMM/Run2018A-v1/AOD", WIDTH) == "/ZMM/Run2018A-v1/AOD"


def test_no_series_is_left_out_however_many_there_are() -> None:
    series: dict[str, list[float | None]] = {f"stream{number}": [1.0] for number in range(9)}
    chart = stacked_days(DAYS[:1], series, about="x")
    assert all(f"2026-01-01, {name}: 1" in words(chart) for name in series)


@pytest.mark.parametrize("top", [1, 3, 9.5, 870, 1e6, 4.2e15, 0.3])
def test_ticks_are_round_and_reach_the_top(top: float) -> None:
    ticks = svg.round_ticks(0, top)
    assert ticks[0] == 0 and top <= ticks[-1] <= max(1, 2 * top) and 2 <= len(ticks) <= 7
    assert all(tick == int(tick) for tick in ticks), "counts have no halves"
    assert all(
        si(tick) == si(float(si(tick).split()[0]) * tick / float(si(tick).split()[0]))
        for tick in ticks[1:]
    )


def test_shares_fill_the_width_and_name_what_nobody_knows() -> None:
    rows: list[tuple[str, list[float]]] = [("aaa", [30, 10, 0]), ("eos", [0, 0, 7])]
    chart = shares(rows, ("local", "remote", "not known"), ("c1", "c2", REST), about="places")
    assert chart.label == "places: aaa 75% local; eos not known"
    widths = [float(rect.get("width", "")) for rect in rects(chart, "c1")]
    assert widths[0] == pytest.approx(WIDTH * 0.75)
    assert float(rects(chart, REST)[1].get("width", "")) == WIDTH


def test_a_heat_map_is_darker_for_more_and_prints_its_numbers() -> None:
    values = {("T1", "AOD"): 1.0, ("T1", "RAW"): 1_000.0, ("T2", "AOD"): 1_000_000.0}
    chart = heat_map(["T1", "T2"], ["AOD", "RAW"], values, about="accesses")
    shades = [
        rect.get("class") for rect in drawn(chart).iter() if str(rect.get("class")).startswith("h")
    ]
    assert shades == ["h1", "h3", "h6", "h0"]
    assert {"1", "1k", "1M"} <= set(words(chart).split())


def test_names_are_only_text() -> None:
    made = [
        bars([(HOSTILE, 1)], about=HOSTILE),
        stacked_days(DAYS, {HOSTILE: [1, 2, 3, 4, 5]}, about=HOSTILE),
        shares([(HOSTILE, [1, 1])], (HOSTILE, "x"), ("c1", "c2"), about=HOSTILE),
        heat_map([HOSTILE], [HOSTILE], {(HOSTILE, HOSTILE): 3}, about=HOSTILE),
        plot(
            [Line(HOSTILE, [(0, 1), (1, 2)])],
            Axis(0, 1, HOSTILE),
            Axis(0, 2, HOSTILE),
            about=HOSTILE,
            bands=[(HOSTILE, 0, 1)],
        ),
    ]
    for chart in made:
        text = chart.svg() + standalone(chart, HOSTILE, HOSTILE)
        assert "<script" not in text and "\x1b" not in text and "\x00" not in text
        assert not [entry for entry in drawn(chart).iter() if entry.tag.endswith("script")]


def test_nothing_is_drawn_as_such() -> None:
    for chart in (
        bars([], about="x"),
        heat_map([], [], {}, about="x"),
        stacked_days([], {}, about="x"),
    ):
        assert chart.height > 0 and drawn(chart) is not None


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_numbers_in_a_heat_map_can_be_read() -> None:
    """WCAG asks for 4.5 : 1."""
    for shade in range(7):
        text = "#ffffff" if shade > 3 else "#1d2733"
        assert contrast(COLOURS[f"h{shade}"], text) >= 4.5, shade


def test_shades_grow_darker_evenly() -> None:
    steps = [luminance(COLOURS[f"h{shade}"]) for shade in range(7)]
    assert steps == sorted(steps, reverse=True)
    assert min(math.log(a / b) for a, b in itertools.pairwise(steps)) > 0.1


def points(chart: Chart, kind: str) -> list[list[tuple[float, float]]]:
    """The places of each line or area."""
    shapes = drawn(chart).iter(f"{{http://www.w3.org/2000/svg}}{kind}")
    return [
        [
            (float(x), float(y))
            for x, y in (place.split(",") for place in shape.get("points", "").split())
        ]
        for shape in shapes
    ]


def test_a_logarithmic_axis_has_decades_as_far_from_each_other() -> None:
    x = Axis(1e9, 1e15, is_log=True, number=lambda size: f"{size:.0e}")
    chart = plot([Line("lru", [(1e9, 1), (1e12, 0.5), (1e15, 0)])], x, Axis(0, 1), about="misses")
    ((first, middle, last),) = points(chart, "polyline")
    assert middle[0] - first[0] == pytest.approx(last[0] - middle[0], abs=0.2)
    assert {"1e+09", "1e+12", "1e+15"} <= set(words(chart).split())
    assert svg.log_ticks(3, 40) == [1, 2, 5, 10, 20, 50, 100, 200, 500]


def test_a_value_that_is_not_there_leaves_a_gap_and_areas_stand_on_those_below() -> None:
    base, upper = [1.0, 1.0, 1.0, 1.0], [2.0, None, 3.0, 4.0]
    area = Line("a", list(enumerate(upper)), base=base)
    chart = plot([area], Axis(0, 3), Axis(0, 4), about="x")
    assert [len(line) for line in points(chart, "polyline")] == [1, 2]
    assert [len(shape) for shape in points(chart, "polygon")] == [2, 4]
    (_, (left, right, below_right, below_left)) = points(chart, "polygon")
    assert (
        left[0] == below_left[0]
        and right[0] == below_right[0]
        and below_left[1] == below_right[1] > left[1]
    )


def test_bars_and_errors_have_the_length_of_their_values() -> None:
    chart = plot(
        [Line("a", [(1, 2), (2, -1)], bar=0.5, errors=[(1, 1, 3)])],
        Axis(0, 3),
        Axis(-1, 3),
        about="x",
    )
    high, low = (float(rect.get("height", "")) for rect in rects(chart, "c1")[:2])
    assert high == pytest.approx(2 * low, abs=0.2)
    (error,) = [line for line in drawn(chart).iter() if str(line.get("class")).startswith("error")]
    assert float(error.get("y1", "")) - float(error.get("y2", "")) == pytest.approx(high, abs=0.2)


def test_a_chart_of_its_own_says_what_it_shows() -> None:
    """For those who do not see it, and for programs that index pictures."""
    root = drawn(bars([("a", 4)], about="accesses"))
    assert [
        root.findtext(f"{{http://www.w3.org/2000/svg}}{name}") for name in ("title", "desc")
    ] == ["title", "accesses: a 4"]


def test_many_lines_differ_without_colours() -> None:
    lines = [Line(f"line {number}", [(0, number), (1, number)]) for number in range(20)]
    kinds = re.findall(
        r'<polyline class="([^"]+)"', plot(lines, Axis(0, 1), Axis(0, 20), about="x").elements
    )
    assert len(set(kinds)) == 20


def test_lines_without_a_name_are_in_no_legend() -> None:
    lines = [Line("", [(0, 0), (1, 1)], "rule"), Line("", [(0, 1)], "c1")]
    plain = plot(lines, Axis(0, 1), Axis(0, 1), about="x")
    named = plot([*lines, Line("bound", [(0, 1), (1, 1)])], Axis(0, 1), Axis(0, 1), about="x")
    assert named.height > plain.height and "bound" in words(named)


def test_parts_of_a_share_stand_beside_each_other() -> None:
    chart = shares([("aaa", [30.0, 10.0])], ("local", "remote"), ("c1", "c2"), about="places")
    first, second = rects(chart, "c1")[0], rects(chart, "c2")[0]
    assert float(first.get("x", "")) == 0
    assert float(second.get("x", "")) == pytest.approx(float(first.get("width", "")))


def test_a_legend_goes_on_in_a_new_line_where_it_is_full() -> None:
    names = ["aaaa", "bbbb", "cccc"]
    step = 10 + 6 + svg.text_width("aaaa") + 14
    parts, height = svg.legend(names, ["c1", "c2", "c3"], 2 * step, 100)
    marks = [
        (float(rect.get("x", "")), float(rect.get("y", "")))
        for rect in ET.fromstring(f"<g>{parts}</g>").iter("rect")
    ]
    assert marks == [(0, 100), (pytest.approx(step, abs=0.1), 100), (0, 118)]
    assert height == 36
    assert svg.legend([], [], 100, 0) == ("", 0)


def test_wide_and_narrow_letters_have_their_widths() -> None:
    assert svg.text_width("iiii") < svg.text_width("aaaa") < svg.text_width("MMMM")
    assert svg.text_width("mm") == svg.text_width("MM")


def test_an_axis_has_its_title_if_it_has_one() -> None:
    line = [Line("a", [(0, 1), (1, 2)])]
    titled = plot(line, Axis(0, 1, title="days"), Axis(0, 2, title="accesses"), about="x")
    assert {"days", "accesses"} <= set(words(titled).split())
    lines = [text.text for text in drawn(plot(line, Axis(0, 1), Axis(0, 2), about="x")).iter()]
    assert "" not in [text for text in lines if text is not None]


def test_a_pdf_has_the_bars_and_texts_of_its_chart() -> None:
    chart = bars([("a (b)", 400), ("c", 100)], about="accesses")
    picture = standalone(chart, "title", "what it is")
    file = svg.pdf(picture)
    content = file.decode("cp1252")
    assert content.startswith("%PDF-1.4") and content.endswith("%%EOF\n")
    assert content.count(" re f") == picture.count("<rect")
    assert "(title)" in content and r"(a \(b\))" in content
    start = int(content.rpartition("startxref\n")[2].split()[0])
    assert file[start:].startswith(b"xref\n0 7\n")
