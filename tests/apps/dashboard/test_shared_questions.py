"""Questions that pages and ``cmsspark ask`` share: each number beside plain SQL over the
stored Parquet, and the links between both.
"""

from __future__ import annotations

import csv
import html
import io
import json
import re
import shlex
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import duckdb
import pytest
from click.testing import CliRunner

from cmsspark.apps.jobs_cost.feeds import CONDOR, WMARCHIVE
from cmsspark.main import command
from tests.apps.dashboard.conftest import Running, serving
from tests.apps.dashboard.stores import LAST, partial_rows, store_day, store_table
from tests.apps.jobs_cost.cells import count
from tests.corpus import costs, reports
from tests.corpus.jobs import job
from tests.corpus.tree import Tree

SITE = "T2_CH_CERN"
FIRST = LAST - timedelta(days=13)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Fourteen days of use, one of HTCondor's jobs and one of WMArchive's reports."""
    folder = tmp_path_factory.mktemp("questions")
    noon = (LAST - date(1970, 1, 1)).days * 86_400_000 + 43_200_000
    records = [
        job(
            {
                **costs.COSTS,
                "GlobalJobId": str(number),
                "Type": "production",
                "Workflow": f"w{number % 5}",
                "RecordTime": noon,
                "RequestCpus": 4,
                "WallClockHr": 1.0 + number,
                "CpuTimeHr": 2.0,
                "CoreHr": 4.0 + number,
                "CommittedCoreHr": 4.0 + number,
                "CommittedWallClockHr": 1.0,
                "JobFailed": int(number % 3 == 0),
                "Site": (SITE, "T1_US_FNAL")[number % 2],
                "Tier": "T2",
            },
            {"timestamp": noon},
        )
        for number in range(1, 20)
    ]
    Tree(folder, LAST).write_lines("condor", records, parts=1)
    Tree(folder, LAST).write_lines("wmarchive", reports.at_random(3, LAST), parts=1)
    done = count(folder, LAST, folder / "fout", CONDOR)
    count(folder, LAST, folder / "fout", WMARCHIVE)
    store = Path(done.path.split("/job_efficiency/")[0])
    for back in range(14):
        store_day(store, LAST - timedelta(days=back), partial_rows(LAST - timedelta(days=back)))
    copy = {"site_name": SITE, "kind": "disk", "present_bytes": 10**13, "present_file_count": 1}
    replica = {**copy, "dataset_name": "/ZMM/Run2018A-v1/AOD", "present_block_count": 1}
    store_table(
        store, "dbs_phedex", LAST, [{**replica, "is_complete": True, "newest_replica_ms": 1}]
    )
    with serving(store, folder) as running:
        yield running


def plain(served: Running, job_name: str, table: str, sql: str) -> list[tuple[Any, ...]]:
    """Rows of SQL over all stored Parquet files of a table, called ``t``."""
    path = served.store / job_name / "*" / "runs" / "*" / table / "*.parquet"
    return duckdb.sql(sql.replace(" t ", f" read_parquet('{path}') ")).fetchall()


def get(served: Running, address: str) -> bytes:
    """Return the content of a page or download."""
    with urlopen(f"{served.base}/{address}", timeout=60) as answer:
        content: bytes = answer.read()
    return content


def text_of(served: Running, address: str) -> str:
    """Return the text of a page, without its tags."""
    text = html.unescape(re.sub(r"<[^>]*>", " ", get(served, address).decode()))
    return re.sub(r"\s+", " ", text)


def ask(served: Running, *words: str) -> dict[str, Any]:
    """Return the answer of ``cmsspark ask`` as JSON."""
    done = CliRunner().invoke(command, ["ask", *words, "--json", "--fout", str(served.store)])
    assert done.exit_code == 0, done.output
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def csv_rows(served: Running, address: str) -> list[list[str]]:
    """The rows of a download as texts, without the line of names."""
    return list(csv.reader(io.StringIO(get(served, address).decode(), newline="")))[1:]


@pytest.mark.parametrize("key", ["workflow", "site"])
def test_workflows_and_sites_by_wasted_core_hours(served: Running, key: str) -> None:
    expected = plain(
        served,
        "job_efficiency",
        "job_efficiency",
        f"SELECT {key}, sum(CASE outcome WHEN 'ok' THEN core_with_cpu_ms - cpu_ms "
        "WHEN 'outlier' THEN 0 ELSE core_ms END) / 3.6e6 AS wasted, sum(job_count) "
        "FROM t GROUP BY 1 ORDER BY 2 DESC, 1",
    )
    assert len(expected) > 1
    answer = ask(served, "worst", f"{key}s")
    assert [(row[key], row["wasted"], row["jobs"]) for row in answer["rows"]] == [
        (name, pytest.approx(wasted), jobs) for name, wasted, jobs in expected
    ]
    rows = csv_rows(served, f"efficiency?download={key}s&format=csv")
    assert [(row[0], float(row[1])) for row in rows] == [
        (name, pytest.approx(wasted)) for name, wasted, _ in expected
    ]


def test_requests_by_idle_thread_hours_and_agents_by_failed_jobs(served: Running) -> None:
    expected = plain(
        served,
        "step_efficiency",
        "step_efficiency",
        "SELECT request, (sum(thread_ms) - sum(cpu_of_thread_ms)) / 3.6e6, sum(step_count) "
        "FROM t GROUP BY 1 ORDER BY 2 DESC NULLS LAST, 1",
    )
    answer = ask(served, "worst", "requests")
    assert [(row["request"], row["idle"], row["steps"]) for row in answer["rows"]] == [
        (name, None if idle is None else pytest.approx(idle), steps)
        for name, idle, steps in expected
    ]
    assert len(csv_rows(served, "steps?download=requests&format=csv")) == len(expected) > 1
    agents = plain(
        served,
        "step_efficiency",
        "agent_reports",
        "SELECT host, failed_count, report_count FROM t ORDER BY 2 DESC, 1",
    )
    answer = ask(served, "worst", "agents")
    assert [(row["host"], row["failed"], row["reports"]) for row in answer["rows"]] == agents
    rows = csv_rows(served, "steps?download=agents&format=csv")
    assert [(row[0], int(row[1]), int(row[3])) for row in rows] == agents


def test_what_failures_cost_at_a_site(served: Running) -> None:
    expected = plain(
        served,
        "job_efficiency",
        "job_efficiency",
        "SELECT workflow, sum(core_ms) FILTER (outcome IN ('failed', 'removed')) / 3.6e6 AS lost "
        f"FROM t WHERE site = '{SITE}' GROUP BY 1 HAVING lost > 0 ORDER BY 2 DESC, 1",
    )
    rows = csv_rows(served, f"sites?site={SITE}&download=failures&format=csv")
    assert len(expected) > 1
    assert [(row[0], float(row[1])) for row in rows] == [
        (name, pytest.approx(lost)) for name, lost in expected
    ]
    text = text_of(served, f"sites?site={SITE}")
    assert f"Of failed and removed jobs {sum(lost for _, lost in expected):,.0f}" in text


def test_how_concentrated_the_use_of_a_site_is(served: Running) -> None:
    by_person = plain(
        served,
        "data_aggregation",
        "partials",
        f"SELECT sum(nacc) FROM t WHERE site_name = '{SITE}' AND stream <> 'condor' "
        'AND "user" IS NOT NULL GROUP BY "user" ORDER BY 1 DESC',
    )
    counts = [int(row[0]) for row in by_person]
    assert len(counts) > 10
    answer = ask(served, "concentrated", SITE)
    assert answer["days_stored"] and answer["days_stored"] + len(answer["missing_days"]) == 28
    assert answer["people"] == len(counts) and answer["accesses"] == sum(counts)
    share = sum(counts[:10]) / sum(counts)
    assert answer["share_of_ten"] == pytest.approx(share)
    sites = plain(
        served,
        "data_aggregation",
        "partials",
        f"SELECT sum(nacc) FROM t WHERE site_name LIKE '{SITE[:3]}%' AND stream <> 'condor' "
        'AND "user" IS NOT NULL',
    )
    assert ask(served, "concentrated", f"{SITE[:3]}*")["accesses"] == int(sites[0][0])
    # The page reads the partials when the part is opened.
    assert "Share of the" not in text_of(served, f"sites?site={SITE}")
    text = text_of(served, f"sites?site={SITE}&part=people")
    assert f"Share of the 10 heaviest {share:.1%}" in text
    assert f"People {len(counts)}" in text
    assert "key1:" not in text


@pytest.mark.parametrize("by", ["dataset", "site", "stream", "data_tier"])
def test_what_changed_between_two_periods(served: Running, by: str) -> None:
    column = {
        "dataset": "dataset_name",
        "site": "site_name",
        "data_tier": "split_part(dataset_name, '/', 4)",
    }.get(by, by)
    middle = FIRST + timedelta(days=7)
    sums = ", ".join(
        f"coalesce(sum(nacc) FILTER (stream <> 'condor' AND day {sign} '{middle}'), 0)"
        for sign in (">=", "<")
    )
    expected = plain(
        served,
        "data_aggregation",
        "partials",
        f"SELECT {column} AS name, {sums} FROM t GROUP BY 1",
    )
    answer = ask(served, "changed", "--weeks", "1", "--by", by)
    key = next(name for name in (f"{by}_name", by) if name in answer["rows"][0])
    # Hostile names have tiers of their own, which only the derivation of names knows.
    if by != "data_tier":
        assert {
            (row[key], row["nacc_after"], row["nacc_before"]) for row in answer["rows"]
        } == set(expected)
    assert sum(row["difference"] for row in answer["rows"]) == sum(
        now - before for _, now, before in expected
    )
    differences = [abs(row["difference"]) for row in answer["rows"]]
    assert differences == sorted(differences, reverse=True)
    page = csv_rows(served, f"{answer['page'][1:]}&download=compare&format=csv")
    assert next(int(row[1]) for row in page if row[1]) == answer["rows"][0]["difference"]


ANSWERS = (
    ("who-reads", "/ZMM/Run2018A-22Jun2018-v1/AOD"),
    ("reads", SITE),
    ("reads", "T2_*"),
    ("unused", "--site", SITE, "--weeks", "2"),
    ("holdings", "--site", SITE),
    ("changed", "--by", "app", "--weeks", "1"),
    ("concentrated", SITE),
    ("worst", "workflows", "--site", SITE),
    ("worst", "agents"),
)


@pytest.mark.parametrize("words", ANSWERS)
def test_an_answer_has_the_address_of_its_page(served: Running, words: tuple[str, ...]) -> None:
    address = ask(served, *words)["page"]
    assert get(served, address[1:])
    # The text of the answer has it, too.
    done = CliRunner().invoke(command, ["ask", *words, "--fout", str(served.store)])
    assert f"page of cmsspark dashboard: {address}" in done.stdout


def test_pages_say_what_to_type_for_the_same_answer_and_it_is_accepted(served: Running) -> None:
    pages = ("dataset?name=/ZMM/Run2018A-22Jun2018-v1/AOD", f"sites?site={SITE}")
    typed = {
        html.unescape(text)
        for page in (*pages, "compare?by=stream", "efficiency", "steps")
        for text in re.findall(r"<code>(cmsspark ask [^<]*)</code>", get(served, page).decode())
    }
    assert {text.split()[2] for text in typed} >= {
        "who-reads",
        "reads",
        "unused",
        "changed",
        "concentrated",
        "worst",
    }
    for text in typed:
        words = shlex.split(text)[1:]
        done = CliRunner().invoke(command, [*words, "--fout", str(served.store)])
        assert done.exit_code == 0, (text, done.output)
        (line,) = [
            line for line in done.stdout.splitlines() if line.startswith("page of cmsspark")
        ]
        assert parse_qs(urlsplit(line.split(": ", 1)[1]).query)
