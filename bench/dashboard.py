"""How quick the dashboard is in a real Chromium: first view, filters, datasets; one person and eight at once.

``python -m bench.dashboard STORE`` starts the dashboard over a store (``cmsspark demo --days 365``), opens its pages
with addresses that were not asked before, and prints medians and 95th percentiles beside the limits, the processor time
that the server takes for a page (which other programs of the machine change little), the peak of the server's memory,
and the same questions asked of the stored tables without rollups.
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
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psutil

from cmsspark.query.database import Database

CHROMIUM = "/usr/bin/chromium"
#: Limits in ms for one person; for eight at once they are twice as long.
LIMITS = {"first view": 1_000, "filter": 300, "dataset": 500}


@dataclass
class Server:
    """A running dashboard: its address, its process, and the peak of its memory in bytes."""

    address: str
    process: subprocess.Popen[str]
    built_s: float
    peak: int = 0
    is_over: threading.Event = field(default_factory=threading.Event)

    @property
    def cpu_s(self) -> float:
        """The processor time that it has taken."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def watch(self) -> None:
        """Sample the memory until the end."""
        own = psutil.Process(self.process.pid)
        while not self.is_over.wait(0.05):
            with suppress(psutil.Error):
                self.peak = max(self.peak, own.memory_info().rss)


