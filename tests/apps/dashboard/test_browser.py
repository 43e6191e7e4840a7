"""The pages in a real Chromium: drawn, filtered, downloaded, by keyboard, on a phone,
and checked by axe.
"""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from cmsspark.apps.dashboard import registry
from tests.apps.dashboard import stores
from tests.apps.dashboard.conftest import PATIENCE, Running, serving
from tests.apps.dashboard.stores import HOSTILE, LAST, ORDINARY

AXE = Path(__file__).parent / "axe-4.14.1.min.js"
PAGES = [
    *registry.PAGES,
    f"dataset?name={quote(ORDINARY[0])}",
    "sites?site=T2_CH_CERN",
    "users?by=campaign&step=week",
    f"runs?job=data_aggregation&day={LAST}",
    "sql?q=select+*+from+stored_days",
]


def opened(page: Any, dashboard: Running, address: str) -> Any:
    """The page with its charts drawn."""
    page.goto(f"{dashboard.base}/{address}")
    page.wait_for_selector("html[data-drawn]", state="attached")
    return page


def choose(page: Any, name: str, value: str) -> None:
    """Tick a value of a filter that takes several."""
    page.click(f"#v-{name}")
    page.locator(f'.choices input[name="{name}"][value="{value}"]').check()


@pytest.mark.parametrize("address", PAGES)
def test_a_page_is_drawn_and_accessible_in_light_and_dark_on_a_phone_and_a_desk(
    page: Any, dashboard: Running, address: str
) -> None:
    for theme, width in (("light", 1280), ("dark", 390)):
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size({"width": width, "height": 850})
        opened(page, dashboard, address)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if width == 390 and address in registry.PAGES:
            box = page.locator("header [aria-current]").bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= width, (
                "the name of the current page is in view"
            )
            # The form of SQL is what the page is for.
            assert page.locator("details.filters[open]").count() == (address == "sql")
        charts = page.locator("figure.chart").count()
        assert int(page.evaluate("document.documentElement.dataset.drawn")) == charts
        page.evaluate(AXE.read_text(encoding="utf-8"))
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        assert len(found["passes"]) > 10
        assert [
            (one["id"], [node["html"][:150] for node in one["nodes"][:3]])
            for one in found["violations"]
        ] == []


def test_a_filter_changes_the_address_and_back_returns(page: Any, dashboard: Running) -> None:
    opened(page, dashboard, "popularity")
    before = page.locator("dl.figures b").first.inner_text()
    choose(page, "stream", "crab")
    page.wait_for_url("**stream=crab**")
    page.wait_for_selector("p#announce:text('Popularity')", state="attached")
    after = page.locator("dl.figures b").first.inner_text()
    assert after != before
    assert page.evaluate("document.activeElement.value") == "crab"
    page.locator('.choices input[value="aaa"]').check()  # the list is still open
    page.wait_for_url("**stream=aaa&stream=crab**")
    page.wait_for_selector("#v-stream:text('aaa, crab')")
    page.go_back()
    page.wait_for_selector("#v-stream:text-is('crab')")
    address = page.url
    page.go_back()
    page.wait_for_selector("#v-stream:text('all')")
    assert page.locator("dl.figures b").first.inner_text() == before
    page.goto(address)  # a bookmark
    assert page.locator("dl.figures b").first.inner_text() == after


