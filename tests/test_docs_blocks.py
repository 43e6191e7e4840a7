"""Each block of each page is run: as shell lines, as Python, as settings. One that a
test machine cannot run says why.

The line above a block may be ``<!-- not run: REASON -->`` or ``<!-- run by tests/FILE
-->``. One without a language has lines for a shell, each run in a folder with a small
CMS. Lines that need a cluster or a broker are run with ``--dry-run``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from cmsspark.apps.demo import make
from cmsspark.apps.demo.narration import store_history
from cmsspark.apps.usage.period_views import parse_views
from cmsspark.base import dates
from cmsspark.settings import pseudonyms
from cmsspark.settings.settings import load_settings
from tests.commands import CLIENT, CMSSPARK, RUN_SPARK, server

TOP = Path(__file__).resolve().parent.parent
PAGES = sorted(
    [
        *(TOP / name for name in ("README.md", "CONTRIBUTING.md", "bench/README.md")),
        *(TOP / "docs").rglob("*.md"),
    ]
)
DAY = date(2026, 1, 15)
#: Stored days, so that twelve weeks and a month are whole.
STORED_DAYS = 91
#: Texts of the pages → what stands for them on the made CMS and today.
STANDS_FOR = {
    "--week last": "--week 2026-W02",
    "'/ZMM*/*/AOD'": "'/*/*/AOD'",
    "--from 20260101 --to 20260131 --parallel 2": "--from 20260114 --to 20260115 --parallel 2",
    "20260101..20260105,20260109": "20260114..20260114,20260115",
}
#: Codes that are no failure: days wait for logs that are not there; there is nothing to
#: compare an earlier run with.
ALLOWED = {"cmsspark daily": (0, 3, 75), "cmsspark daily acknowledge": (0, 2)}


@dataclass(frozen=True)
class Block:
    """A block of a page: its language, text, and the mark above it."""

    page: Path
    line: int
    language: str
    text: str
    mark: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(TOP)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    found, lines = [], page.read_text(encoding="utf-8").splitlines()
    start: int | None = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = number
        else:
            above = re.fullmatch(r"<!-- (.*) -->", lines[start - 1]) if start else None
            text = "\n".join(lines[start + 1 : number])
            found.append(
                Block(page, start + 1, lines[start][3:].strip(), text, above[1] if above else "")
            )
            start = None
    assert start is None, f"{page}: a block without an end"
    return found


BLOCKS = [
    block for page in PAGES for block in blocks_of(page) if not block.language.startswith("{")
]
UNMARKED = [block for block in BLOCKS if not block.mark]


def of_language(*languages: str) -> list[Block]:
    return [block for block in UNMARKED if block.language in languages]


def test_every_block_is_run_or_says_why_not() -> None:
    for block in BLOCKS:
        if block.mark.startswith("run by "):
            file = TOP / block.mark.removeprefix("run by ")
            assert block.page.stem in file.read_text(encoding="utf-8").replace(
                "README", "README"
            ), block
        elif block.mark:
            assert re.fullmatch(r"not run: \w.{10,}", block.mark), f"{block}: {block.mark}"
        else:
            assert block.language in ("", "sh", "python", "yaml", "json"), (
                f"{block}: {block.language}"
            )
    assert len(BLOCKS) > 30


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small CMS, its stored days, a script, settings and credentials;
    ``bin`` has both commands.
    """
    place = tmp_path_factory.mktemp("docs")
    make(place / "mirror", DAY - timedelta(days=1), days=2, records=1_500)
    (place / "mine.py").write_text("")
    credentials = {
        "amq_broker.json": {
            "username": "u",
            "password": "p",
            "producer": "cms",
            "topic": "/topic/cms.test",
            "host_and_ports": "127.0.0.1:1",
        },
        "monit.json": {"url": "https://127.0.0.1:1/x", "username": "u", "password": "p"},
    }
    for name, content in credentials.items():
        (place / name).write_text(json.dumps(content))
        (place / name).chmod(0o600)
    (place / "my.yaml").write_text(
        next(block.text for block in of_language("yaml") if block.text.startswith("zmm:"))
    )
    settings = {
        "root": "mirror",
        "store": "results",
        "state_dir": "state",
        "cache_dir": "cache",
        "daily": {"publish": False, "quiet_minutes": 0},
    }
    (place / "cmsspark.yaml").write_text(yaml.safe_dump(settings))
    _commands(place / "bin")
    for job in ("data_aggregation", "dbs_aaa", "dbs_phedex", "site_tier_usage"):
        for day in (DAY - timedelta(days=1), DAY):
            run(place, f"run_spark {job} --date {day}")
    for job in ("dataset_rses", "dataset_last_access"):
        run(place, f"run_spark {job} --date {DAY}")
    _past(place)
    return place


