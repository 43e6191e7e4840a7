"""Who may see the pages; what foreign names, addresses and pages cannot do. Over real sockets."""

from __future__ import annotations

import gzip
import http.client
import io
import json
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, urlencode

import pyarrow.parquet as pq
import pytest

from cmsspark.apps.dashboard import registry, security
from cmsspark.apps.dashboard.security import Guard
from tests.apps.dashboard import stores
from tests.apps.dashboard.conftest import Running, serving
from tests.apps.dashboard.stores import HOSTILE, LAST

TOKEN = "a-token-of-this-test"


class Attributes(HTMLParser):
    """The names of all attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names |= {name for name, _ in attrs}


def ask(
    running: Running, path: str, method: str = "GET", body: str | None = None, **headers: str
) -> tuple[int, dict[str, str], str]:
    """The status, headers and text of an answer; nothing of the path is rewritten."""
    connection = http.client.HTTPConnection("127.0.0.1", running.server.port, timeout=60)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(
            method, path, body, {"Host": f"localhost:{running.server.port}", **named}
        )
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode(errors="replace")
    finally:
        connection.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A dashboard with a token, behind a prefix and a name."""
    folder = tmp_path_factory.mktemp("guarded")
    stores.store_day(folder / "store", LAST, stores.partial_rows(LAST, count=20))
    with serving(
        folder / "store", folder, token=TOKEN, prefix="/cms/data", names=("monit.example",)
    ) as running:
        yield running


@pytest.mark.parametrize("page", registry.PAGES)
def test_every_page_forbids_inline_scripts_frames_and_guessed_types(
    dashboard: Running, page: str
) -> None:
    status, headers, text = ask(dashboard, f"/{page}")
    policy = headers["Content-Security-Policy"]
    assert status == 200
    assert (
        "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    )
    assert "frame-ancestors 'none'" in policy and headers["X-Frame-Options"] == "DENY"
    assert (
        headers["X-Content-Type-Options"] == "nosniff"
        and headers["Referrer-Policy"] == "no-referrer"
    )
    parser = Attributes()
    parser.feed(text)
    assert parser.names and not [
        name for name in parser.names if name == "style" or name.startswith("on")
    ]
    assert "<script>" not in text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_pages_only_read(dashboard: Running, method: str) -> None:
    for path in ("/popularity", "/static/dashboard.js", "/health"):
        status, headers, _ = ask(dashboard, path, method, "x=1")
        assert status == 405 and headers["Allow"] == "GET, HEAD"


def test_pages_and_tables_are_packed_for_those_who_take_them_so(dashboard: Running) -> None:
    for path in ("/popularity", "/popularity?download=datasets"):
        request = urllib.request.Request(dashboard.base + path)
        with urllib.request.urlopen(request) as answer:
            plain = answer.read()
        request.add_header("Accept-Encoding", "gzip")
        with urllib.request.urlopen(request) as answer:
            assert answer.headers["Content-Encoding"] == "gzip"
            packed = answer.read()
        assert len(gzip.decompress(packed)) == len(plain) > 2 * len(packed)


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "", "[::1].evil"]
)
def test_a_foreign_name_is_refused(dashboard: Running, host: str) -> None:
    """A foreign page whose name was made to lead here (DNS rebinding) reads nothing."""
    status, _, text = ask(dashboard, "/popularity", Host=host)
    assert status == 421 and "Most used datasets" not in text


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:80", "[::1]:9", "LOCALHOST"])
def test_names_of_this_host_are_served(dashboard: Running, host: str) -> None:
    assert ask(dashboard, "/popularity", Host=host)[0] == 200


def test_without_the_token_nothing_is_shown(guarded: Running) -> None:
    for path in (
        "/popularity",
        "/sql?q=select+1",
        "/datasets.json?q=a",
        "/runs",
        "/",
        "/nothing",
        "/runs/a/b/c/report",
    ):
        status, headers, text = ask(guarded, "/cms/data" + path)
        assert status == 401 and "A token is needed" in text and "Set-Cookie" not in headers
    assert ask(guarded, "/cms/data/popularity?token=wrong")[0] == 401
    assert (
        ask(
            guarded,
            "/cms/data/popularity",
            Cookie=f"{guarded.server.services.guard.cookie_name}={TOKEN}",
        )[0]
        == 401
    )


