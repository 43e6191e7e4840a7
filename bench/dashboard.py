"""How quick the dashboard is in a real Chromium: first view, filters, datasets; one
person and eight at once.

``python -m bench.dashboard STORE`` starts the dashboard over a store (``cmsspark demo
--days 365``), opens its pages with addresses that were not asked before, and prints
medians and 95th percentiles beside the limits, the processor time that the server and
the browser take for a page (which other programs of the machine change little), the
peak of the server's memory, and the same questions asked of the stored tables without
rollups. The last lines are the server's answers to eight people whose browsers run on
other machines.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psutil

from cmsspark.apps.dashboard import registry
from cmsspark.store.query.database import Database

CHROMIUM = "/usr/bin/chromium"
#: Limits in ms for one person; for eight at once they are twice as long.
LIMITS = {"first view": 500, "filter": 300, "dataset": 500, "page": 500, "sql": 500}
VISITORS = 8
#: Choose a value in the form; what it was, and the milliseconds until the page says
#: that it is up to date and its next frame is drawn.
_CHOOSE = """([id, value]) => new Promise((resolve) => {
  const box = `input[name="${id}"][value="${value}"]`;
  const find = () => document.getElementById(`c-${id}`) || document.querySelector(box);
  const chosen = () => (find().type !== "checkbox" || find().checked ? find().value : "");
  const began = performance.now();
  new MutationObserver((changes, observer) => {
    observer.disconnect();
    const shown = () => [chosen(), performance.now() - began];
    requestAnimationFrame(() => setTimeout(() => resolve(shown())));
  }).observe(document.getElementById("announce"), { childList: true });
  const field = find();
  if (field.type === "checkbox") {
    const others = field.form.querySelectorAll(`input[name="${id}"]`);
    others.forEach((one) => { one.checked = one === field; });
  } else field.value = value;
  field.dispatchEvent(new Event("change", { bubbles: true }));
})"""
#: What the visitor with a number does with some new pages; returns the milliseconds of each step.
Visit = Callable[[int, Sequence[Any]], Awaitable[list[float]]]


@dataclass
class Server:
    """A running dashboard: its address, its process, the time that the rollups took,
    and the peaks of the memory of all its processes in bytes, with and without the
    files that they map, whose memory the system can take back.
    """

    address: str
    process: subprocess.Popen[str]
    built_s: float
    built_cpu_s: float = 0.0
    peak: int = 0
    own_peak: int = 0
    is_over: threading.Event = field(default_factory=threading.Event)
    is_built: bool = False

    @property
    def cpu_s(self) -> tuple[float, float]:
        """The processor time that it has taken, and that of all processes of the
        browser, ended ones too.
        """
        times = psutil.Process(self.process.pid).cpu_times()
        browser = 0.0
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                if "chrom" in process.name():
                    browser += sum(process.cpu_times()[:4])
        return float(times.user + times.system), browser

    def watch(self) -> None:
        """Sample the memory until the end."""
        server = psutil.Process(self.process.pid)
        ended = 0.0
        while not self.is_over.wait(0.1):
            with suppress(psutil.Error):
                processes = [server, *server.children(recursive=True)]
                sizes = [process.memory_info() for process in processes]
                self.peak = max(self.peak, sum(size.rss for size in sizes))
                self.own_peak = max(self.own_peak, sum(size.rss - size.shared for size in sizes))
                times = server.cpu_times()
                ended = times.user + times.system + times.children_user + times.children_system
                running = sum(sum(process.cpu_times()[:2]) for process in processes[1:])
                if not self.is_built:
                    self.built_cpu_s = max(self.built_cpu_s, ended + running)


@contextmanager
def server(store: Path, cache: Path) -> Iterator[Server]:
    """The dashboard over a store, with its rollups loaded."""
    settings = cache / "cmsspark.yaml"
    cache.mkdir(parents=True, exist_ok=True)
    settings.write_text(f"cache_dir: {cache}\nstate_dir: {cache}/state\n", encoding="utf-8")
    words = ["dashboard", "--port", "0", "--fout", str(store), "--settings", str(settings)]
    call = [sys.executable, "-c", "from cmsspark.main import main; main()", *words]
    began = time.monotonic()
    process = subprocess.Popen(call, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    address = ""
    for line in process.stderr:
        if line.startswith("dashboard of"):
            address = line.split()[-1].rpartition("/")[0]
            break
    threading.Thread(target=lambda: [None for _ in process.stderr or ()], daemon=True).start()
    running = Server(address, process, 0.0)
    threading.Thread(target=running.watch, daemon=True).start()
    while not _is_complete(address):
        time.sleep(2)
    running.built_s, running.is_built = time.monotonic() - began, True
    try:
        yield running
    finally:
        running.is_over.set()
        process.terminate()
        process.wait(timeout=60)


def _is_complete(address: str) -> bool:
    """Whether the pages have all days: none says that it will load itself again."""
    try:
        with urllib.request.urlopen(f"{address}/dataset") as answer:
            return b"data-refresh=" not in answer.read()
    except OSError:
        return False


async def new_page(browser: Any) -> Any:
    """A page of a new visitor. Eight at once wait long for a machine of two cores."""
    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(120_000)
    return await context.new_page()


async def at_rest(running: Server) -> None:
    """Wait until the browser has started its windows: what they take is no part of a page."""
    spent, before = 1.0, running.cpu_s[1]
    while spent > 0.02:
        await asyncio.sleep(0.5)
        now = running.cpu_s[1]
        spent, before = now - before, now


async def first_view(page: Any, address: str) -> float:
    """Milliseconds until a visitor sees a page with its charts."""
    began = time.perf_counter()
    await page.goto(address)
    await page.wait_for_selector("html[data-drawn]", state="attached")
    return 1000 * (time.perf_counter() - began)


async def filters(page: Any, address: str, choices: Sequence[tuple[str, str]]) -> list[float]:
    """Milliseconds from each choice in the form until the page shows it with its charts."""
    await first_view(page, address)
    times = []
    for name, value in choices:
        shown, took = await page.evaluate(_CHOOSE, [name, value])
        if shown != value:
            raise ValueError(
                f"the page shows {shown!r} where {name} was to be {value!r}: {page.url}"
            )
        times.append(float(took))
    return times


@dataclass(frozen=True)
class Visits:
    """The addresses of visits, none of them twice. ``tiers`` and ``streams``: values of filters."""

    address: str
    year: dict[str, str]
    datasets: Sequence[str]
    tiers: Sequence[str]
    streams: Sequence[str]
    sites: Sequence[str]

    def popularity(self, **choices: str) -> str:
        """The page that people begin with."""
        return f"{self.address}/popularity?{urlencode({**self.year, **choices})}"

    def first(self, number: int) -> str:
        """The same to another day, so that it was not asked before."""
        return self.page("popularity", number)

    def dataset(self, number: int) -> str:
        """The page of a dataset."""
        return f"{self.address}/dataset?{urlencode({**self.year, 'name': self.datasets[number]})}"

    def page(self, name: str, number: int) -> str:
        """Return a page of another period, so that it was not asked before."""
        last = (date.fromisoformat(self.year["to"]) - timedelta(days=number)).isoformat()
        return f"{self.address}/{name}?{urlencode({**self.year, 'to': last})}"

    def site(self, number: int) -> str:
        """Return the page of a site."""
        return f"{self.address}/sites?{urlencode({**self.year, 'site': self.sites[number]})}"

    def sql(self, number: int) -> str:
        """Return the page of a query over the newest month."""
        where = f"WHERE day > DATE '{self.year['to']}' - 30"
        sql = f"SELECT stream, sum(accesses) + {number} FROM data_aggregation {where} GROUP BY 1"
        return f"{self.address}/sql?{urlencode({'q': sql})}"

    def choices(self, visitor: int) -> tuple[str, list[tuple[str, str]]]:
        """Where a visitor begins, and what is chosen then: two streams of a data tier,
        which no other visitor has.
        """
        turn, tier = divmod(visitor, len(self.tiers))
        first, second = self.streams[2 * turn : 2 * turn + 2]
        following = [
            ("site_tier", "T2"),
            ("measure", "users"),
            ("stream", second),
            ("site_tier", "T1"),
            ("step", "month"),
        ]
        return self.popularity(data_tier=self.tiers[tier]), [("stream", first), *following]

    def filtered(self, visitor: int) -> list[str]:
        """The addresses of the same choices, one after the other."""
        tier = self.tiers[visitor % len(self.tiers)]
        chosen: dict[str, str] = {"data_tier": tier}
        addresses = []
        for name, value in self.choices(visitor)[1]:
            chosen[name] = value
            addresses.append(self.popularity(**chosen))
        return addresses


class Table:
    """The printed table of one browser and a running server."""

    def __init__(self, running: Server, browser: Any) -> None:
        self._running = running
        self._browser = browser
        heads = f"{'median':>10}{'95 %':>10}{'limit':>10}{'server CPU':>12}{'browser CPU':>13}"
        print(f"{'':<28}{'n':>5}{heads}   within; all in ms")

    async def add(self, name: str, visitors: int, pages: int, visit: Visit) -> None:
        """Add the line of visitors at once, each with some new pages. Processor times
        are those of a timed step; the windows are opened before.
        """
        from playwright.async_api import Error

        windows = [[await new_page(self._browser) for _ in range(pages)] for _ in range(visitors)]
        await at_rest(self._running)
        before = self._running.cpu_s
        visits = (visit(number, own) for number, own in enumerate(windows))
        ended = await asyncio.gather(*visits, return_exceptions=True)
        after = self._running.cpu_s
        times = sorted(
            one for result in ended if not isinstance(result, BaseException) for one in result
        )
        gave_up = [result for result in ended if isinstance(result, Error)]
        for error in (result for result in ended if isinstance(result, BaseException)):
            if error not in gave_up or not times:
                raise error
        for page in (page for own in windows for page in own):
            await page.context.close()
        self._line(name, visitors, times, before, after)
        for error in gave_up:
            print(f"  one of {visitors} gave up: {' '.join(str(error).split())[:160]}")

    def ask(self, name: str, addresses_of_people: Sequence[Sequence[str]]) -> None:
        """Add the line of people at once who ask for some addresses each, without a
        browser: until the last byte.
        """

        def answer(address: str) -> float:
            began = time.perf_counter()
            with urllib.request.urlopen(address) as stream:
                stream.read()
            return 1000 * (time.perf_counter() - began)

        before = self._running.cpu_s
        with ThreadPoolExecutor(len(addresses_of_people)) as people:
            answers = list(
                people.map(
                    lambda addresses: [answer(address) for address in addresses],
                    addresses_of_people,
                )
            )
        times = sorted(one for own in answers for one in own)
        self._line(name, len(addresses_of_people), times, before, self._running.cpu_s)

    def _line(
        self,
        name: str,
        visitors: int,
        times: Sequence[float],
        before: Sequence[float],
        after: Sequence[float],
    ) -> None:
        limit = LIMITS[name.partition(",")[0]] * min(visitors, 2)
        median, high = statistics.median(times), times[min(len(times) - 1, int(0.95 * len(times)))]
        server, browser = (
            1000 * (end - begin) / len(times) for begin, end in zip(before, after, strict=True)
        )
        figures = f"{len(times):>5}{median:>10.0f}{high:>10.0f}{limit:>10}{server:>12.0f}{browser:>13.0f}"
        print(f"{name:<28}{figures}   {'yes' if median <= limit else 'NO'}", flush=True)


async def measure(running: Server, visits: Visits, repeat: int) -> None:
    """Print the table of one person, then of eight at once. No address is asked twice."""
    from playwright.async_api import async_playwright

    alone = min(VISITORS, max(1, repeat // 4))

    def opening(address: Callable[[int], str], start: int, visitors: int) -> Visit:
        async def visit(number: int, pages: Sequence[Any]) -> list[float]:
            return [
                await first_view(page, address(start + number + n * visitors))
                for n, page in enumerate(pages)
            ]

        return visit

    def going_on(start: int, count: int, visitors: int) -> Visit:
        async def visit(number: int, pages: Sequence[Any]) -> list[float]:
            await first_view(pages[0], visits.popularity())
            addresses = [visits.dataset(start + number + n * visitors) for n in range(count)]
            return [await first_view(pages[0], address) for address in addresses]

        return visit

    def choosing(start: int) -> Visit:
        async def visit(number: int, pages: Sequence[Any]) -> list[float]:
            times: list[float] = []
            for n, page in enumerate(pages):
                times += await filters(page, *visits.choices(start + number + n))
            return times

        return visit

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        table = Table(running, browser)
        await table.add("first view", 1, repeat, opening(visits.first, 0, 1))
        await table.add("filter", 1, alone, choosing(0))
        await table.add("dataset", 1, 1, going_on(0, repeat, 1))
        await table.add("dataset, new window", 1, repeat, opening(visits.dataset, repeat, 1))
        for name in registry.PAGES:
            await table.add(f"page, {name}", 1, 3, opening(partial(visits.page, name), 0, 1))
        await table.add("page, a site", 1, 3, opening(visits.site, 0, 1))
        await table.add("sql", 1, 3, opening(visits.sql, 0, 1))
        await table.add(
            "first view, eight at once", VISITORS, 1, opening(visits.first, repeat, VISITORS)
        )
        await table.add("filter, eight at once", VISITORS, 1, choosing(alone))
        await table.add("dataset, eight at once", VISITORS, 1, going_on(2 * repeat, 3, VISITORS))
        await browser.close()
    start = 2 * repeat + 3 * VISITORS
    people = range(VISITORS)
    table.ask("first view, eight answers", [[visits.first(start + number)] for number in people])
    table.ask(
        "filter, eight answers", [visits.filtered(alone + VISITORS + number) for number in people]
    )
    table.ask(
        "dataset, eight answers",
        [[visits.dataset(start + VISITORS * n + k) for n in range(3)] for k in people],
    )


def raw(store: Path, year: dict[str, str]) -> float:
    """Seconds of the first view's questions over the stored tables themselves."""
    with Database(str(store)) as database:
        database.query("SELECT 1")
        began = time.perf_counter()
        days = [year["from"], year["to"]]
        where = "FROM partials WHERE day BETWEEN ?::DATE AND ?::DATE"
        database.query(
            f"SELECT stream, date_trunc('week', day), sum(accesses) {where} GROUP BY ALL", days
        )
        database.query(
            f'SELECT count(DISTINCT "user"), sum(accesses), sum(read_bytes) {where}', days
        )
        database.query(
            f'SELECT dataset_name, sum(accesses) AS n, count(DISTINCT "user") {where} GROUP BY 1 ORDER BY n DESC',
            days,
        )
        return time.perf_counter() - began


