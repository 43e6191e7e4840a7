"""The page with the answer, ``cmsspark report`` with pictures and as a site, in a real
Chromium too.
"""

from __future__ import annotations

import re
from datetime import date, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from playwright.sync_api import Browser

from cmsspark.apps.demo.narration import store_day
from cmsspark.apps.usage import period
from cmsspark.base.errors import CmssparkError
from cmsspark.base.periods import Period
from cmsspark.main import command
from cmsspark.pages.svg import si
from cmsspark.settings.settings import load_settings
from cmsspark.store.query.database import Database
from tests.run.places import Place, write_streams
from tests.store.query.stores import FIRST, HISTORY, KEY, make_store

TOP = Path(__file__).resolve().parents[3]
#: Until a browser that hangs ends a test; Playwright's own half a minute is short for a
#: busy machine.
PATIENCE_MS = 300_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A week, and its period."""
    folder = make_store(tmp_path_factory.mktemp("store"), 7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CMSSPARK_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        period.run(
            Period(FIRST, FIRST + timedelta(days=7)), folder, load_settings(), log=lambda _: None
        )
    return folder


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a day that was counted from logs."""
    place = Place(tmp_path_factory.mktemp("day"))
    write_streams(place.tree)
    assert place.run("data_aggregation") == 0
    (page,) = Path(place.fout).glob("data_aggregation/*/runs/*/report.html")
    return page


def run(*words: str) -> Result:
    return CliRunner().invoke(command, list(words), standalone_mode=False)


def page_of(store: str, folder: Path, *when: str) -> str:
    target = folder / "page.html"
    ended = run("report", *when, "--fout", store, "--html", str(target))
    assert ended.exception is None
    return target.read_text()


def seen(page: str) -> str:
    """The text of a page."""
    return " ".join(
        unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL)).split()
    )


def test_the_page_of_a_day_begins_with_what_was_read(store: str, tmp_path: Path) -> None:
    page = page_of(store, tmp_path, "--date", "2026-01-07")
    text = seen(page)
    assert "<title>What CMS read on 7 January 2026</title>" in page
    # HTCondor's records are of jobs.
    reads = "day = '2026-01-07' and stream <> 'condor'"
    with Database(store) as database:
        (nacc, datasets) = database.query(
            f"select sum(accesses), count(distinct dataset_name) from data_aggregation where {reads}"
        ).rows[0]
        top = database.query(
            f"select dataset_name, sum(accesses) as n from data_aggregation where {reads}"
            " group by 1 order by n desc, 1 limit 10"
        ).rows
        sites = database.query(
            f"select site_name, sum(accesses) as n from data_aggregation where {reads}"
            " group by 1 order by n desc, 1 limit 10"
        ).rows
    assert f"{si(nacc)} accesses" in text and f"{datasets} datasets read" in text
    for name, count in (*top, *sites):
        assert f"<title>{name}: {si(count)}</title>" in page
    headings = re.findall(r"<h[12][^>]*>(.*?)</h", page)
    assert headings.index("Most read datasets") < headings.index("How it was counted")
    assert {
        "Sites that serve most",
        "Accesses day by day",
        "What is read where",
        "Local and remote reads",
        "CPU time by data tier",
    } <= set(headings)
    assert "data_aggregation of 2026-01-07" in text
    assert not re.search(r'(src|href)="?https?:', page) and "<script" not in page


def test_the_page_of_a_week_is_that_of_its_period(store: str, tmp_path: Path) -> None:
    page = page_of(store, tmp_path, "--week", "2026-W02")
    assert "What CMS read in week 2 of 2026 (5 to 11 January 2026)" in page
    with Database(store) as database:
        (nacc,) = database.query(
            "select sum(accesses) from data_aggregation where stream <> 'condor'"
        ).rows[0]
    assert f"{si(nacc)} accesses" in seen(page)
    assert next(Path(store).glob("period/2026-W02/runs/*/report.html")).read_text() == page


def test_a_period_that_is_not_stored_says_what_to_run(store: str, tmp_path: Path) -> None:
    ended = run(
        "report", "--month", "2026-01", "--fout", store, "--html", str(tmp_path / "x.html")
    )
    assert isinstance(ended.exception, CmssparkError) and ended.exception.exit_code == 66
    assert "--month 2026-01" in str(ended.exception.next_step)