def test_the_token_is_taken_once_and_then_the_cookie(guarded: Running) -> None:
    status, headers, _ = ask(guarded, f"/cms/data/popularity?measure=users&token={TOKEN}")
    assert status == 303 and headers["Location"] == "/cms/data/popularity?measure=users"
    cookie = headers["Set-Cookie"]
    assert (
        "HttpOnly" in cookie
        and "SameSite=Lax" in cookie
        and "Path=/cms/data" in cookie
        and TOKEN not in cookie
    )
    status, _, text = ask(guarded, "/cms/data/popularity", Cookie=cookie.partition(";")[0])
    assert status == 200 and TOKEN not in text
    status, headers, _ = ask(
        guarded,
        "/cms/data/token",
        "POST",
        urlencode({"token": TOKEN}),
        Content_Type="application/x-www-form-urlencoded",
    )
    assert status == 303 and "Set-Cookie" in headers


def test_behind_a_proxy_all_addresses_have_the_prefix(guarded: Running) -> None:
    cookie = (
        f"{guarded.server.services.guard.cookie_name}={guarded.server.services.guard.cookie_value}"
    )
    for path in ("/cms/data/popularity", "/popularity"):  # a proxy may have removed the prefix
        status, _, text = ask(guarded, path, Cookie=cookie, Host="monit.example")
        assert status == 200
        addresses = [
            part.partition('"')[0] for part in text.replace("src=", "href=").split('href="')[1:]
        ]
        assert addresses and all(one.startswith(("/cms/data/", "#")) for one in addresses), (
            addresses
        )
    assert ask(guarded, "/cms/data/", Cookie=cookie)[1]["Location"] == "/cms/data/popularity"


def test_a_token_is_compared_in_constant_time_and_a_number_is_a_host_only_with_one() -> None:
    guard = Guard("t", frozenset({"a.example"}), 1)
    assert guard.is_token("t") and not guard.is_token("") and not guard.is_token("ü")
    assert guard.is_host("10.1.2.3:8765") and not Guard(None, frozenset(), 1).is_host(
        "10.1.2.3:8765"
    )
    assert guard.is_host("A.example:1") and not guard.is_host("b.example")
    assert (
        not security.is_loopback("0.0.0.0")
        and security.is_loopback("::1")
        and not security.is_loopback("host")
    )


PATHS = [
    "/../etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/static/../app.py",
    "/static/..%2fapp.py",
    "/static/%2e%2e/app.py",
    "/static//etc/passwd",
    "/runs/data_aggregation/../../x/report",
    "/runs/../../etc/passwd/report",
    "/runs/data_aggregation/..%2f..%2f/x/report",
    "/runs/data_aggregation/2026-01-15/%2e%2e/report",
    "/popularity%00",
    "/runs/data_aggregation/2026-01-15/..%5c..%5c/report",
    "//evil.example/",
    "/popularity/../sql",
    "/__init__",
]


@pytest.mark.parametrize("path", PATHS)
def test_a_path_leads_to_no_other_file(dashboard: Running, path: str) -> None:
    status, headers, text = ask(dashboard, path)
    assert status in (301, 302, 308, 400, 404), text[:200]
    assert "root:" not in text and "import" not in text
    assert not headers.get("Location", "/").startswith("//")


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize(
    "page",
    [
        "popularity?q=",
        "dataset?name=",
        "sites?site=",
        "popularity?campaign=",
        "users?data_tier=",
        "data?site_tier=",
    ],
)
def test_hostile_names_are_text(dashboard: Running, page: str, name: str) -> None:
    status, _, text = ask(dashboard, f"/{page}{quote(name, safe='')}")
    assert status == 200
    for code in ("<script>alert", "<img src=x", "<svg onload", "<b>XX"):
        assert code not in text
    assert dashboard.snapshot.query("SELECT count(*) FROM packed.cube")[0][0] > 0


