"""Jobs on an HDFS and a YARN that want Kerberos: by ticket and by keytab, and what is
said without one.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from tests.cluster import kdc
from tests.cluster.conftest import DAY, DAYS, Ended, World, a_world, assert_same

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A secured cluster with a KDC of its own."""
    missing = kdc.missing()
    assert not missing, f"these tests need a KDC: apt-get install {' '.join(missing)}"
    folder = tmp_path_factory.mktemp("secured")
    realm = kdc.Realm(folder / "realm")
    realm.up()
    try:
        with a_world(folder, realm=realm) as there:
            yield there
    finally:
        realm.down()


@pytest.fixture()
def realm(secured: World) -> kdc.Realm:
    assert secured.cluster.realm is not None
    return secured.cluster.realm


def by_keytab(realm: kdc.Realm) -> tuple[str, ...]:
    return ("--principal", realm.user, "--keytab", str(realm.user_keytab))


def applications(world: World) -> set[str]:
    return {application["id"] for application in world.cluster.applications()}


def is_refused(ended: Ended) -> bool:
    """Ended with 77, which names the ticket and says what to type, and without a trace."""
    lines = ended.err.splitlines()
    return (
        ended.code == 77
        and any("Kerberos ticket" in line for line in lines)
        and any(
            line.strip().startswith("next:") and "kinit" in line and "--keytab" in line
            for line in lines
        )
        and not any(word in ended.err for word in ("Traceback", "\tat "))
    )


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_with_a_ticket_a_day_has_the_same_cells_as_here(
    secured: World, realm: kdc.Realm, mode: str
) -> None:
    ticket = realm.ticket(f"ticket-{mode}")
    words = secured.on_yarn(
        "data_aggregation", f"hdfs:///cms/ticket-{mode}", "--deploy-mode", mode
    )
    ended = secured.run(*words, KRB5CCNAME=f"FILE:{ticket}")
    assert ended.code == 0
    assert_same(secured, "data_aggregation", secured.fetched(f"/cms/ticket-{mode}"))
    # Answers without a job read the same store.
    shown = secured.cmsspark(
        "show",
        "data_aggregation",
        "--path",
        "--date",
        DAY.isoformat(),
        "--fout",
        f"hdfs:///cms/ticket-{mode}",
        KRB5CCNAME=f"FILE:{ticket}",
    )
    assert shown.code == 0 and f"/cms/ticket-{mode}/data_aggregation/{DAY}/runs/" in shown.out


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_with_a_keytab_and_no_ticket_a_day_has_the_same_cells_as_here(
    secured: World, realm: kdc.Realm, mode: str
) -> None:
    words = secured.on_yarn(
        "data_aggregation", f"hdfs:///cms/keytab-{mode}", "--deploy-mode", mode
    )
    ended = secured.run(*words, *by_keytab(realm))
    assert ended.code == 0
    assert_same(secured, "data_aggregation", secured.fetched(f"/cms/keytab-{mode}"))


def test_without_a_ticket_nothing_is_submitted(secured: World) -> None:
    before = applications(secured)
    begun = time.monotonic()
    ended = secured.run(*secured.on_yarn("data_aggregation", "hdfs:///cms/none"))
    assert is_refused(ended)
    # No JVM has started: it takes longer than that on its own to find out.
    assert time.monotonic() - begun < 30
    assert applications(secured) == before


def test_a_ticket_that_has_expired_is_refused_as_none(secured: World, realm: kdc.Realm) -> None:
    ticket = realm.ticket("short", "2s")
    environ = {"KRB5_CONFIG": str(realm.config), "KRB5CCNAME": f"FILE:{ticket}"}
    while not subprocess.run(
        ["klist", "-s"], env={**environ, "PATH": kdc.PATH}, check=False
    ).returncode:
        time.sleep(0.2)
    before = applications(secured)
    assert is_refused(secured.run(*secured.on_yarn("dbs_phedex", "hdfs:///cms/none"), **environ))
    assert applications(secured) == before


def test_a_keytab_with_an_old_key_is_refused(
    secured: World, realm: kdc.Realm, tmp_path: Path
) -> None:
    old = tmp_path / "old.keytab"
    realm.stale_keytab(old)
    before = applications(secured)
    for mode in ("client", "cluster"):
        words = secured.on_yarn("dbs_phedex", "hdfs:///cms/none", "--deploy-mode", mode)
        ended = secured.run(*words, "--principal", f"former@{kdc.REALM}", "--keytab", str(old))
        assert ended.code == 77 and "the keytab gives" in ended.err and "klist -k" in ended.err
        assert "Traceback" not in ended.err and "\tat " not in ended.err
    assert applications(secured) == before


def test_a_daily_from_cron_works_by_keytab_and_says_what_lacks_without(
    secured: World, realm: kdc.Realm
) -> None:
    days = ("--from", f"{DAYS[0]:%Y%m%d}", "--to", f"{DAYS[1]:%Y%m%d}")
    text = (secured.folder / "settings.yaml").read_text()
    lines = [
        "store: hdfs:///cms/daily",
        "daily:",
        "  run_spark: [--yarn]",
        "  jobs: [data_aggregation]",
    ]
    plain, kept = secured.folder / "plain.yaml", secured.folder / "keytab.yaml"
    plain.write_text("\n".join(lines) + text)
    keytab = (
        f"  spark.kerberos.principal: {realm.user}\n  spark.kerberos.keytab: {realm.user_keytab}\n"
    )
    kept.write_text("\n".join(lines) + text + keytab)
    assert is_refused(secured.cmsspark("daily", *days, CMSSPARK_SETTINGS=str(plain)))
    ended = secured.cmsspark("daily", *days, CMSSPARK_SETTINGS=str(kept))
    assert ended.code == 0
    for day in DAYS:
        assert_same(
            secured,
            "data_aggregation",
            secured.fetched("/cms/daily"),
            date.fromisoformat(str(day)),
        )


def test_no_key_is_in_any_log(secured: World, realm: kdc.Realm) -> None:
    keys = realm.keys()
    assert len(keys) >= 8
    logs = [file for file in secured.cluster.folder.rglob("logs/**/*") if file.is_file()]
    assert len(logs) > 4
    for file in logs:
        content = file.read_bytes()
        assert not any(key.encode() in content for key in keys), file
