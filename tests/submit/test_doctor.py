"""``cmsspark doctor``: a line for each need, its mend, and that nothing is made by looking."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from cmsspark.settings import pseudonyms
from cmsspark.sources.registry import RUCIO_SINCE
from cmsspark.submit import yarn
from cmsspark.submit.doctor import NOTE, OK, WRONG, Diagnosis, _served_pages, command, examine

NEEDS = [
    "python",
    "compiled",
    "java",
    "settings",
    "store",
    "root",
    "tables",
    "key",
    "broker",
    "people",
    "disk",
    "cluster",
]


def findings(
    folder: Path, settings: str = "", environ: Mapping[str, str] | None = None
) -> dict[str, Diagnosis]:
    file = folder / "cmsspark.yaml"
    file.write_text(f"state_dir: {folder}/state\ncache_dir: {folder}/cache\n{settings}")
    made = examine(str(file), None, {"HOME": str(folder), "PATH": "/nowhere", **(environ or {})})
    return {finding.name: finding for finding in made}


def test_every_need_has_a_line_and_looking_makes_nothing(tmp_path: Path) -> None:
    found = findings(tmp_path, f"root: {tmp_path}\nstore: {tmp_path}/store\n")
    assert list(found) == NEEDS
    assert all(finding.mend for finding in found.values() if finding.state == WRONG)
    assert [path.name for path in tmp_path.iterdir()] == ["cmsspark.yaml"]


def test_a_wrong_setting_is_reported_with_file_and_line_and_ends_the_check(tmp_path: Path) -> None:
    found = findings(tmp_path, "stroe: x\n")
    assert found["settings"].state == WRONG and "cmsspark.yaml, line 3" in found["settings"].text
    assert "store" not in found


def test_java_is_needed_for_spark_only(tmp_path: Path) -> None:
    found = findings(tmp_path)["java"]
    assert found.state == NOTE and "only Spark" in found.text and found.mend


def test_a_store_that_cannot_be_written_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert findings(tmp_path, f"store: {tmp_path}/file/store\n")["store"].state == WRONG
    assert findings(tmp_path, f"store: {tmp_path}/new/store\n")["store"].state == OK
    (tmp_path / "made" / "data_aggregation").mkdir(parents=True)
    assert "data_aggregation" in findings(tmp_path, f"store: {tmp_path}/made\n")["store"].text


def test_a_root_says_which_inputs_it_has(tmp_path: Path) -> None:
    assert findings(tmp_path, f"root: {tmp_path}/none\n")["root"].state == WRONG
    (tmp_path / "mirror/project/monitoring/archive/xrootd/enr/gled").mkdir(parents=True)
    found = findings(tmp_path, f"root: {tmp_path}/mirror\n")["root"]
    assert found.state == NOTE and "has aaa" in found.text and "lacks eos" in found.text


def test_tables_that_the_newest_dump_of_rucio_lacks_are_named_with_their_first_day(
    tmp_path: Path,
) -> None:
    rucio = tmp_path / "root/project/awg/cms/rucio"
    settings = f"root: {tmp_path}/root\n"
    for day in ("2026-01-01", "2026-01-02"):
        for table in RUCIO_SINCE:
            folder = rucio / day / table.lower()
            folder.mkdir(parents=True)
            (folder / "part-m-00000.avro").write_bytes(b"Obj")
    assert findings(tmp_path, settings)["tables"].state == OK
    (rucio / "2026-01-01/locks/part-m-00000.avro").unlink()
    assert findings(tmp_path, settings)["tables"].state == OK
    (rucio / "2026-01-02/rse_usage/part-m-00000.avro").unlink()
    (rucio / "2026-01-02/rse_usage").rmdir()
    (rucio / "2026-01-02/rules/part-m-00000.avro").write_bytes(b"")
    found = findings(tmp_path, settings)["tables"]
    assert found.state == NOTE and "2026-01-02: RULES is empty" in found.text
    assert "RSE_USAGE is missing (in dumps since 2026-07-14)" in found.text
    assert "LOCKS" not in found.text.replace("DATASET_LOCKS", "")


def test_a_key_that_others_can_read_is_wrong(tmp_path: Path) -> None:
    key = tmp_path / "state" / pseudonyms.KEY_FILE
    assert findings(tmp_path)["key"].state == NOTE
    pseudonyms.load_or_make(key)
    assert findings(tmp_path)["key"].state == OK
    key.chmod(0o644)
    assert findings(tmp_path)["key"].mend == f"chmod 600 {key}"


def test_a_state_directory_that_others_may_enter_is_a_note(tmp_path: Path) -> None:
    pseudonyms.load_or_make(tmp_path / "state" / "pseudonym.key")
    (tmp_path / "state").chmod(0o755)
    finding = findings(tmp_path)["key"]
    assert finding.state == NOTE and finding.mend == f"chmod 700 {tmp_path}/state"


def test_a_broker_is_connected_to_and_one_that_is_not_there_is_wrong(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        file = tmp_path / "amq.json"
        file.write_text(
            json.dumps(
                {
                    "username": "u",
                    "password": "p",
                    "producer": "cms",
                    "topic": "/topic/x",
                    "host_and_ports": f"127.0.0.1:{port}",
                }
            )
        )
        file.chmod(0o600)
        settings = f"publishing: {{amq: {file}}}\n"
        assert findings(tmp_path, settings)["broker"].state == OK
    assert findings(tmp_path, settings)["broker"].state == WRONG
    file.chmod(0o644)
    assert findings(tmp_path, settings)["broker"].state == WRONG, "others can read the password"


def test_a_cluster_that_the_settings_name_needs_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert findings(tmp_path)["cluster"].state == OK
    assert findings(tmp_path, "profile: yarn\n")["cluster"].state == WRONG
    found = findings(tmp_path, "profile: yarn\n", {"HADOOP_CONF_DIR": str(tmp_path)})["cluster"]
    assert found.state == WRONG and "core-site.xml and yarn-site.xml" in found.text
    for name in ("core-site.xml", "yarn-site.xml"):
        (tmp_path / name).write_text("<configuration/>")
    environ = {"HADOOP_CONF_DIR": str(tmp_path)}
    # Files that name nothing mean a cluster on this host, and there is none.
    found = findings(tmp_path, "profile: yarn\n", environ)["cluster"]
    assert found.state == WRONG and "names no ResourceManager" in found.text
    monkeypatch.setattr(yarn, "refuses", lambda address: False)
    assert findings(tmp_path, "profile: yarn\n", environ)["cluster"].state == OK


def test_a_cluster_is_asked_for_what_a_run_with_the_profiles_options_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("core-site.xml", "yarn-site.xml"):
        (tmp_path / name).write_text("<configuration/>")
    environ = {"HADOOP_CONF_DIR": str(tmp_path)}
    # Executors of the profile take 7 GiB, which the settings do not say.
    monkeypatch.setattr(yarn, "refuses", lambda address: False)
    monkeypatch.setattr(yarn, "node_sizes", lambda environ: [6 << 30])
    monkeypatch.setattr(yarn, "pages", lambda properties: ["http://rm:8088"])
    small = findings(tmp_path, "profile: yarn\n", environ)["cluster"]
    assert small.state == WRONG and "no node of YARN has room for the executor" in small.text
    halted = yarn.Queue("root.cms", True, "STOPPED", 1.0, 0.0)
    monkeypatch.setattr(yarn, "queues", lambda environ: {"cms": halted})
    queue = "profile: yarn\nspark: {spark.yarn.queue: cms}\n"
    both = findings(tmp_path, queue, environ)["cluster"].text
    assert "the queue cms of YARN takes no applications" in both and "; also: no node" in both
    enough = "profile: yarn\nspark: {spark.executor.memory: 2g}\n"
    assert findings(tmp_path, enough, environ)["cluster"].state == OK


def test_a_cluster_with_kerberos_needs_a_ticket_or_a_keytab(tmp_path: Path) -> None:
    for name in ("conf", "bin"):
        (tmp_path / name).mkdir()
    wanted = (
        "<property><name>hadoop.security.authentication</name><value>kerberos</value></property>"
    )
    (tmp_path / "conf" / "core-site.xml").write_text(wanted)
    (tmp_path / "conf" / "yarn-site.xml").write_text("<configuration/>")
    klist = tmp_path / "bin" / "klist"
    klist.write_text("#!/bin/sh\nexit 1\n")
    klist.chmod(0o755)
    environ = {"HADOOP_CONF_DIR": str(tmp_path / "conf"), "PATH": str(tmp_path / "bin")}
    lacking = findings(tmp_path, environ=environ)["cluster"]
    assert lacking.state == WRONG and "no ticket" in lacking.text and "kinit" in lacking.mend
    keytab = tmp_path / "me.keytab"
    keytab.write_bytes(b"\x05\x02")
    keytab.chmod(0o600)
    text = f"spark:\n  spark.kerberos.principal: me@REALM\n  spark.kerberos.keytab: {keytab}\n"
    assert findings(tmp_path, text, environ)["cluster"].state == OK


def test_the_command_prints_lines_or_json_and_ends_with_78_where_something_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cmsspark.yaml"
    file.write_text(f"root: {tmp_path}/none\nstate_dir: {tmp_path}\ncache_dir: {tmp_path}\n")
    arguments = ["--settings", str(file), "--fout", str(tmp_path / "store")]
    shown = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert shown.return_value == 78
    assert "wrong root" in shown.output and "next: name the folder with --root" in shown.output
    listed = CliRunner().invoke(command, [*arguments, "--json"], standalone_mode=False)
    assert [finding["name"] for finding in json.loads(listed.output)] == NEEDS


def test_small_groups_are_a_note_where_others_read_documents_or_pages(tmp_path: Path) -> None:
    alone = findings(tmp_path)["people"]
    assert alone.state == OK and alone.mend is None
    published = findings(tmp_path, "publishing: {amq: broker.json}\n")["people"]
    assert (
        published.state == NOTE
        and "a broker" in published.text
        and "min_distinct_users" in str(published.mend)
    )
    chosen = findings(tmp_path, "publishing: {amq: broker.json, min_distinct_users: 5}\n")[
        "people"
    ]
    assert chosen.state == OK and "fewer than 5" in chosen.text


def test_a_dashboard_that_other_hosts_reach_is_recognised(tmp_path: Path) -> None:
    start = ["/usr/bin/python3", "/usr/bin/cmsspark", "dashboard"]
    lines = {
        "1": [*start, "--host", "0.0.0.0"],
        "2": [*start, "--host=::"],
        "3": [*start, "--host-name", "monit.example.org"],
        "4": start,
        "5": [*start, "--host", "127.0.0.1", "--port", "1"],
        "6": ["vi", "dashboard", "--host", "0.0.0.0"],
    }
    for number, words in lines.items():
        (tmp_path / number).mkdir()
        (tmp_path / number / "cmdline").write_bytes(
            b"\0".join(word.encode() for word in words) + b"\0"
        )
    assert _served_pages(tmp_path) == [f"the dashboard of process {number}" for number in "123"]