@pytest.mark.parametrize(
    "query",
    [
        "from=2026-13-01",
        "from='; DROP TABLE cube",
        "from=2026-01-15&to=2026-01-01",
        "step=year",
        "measure=1;select",
        "by=user",
        "page=datasets.-1",
        "page=datasets.1e9",
        "sort=datasets.user",
        "mode=pie",
        "from=0001-01-01&to=9999-12-31",
        "q=" + "a" * 2_000,
        "download=datasets&format=exe",
        "download=../x",
    ],
)
def test_wrong_parameters_are_refused_and_said(dashboard: Running, query: str) -> None:
    status, _, text = ask(dashboard, f"/popularity?{quote(query, safe='=&')}")
    assert status in (400, 404) and "bug" not in text
    assert "<h1>" in text


def test_huge_addresses_are_refused(dashboard: Running) -> None:
    assert ask(dashboard, "/popularity?q=" + "a" * 20_000)[0] == 414
    assert ask(dashboard, "/popularity?" + "&".join(f"a{n}=1" for n in range(2_000)))[0] in (
        200,
        400,
        414,
    )


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("DROP VIEW data_aggregation", "queries only read"),
        ("COPY data_aggregation TO '/tmp/x.csv'", "queries only read"),
        ("SELECT 1; SELECT 2", "several SQL statements"),
        ("SELECT * FROM read_csv('/etc/passwd')", "the query names a file"),
        ("SELECT * FROM '/etc/passwd'", ""),
        ("ATTACH '/tmp/x.db'", "queries only read"),
        ("SET memory_limit='1TB'", "queries only read"),
        ('SELECT "user" FROM partials', ""),
        ("SELECT nothing FROM data_aggregation", "nothing"),
        ("SELECT", ""),
    ],
)
def test_sql_reads_stored_tables_and_nothing_else(dashboard: Running, sql: str, said: str) -> None:
    status, _, text = ask(dashboard, "/sql?" + urlencode({"q": sql}))
    assert status == 200 and 'class="note bad"' in text and said in text
    assert "root:" not in text and "key1:" not in text


def test_sql_of_another_site_is_not_run(dashboard: Running) -> None:
    query = "/sql?" + urlencode({"q": "SELECT 6 * 7 AS answer"})
    assert ">42<" in ask(dashboard, query)[2]
    status, _, text = ask(dashboard, query, Sec_Fetch_Site="cross-site")
    assert status == 200 and ">42<" not in text and "Another site linked" in text


