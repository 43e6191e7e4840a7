"""The Kubernetes command line as Spark's own parser reads it, up to the point where it
would contact the cluster.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from cmsspark.settings.settings import Settings
from cmsspark.submit.host import this_host
from tests.submit.hosts import PLACES, command

pytestmark = [pytest.mark.cluster, pytest.mark.lean]


def test_spark_reads_each_option_and_the_pod_template_as_they_were_meant(tmp_path: Path) -> None:
    for name in ("cmsspark.zip", "launch.py", "pseudonym.key"):
        (tmp_path / name).write_text("# x")
    places = replace(
        PLACES,
        launcher=str(tmp_path / "launch.py"),
        ship=lambda: str(tmp_path / "cmsspark.zip"),
        key=lambda: str(tmp_path / "pseudonym.key"),
    )
    (tmp_path / "upload").mkdir()
    words = (
        "dbs_eos",
        "--k8s",
        "--master",
        "k8s://https://127.0.0.1:1",
        "--name",
        "two words",
        "--fout",
        "hdfs:///a b",
    )
    confs = ("--conf", "spark.kubernetes.container.image=registry/x:1")
    confs += ("--conf", f"spark.kubernetes.file.upload.path=file://{tmp_path}/upload")
    settings = Settings(root=None, store=None, state_dir=tmp_path, cache_dir=tmp_path)
    built = command(*words, *confs, host=this_host({}), places=places, settings=settings)
    submit, *rest = built.argv
    environ = {**os.environ, **built.env, "SPARK_SUBMIT_OPTS": ""}
    run = subprocess.run(
        [submit, "--verbose", *rest], capture_output=True, text=True, env=environ, check=False
    )
    said = run.stdout + run.stderr
    parsed = dict(re.findall(r"^  (\w+) {2,}(\S.*)$", said, re.MULTILINE))
    assert (parsed["master"], parsed["deployMode"]) == ("k8s://https://127.0.0.1:1", "cluster")
    assert (parsed["name"], parsed["childArgs"]) == ("two words", "[dbs_eos --fout hdfs:///a b]")
    read = dict(re.findall(r"^  \(([\w.]+),(.*)\)$", said, re.MULTILINE))
    given = {
        word.partition("=")[0]: word.partition("=")[2]
        for word in rest
        if re.match(r"spark\.[\w.]+=", word)
    }
    # Spark prints no values of options whose names say that they are secret.
    (secret,) = (name for name in given if name.startswith("spark.kubernetes.driver.secretKeyRef"))
    given[secret] = "*********(redacted)"
    assert {name: read.get(name) for name in given if name != "spark.redaction.regex"} == {
        name: value for name, value in given.items() if name != "spark.redaction.regex"
    }
    # What it stumbles over at last is that there is no cluster; a pod template that
    # cannot be read comes before that.
    assert (
        run.returncode == 1
        and "Connection refused" in said
        and "load initial pod spec" not in said
    )
