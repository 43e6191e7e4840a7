"""docs/operations.md, from an empty edge node to a daily job on YARN: each command of
the page, as it stands there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.configuration import user
from tests.cluster.conftest import DAY, DAYS, JAVA, ROOT, World, assert_same

pytestmark = pytest.mark.cluster

PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
SECTION = PAGE[PAGE.index("## On YARN: from an empty edge node") : PAGE.index("### Output")]
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)
CRONTAB = (ROOT / "etc" / "crontab").read_text(encoding="utf-8")
#: What a checkout has that an installation takes.
FOLDERS = ("bin", "cmsspark", "etc", "schemas")
FILES = ("LICENSE", "README.md", "constraints.txt", "pyproject.toml", "setup.py")
#: Executors that fit this cluster, as a host's SPARK_OPTIONS.
SMALL = f"""
spark.executor.memory=512m
spark.executor.memoryOverhead=1g
spark.executor.cores=2
spark.driver.memory=600m
spark.driver.memoryOverhead=800m
spark.dynamicAllocation.maxExecutors=1
spark.executor.extraJavaOptions={JAVA}
spark.sql.shuffle.partitions=4
"""
#: An environment is made and packed in a block, or three applications run.
DEADLINE_S = 1_800


@dataclass(frozen=True)
class Edge:
    """A user's account on an edge node: a home folder of its own, a checkout, and the
    administrators' configuration.
    """

    world: World
    home: Path

    @property
    def checkout(self) -> Path:
        return self.home / "opt" / "cmsspark"

    def here(self, text: str) -> str:
        """A text of the page or the crontab, with the folders of this machine."""
        java = Path(
            os.environ.get("JAVA_HOME")
            or Path(shutil.which("java") or "java").resolve().parents[1]
        )
        for there, place in {
            "/etc/hadoop/conf": self.world.cluster.env["HADOOP_CONF_DIR"],
            "/usr/lib/jvm/java-17": java,
            "/user/me/": f"/user/{user()}/",
            "/opt/cmsspark": self.checkout,
            "/etc/cmsspark/cmsspark.yaml": self.settings,
            "/var/log/cmsspark": self.home,
        }.items():
            assert there in PAGE + CRONTAB
            text = text.replace(there, str(place))
        return text

    @property
    def settings(self) -> Path:
        return self.home / ".config" / "cmsspark" / "cmsspark.yaml"

    @property
    def account(self) -> dict[str, str]:
        """What any process of the account has, started by cron or by a shell."""
        return {
            "HOME": str(self.home),
            "LOGNAME": user(),
            "PIP_CACHE_DIR": os.environ.get("PIP_CACHE_DIR")
            or str(Path.home() / ".cache" / "pip"),
            # An account's profile may say so; here it makes executors that fit the cluster.
            "SPARK_CONF_DIR": self.world.cluster.env["SPARK_CONF_DIR"],
            "SPARK_OPTIONS": str(self.home / "small"),
        }

    def type(self, block: str) -> str:
        """A block of the page, typed into the shell in which the former ones were; what
        it printed.
        """
        state = self.home / "shell"
        script = f"set -e\n[ ! -f {state} ] || . {state}\n{self.here(block)}\nexport -p >{state}\n"
        path = (
            f"{self.world.cluster.folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
        )
        environ = {**self.account, "PATH": path, "LANG": "C.UTF-8"}
        return self.run(["bash", "-c", script], environ).stdout

    def cron(self, more: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
        """The line of etc/crontab, as cron calls it; ``more`` goes to `cmsspark daily`."""
        (line,) = re.findall(r"^\d\S* (?:\S+ ){4}(.*)$", CRONTAB, re.MULTILINE)
        command = self.here(line).replace(" >>", f" {more} >>", 1)
        # Cron's PATH; and the Python that the page's environment was made with.
        found = {
            **self.account,
            "SHELL": "/bin/sh",
            "PATH": "/usr/bin:/bin",
            "PYTHON": sys.executable,
        }
        return self.run(["/bin/sh", "-c", command], {**found, **environ}, check=False)

    def run(
        self, words: list[str], environ: dict[str, str], *, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        ended = subprocess.run(
            words,
            env=environ,
            cwd=self.checkout,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        sys.stderr.write(f"$ {words[-1]}\n{ended.stdout}{ended.stderr}")
        assert not check or ended.returncode == 0
        return ended


@pytest.fixture(scope="module")
def edge(world: World) -> Edge:
    """The account before anything is done."""
    edge = Edge(world, world.folder / "home")
    for name in FOLDERS:
        shutil.copytree(
            ROOT / name, edge.checkout / name, ignore=shutil.ignore_patterns("__pycache__", "*.so")
        )
    for name in FILES:
        shutil.copy(ROOT / name, edge.checkout)
    port = world.cluster.ports["nodemanager-shuffle"]
    (edge.home / "small").write_text(f"{SMALL}spark.shuffle.service.port={port}\n")
    # With this key people get the pseudonyms that they have in the results of this host.
    world.here("data_aggregation")
    state = edge.home / ".local" / "state" / "cmsspark"
    state.mkdir(parents=True, mode=0o700)
    shutil.copy(world.folder / "state" / "pseudonym.key", state)
    return edge


# One test, as the commands build on each other.
def test_each_command_of_the_page_works_on_an_empty_edge_node(world: World, edge: Edge) -> None:
    (prepare, settings, run, *rest) = BLOCKS
    assert [language for language, _ in (prepare, settings, run)] == ["", "yaml", ""] and not rest
    edge.type(prepare[1])
    edge.settings.parent.mkdir(parents=True)
    edge.settings.write_text(edge.here(settings[1]))
    said = edge.type(run[1])
    place = f"/user/{user()}/popularity/data_aggregation/{DAY.isoformat()}/runs/"
    assert re.search(rf"^hdfs://[\w.:]*{place}\S+$", said, re.MULTILINE)
    assert_same(world, "data_aggregation", world.fetched(f"/user/{user()}/popularity"))
    assert len(world.cluster.hdfs.names(place)) == 2, "once with the driver here, once there"

    # Cron knows nothing of the shell's environment.
    lost = edge.cron()
    log = edge.home / "daily.log"
    assert lost.returncode == 78 and "HADOOP_CONF_DIR" in log.read_text()
    log.unlink()
    (variable,) = re.findall(r"^# ?(HADOOP_CONF_DIR)=(\S+)$", CRONTAB, re.MULTILINE)
    days = f"--from {DAYS[0]:%Y%m%d} --to {DAYS[1]:%Y%m%d}"
    ended = edge.cron(days, **{variable[0]: edge.here(variable[1])})
    assert ended.returncode == 0, log.read_text()
    # The first day is there already.
    assert "1 to do, 1 done in " in log.read_text()
    assert_same(world, "data_aggregation", world.fetched(f"/user/{user()}/popularity"), DAYS[1])