def test_a_long_query_ends(dashboard: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    from cmsspark.apps.dashboard.pages import sql

    monkeypatch.setattr(sql, "SECONDS", 0.3)
    status, _, text = ask(
        dashboard,
        "/sql?" + urlencode({"q": "SELECT sum(range % 7) FROM range(10000000000000000)"}),
    )
    assert status == 200 and "longer than 0.3 s" in text


def test_rows_of_a_query_are_limited_and_its_download_has_more(dashboard: Running) -> None:
    query = urlencode({"q": "SELECT range AS n FROM range(1000)"})
    assert "The first 500 rows" in ask(dashboard, f"/sql?{query}")[2]
    assert ask(dashboard, f"/sql?{query}&download=query&format=csv")[2].count("\n") == 1_001


def test_a_report_is_shown_in_a_sandbox(dashboard: Running, store: Path) -> None:
    (page,) = (store / "data_aggregation" / LAST.isoformat()).glob("runs/*/report.html")
    status, headers, text = ask(
        dashboard, f"/runs/data_aggregation/{LAST}/{page.parent.name}/report"
    )
    assert status == 200 and "the report" in text
    assert (
        "sandbox" in headers["Content-Security-Policy"]
        and "script-src" not in headers["Content-Security-Policy"]
    )


def test_suggestions_are_json_of_names_that_match(dashboard: Running) -> None:
    found = json.loads(ask(dashboard, "/datasets.json?q=" + quote("ttbar nanoaod"))[2])
    assert found and all(
        "TTbar" in one["name"] and one["name"].endswith("NANOAOD") for one in found
    )
    assert json.loads(ask(dashboard, "/datasets.json?q=" + quote("*" * 200 + "x"))[2]) is not None
    hostile = json.loads(ask(dashboard, "/datasets.json?q=%3Cscript%3E")[2])
    assert [one["name"] for one in hostile] == [name for name in HOSTILE if "<script>" in name]


def test_no_page_names_a_person(dashboard: Running) -> None:
    for page in registry.PAGES:
        text = ask(dashboard, f"/{page}")[2]
        assert "key1:" not in text and "0000000000000000" not in text


@pytest.mark.parametrize("fmt", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("SELECT INTERVAL 1 MONTH AS a", "1 month"),
        ("SELECT 'x\\xFF'::BLOB AS a", "78ff"),
        ("SELECT '101'::BIT AS a", "a"),
        ("SELECT union_value(k := 1) AS a", "1"),
        ("SELECT {'b': [1, NULL]} AS a", '"b"'),
    ],
)
def test_a_download_of_any_type_leaves_the_pages_as_they_are(
    dashboard: Running, sql: str, text: str, fmt: str
) -> None:
    """A type that a format does not have was taken for damage, and every page went away
    until it was checked.
    """
    before = dashboard.snapshot
    connection = http.client.HTTPConnection("127.0.0.1", dashboard.server.port, timeout=60)
    connection.request("GET", "/sql?" + urlencode({"q": sql, "download": "query", "format": fmt}))
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status == 200, body
    rows = pq.read_table(io.BytesIO(body)) if fmt == "parquet" else None
    assert rows.num_rows == 1 if rows else text in body.decode().replace('""', '"')
    assert dashboard.snapshot is before


@pytest.mark.parametrize(
    "sql",
    ["SELECT 'infinity'::DATE", "SELECT '-infinity'::TIMESTAMP", "SELECT ['99999-01-01'::DATE]"],
)
def test_days_that_python_cannot_hold_are_texts(dashboard: Running, sql: str) -> None:
    status, _, text = ask(dashboard, "/sql?" + urlencode({"q": sql}))
    assert status == 200 and ("infinity" in text or "outside of the years" in text)
    assert ask(dashboard, "/sql?" + urlencode({"q": sql, "download": "query"}))[0] == 200


def test_a_result_that_is_too_large_is_refused(
    dashboard: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cmsspark.apps.dashboard.pages import sql

    monkeypatch.setattr(sql, "BYTES", 100_000)
    status, _, text = ask(
        dashboard, "/sql?" + urlencode({"q": "SELECT repeat('a', 1000) FROM range(400)"})
    )
    assert status == 200 and "larger than 0 MB" in text and "aaaa" not in text


@pytest.mark.parametrize(
    "query", ["to=0001-01-01", "from=0001-01-01&to=0001-01-02", "from=9999-12-01&to=9999-12-31"]
)
def test_the_calendar_takes_every_day_that_there_is(dashboard: Running, query: str) -> None:
    assert ask(dashboard, f"/runs?{query}")[0] == 200


def test_a_parameter_twice_is_refused_and_one_that_a_page_does_not_have_is_named(
    dashboard: Running,
) -> None:
    status, _, text = ask(dashboard, "/popularity?measure=nacc&measure=users")
    assert status == 400 and "more than once" in text and "measure" in text
    status, _, text = ask(dashboard, "/sites?data_tier=AOD&%3Cb%3E=1")
    assert status == 200 and "data_tier, &lt;b&gt;" in text and "no such choice" in text
    assert (
        "no such choice"
        not in ask(dashboard, "/popularity?data_tier=AOD&data_tier=RAW&by=none&q=a")[2]
    )
