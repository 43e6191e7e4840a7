"""A real ActiveMQ for tests: the distribution's package, own ports, own folder, stopped
at the end.

Plain STOMP and STOMP over TLS (with and without client certificates), certificates made
on the spot.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cmsspark.base.dates import SystemClock
from cmsspark.publish.credentials import Broker
from cmsspark.publish.stomp_connection import connect_stomp
from tests.ports import free_port

HOME = Path("/usr/share/activemq")
USER, PASSWORD = "publisher-user-7", "planted-secret-41"
#: A message's headers and body.
Message = tuple[dict[str, str], bytes]
#: Seconds that a broker on a busy machine may need for its next step.
PATIENCE = 180.0


def missing() -> str | None:
    """Why no broker can be started here, or None."""
    if not (HOME / "bin" / "activemq.jar").is_file():
        return "ActiveMQ is not installed (apt-get install activemq)"
    if shutil.which("java") is None or shutil.which("openssl") is None:
        return "java and openssl are needed for a real broker"
    return None


@dataclass
class Certificates:
    """A CA, a server certificate for localhost, a client's, and a CA that signed nothing."""

    folder: Path
    stores: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.stores = self.folder
        self._authority("ca")
        self._authority("other-ca")
        self._signed("server", "DNS:localhost")
        self._signed("client", "DNS:client")
        self._signed("elsewhere", "DNS:broker.example.org")
        self._signed("expired", "DNS:localhost", days="-1")
        for name in ("server", "elsewhere"):
            self._run(
                "pkcs12",
                "-export",
                "-in",
                f"{name}.pem",
                "-inkey",
                f"{name}.key",
                "-out",
                f"{name}.p12",
                "-passout",
                "pass:changeit",
                "-name",
                "broker",
            )
        subprocess.run(
            [
                "keytool",
                "-importcert",
                "-noprompt",
                "-alias",
                "ca",
                "-file",
                "ca.pem",
                "-keystore",
                "trust.p12",
                "-storetype",
                "PKCS12",
                "-storepass",
                "changeit",
            ],
            cwd=self.folder,
            check=True,
            capture_output=True,
        )

    def __getitem__(self, name: str) -> str:
        return str(self.folder / name)

    def _run(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)

    def _authority(self, name: str) -> None:
        self._run(
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.pem",
            "-days",
            "3650",
            "-subj",
            f"/CN={name} of the tests",
            "-addext",
            "basicConstraints=critical,CA:TRUE",
            "-addext",
            "keyUsage=critical,keyCertSign",
        )

    def _signed(self, name: str, alternative: str, days: str = "3650") -> None:
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(
            f"subjectAltName={alternative}\nbasicConstraints=CA:FALSE\nkeyUsage=digitalSignature,keyEncipherment\n"
            "authorityKeyIdentifier=keyid\n"
        )
        self._run(
            "req",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.csr",
            "-subj",
            f"/CN={name}",
        )
        os.chmod(self.folder / f"{name}.key", 0o600)
        self._run(
            "x509",
            "-req",
            "-in",
            f"{name}.csr",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-out",
            f"{name}.pem",
            "-days",
            days,
            "-extfile",
            f"{name}.ext",
        )


