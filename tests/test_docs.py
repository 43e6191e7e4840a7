"""The documentation: links and anchors lead somewhere, the API page's examples run,
lists are complete.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from bench.house import docs_words
from cmsspark.apps.demo import make
from cmsspark.apps.demo.cli import installed

TOP = Path(__file__).resolve().parent.parent
DOCS = TOP / "docs"
PAGES = [
    *(TOP / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/README.md")),
    *sorted((TOP / ".github").rglob("*.md")),
    *sorted(DOCS.rglob("*.md")),
]
_FENCE = re.compile(r"^(```+).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
#: Directives of the API page: the kind of object and its name.
API = re.findall(
    r"^\.\. auto(\w+):: ([\w.]+)$", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE
)
#: Functions whose examples share a Spark session; those of all others run in
#: ``tests/test_examples.py``.
NEEDS_SPARK = ("session", "accesses", "table", "measure")


def prose(page: Path) -> str:
    """The text of a page without code blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, made as GitHub makes them; a heading that
    occurs again gets a number.
    """
    text = prose(page)
    for included in re.findall(r"```\{include\} (\S+)", page.read_text(encoding="utf-8")):
        text += prose(page.parent / included)
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def broken_links(page: Path) -> Iterator[str]:
    """Each relative link of the page that leads to no file or no heading."""
    for link in _LINK.findall(re.sub(r"`[^`\n]*`", "", prose(page))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"{link}: no such file"
        elif anchor and (target.suffix != ".md" or anchor not in anchors(target)):
            yield f"{link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert sorted(set(broken_links(page))) == []


def test_modules_and_functions_that_pages_name_exist() -> None:
    names = {
        name
        for page in PAGES
        for name in re.findall(r"`(cmsspark\.apps\.[\w.]+)[(`]", page.read_text("utf-8"))
    }
    assert len(names) > 5
    for name in names:
        pkgutil.resolve_name(name)


def test_a_link_to_a_file_or_a_heading_that_does_not_exist_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Über *uns*: a `b`\n[1](#über-uns-a-b) [2](#gone) [3](gone.md)\n```\n# no heading [4](x.md)\n```\n"
    )
    assert list(dict.fromkeys(broken_links(page))) == [
        "#gone: no such heading",
        "gone.md: no such file",
    ]


def test_the_index_lists_every_page_and_every_decision() -> None:
    for folder in (DOCS, DOCS / "decisions"):
        listed = set(_LINK.findall((folder / "index.md").read_text(encoding="utf-8")))
        assert {page.name for page in folder.glob("*.md")} - {"index.md"} <= listed


def test_the_docs_do_not_grow() -> None:
    """What is said once is not said again: a new sentence takes the place of another one."""
    assert sum(docs_words(TOP).values()) <= 50_000


def test_every_decision_has_a_number_of_its_own_and_the_three_parts() -> None:
    records = sorted(DOCS.glob("decisions/[0-9]*.md"))
    assert [int(record.name[:3]) for record in records] == list(range(1, len(records) + 1))
    for record in records:
        text = record.read_text(encoding="utf-8")
        assert text.startswith(f"# {record.name[:3]}: ")
        parts = re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE)
        assert parts == ["Context", "Decision", "Consequences"], record


def test_the_glossary_is_in_alphabetical_order_and_has_each_term_once() -> None:
    terms = re.findall(r"^\| (.+?) \| .+ \|$", prose(DOCS / "glossary.md"), re.MULTILINE)[2:]
    keys = [re.sub(r"[^\w ]", "", term).lower() for term in terms]
    assert keys == sorted(set(keys))
    assert len(keys) > 80


def documented(name: str) -> Any:
    """The object that a directive of the API page names."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize(("kind", "name"), API, ids=[name for _, name in API])
def test_everything_on_the_api_page_exists_and_says_what_it_is(kind: str, name: str) -> None:
    found = documented(name)
    assert inspect.getdoc(found)
    assert kind != "function" or inspect.isfunction(inspect.unwrap(found))


@pytest.mark.parametrize("name", [name for kind, name in API if kind == "function"])
def test_every_function_on_the_api_page_has_an_example(name: str) -> None:
    text = inspect.getdoc(inspect.unwrap(documented(name))) or ""
    assert "Example:\n" in text and ">>> " in text.partition("Example:\n")[2]


def run_examples(name: str, replaced: dict[str, str]) -> doctest.TestResults:
    """Run the examples in the docstring of an object, with some texts replaced, in its
    module's names.
    """
    found = inspect.unwrap(documented(name))
    module = sys.modules[found.__module__]
    text = inspect.getdoc(found) or ""
    for old, new in replaced.items():
        text = text.replace(old, new)
    names = {
        **vars(module),
        module.__name__.rpartition(".")[2]: module,
        "cms": importlib.import_module("cmsspark"),
    }
    return doctest.DocTestRunner(verbose=False).run(
        doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    )


def test_the_examples_for_notebooks_work_on_a_made_day(
    spark: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "mirror", date(2026, 1, 15), records=1_000, files=300, datasets=30, people=20)
    for name in ("state", "cache", "config"):
        monkeypatch.setenv(f"XDG_{name.upper()}_HOME", str(tmp_path / name))
    monkeypatch.setenv("PYTHONPATH", str(TOP))
    monkeypatch.chdir(tmp_path)
    command = [
        *installed("run_spark", "cmsspark.submit"),
        "data_aggregation",
        "--date",
        "20260115",
    ]
    command += ["--root", str(tmp_path / "mirror"), "--fout", str(tmp_path / "results")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    for name in (name for _, name in API if name.rpartition(".")[2] in NEEDS_SPARK):
        results = run_examples(name, {"/data/": f"{tmp_path}/"})
        assert (results.failed, results.attempted > 0) == (0, True), name


def test_what_builds_the_site_is_pinned() -> None:
    pinned = {
        line.partition("==")[0].lower()
        for line in (TOP / "constraints.txt").read_text().splitlines()
    }
    extra = re.search(
        r'"docs": \[(.+?)\]', (TOP / "setup.py").read_text(encoding="utf-8"), re.DOTALL
    )
    assert extra
    wanted = {re.split(r"[<>=]", text)[0] for text in re.findall(r'"([^"]+)"', extra[1])}
    assert {"sphinx", "myst-parser"} <= wanted <= pinned
