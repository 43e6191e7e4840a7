"""Kerberos before anything starts: a missing or expired ticket is 77 at once, with what to type."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cmsspark.base.errors import NotAllowed, SettingsError
from cmsspark.engines.session import unwrap_cause, why_not_started
from cmsspark.settings import kerberos

SECURE = (
    "<configuration><!-- <name>hadoop.security.authentication</name><value>simple</value> -->\n"
    "<property>\n <name>hadoop.security.authentication</name>\n <value>kerberos</value></property></configuration>"
)
ROOT = Path(__file__).resolve().parents[2]


def cluster(folder: Path, ticket: int | None, core: str = SECURE) -> dict[str, str]:
    """The environment of an edge node; ``ticket``: with what klist ends, None where
    there is no klist.
    """
    for name in ("conf", "bin"):
        (folder / name).mkdir()
    (folder / "conf" / "core-site.xml").write_text(core)
    (folder / "conf" / "yarn-site.xml").write_text("<configuration/>")
    if ticket is not None:
        klist = folder / "bin" / "klist"
        klist.write_text(f'#!/bin/sh\n[ "$1" = -s ] || exit 9\nexit {ticket}\n')
        klist.chmod(0o755)
    return {"HADOOP_CONF_DIR": str(folder / "conf"), "PATH": str(folder / "bin")}


def test_without_a_ticket_it_is_77_with_what_to_type(tmp_path: Path) -> None:
    environ = cluster(tmp_path, 1)
    with pytest.raises(NotAllowed, match=r"kinit.*--keytab") as error:
        kerberos.check({**environ, "KRB5CCNAME": "FILE:/tmp/krb5cc_7"})
    assert "FILE:/tmp/krb5cc_7" in str(error.value)


def test_a_ticket_a_cluster_without_kerberos_and_a_host_without_klist_pass(tmp_path: Path) -> None:
    for number, (ticket, core) in enumerate(
        [(0, SECURE), (1, "<configuration/>"), (None, SECURE), (1, "no xml")]
    ):
        (tmp_path / str(number)).mkdir()
        kerberos.check(cluster(tmp_path / str(number), ticket, core))
    kerberos.check({})


def test_a_keytab_is_private_and_comes_with_its_principal(tmp_path: Path) -> None:
    environ = cluster(tmp_path, 1)
    keytab = tmp_path / "me.keytab"
    keytab.write_bytes(b"\x05\x02planted-key")
    keytab.chmod(0o600)
    kerberos.check(environ, "me@REALM", str(keytab))
    keytab.chmod(0o644)
    with pytest.raises(NotAllowed, match="chmod 600"):
        kerberos.check(environ, "me@REALM", str(keytab))
    with pytest.raises(NotAllowed, match="cannot be read"):
        kerberos.check(environ, "me@REALM", str(tmp_path / "gone"))
    with pytest.raises(NotAllowed, match="cannot be read"):
        # Spark reads it on a cluster without Kerberos, too.
        kerberos.check({}, "me@REALM", str(tmp_path / "gone"))
    for principal, file in (("me@REALM", None), (None, str(keytab))):
        with pytest.raises(SettingsError, match="belong together"):
            kerberos.check(environ, principal, file)


@pytest.mark.parametrize(
    ("words", "is_refused"),
    [
        ("kinit: Preauthentication failed while getting initial credentials", True),
        (
            "kinit: Client 'me@REALM' not found in Kerberos database while getting initial credentials",
            True,
        ),
        (
            "kinit: Keytab contains no suitable keys for me@REALM while getting initial credentials",
            True,
        ),
        (
            "kinit: Cannot contact any KDC for realm 'REALM' while getting initial credentials",
            False,
        ),
    ],
)
def test_a_keytab_that_the_realm_refuses_is_77_and_a_kdc_that_is_away_is_left_to_java(
    tmp_path: Path, words: str, is_refused: bool
) -> None:
    environ = cluster(tmp_path, 0)
    kinit = tmp_path / "bin" / "kinit"
    kinit.write_text(
        f'#!/bin/sh\n[ "$1 $2 $4 $5" = "-k -t -c MEMORY:cmsspark" ] || exit 0\necho "{words}" >&2\nexit 1\n'
    )
    kinit.chmod(0o755)
    keytab = tmp_path / "me.keytab"
    keytab.write_bytes(b"\x05\x02planted-key")
    keytab.chmod(0o600)
    if not is_refused:
        kerberos.check(environ, "me@REALM", str(keytab))
        return
    with pytest.raises(NotAllowed, match=r"klist -k .*me\.keytab") as error:
        kerberos.check(environ, "me@REALM", str(keytab))
    assert words.removeprefix("kinit: ").split(" while")[0][:24] in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "GSS initiate failed [Caused by GSSException: No valid credentials provided (Mechanism level: Failed to "
        "find any Kerberos tgt)]",
        "org.apache.hadoop.security.AccessControlException: Client cannot authenticate via:[TOKEN, KERBEROS]",
        "SIMPLE authentication is not enabled.  Available:[TOKEN, KERBEROS]",
        "KrbException: Ticket expired (32)",
    ],
)
def test_what_java_says_of_a_ticket_is_77(text: str) -> None:
    for error in (
        unwrap_cause(Exception(f"Py4JJavaError: {text}\n\tat x")),
        why_not_started(text),
    ):
        assert isinstance(error, NotAllowed) and "kinit" in str(error)


@pytest.mark.parametrize(
    ("text", "code", "step"),
    [
        (
            "GSSException: No valid credentials provided (Mechanism level: Connection refused (Connection refused))",
            75,
            "run it again later",
        ),
        (
            "KerberosAuthException: failure to login: for principal: me@REALM from keytab me.keytab "
            "javax.security.auth.login.LoginException: Receive timed out",
            75,
            "run it again later",
        ),
        (
            "GSSAPIError(\"Cannot contact any KDC for realm 'REALM'\")",
            75,
            "run it again later",
        ),
        (
            "No valid credentials provided (Mechanism level: Server not found in Kerberos database (7))",
            78,
            "krb5.conf",
        ),
        (
            "java.lang.IllegalArgumentException: Server has invalid Kerberos principal: hdfs/a@REALM, "
            "expecting: hdfs/b@REALM",
            78,
            "principal",
        ),
        ("KrbException: Cannot find KDC for realm OTHER", 78, "krb5.conf"),
    ],
)
def test_where_no_ticket_would_help_it_is_said(text: str, code: int, step: str) -> None:
    error = why_not_started(text)
    assert error is not None and int(error.exit_code) == code
    assert step in str(error.next_step) and "kinit" not in str(error)


def test_other_refusals_are_not_about_tickets() -> None:
    assert kerberos.refused("Permission denied: user=me, access=WRITE, inode=/cms") is None


def test_run_spark_ends_before_any_jvm_starts(tmp_path: Path) -> None:
    environ = cluster(tmp_path, 1)
    java = tmp_path / "bin" / "java"
    java.write_text(
        '#!/bin/sh\n[ "$1" = -version ] && { echo \'openjdk version "17.0.1"\' >&2; exit 0; }\ntouch started\n'
    )
    java.chmod(0o755)
    environ = {**environ, "PATH": f"{environ['PATH']}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    words = ["dbs_events", "--date", "2026-01-15", "--fout", "hdfs:///out", "--yarn"]
    command = [sys.executable, "-c", "from cmsspark.submit import main; main()", *words]
    environ |= {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 77, done.stderr
    assert "kinit" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "started").exists()