def test_a_download_has_the_rows_of_the_selection(
    page: Any, dashboard: Running, tmp_path: Path
) -> None:
    opened(page, dashboard, "popularity?stream=aaa&data_tier=AOD")
    section = page.locator("section", has_text="Most used datasets")
    with page.expect_download() as started:
        section.get_by_role("link", name="CSV").click()
    assert (
        started.value.suggested_filename
        == "cmsspark-popularity-2025-12-02-2026-01-15-datasets.csv"
    )
    started.value.save_as(tmp_path / "rows.csv")
    with open(tmp_path / "rows.csv", encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert rows and all(row["dataset_name"].endswith("/AOD") for row in rows)
    assert len(rows) == section.locator("tbody tr").count() <= 20


def test_typing_suggests_datasets_and_the_keyboard_opens_one(
    page: Any, dashboard: Running
) -> None:
    opened(page, dashboard, "popularity")
    page.focus("#s-q")
    # At once: keys with a pause between them would have suggestions of their own, which
    # the next ones replace.
    page.keyboard.insert_text("qcd nanoaod")
    page.wait_for_selector("#s-q-list li")
    page.keyboard.press("ArrowDown")
    assert page.get_attribute("#s-q", "aria-activedescendant") == "s-q-list-0"
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('/QCD_Pt300/')")
    assert "/dataset?name=" in page.url
    page.go_back()
    page.wait_for_selector("h1:has-text('Popularity')")
    page.focus("#s-q")
    page.keyboard.type("qcd")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=qcd**")
    page.wait_for_selector("p:text('Names that contain: qcd')")
    assert all("QCD" in name for name in page.locator("tbody th a").all_inner_texts())


def test_a_table_sorts_and_pages_and_the_navigation_keeps_the_filters(
    page: Any, dashboard: Running
) -> None:
    opened(page, dashboard, "popularity?stream=aaa&from=2025-12-20&to=2026-01-10")
    heads = page.locator("#t-datasets thead")
    heads.get_by_role("link", name="Dataset").click()
    page.wait_for_selector("#t-datasets th[aria-sort='ascending']")
    names = page.locator("#t-datasets tbody th a").all_inner_texts()
    assert names == sorted(names)
    page.get_by_role("link", name="Next").click()
    page.wait_for_selector(".pages span:text('page 2 of')")
    assert not set(names) & set(page.locator("#t-datasets tbody th a").all_inner_texts())
    page.get_by_role("link", name="Users over time").click()
    assert "stream=aaa" in page.url and "from=2025-12-20" in page.url and "sort" not in page.url


def test_a_chart_is_saved_as_a_picture(page: Any, dashboard: Running) -> None:
    opened(page, dashboard, "popularity")
    with page.expect_download() as started:
        page.get_by_role("button", name="PNG").first.click()
    assert started.value.suggested_filename == "Popularity-over_time.png"
    assert Path(started.value.path()).read_bytes().startswith(b"\x89PNG")


def test_how_concentrated_use_is_comes_when_it_is_opened(page: Any, dashboard: Running) -> None:
    opened(page, dashboard, "sites?site=T2_CH_CERN")
    assert page.locator("#people dl").count() == 0
    page.locator("#people > summary").click()
    page.locator("#people dt:text('heaviest')").wait_for()


def test_the_pointer_shows_the_values_of_a_step(page: Any, dashboard: Running) -> None:
    opened(page, dashboard, "popularity?by=data_tier&from=2026-01-01&to=2026-01-09")
    figure = page.locator("figure.chart").first
    figure.scroll_into_view_if_needed()
    box = figure.locator("div.wide svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60)
    lines = figure.locator(".readout p").all_inner_texts()
    series = json.loads(figure.get_attribute("data-chart"))["series"]
    middle = {entry["name"]: entry["values"][4] for entry in series}
    assert lines[0] == "2026-01-05" and lines[-1] == f"Total: {sum(middle.values()):,}"
    assert set(lines[1:-1]) == {f"{name}: {value:,}" for name, value in middle.items()}
    page.mouse.move(5, 5)
    assert not figure.locator(".readout").is_visible()


def test_charts_and_their_whole_legends_need_no_script(chromium: Any, dashboard: Running) -> None:
    context = chromium.new_context(
        java_script_enabled=False, viewport={"width": 390, "height": 800}
    )
    page = context.new_page()
    page.goto(f"{dashboard.base}/users?by=campaign")
    figure = page.locator("figure.chart").first
    names = {entry["name"] for entry in json.loads(figure.get_attribute("data-chart"))["series"]}
    texts = set(figure.locator("div.narrow text").all_text_contents())
    assert names <= texts and len(names) > 3
    assert figure.locator("div.narrow").is_visible()
    assert not figure.locator("div.wide").is_visible()
    context.close()


def test_paper_has_all_columns_and_no_empty_first_page(chromium: Any, dashboard: Running) -> None:
    page = chromium.new_page()
    page.set_default_timeout(PATIENCE)
    opened(page, dashboard, "popularity")
    page.emulate_media(media="print")
    width = 718  # of A4 without margins
    page.set_viewport_size({"width": width, "height": 1_000})
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert (
        page.evaluate(
            "Math.max(...[...document.querySelectorAll('table, svg')].map((e) => e.getBoundingClientRect().right))"
        )
        <= width
    )
    assert (
        page.evaluate("document.querySelector('figure.chart').getBoundingClientRect().top") < 1_000
    )
    # Letters of a chart are as large as the text.
    assert page.locator("figure.chart div.narrow").first.is_visible()
    page.close()


def test_the_matrix_of_sites_fits_on_paper(chromium: Any, dashboard: Running) -> None:
    page = chromium.new_page(viewport={"width": 718, "height": 1_000})
    page.set_default_timeout(PATIENCE)
    opened(page, dashboard, "sites")
    page.emulate_media(media="print")
    # As many columns as the page shows of a real store, with names as long as there.
    page.evaluate("""() => document.querySelectorAll('.heat tr').forEach((row, line) => {
      while (row.children.length < 16) {
        const cell = row.lastElementChild.cloneNode(true);
        cell.textContent = line ? '12,345' : 'T2_UK_SGrid_RALPP';
        row.append(cell);
      }
    })""")
    assert page.locator(".heat th").first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 718
    page.close()


def test_on_a_phone_the_decisive_columns_are_in_view(page: Any, dashboard: Running) -> None:
    page.set_viewport_size({"width": 390, "height": 850})
    opened(page, dashboard, "popularity")
    cell = page.locator("#t-datasets tbody tr").first.locator("td").first.bounding_box()
    assert cell["x"] + cell["width"] <= 390


def test_a_query_completes_names_of_tables_and_columns(page: Any, dashboard: Running) -> None:
    opened(page, dashboard, "sql")
    page.fill("#c-q", "")
    page.focus("#c-q")
    page.keyboard.type("SELECT * FROM data_a")
    page.wait_for_selector(".completions button:text-is('data_aggregation')")
    page.keyboard.press("Tab")
    assert page.input_value("#c-q") == "SELECT * FROM data_aggregation"
    page.locator("details.fold > summary", has_text="data_aggregation").first.click()
    # Its columns come when it is opened: all of them made the page four times as large.
    page.locator("details.fold[open] [data-insert='accesses']").wait_for()
    assert page.input_value("#c-q") == "SELECT * FROM data_aggregation"
    page.locator("details.fold[open] [data-insert='accesses']").click()
    assert "accesses" in page.input_value("#c-q")


def test_the_page_sql_is_small(page: Any, dashboard: Running) -> None:
    assert len(page.goto(f"{dashboard.base}/sql").body()) <= 60_000


def test_the_keyboard_reaches_the_content_first(page: Any, dashboard: Running) -> None:
    opened(page, dashboard, "sites")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.wait_for_selector("main:focus")


def test_without_javascript_every_value_is_in_a_table(chromium: Any, dashboard: Running) -> None:
    context = chromium.new_context(java_script_enabled=False)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    try:
        page.goto(f"{dashboard.base}/popularity?by=stream")
        page.get_by_text("The values as a table").first.click()
        table = page.locator("details table").first
        assert table.is_visible() and table.locator("tbody tr").count() == 45
        choose(page, "stream", "eos")
        page.get_by_role("button", name="Show").click()
        page.wait_for_url("**stream=eos**")
        assert page.locator("tbody th a").count() > 0
    finally:
        context.close()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_runs_nothing_and_keeps_its_page(
    page: Any, dashboard: Running, name: str
) -> None:
    """The page fixture fails where a script, a dialog or a refused resource appears."""
    opened(page, dashboard, f"dataset?name={quote(name, safe='')}")
    assert page.evaluate("[...document.querySelectorAll('main script, main img')].length") == 0
    assert page.input_value("#c-name").replace("\n", "") == name.replace("\n", "")
    page.goto(f"{dashboard.base}/popularity?q={quote(name[:20], safe='')}&by=campaign")
    link = page.locator("tbody th a").first
    if link.count():
        link.click()
        page.wait_for_selector("h2:has-text('Where it is read')")


def test_an_empty_store_says_what_to_run(page: Any, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with serving(tmp_path / "store", tmp_path) as running:
        for name in registry.PAGES:
            opened(page, running, name)
            text = page.inner_text("main")
            assert "run_spark" in text or name == "sql", name


def accesses(rows: list[dict[str, Any]]) -> int:
    return sum(row["nacc"] for row in rows if row["stream"] != "condor")


def stored(running: Running, rows: list[dict[str, Any]]) -> None:
    """Store the last day, and wait until the server has seen it: it looks at the store
    every few seconds.
    """
    run = stores.store_day(running.store, LAST, rows).name
    end = time.monotonic() + PATIENCE / 1000
    while running.snapshot.state.runs.get(LAST) != run:
        assert time.monotonic() < end, running.server.services.refresher.freshness
        time.sleep(0.05)


def test_a_store_that_grows_is_shown_without_a_restart(page: Any, tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = stores.LAST.replace(day=14)
    stores.store_day(store, first, stores.partial_rows(first, count=30))
    with serving(store, tmp_path) as running:
        opened(page, running, "popularity")
        assert "1 stored days" in page.inner_text("footer") or "2026-01-14" in page.inner_text(
            "footer"
        )
        more = stores.partial_rows(LAST, count=50)
        stored(running, more)
        opened(page, running, f"popularity?from={LAST}")
        assert f"{accesses(more):,}" in page.inner_text("dl.figures")
        again = stores.partial_rows(LAST, seed=2, count=40)
        stored(running, again)  # the day is run again
        page.reload()
        assert f"{accesses(again):,}" in page.inner_text("dl.figures")