_CONFIG = """<beans xmlns="http://www.springframework.org/schema/beans"
  xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
  xsi:schemaLocation="http://www.springframework.org/schema/beans
  http://www.springframework.org/schema/beans/spring-beans-2.0.xsd
  http://activemq.apache.org/schema/core http://activemq.apache.org/schema/core/activemq-core.xsd">
  <broker xmlns="http://activemq.apache.org/schema/core" useJmx="false" brokerName="localhost"
          dataDirectory="{data}" schedulePeriodForDestinationPurge="0" useShutdownHook="true">
    <destinationPolicy><policyMap><policyEntries>
      <policyEntry queue="small.&gt;" producerFlowControl="true" memoryLimit="1mb">
        <pendingQueuePolicy><vmQueueCursor/></pendingQueuePolicy>
      </policyEntry>
      <policyEntry queue="&gt;" producerFlowControl="true" memoryLimit="64mb"/>
    </policyEntries></policyMap></destinationPolicy>
    <persistenceAdapter><kahaDB directory="{data}/kahadb" enableJournalDiskSyncs="true"/></persistenceAdapter>
    <plugins>
      <simpleAuthenticationPlugin anonymousAccessAllowed="false"><users>
        <authenticationUser username="{user}" password="{password}" groups="publishers"/>
        <authenticationUser username="reader" password="{password}" groups="readers"/>
      </users></simpleAuthenticationPlugin>
      <authorizationPlugin><map><authorizationMap><authorizationEntries>
        <authorizationEntry queue="&gt;" read="publishers,readers" write="publishers" admin="publishers"/>
        <authorizationEntry topic="&gt;" read="publishers,readers" write="publishers" admin="publishers"/>
      </authorizationEntries></authorizationMap></map></authorizationPlugin>
    </plugins>
    <sslContext><sslContext keyStore="file:{certs}/server.p12" keyStorePassword="changeit" keyStoreType="PKCS12"
      trustStore="file:{certs}/trust.p12" trustStorePassword="changeit" trustStoreType="PKCS12"/></sslContext>
    <systemUsage><systemUsage>
      <memoryUsage><memoryUsage limit="128 mb"/></memoryUsage>
      <storeUsage><storeUsage limit="2 gb"/></storeUsage><tempUsage><tempUsage limit="100 mb"/></tempUsage>
    </systemUsage></systemUsage>
    <transportConnectors>
      <transportConnector name="stomp" uri="stomp://127.0.0.1:{plain}"/>
      <transportConnector name="tls" uri="stomp+ssl://127.0.0.1:{tls}"/>
      <transportConnector name="tls-client" uri="stomp+ssl://127.0.0.1:{tls_client}?transport.needClientAuth=true"/>
      <transportConnector name="narrow" uri="stomp://127.0.0.1:{narrow}?wireFormat.maxFrameSize=20000"/>
    </transportConnectors>
    <shutdownHooks/>
  </broker>
</beans>
"""


