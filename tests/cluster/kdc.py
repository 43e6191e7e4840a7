"""A Kerberos realm of our own: a KDC from the distribution in one folder, keytabs, and tickets."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster import configuration
from tests.ports import free_port

REALM = "CMSSPARK.TEST"
#: The daemons, and the web pages of those that serve WebHDFS.
SERVICES = ("hdfs", "yarn", "HTTP")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
#: Debian's packages, as an operator would install them.
NEEDED = {
    "krb5kdc": "krb5-kdc",
    "kadmin.local": "krb5-admin-server",
    "kinit": "krb5-user",
    "curl": "curl",
}


def missing() -> list[str]:
    """Packages of the distribution that are not installed."""
    return [package for name, package in NEEDED.items() if shutil.which(name, path=PATH) is None]


@dataclass
class Realm:
    """A KDC that lives in ``folder``, with a principal for each service and one for the
    user of these tests.
    """

    folder: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def config(self) -> Path:
        """The ``krb5.conf`` of clients and daemons."""
        return self.folder / "krb5.conf"

    @property
    def keytab(self) -> Path:
        """The keys of all services."""
        return self.folder / "services.keytab"

    @property
    def user_keytab(self) -> Path:
        """The key of :attr:`user`, which only its owner can read."""
        return self.folder / "user.keytab"

    @property
    def user(self) -> str:
        """The principal of who runs the tests: a container's files belong to that account."""
        return f"{configuration.user()}@{REALM}"

    @property
    def java_option(self) -> str:
        """What tells a JVM of this realm."""
        return f"-Djava.security.krb5.conf={self.config}"

    @property
    def environment(self) -> dict[str, str]:
        """What a client has in its environment: the realm, and no ticket."""
        return {
            "KRB5_CONFIG": str(self.config),
            "KRB5CCNAME": f"FILE:{self.folder}/no-ticket",
            # JVMs that no option of Spark reaches: the one that submits.
            "SPARK_SUBMIT_OPTS": self.java_option,
        }

    def up(self) -> None:
        """Make the realm, its principals and keytabs, and start the KDC."""
        self.folder.mkdir(parents=True)
        self.port = free_port()
        self.config.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            " rdns = false\n dns_canonicalize_hostname = false\n udp_preference_limit = 1\n"
            # Java reads files only.
            f" default_ccache_name = FILE:{self.folder}/no-ticket\n"
            f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{self.port}\n }}\n",
            encoding="utf-8",
        )
        (self.folder / "kdc.conf").write_text(
            f"[kdcdefaults]\n kdc_listen = 127.0.0.1:{self.port}\n kdc_tcp_listen = 127.0.0.1:{self.port}\n"
            f"[realms]\n {REALM} = {{\n  database_name = {self.folder}/principal\n"
            f"  key_stash_file = {self.folder}/stash\n  max_life = 10h\n }}\n"
            f"[logging]\n kdc = FILE:{self.folder}/kdc.log\n",
            encoding="utf-8",
        )
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "only-for-tests")
        for service in SERVICES:
            self._add(f"{service}/localhost", self.keytab)
        self._add(self.user, self.user_keytab)
        with (self.folder / "kdc.out").open("wb") as stream:
            self.process = subprocess.Popen(
                ["krb5kdc", "-n", "-r", REALM], env=self._environ(), stdout=stream, stderr=stream
            )

    def down(self) -> None:
        """End the KDC."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()

    def ticket(self, name: str, life: str = "1h") -> Path:
        """A credential cache with a ticket of the user's that lives so long; its path."""
        cache = self.folder / name
        self._run(
            "kinit",
            "-l",
            life,
            "-k",
            "-t",
            str(self.user_keytab),
            "-c",
            f"FILE:{cache}",
            self.user,
        )
        return cache

    def delegation(self, webhdfs: str) -> str:
        """A delegation token for WebHDFS at that address."""
        return str(
            json.loads(self.get(f"{webhdfs}/webhdfs/v1/?op=GETDELEGATIONTOKEN"))["Token"][
                "urlString"
            ]
        )

    def get(self, url: str) -> bytes:
        """What a page answers to the user; OSError where it does not."""
        cache = self.folder / "page-ticket"
        if not cache.exists():
            self.ticket(cache.name, "8h")
        words = ["curl", "--fail", "--silent", "--show-error", "--negotiate", "--user", ":", url]
        environ = self._environ() | {"KRB5CCNAME": f"FILE:{cache}"}
        done = subprocess.run(words, env=environ, capture_output=True, check=False, timeout=60)
        if done.returncode:
            raise OSError(done.stderr.decode(errors="replace"))
        return done.stdout

    def stale_keytab(self, target: Path) -> None:
        """A keytab of ``former@`` whose key the realm has changed since."""
        self._add(f"former@{REALM}", target)
        self._run("kadmin.local", "-r", REALM, "change_password", "-randkey", f"former@{REALM}")

    def keys(self) -> list[str]:
        """All keys as hexadecimal digits: nothing may print them."""
        found: list[str] = []
        for keytab in (self.keytab, self.user_keytab):
            words = ["klist", "-k", "-K", str(keytab)]
            shown = subprocess.run(
                words, env=self._environ(), capture_output=True, text=True, check=True
            ).stdout
            found += re.findall(r"\(0x([0-9a-f]+)\)", shown)
        return found

    def _add(self, principal: str, keytab: Path) -> None:
        self._run("kadmin.local", "-r", REALM, "addprinc", "-randkey", principal)
        self._run("kadmin.local", "-r", REALM, "ktadd", "-q", "-k", str(keytab), principal)
        keytab.chmod(0o600)

    def _run(self, *words: str) -> None:
        done = subprocess.run(
            words, env=self._environ(), capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)

    def _environ(self) -> dict[str, str]:
        return {
            "PATH": PATH,
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf"),
        }


