"""Pages of suites, each one HTML file without scripts: Results, Trend, Hosts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from cmsspark.apps.monitor.growth import LEAST_SIZES
from cmsspark.apps.monitor.processes_roles import ROLES
from cmsspark.apps.monitor.suite_charts import lines
from cmsspark.apps.monitor.suite_file import ALL, size_text
from cmsspark.apps.monitor.suite_results import SuiteResult
from cmsspark.apps.monitor.suite_scaling import scaling
from cmsspark.base import clock
from cmsspark.base.text.plurals import number_of
from cmsspark.base.text.readable import readable
from cmsspark.base.text.terminal import volume
from cmsspark.pages.page import document
from cmsspark.store.process_samples import ProcessSample, WatchedRun

#: Processes that the page of results draws.
_TOP: Final = 10
_NOTHING: Final = "–"


def results_page(result: SuiteResult, samples: Sequence[ProcessSample], others: Sequence[SuiteResult] = ()) -> str:
    """Return a run of a suite: maxima by step and role, memory and CPU over time, the largest processes.

    ``others``: the runs of the same release with other input sizes.
    """
    run = result.run
    body = [_head(f"Results of {run.suite}", _about(run)), _section("Steps", _steps(result))]
    body.append(_section("Maximum by step and role", _maxima(result), "Sums over processes at one time on one host."))
    for name, title in (("rss_bytes", "Resident memory by role"), ("cpu_percent", "CPU by role, % of one core")):
        number = _volume if name == "rss_bytes" else lambda value: f"{value:.0f} %"
        chart = lines(_by_role(samples, name, run.start_ms), what=title, number=number, bands=_bands(result))
        body.append(_section(f"{title}, over time", chart.svg()))
    top = lines(_top(samples, run.start_ms), what="Resident memory", number=_volume, bands=_bands(result))
    body.append(_section("Top processes over time", top.svg(), "The processes with the most resident memory."))
    if len(others) > 1:
        body.append(_section("By input size", scaling_table(others)))
    return document(f"Results of {run.suite}", "\n".join(body))


def trend_page(suite: str, results: Sequence[SuiteResult]) -> str:
    """Return a trend over all runs of a suite, the oldest first: resident memory, CPU and time of each step."""
    body = [_head(f"Trend of {suite}", number_of(len(results), "run"))]
    steps = list(dict.fromkeys(step.name for result in results for step in result.steps))
    for title, number in (("Resident memory at most", _volume), ("Seconds", lambda value: f"{value:.1f} s")):
        series: dict[str, list[tuple[float, float]]] = {}
        for step in steps:
            points = []
            for index, result in enumerate(results, 1):
                maxima = result.maxima.get((step, ALL))
                value = result.seconds(step) if title == "Seconds" else maxima and maxima.rss_bytes
                if value:
                    points.append((float(index), float(value)))
            series[step] = points
        chart = lines(series, what=title, number=number, x_number=lambda x: f"run {x:.0f}", with_points=True)
        body.append(_section(title, chart.svg()))
    rows = []
    for index, result in enumerate(results, 1):
        run = result.run
        worst = max((maxima.rss_bytes for (_, role), maxima in result.maxima.items() if role == ALL), default=None)
        seconds = None if run.end_ms is None else f"{(run.end_ms - run.start_ms) / 1000:,.1f}"
        size = None if run.input_size is None else size_text(run.input_size)
        rows.append((index, run.run, run.release, size, clock.to_second(run.start_ms), seconds,
                     _volume(worst) if worst is not None else None, run.status))  # fmt: skip
    heads = ("", "run", "release", "size", "started (UTC)", "seconds", "resident", "status")
    body.append(_section("Runs", _table(heads, rows, (1, 2, 4, 7))))
    return document(f"Trend of {suite}", "\n".join(body))


def hosts_page(samples: Iterable[ProcessSample], now_ms: int, this_host: Sequence[tuple[str, str]]) -> str:
    """Return the nodes as they were seen last: processes, memory and CPU by role; ``this_host``: facts on this one."""
    latest: dict[str, list[ProcessSample]] = defaultdict(list)
    for sample in samples:
        if latest[sample.host] and sample.time_ms > latest[sample.host][0].time_ms:
            latest[sample.host].clear()
        if not latest[sample.host] or sample.time_ms == latest[sample.host][0].time_ms:
            latest[sample.host].append(sample)
    body = [_head("Hosts", f"{len(latest)} hosts, as of {clock.to_second(now_ms)} UTC")]
    body.append(_section("This host", _table(("", ""), this_host, (0, 1))))
    rows = []
    for host, processes in sorted(latest.items()):
        age = max(0, now_ms - processes[0].time_ms) / 1000
        containers = len({one.container for one in processes if one.container})
        for role in ROLES:
            own = [one for one in processes if one.role == role]
            if own:
                rows.append((host, f"{age:,.0f} s ago", role, len(own), containers, *_sums(own)))
    heads = ("host", "seen", "role", "processes", "containers", "CPU %", "resident", "virtual", "open files")
    body.append(_section("Nodes", _table(heads, rows, (0, 1, 2)), "The last sample of each host."))
    return document("Hosts", "\n".join(body))


def _sums(own: Sequence[ProcessSample]) -> tuple[str, str, str, str]:
    return (
        f"{sum(one.cpu_percent or 0 for one in own):,.0f}",
        _volume(sum(one.rss_bytes or 0 for one in own)),
        _volume(sum(one.virtual_bytes or 0 for one in own)),
        f"{sum(one.fds or 0 for one in own):,}",
    )


def scaling_rows(results: Sequence[SuiteResult]) -> list[tuple[str, str, str, str, str, str]]:
    """For each step, role and measure: values by size as text, the law, and what it gives for ten times the size."""
    largest = max((result.run.input_size or 0 for result in results), default=0)
    rows = []
    for one in scaling(results):
        show = _volume if one.measure == "resident" else _seconds
        text = ", ".join(f"{size_text(size)}: {show(value)}" for size, value in one.points)
        law = str(one.growth) if one.growth else f"needs {LEAST_SIZES} sizes"
        at = show(one.growth.at(10 * largest)) if one.growth and one.growth.is_clear else _NOTHING
        rows.append((one.step, one.role, one.measure, text, law, at))
    return rows


def _seconds(value: float) -> str:
    return f"{value:.1f} s"


SCALING_HEADINGS: Final = ("step", "role", "measure", "by size", "grows as", "at 10 × the largest")


def scaling_table(results: Sequence[SuiteResult]) -> str:
    """Return the laws as a table, and the curves of resident memory."""
    series: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for result in results:
        for (step, role), maxima in result.maxima.items():
            if role == ALL and result.run.input_size:
                series[step].append((result.run.input_size, float(maxima.rss_bytes)))
    chart = lines(series, what="Resident memory by size", number=_volume, x_number=size_text, with_points=True)
    return _table(SCALING_HEADINGS, scaling_rows(results), (0, 1, 2, 3, 4)) + chart.svg()


def _volume(size: float) -> str:
    return volume(size) or _NOTHING


def _about(run: WatchedRun) -> str:
    size = f", size {size_text(run.input_size)}" if run.input_size else ""
    return (
        f"run {run.run}, release {run.release}{size}, {run.status}, {clock.to_second(run.start_ms)} UTC on {run.host}"
    )


def _bands(result: SuiteResult) -> list[tuple[str, float, float]]:
    start = result.run.start_ms
    end = result.run.end_ms or start
    return [(one.name, (one.begin_ms - start) / 1000, ((one.end_ms or end) - start) / 1000) for one in result.steps]


def _steps(result: SuiteResult) -> str:
    rows = [(one.name, None if one.seconds is None else f"{one.seconds:,.1f}", one.exit_code) for one in result.steps]
    return _table(("step", "seconds", "exit code"), rows)


def _maxima(result: SuiteResult) -> str:
    rows = [
        (step, role, one.processes, f"{one.cpu_percent:,.0f}", _volume(one.virtual_bytes), _volume(one.rss_bytes),
         None if one.pss_bytes is None else _volume(one.pss_bytes))
        for (step, role), one in result.maxima.items()
    ]  # fmt: skip
    return _table(("step", "role", "processes", "CPU %", "virtual", "resident", "proportional"), rows, (0, 1))


def _by_role(samples: Iterable[ProcessSample], name: str, start_ms: int) -> dict[str, list[tuple[float, float]]]:
    """Role, and host where there are several → (seconds, sum over its processes)."""
    rows = list(samples)
    several = len({one.host for one in rows}) > 1
    sums: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    for one in rows:
        label = f"{one.role} {one.host}" if several else one.role
        sums[label][(one.time_ms - start_ms) / 1000] += getattr(one, name) or 0
    order = list(ROLES)
    # Where a role has no process its sum is nothing: a line across would be wrong.
    times = sorted({(one.time_ms - start_ms) / 1000 for one in rows})
    return {
        label: [(time, values.get(time, 0.0)) for time in times] if not several else sorted(values.items())
        for label, values in sorted(sums.items(), key=lambda entry: order.index(entry[0].partition(" ")[0]))
    }


def _top(samples: Iterable[ProcessSample], start_ms: int) -> dict[str, list[tuple[float, float]]]:
    found: dict[tuple[str, int, int], list[tuple[float, float]]] = defaultdict(list)
    names: dict[tuple[str, int, int], str] = {}
    for one in samples:
        key = (one.host, one.pid, one.create_ms)
        found[key].append(((one.time_ms - start_ms) / 1000, float(one.rss_bytes or 0)))
        names[key] = f"{one.pid} {one.role}"
    largest = sorted(found, key=lambda key: -max(value for _, value in found[key]))[:_TOP]
    return {names[key]: found[key] for key in largest}


def _head(title: str, about: str) -> str:
    return f"<h1>{_text(title)}</h1><p>{_text(about)}</p>"


def _section(title: str, content: str, about: str = "") -> str:
    intro = f"<p>{_text(about)}</p>" if about else ""
    return f"<section><h2>{_text(title)}</h2>{intro}{content}</section>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]], text: Sequence[int] = (0,)) -> str:
    def line(tag: str, cells: Sequence[object]) -> str:
        return "".join(
            f"<{tag}{' class=text' if i in text else ''}>{_NOTHING if cell is None else _text(cell)}</{tag}>"
            for i, cell in enumerate(cells)
        )

    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    head = f"<thead><tr>{line('th', heads)}</tr></thead>" if any(heads) else ""
    return f'<div class="scroll" tabindex="0"><table>{head}<tbody>{body}</tbody></table></div>'


def _text(value: object) -> str:
    return escape(readable(str(value), lines=False))