def _commands(folder: Path) -> None:
    """Both commands; what needs a cluster, a broker or HDFS is shown only."""
    folder.mkdir()
    for name, module in (("run_spark", RUN_SPARK), ("cmsspark", CMSSPARK)):
        away = '*" --yarn "*|*" --k8s "*' if name == "run_spark" else '*" --amq "*'
        place = '--dry-run "$@"' if name == "run_spark" else '"$@" --dry-run'
        start = f"exec {shlex.quote(sys.executable)} -S -E {CLIENT} {server()[0]} {module}"
        text = f'#!/bin/sh\ncase " $* " in {away}) {start} {place};; esac\n{start} "$@"\n'
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


class _Past:
    """Days before, with the rows of a day that was counted."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def partials(self, day: date, schema: Any) -> Any:
        import pyarrow as pa

        count = self.rows.num_rows
        changed = {"day": [day] * count, "timestamp": [dates.start_ms(day)] * count}
        columns = {name: changed.get(name, self.rows[name]) for name in schema.names}
        return pa.table(columns, schema=schema.arrow())


def _past(place: Path) -> None:
    import pyarrow.dataset as ds

    uri = run(place, f"cmsspark show partials --date {DAY} --path").stdout.strip()
    rows = ds.dataset(uri.removeprefix("file://"), format="parquet", partitioning=None).to_table()
    key = pseudonyms.load_or_make(place / "state" / pseudonyms.KEY_FILE)
    before = [DAY - timedelta(days=back) for back in range(2, STORED_DAYS)]
    store_history(_Past(rows), str(place / "results"), before, key.key_id)  # type: ignore[arg-type]


def run(
    place: Path, line: str, allowed: tuple[int, ...] = (0,)
) -> subprocess.CompletedProcess[str]:
    """Run a line as a shell does."""
    environment = {
        **os.environ,
        "PATH": f"{place / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(TOP),
        "HOME": str(place),
        "CMSSPARK_SETTINGS": str(place / "cmsspark.yaml"),
    }
    ended = subprocess.run(
        ["bash", "-c", line],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode in allowed, f"{line}\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}"
    return ended


def allowed_codes(line: str) -> tuple[int, ...]:
    names = [name for name in ALLOWED if line.startswith(name)]
    return ALLOWED[max(names, key=len)] if names else (0,)


@pytest.mark.parametrize("block", of_language("", "sh"), ids=str)
def test_each_line_for_a_shell_works(block: Block, place: Path) -> None:
    for line in block.text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        line = (
            line.replace("/data/popularity", "results")
            .replace("/data/", "")
            .replace(" JOB", " dbs_aaa --date 20260115")
        )
        for text, stands in STANDS_FOR.items():
            line = line.replace(text, stands)
        if "@2026" in line:
            runs = sorted(
                path.name
                for path in (place / "results/data_aggregation/2026-01-15/runs").iterdir()
            )
            line = re.sub(r"@\w+", f"@{runs[0]}", line)
        run(place, line.replace("…", ""), allowed_codes(line))


@pytest.mark.parametrize("block", of_language("python"), ids=str)
def test_each_python_block_runs(block: Block, tmp_path: Path) -> None:
    code = block.text.replace("/tmp/", f"{tmp_path}/").replace("/data/", f"{tmp_path}/")
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=TOP, check=False
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("block", of_language("yaml", "json"), ids=str)
def test_each_piece_of_configuration_is_understood(block: Block, tmp_path: Path) -> None:
    values = yaml.safe_load(block.text) if block.language == "yaml" else json.loads(block.text)
    file = tmp_path / "file.yaml"
    file.write_text(block.text)
    if block.language == "json":
        from cmsspark.publish.sinks import SINKS

        file.chmod(0o600)
        SINKS["http" if "url" in values else "stomp"].load().read_credentials(file)
    elif block.text.startswith("zmm:"):
        assert list(parse_views(block.text.encode(), "my.yaml")) == list(values)
    elif block.text.startswith("sites:"):
        from cmsspark.sources.rses import load_sites

        assert load_sites(str(file)).items() >= values["sites"].items()
    else:
        from cmsspark.sources.layout import Layout

        Layout.load(load_settings(str(file)).sources, None)


def test_the_output_that_the_readme_shows_is_that_of_the_demo(tmp_path: Path) -> None:
    """Also that the folders that docs/demo.md lists are made."""
    (shown,) = [
        b.text for b in BLOCKS if b.page.name == "README.md" and b.text.startswith("Every record")
    ]
    command = [sys.executable, "-c", "from cmsspark.main import main; main()", "demo"]
    environment = {**os.environ, "PYTHONPATH": str(TOP), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert shown in "\n".join(line.rstrip() for line in ended.stdout.splitlines())
    (tree,) = [block.text for block in BLOCKS if block.text.startswith("demo-cms/cms/project")]
    for line in tree.splitlines():
        assert (tmp_path / line.split()[0].removesuffix("/…")).exists(), line