@dataclass
class ActiveMQ:
    """A broker in ``folder``; its store survives :meth:`kill` and :meth:`start`."""

    folder: Path
    certificates: Certificates
    plain: int = field(default_factory=free_port)
    tls: int = field(default_factory=free_port)
    tls_client: int = field(default_factory=free_port)
    narrow: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start and wait until it takes connections."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # Without a word about it log4j takes everything for worth a message, and the
        # broker spends its time on that.
        (self.folder / "log4j.properties").write_text(
            "log4j.rootLogger=WARN, out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.out.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.out.layout.ConversionPattern=%d %p %c{1} %m%n\n"
        )
        config = self.folder / "activemq.xml"
        config.write_text(
            _CONFIG.format(
                data=self.folder / "data",
                user=USER,
                password=PASSWORD,
                certs=self.certificates.folder,
                plain=self.plain,
                tls=self.tls,
                tls_client=self.tls_client,
                narrow=self.narrow,
            )
        )
        command = [
            "java",
            "-Xmx384m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            f"-Dactivemq.home={HOME}",
            f"-Dactivemq.base={self.folder}",
            f"-Dactivemq.conf={self.folder}",
            f"-Dactivemq.data={self.folder}/data",
            f"-Djava.io.tmpdir={self.folder}",
            f"-Dlog4j.configuration=file:{self.folder}/log4j.properties",
            "-jar",
            str(HOME / "bin" / "activemq.jar"),
            "start",
            f"xbean:file:{config}",
        ]
        with open(self.folder / "broker.log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        self._wait(PATIENCE)

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self.process is not None
            if self.process.poll() is not None:
                break
            try:
                for port in (self.plain, self.tls, self.tls_client, self.narrow):
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(
            f"the broker did not start: {(self.folder / 'broker.log').read_text()[-2000:]}"
        )

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """A graceful stop."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(how)
            self.process.wait(180)
            self.process = None

    def credentials(self, path: Path, queue: str, **more: Any) -> Path:
        """An amq_broker.json for ``/queue/<queue>``; ``more`` replaces its keys, None
        takes one out.
        """
        content: dict[str, Any] = {
            "username": USER,
            "password": PASSWORD,
            "producer": "cms-test",
            "topic": f"/queue/{queue}",
            "host_and_ports": f"127.0.0.1:{self.plain}",
            **more,
        }
        path.write_text(
            json.dumps({key: value for key, value in content.items() if value is not None})
        )
        path.chmod(0o600)
        return path

    def broker(self, queue: str) -> Broker:
        """The plain connector, as the publisher's own object."""
        return Broker(
            (("127.0.0.1", self.plain),),
            f"/queue/{queue}",
            "cms-test",
            username=USER,
            password=PASSWORD,
        )

    def consume(
        self,
        queue: str,
        at_least: int = 0,
        *,
        quiet: float = 0.5,
        while_true: Callable[[], bool] = lambda: False,
    ) -> list[Message]:
        """All messages of a queue as (headers, body), taken off it; ends when the
        broker says that none is left.

        Not before ``while_true()`` ends and ``at_least`` different bodies came, unless
        none came for PATIENCE seconds.
        """
        reader = _Reader(self.plain, queue)
        try:
            return reader.read(at_least, quiet, while_true)
        finally:
            reader.close()


class _Reader:
    """Takes messages off a queue and acknowledges each: what was only on its way when
    it goes returns to the queue.
    """

    def __init__(self, port: int, queue: str) -> None:
        from stomp.protocol import Protocol12

        self._queue = f"/queue/{queue}"
        self._link = connect_stomp(
            "127.0.0.1",
            ("127.0.0.1", port),
            socket.AF_INET,
            None,
            5,
            SystemClock(),
            lambda text: None,
        )
        self._protocol = Protocol12(self._link)
        self._protocol.connect(USER, PASSWORD)
        self._link.flush(PATIENCE)
        self._next("CONNECTED")
        self._messages: list[Message] = []
        self._looks = 0

    def read(self, at_least: int, quiet: float, while_true: Callable[[], bool]) -> list[Message]:
        """See :meth:`ActiveMQ.consume`."""
        self._protocol.subscribe(self._queue, id="1", ack="client-individual")
        self._link.flush(PATIENCE)
        different: set[bytes] = set()
        last_came = time.monotonic()
        while True:
            is_last = not while_true()
            frame = self._link.receive(quiet)
            if frame is not None:
                different.add(self._take(frame))
                last_came = time.monotonic()
                continue
            is_enough = len(different) >= at_least or time.monotonic() - last_came > PATIENCE
            if is_last and is_enough and self._is_empty():
                break
        self._protocol.send_frame("DISCONNECT", {"receipt": "gone"})
        self._link.flush(PATIENCE)
        # The broker works in order: with this receipt all acknowledgements are entered.
        while self._next("RECEIPT", "MESSAGE").cmd != "RECEIPT":
            pass
        return self._messages

    def close(self) -> None:
        self._link.close()

    def _take(self, frame: Any) -> bytes:
        assert frame.cmd == "MESSAGE", (frame.headers, frame.body)
        self._messages.append((frame.headers, frame.body))
        self._protocol.ack(frame.headers["ack"])
        self._link.flush(PATIENCE)
        return bytes(frame.body)

    def _is_empty(self) -> bool:
        """Whether the broker has nothing more in the queue; what comes meanwhile is taken."""
        self._looks += 1
        look, found = f"look-{self._looks}", 0
        self._protocol.subscribe(self._queue, id=look, ack="auto", headers={"browser": "true"})
        self._link.flush(PATIENCE)
        while True:
            frame = self._next("MESSAGE")
            if frame.headers["subscription"] != look:
                self._take(frame)
            elif frame.headers.get("browser") == "end":
                return not found
            found += 1

    def _next(self, *wanted: str) -> Any:
        frame = self._link.receive(PATIENCE)
        assert frame is not None, f"no {wanted[0]} in {PATIENCE} s"
        assert frame.cmd in wanted, (frame.cmd, frame.headers, frame.body)
        return frame


@contextmanager
def running(folder: Path) -> Iterator[ActiveMQ]:
    """A started broker, stopped at the end."""
    broker = ActiveMQ(folder / "broker", Certificates(folder / "certificates"))
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()


def running_or_skip(folder: Path) -> Iterator[ActiveMQ]:
    """A fixture's broker; where none can be started, its tests are skipped."""
    import pytest

    reason = missing()
    if reason:
        pytest.skip(reason)
    with running(folder) as broker:
        yield broker