def test_plot_writes_every_picture_as_png_and_svg(store: str, tmp_path: Path) -> None:
    ended = run("report", "--date", "2026-01-07", "--fout", store, "--pictures", str(tmp_path))
    paths = [Path(line) for line in ended.stdout.splitlines()]
    assert {path.name for path in paths} == {
        f"2026-01-07-{name}.{ending}"
        for name in ("datasets", "sites", "trend", "heat", "remote", "cpu")
        for ending in ("svg", "png")
    }
    for path in paths:
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG\r\n" if path.suffix == ".png" else b"<svg xmlns=")
        if path.suffix == ".png":
            width = int.from_bytes(content[16:20], "big")
            assert width >= 1_200
            # Glyphs and bars: a white picture packs to a few kB.
            assert len(content) > 8_000
    assert not [
        p
        for p in paths
        if b"http://" in p.read_bytes().replace(b"http://www.w3.org/2000/svg", b"")
    ]
    one = run(
        "report",
        "--picture",
        "heat",
        "--week",
        "2026-W02",
        "--fout",
        store,
        "--pictures",
        str(tmp_path),
        "--format",
        "svg",
    )
    assert one.stdout.splitlines() == [str(tmp_path / "2026-W02-heat.svg")]


def test_plot_says_which_pictures_there_are(store: str, tmp_path: Path) -> None:
    for words, found in (
        (["--picture", "cats"], "datasets"),
        (["dbs_events"], "data_aggregation"),
    ):
        ended = run(
            "report", *words, "--date", "2026-01-07", "--fout", store, "--pictures", str(tmp_path)
        )
        assert isinstance(ended.exception, CmssparkError) and ended.exception.exit_code == 2
        assert found in str(ended.exception)
    (tmp_path / "file").touch()
    ended = run(
        "report", "--date", "2026-01-07", "--fout", store, "--pictures", str(tmp_path / "file")
    )
    assert isinstance(ended.exception, CmssparkError) and ended.exception.exit_code == 73


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    hostile = "/A<img src=x onerror=alert(1)>/<script>/AOD"
    partials = HISTORY.partials(FIRST, _schema())
    names = partials["dataset_name"].to_pylist()
    store_day(
        HISTORY, str(tmp_path), KEY.key_id, FIRST, _renamed(partials, [hostile] * len(names))
    )
    page = page_of(str(tmp_path), tmp_path, "--date", str(FIRST))
    assert "<img" not in page and "<script" not in page and "&lt;script&gt;" in page


def _schema() -> Any:
    from cmsspark.base.schemas import stored_table

    return stored_table("partials")


def _renamed(partials: Any, names: list[str]) -> Any:
    import pyarrow as pa

    position = partials.column_names.index("dataset_name")
    return partials.set_column(position, "dataset_name", pa.array(names))


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_it_without_overflow_or_errors(
    store: str, tmp_path: Path, chromium: Browser, width: int, scheme: Any
) -> None:
    page_of(store, tmp_path, "--date", "2026-01-07")
    with chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme) as view:
        errors: list[str] = []
        view.on("console", lambda message: errors.append(message.text))
        view.on(
            "request",
            lambda request: (
                errors.append(request.url) if not request.url.startswith("file:") else None
            ),
        )
        view.goto(f"file://{tmp_path}/page.html", timeout=PATIENCE_MS)
        assert view.evaluate(
            "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        )
        sizes = view.evaluate(
            "[...document.querySelectorAll('svg.chart')].map(e => e.getBoundingClientRect().width)"
        )
        assert len(sizes) == 6 and min(sizes) >= 250
        # A table that is wider than the page scrolls inside its own box.
        boxes = view.evaluate(
            "[...document.querySelectorAll('.scroll')].map(e => getComputedStyle(e).overflowX)"
        )
        assert set(boxes) == {"auto"}
        assert errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_accessible(counted: Path, chromium: Browser, scheme: Any) -> None:
    """As axe checks it: names, contrasts, headings, keyboards. The page of a counted
    day has all its tables.
    """
    with chromium.new_context(
        bypass_csp=True, color_scheme=scheme, viewport={"width": 390, "height": 800}
    ) as context:
        view = context.new_page()
        view.goto(f"file://{counted}", timeout=PATIENCE_MS)
        (script,) = (TOP / "tests" / "apps" / "dashboard").glob("axe-*.js")
        view.evaluate(script.read_text(encoding="utf-8"))
        found = view.evaluate("axe.run()")["violations"]
        assert [(entry["id"], entry["nodes"][0]["html"]) for entry in found] == []


def test_on_paper_it_is_a_few_pages(store: str, tmp_path: Path, chromium: Browser) -> None:
    page_of(store, tmp_path, "--date", "2026-01-07")
    with chromium.new_page() as view:
        view.goto(f"file://{tmp_path}/page.html", timeout=PATIENCE_MS)
        pdf = view.pdf(format="A4", print_background=True)
        view.emulate_media(media="print", color_scheme="dark")
        assert (
            view.evaluate("getComputedStyle(document.body).backgroundColor")
            == "rgb(255, 255, 255)"
        )
    assert pdf.startswith(b"%PDF-") and len(pdf) > 20_000
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 4


def test_words_for_intervals() -> None:
    from cmsspark.pages.pictures import format_when

    assert format_when(Period(date(2026, 1, 1), date(2026, 2, 1))) == "in January 2026"
    assert (
        format_when(Period(date(2026, 1, 30), date(2026, 2, 3)))
        == "from 30 January 2026 to 2 February 2026"
    )
