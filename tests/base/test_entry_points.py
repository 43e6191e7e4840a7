"""What installed packages add, by entry points: jobs, sinks, pages, policies, findings,
decoders, observers of runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cmsspark.base.entry_points import of_group, with_packages
from cmsspark.base.errors import SettingsError
from tests.commands import TOP

if TYPE_CHECKING:
    from cmsspark.testing import SmallCms

pytest_plugins = ["cmsspark.testing"]
EXAMPLES = TOP / "etc/examples"


def install(folder: Path, name: str, groups: Mapping[str, Mapping[str, str]]) -> None:
    """Make the metadata of an installed package, as pip writes them."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [
        line
        for group, entries in groups.items()
        for line in (f"[{group}]", *(f"{key} = {value}" for key, value in entries.items()), "")
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))


def test_a_name_that_a_package_shares_with_ours_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "taker", {"cmsspark.testing_a": {"file": "taker"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SettingsError, match="file is a built-in name"):
        with_packages("cmsspark.testing_a", {"file": "ours"}, lambda entry: entry.value)


def test_a_name_that_two_packages_give_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "one", {"cmsspark.testing_b": {"same": "one"}})
    install(tmp_path, "two", {"cmsspark.testing_b": {"same": "two"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SettingsError, match="two packages give same"):
        of_group("cmsspark.testing_b")


def test_a_package_that_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "broken", {"cmsspark.testing_c": {"x": "no_such_module:f"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SettingsError, match="cannot be loaded") as caught:
        with_packages("cmsspark.testing_c", {}, lambda entry: entry.load())
    assert "entry point x of cmsspark.testing_c" in str(caught.value)


PLUGIN = '''
import json, os
import numpy as np
from cmsspark.apps.dashboard import widgets as ui
from cmsspark.apps.dashboard.page_request import PageDefinition
from cmsspark.publish.sink import Sink
from cmsspark.store.run_metrics import Finding


def read_credentials(path):
    return None


class WebHook(Sink):
    where = "webhook"

    def outbox_name(self, state_dir):
        return "webhook"

    def open(self):
        pass

    def send(self, batch, documents, meanwhile):
        with open(os.environ["HOOK"], "ab") as file:
            file.write(b"\\n".join(documents) + b"\\n")


def build(credentials, options):
    return WebHook()


def nothing(objects, sizes, capacity):
    """Nothing: every request is missed."""
    return np.zeros(len(objects), np.uint8)


def find(metrics):
    yield Finding("own", "an own finding", "here", "nothing")


PAGE = PageDefinition("Own page", "About it.", lambda request: ui.Content("Own page", []), needs_use=False)
'''


def run(folder: Path, cms: SmallCms, code: str, *words: str, **more: str) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{TOP}:{folder}",
        "CMSSPARK_SETTINGS": str(cms.folder / "cmsspark.yaml"),
        **more,
    }
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout + done.stderr


RUN_SPARK = "from cmsspark.submit import main; main()"
CMSSPARK = "from cmsspark.main import main; main()"


def test_a_package_adds_a_job_a_sink_a_page_a_policy_and_findings(
    cms: SmallCms, tmp_path: Path
) -> None:
    folder = tmp_path / "site"
    install(
        folder,
        "all-of-it",
        {
            "cmsspark.jobs": {"mine": "packaged_job"},
            "cmsspark.sinks": {"webhook": "packaged_rest"},
            "cmsspark.pages": {"own": "packaged_rest"},
            "cmsspark.policies": {"nothing": "packaged_rest:nothing"},
            "cmsspark.findings": {"own": "packaged_rest:find"},
        },
    )
    job = (EXAMPLES / "jobs/site_hours.py").read_text()
    (folder / "packaged_job.py").write_text(job.replace("def site_hours(", "def packaged_hours("))
    (folder / "packaged_rest.py").write_text(PLUGIN)
    assert "packaged_hours" in run(folder, cms, RUN_SPARK, "--list").partition("\nYours:\n")[2]
    words = ("--date", "20260115", "--fout", cms.store)
    run(folder, cms, RUN_SPARK, "packaged_hours", *words, "--root", str(cms.root))
    hook = tmp_path / "hook.jsonl"
    publish = ("publish", "--job", "packaged_hours", "--sink", "webhook", *words)
    run(folder, cms, CMSSPARK, *publish, HOOK=str(hook))
    documents = [json.loads(line) for line in hook.read_text().splitlines()]
    assert sum(document.get("accesses", 0) for document in documents) == cms.accesses
    yarn = (*words, "--yarn", "--dry-run")
    travelling = run(folder, cms, RUN_SPARK, "packaged_hours", *yarn)
    assert str(folder / "packaged_job.py") in travelling
    code = (
        "from cmsspark.apps.cache.replay import ABOUT, PLAIN\n"
        "from cmsspark.apps.dashboard.registry import navigation\n"
        "from cmsspark.apps.monitor.findings.find import find\n"
        "from cmsspark.store.run_metrics import RunMetrics\n"
        "print(ABOUT['nothing'], 'nothing' in PLAIN, dict(navigation())['own'])\n"
        "print([finding.code for finding in find(RunMetrics('x', 'j', 'spark', 0))])"
    )
    out = run(folder, cms, code)
    assert out.splitlines()[0] == "Nothing: every request is missed True Own page"
    assert "own" in out.splitlines()[1]


def test_openlineage_events_have_run_inputs_outputs_and_schema(
    cms: SmallCms, tmp_path: Path
) -> None:
    folder, events = tmp_path / "site", tmp_path / "events.jsonl"
    source = (EXAMPLES / "openlineage/cmsspark_openlineage.py").read_text()
    assert len(source.splitlines()) <= 150
    install(folder, "lineage", {"cmsspark.runs": {"openlineage": "cmsspark_openlineage:observe"}})
    (folder / "cmsspark_openlineage.py").write_text(source)
    words = ("--date", "20260115", "--fout", cms.store, "--root", str(cms.root))
    job = str(EXAMPLES / "jobs/tape_files.py")
    run(folder, cms, RUN_SPARK, job, *words, OPENLINEAGE_FILE=str(events))
    began, ended = (json.loads(line) for line in events.read_text().splitlines())
    assert (began["eventType"], ended["eventType"]) == ("START", "COMPLETE")
    assert began["run"]["runId"] == ended["run"]["runId"]
    assert any(source["name"].endswith("/replicas") for source in ended["inputs"])
    (output,) = ended["outputs"]
    names = [column["name"] for column in output["facets"]["schema"]["fields"]]
    assert names == ["day", "rse", "file_count", "file_bytes", "timestamp"]


def test_a_package_that_fails_to_observe_a_run_is_a_warning(cms: SmallCms, tmp_path: Path) -> None:
    folder = tmp_path / "site"
    install(folder, "failing", {"cmsspark.runs": {"bad": "failing_observer:observe"}})
    (folder / "failing_observer.py").write_text(
        "def observe(run, manifest):\n    raise KeyError(3)\n"
    )
    words = ("--date", "20260115", "--fout", cms.store, "--root", str(cms.root))
    out = run(folder, cms, RUN_SPARK, str(EXAMPLES / "jobs/tape_files.py"), *words)
    assert "warning: bad was not told of the run: KeyError: 3" in out
