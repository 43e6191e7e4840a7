"""Layers of Spark options: what wins, where it came from, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from cmsspark.base.errors import SettingsError, UsageError
from cmsspark.submit.spark_options import Options, add_options_file, cluster_defaults
from tests.submit.hosts import PLACES, SETTINGS, command

MEMORY = "spark.executor.memory"


def test_each_layer_comes_before_the_one_below_and_all_stay_known(tmp_path: Path) -> None:
    options_file = tmp_path / "spark.options"
    options_file.write_text(
        f"# as in CMSSpark\n\n{MEMORY}=11g\n--conf spark.network.timeout=120s\n"
    )
    settings = replace(
        SETTINGS, spark={MEMORY: "10g"}, origin="/s.yaml", lines={("spark", MEMORY): 7}
    )
    words = ("dbs_aaa", "--yarn", "--conf", f"{MEMORY}=12g")
    built = command(*words, settings=settings, environ={"SPARK_OPTIONS": str(options_file)})
    chosen = built.options.chosen[MEMORY]
    assert (chosen.value, chosen.origin) == ("12g", "command line")
    assert chosen.overridden == (
        ("11g", f"{options_file}, line 3"),
        ("10g", "/s.yaml, line 7"),
        ("4g", "etc/spark/cluster.yaml"),
    )
    assert built.options.get("spark.network.timeout") == "120s"


def test_conf_comes_before_the_short_option() -> None:
    built = command("dbs_aaa", "--executor-memory", "9g", "--conf", f"{MEMORY}=7g", "--yarn")
    assert built.options.get(MEMORY) == "7g"


def test_lists_add_up_over_the_layers() -> None:
    settings = replace(SETTINGS, spark={"spark.jars": "/a.jar"}, origin="/s.yaml")
    built = command("./own.py", "--jars", "/b.jar", "--jars", "/a.jar,/c.jar", settings=settings)
    assert built.options.get("spark.jars") == "/a.jar,/b.jar,/c.jar"


@pytest.mark.parametrize(
    ("name", "successor"),
    [
        ("spark.yarn.keytab", "spark.kerberos.keytab"),
        ("spark.yarn.principal", "spark.kerberos.principal"),
        ("spark.blacklist.enabled", "spark.excludeOnFailure.enabled"),
        ("spark.scheduler.blacklist.timeout", "spark.excludeOnFailure.timeout"),
        ("spark.kubernetes.memoryOverheadFactor", "memoryOverheadFactor"),
        ("spark.yarn.executor.memoryOverhead", "spark.executor.memoryOverhead"),
        ("spark.yarn.security.tokens.hive.enabled", "spark.security.credentials.hive.enabled"),
        ("spark.akka.timeout", "leave it out"),
    ],
)
def test_retired_names_are_refused_with_the_new_one(name: str, successor: str) -> None:
    with pytest.raises(UsageError) as caught:
        command("dbs_aaa", "--conf", f"{name}=x")
    assert successor in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "spark.hadoop.fs.s3a.secret.key",
        "spark.authenticate.secret",
        "spark.ssl.keyPassword",
        "spark.kubernetes.authenticate.oauthToken",
        "spark.my.passcode",
    ],
)
def test_a_secret_reaches_no_command_line(name: str) -> None:
    with pytest.raises(UsageError, match="all users of this host can read"):
        command("dbs_aaa", "--conf", f"{name}=hunter2")
    with pytest.raises(SettingsError) as caught:
        command("dbs_aaa", settings=replace(SETTINGS, spark={name: "hunter2"}, origin="/s.yaml"))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["spark.authenticate.secret.file", "spark.security.credentials.hive.enabled"]
)
def test_names_that_only_look_like_secrets_pass(name: str) -> None:
    assert command("dbs_aaa", "--conf", f"{name}=x").options.get(name) == "x"


@pytest.mark.parametrize("conf", ["a", "=b", "executor.memory=1g"])
def test_a_conf_is_spark_option_equals_value(conf: str) -> None:
    with pytest.raises(UsageError):
        command("dbs_aaa", "--conf", conf)


def test_a_conf_keeps_what_stands_after_the_first_equals_sign() -> None:
    built = command("dbs_aaa", "--conf", "spark.x=a=b c")
    assert "spark.x=a=b c" in built.argv


def test_a_spark_options_file_that_is_wrong_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="SPARK_OPTIONS"):
        add_options_file(Options(), str(tmp_path / "none"))
    file = tmp_path / "o"
    file.write_text("spark.a=1\nspark.b 2\n")
    with pytest.raises(SettingsError, match="line 2"):
        add_options_file(Options(), str(file))


def test_the_event_log_is_on_where_its_folder_is_known_or_the_driver_is_here(
    tmp_path: Path,
) -> None:
    unmeasured = replace(PLACES, events=None)
    assert (
        command("dbs_aaa", "--yarn", places=unmeasured).options.get("spark.eventLog.enabled")
        is None
    )
    cluster = command("dbs_aaa", "--yarn", "--deploy-mode", "cluster")
    assert cluster.options.get("spark.eventLog.enabled") is None, "the driver is on another host"
    here = command("dbs_aaa", "--yarn").options
    assert (here.get("spark.eventLog.enabled"), here.get("spark.eventLog.dir")) == (
        "true",
        PLACES.events,
    )
    off = command("dbs_aaa", "--conf", "spark.eventLog.enabled=false").options
    assert off.get("spark.eventLog.enabled") == "false", "what a user says comes after it"
    given = command("dbs_aaa", "--yarn", "--conf", "spark.eventLog.dir=hdfs:///logs")
    assert given.options.get("spark.eventLog.enabled") == "true"
    assert given.options.get("spark.eventLog.dir") == "hdfs:///logs"
    (tmp_path / "spark-defaults.conf").write_text("# site\nspark.eventLog.dir   hdfs:///logs\n")
    by_site = command("dbs_aaa", "--yarn", environ={"SPARK_CONF_DIR": str(tmp_path)})
    assert by_site.options.get("spark.eventLog.enabled") == "true"


def test_spark_defaults_are_read_in_both_spellings(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.a b c\nspark.d=e\n\n#spark.f g\n")
    assert cluster_defaults(tmp_path, {"SPARK_CONF_DIR": str(tmp_path)}) == {
        "spark.a": "b c",
        "spark.d": "e",
    }