def contents(store: Path) -> tuple[list[date], list[str], list[str], list[str], list[str]]:
    """The stored days, and what the newest has: the most used datasets, data tiers,
    streams and sites.
    """
    with Database(str(store)) as database:
        days = database.days("partials")
        if not days:
            return [], [], [], [], []

        def names(column: str, count: int) -> list[str]:
            order = f"ORDER BY sum(accesses) DESC LIMIT {count}"
            sql = f"SELECT {column} FROM data_aggregation WHERE day = ? GROUP BY 1 {order}"
            return [row[0] for row in database.query(sql, [days[-1]]).rows]

        tiers = names("split_part(dataset_name, '/', 4)", 12)
        return days, names("dataset_name", 200), tiers, names("stream", 6), names("site_name", 12)


def main() -> None:
    """Measure the store of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("store", type=Path)
    parser.add_argument(
        "--cache", type=Path, help="where rollups are kept; by default they are built anew"
    )
    parser.add_argument("--repeat", type=int, default=20)
    chosen = parser.parse_args()
    stored, datasets, tiers, streams, sites = contents(chosen.store)
    if not stored:
        parser.error(
            f"no day of data_aggregation is stored in {chosen.store}; of `cmsspark demo --out DIR` give DIR/store"
        )
    last = stored[-1]
    first = max(stored[0], last - timedelta(days=364))
    year = {"from": first.isoformat(), "to": last.isoformat()}
    with (
        tempfile.TemporaryDirectory(prefix="cmsspark-bench-") as folder,
        server(chosen.store, chosen.cache or Path(folder)) as running,
    ):
        visits = Visits(running.address, year, datasets, tiers, streams, sites)
        built = f"built and loaded in {running.built_s:.0f} s, {running.built_cpu_s:.0f} s of processor time"
        print(f"{len(stored)} days, {first} to {last}; rollups {built}")
        began = time.perf_counter()
        with urllib.request.urlopen(visits.popularity()) as answer:
            answer.read()
        quick = time.perf_counter() - began
        asyncio.run(measure(running, visits, chosen.repeat))
        own, whole = running.own_peak / 1e6, running.peak / 1e6
    print(
        f"memory of the server at its peak: {own:,.0f} MB, with mapped files {whole:,.0f} MB (limit 600 MB)"
    )
    scan = raw(chosen.store, year)
    ratio = f"{scan / quick:.0f} times the page's {quick:.2f} s"
    print(f"the first view's questions over the stored tables: {scan:.1f} s, {ratio}")


if __name__ == "__main__":
    main()