def properties(realm: Realm) -> dict[str, dict[str, str]]:
    """What a secured cluster has in its files besides, by the name of the file."""
    keytab = str(realm.keytab)

    def service(prefix: str, name: str) -> dict[str, str]:
        return {
            f"{prefix}.kerberos.principal": f"{name}/localhost@{REALM}",
            f"{prefix}.keytab.file": keytab,
        }

    hdfs = f"hdfs/localhost@{REALM}"
    return {
        "core-site.xml": {
            "hadoop.security.authentication": "kerberos",
            "hadoop.security.authorization": "true",
        },
        "hdfs-site.xml": {
            **service("dfs.namenode", "hdfs"),
            **service("dfs.datanode", "hdfs"),
            "dfs.web.authentication.kerberos.principal": f"HTTP/localhost@{REALM}",
            "dfs.web.authentication.kerberos.keytab": keytab,
            "hadoop.http.filter.initializers": "org.apache.hadoop.hdfs.web.AuthFilterInitializer",
            "hadoop.http.authentication.type": "kerberos",
            "hadoop.http.authentication.kerberos.principal": f"HTTP/localhost@{REALM}",
            "hadoop.http.authentication.kerberos.keytab": keytab,
            "dfs.block.access.token.enable": "true",
            "dfs.data.transfer.protection": "authentication",
            # Blocks move over SASL; ports below 1024 and HTTPS are for clusters of several hosts.
            "ignore.secure.ports.for.testing": "true",
            "dfs.permissions.superusergroup": configuration.user(),
            "dfs.cluster.administrators": f"{configuration.user()},hdfs",
            "dfs.namenode.kerberos.principal": hdfs,
        },
        "yarn-site.xml": {
            "yarn.resourcemanager.principal": f"yarn/localhost@{REALM}",
            "yarn.resourcemanager.keytab": keytab,
            "yarn.nodemanager.principal": f"yarn/localhost@{REALM}",
            "yarn.nodemanager.keytab": keytab,
            # Logs of a secured node are collected by Hadoop's native code, which
            # Maven's jars do not have.
            "yarn.log-aggregation-enable": "false",
            "yarn.resourcemanager.webapp.delegation-token-auth-filter.enabled": "false",
        },
    }