@contextmanager
def server(store: Path, cache: Path) -> Iterator[Server]:
    """The dashboard over a store, with its rollups loaded."""
    settings = cache / "cmsspark.yaml"
    cache.mkdir(parents=True, exist_ok=True)
    settings.write_text(f"cache_dir: {cache}\nstate_dir: {cache}/state\n", encoding="utf-8")
    words = ["dashboard", "--port", "0", "--fout", str(store), "--settings", str(settings)]
    call = [sys.executable, "-c", "from cmsspark.cli import main; main()", *words]
    began = time.monotonic()
    process = subprocess.Popen(call, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    address = ""
    for line in process.stderr:
        if line.startswith("dashboard of"):
            address = line.split()[-1].rpartition("/")[0]
            break
    threading.Thread(target=lambda: [None for _ in process.stderr or ()], daemon=True).start()
    while True:
        try:
            with urllib.request.urlopen(f"{address}/dataset") as answer:
                answer.read()
            break
        except OSError:
            time.sleep(0.5)
    running = Server(address, process, time.monotonic() - began)
    threading.Thread(target=running.watch, daemon=True).start()
    try:
        yield running
    finally:
        running.is_over.set()
        process.terminate()
        process.wait(timeout=60)


async def new_page(browser: Any) -> Any:
    """A page of a new visitor. Eight at once wait long for a machine of two cores."""
    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(120_000)
    return await context.new_page()


async def drawn(page: Any) -> None:
    """Wait until the charts of the page are drawn."""
    await page.wait_for_selector("html[data-drawn]", state="attached")


async def first_view(browser: Any, address: str) -> float:
    """Milliseconds until a new visitor sees a page with its charts."""
    page = await new_page(browser)
    began = time.perf_counter()
    await page.goto(address)
    await drawn(page)
    took = time.perf_counter() - began
    await page.context.close()
    return 1000 * took


async def filters(browser: Any, address: str, choices: list[tuple[str, str]]) -> list[float]:
    """Milliseconds from each choice in the form until the page shows it with its charts."""
    page = await new_page(browser)
    await page.goto(address)
    await drawn(page)
    times = []
    for name, value in choices:
        began = time.perf_counter()
        async with page.expect_response(lambda answer: "/popularity?" in answer.url):
            await page.select_option(f"#c-{name}", value)
        await page.wait_for_selector("main:not(.busy)")
        await page.wait_for_selector(f'main #c-{name} option[value="{value}"]:checked', state="attached")
        times.append(1000 * (time.perf_counter() - began))
    await page.context.close()
    return times


def line(name: str, times: list[float], limit: float, cpu_s: float) -> str:
    """A line of the result; ``cpu_s``: what the server took for all of them."""
    ordered = sorted(times)
    high = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    word = "yes" if statistics.median(ordered) <= limit else "NO"
    shares = f"{statistics.median(ordered):>10.0f}{high:>10.0f}{limit:>10.0f}{1000 * cpu_s / len(times):>14.0f}"
    return f"{name:<28}{len(times):>5}{shares}   {word}"


async def eight(make: Callable[[int], Awaitable[list[float]]]) -> tuple[list[float], int]:
    """The times of eight visitors at once, and how many of them gave up after two minutes: their browser needs the
    processors, too.
    """
    from playwright.async_api import Error

    ended = await asyncio.gather(*(make(n) for n in range(8)), return_exceptions=True)
    times = [one for visit in ended if not isinstance(visit, BaseException) for one in visit]
    gave_up = [visit for visit in ended if isinstance(visit, BaseException)]
    for error in gave_up:
        if not isinstance(error, Error) or not times:
            raise error
    return times, len(gave_up)


async def measure(running: Server, year: dict[str, str], datasets: list[str], repeat: int) -> None:
    """Print the table of one person, then of eight at once. No address is asked twice."""
    from playwright.async_api import async_playwright

    tiers, sites = ["AOD", "MINIAODSIM", "RAW", "AODSIM", "RECO", "MINIAOD"], ["T2", "T1", "T3"]
    combinations = list(product(["aaa", "cmssw", "condor", "eos"], sites, tiers, ["nacc", "read_bytes", "users"]))

    def popularity(**more: str) -> str:
        return f"{running.address}/popularity?{urlencode({**year, **more})}"

    def choices(visitor: int) -> list[tuple[str, str]]:
        own = combinations[visitor * 8 : visitor * 8 + 8]
        order = ("stream", "site_tier", "measure")
        return [
            (name, dict(zip(("stream", "site_tier", "tier", "measure"), one, strict=True))[name])
            for one in own[::4]
            for name in order
        ]

    print(f"{'':<28}{'n':>5}{'median':>10}{'95 %':>10}{'limit':>10}{'server CPU':>14}   within; all in ms")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        before = running.cpu_s
        views = [await first_view(browser, popularity(top=str(20 + n))) for n in range(repeat)]
        print(line("first view", views, LIMITS["first view"], running.cpu_s - before))
        before = running.cpu_s
        chosen = [
            one
            for n in range(max(1, repeat // 4))
            for one in await filters(browser, popularity(top=str(60 + n)), choices(n))
        ]
        print(line("filter", chosen, LIMITS["filter"], running.cpu_s - before))
        before = running.cpu_s
        names = datasets[:repeat]
        pages = [
            await first_view(browser, f"{running.address}/dataset?{urlencode({**year, 'name': name})}")
            for name in names
        ]
        print(line("dataset", pages, LIMITS["dataset"], running.cpu_s - before))

        async def visit(n: int) -> list[float]:
            return [await first_view(browser, popularity(top=str(100 + n)))]

        async def choose(n: int) -> list[float]:
            return await filters(browser, popularity(top=str(120 + n)), choices(8 + n))

        async def look(n: int) -> list[float]:
            own = datasets[repeat + n :: 8][:3]
            return [
                await first_view(browser, f"{running.address}/dataset?{urlencode({**year, 'name': name})}")
                for name in own
            ]

        for name, make in (("first view", visit), ("filter", choose), ("dataset", look)):
            before = running.cpu_s
            times, gave_up = await eight(make)
            print(line(f"{name}, eight at once", times, 2 * LIMITS[name], running.cpu_s - before))
            if gave_up:
                print(f"  {gave_up} of 8 gave up")
        await browser.close()


def raw(store: Path, year: dict[str, str]) -> float:
    """Seconds of the first view's questions over the stored tables themselves."""
    with Database(str(store)) as database:
        database.query("SELECT 1")
        began = time.perf_counter()
        days = [year["from"], year["to"]]
        where = "FROM partials WHERE day BETWEEN ?::DATE AND ?::DATE"
        database.query(f"SELECT stream, date_trunc('week', day), sum(nacc) {where} GROUP BY ALL", days)
        database.query(f'SELECT count(DISTINCT "user"), sum(nacc), sum(read_bytes) {where}', days)
        database.query(
            f'SELECT dataset_name, sum(nacc) AS n, count(DISTINCT "user") {where} GROUP BY 1 ORDER BY n DESC', days
        )
        return time.perf_counter() - began


def main() -> None:
    """Measure the store of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--cache", type=Path, help="where rollups are kept; by default they are built anew")
    parser.add_argument("--repeat", type=int, default=20)
    chosen = parser.parse_args()
    with Database(str(chosen.store)) as database:
        stored = database.days("partials")
        last = stored[-1]
        first = max(stored[0], last - timedelta(days=364))
        rows = database.query(
            "SELECT dataset_name FROM data_aggregation WHERE day = ? GROUP BY 1 ORDER BY sum(nacc) DESC LIMIT 200",
            [last],
        )
        names = [row[0] for row in rows.rows]
    year = {"from": first.isoformat(), "to": last.isoformat()}
    with (
        tempfile.TemporaryDirectory(prefix="cmsspark-bench-") as folder,
        server(chosen.store, chosen.cache or Path(folder)) as running,
    ):
        print(f"{len(stored)} days, {first} to {last}; rollups built and loaded in {running.built_s:.0f} s")
        began = time.perf_counter()
        with urllib.request.urlopen(f"{running.address}/popularity?{urlencode(year)}") as answer:
            answer.read()
        quick = time.perf_counter() - began
        asyncio.run(measure(running, year, names, chosen.repeat))
        print(f"memory of the server, at its peak: {running.peak / 1e6:,.0f} MB (limit 1,000 MB)")
    scan = raw(chosen.store, year)
    ratio = f"{scan / quick:.0f} times the page's {quick:.2f} s"
    print(f"the first view's questions over the stored tables: {scan:.1f} s, {ratio}")


if __name__ == "__main__":
    main()
