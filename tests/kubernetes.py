"""A real Kubernetes API server with etcd for tests: own ports, own folder, stopped at the end.

There is no kubelet and no controller: tests set the states of pods through the API, and
:class:`Kubelet` answers for logs. ``bin/kube_apiserver`` builds the server.
"""

from __future__ import annotations

import http.server
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.ports import free_ports

TOP: Final = Path(__file__).resolve().parents[1]
#: Seconds that a server on a busy machine may need.
PATIENCE: Final = 180.0
ADMIN: Final = "admin-token-of-a-test"
NOBODY: Final = "nobody-token-of-a-test"
NODE: Final = "node-of-a-test"


def apiserver() -> Path | None:
    """The program of the API server where it is built."""
    base = Path(os.environ.get("CMSSPARK_CACHE_DIR") or Path.home() / ".cache" / "cmsspark")
    return max((base / "kubernetes").glob("*/kube-apiserver"), default=None)


def missing() -> str | None:
    """Why no API server can be started here, or None."""
    if shutil.which("etcd") is None:
        return "etcd is needed for Kubernetes (apt-get install etcd-server)"
    if apiserver() is None and shutil.which("go") is None:
        return "the Kubernetes API server is not built, and there is no Go: bin/kube_apiserver"
    return None


def own_address() -> str:
    """An address of this host that is no loopback: the API server passes no request on
    to a loopback address.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])


@dataclass
class KubeServer:
    """An API server and its etcd in ``folder``."""

    folder: Path
    url: str = ""
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> None:
        """Start both and wait until they answer. A port that somebody else took
        meanwhile is tried again.
        """
        program = apiserver() or Path(
            subprocess.run(
                [TOP / "bin" / "kube_apiserver"], stdout=subprocess.PIPE, text=True, check=True
            ).stdout.strip()
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        key = self.folder / "accounts.key"
        if not key.exists():
            subprocess.run(
                ["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True
            )
        tokens = f'{ADMIN},admin,1,"system:masters"\n{NOBODY},nobody,2\n'
        (self.folder / "tokens.csv").write_text(tokens)
        for _ in range(3):
            if self._started(program, key):
                return
            self.stop()
        raise RuntimeError(
            f"Kubernetes did not start: {(self.folder / 'apiserver.log').read_text()[-3000:]}"
        )

    def _started(self, program: Path, key: Path) -> bool:
        etcd, peer, port = free_ports(3)
        self._run(
            "etcd",
            [
                "etcd",
                "--data-dir",
                str(self.folder / "etcd"),
                "--listen-client-urls",
                f"http://127.0.0.1:{etcd}",
                "--advertise-client-urls",
                f"http://127.0.0.1:{etcd}",
                "--listen-peer-urls",
                f"http://127.0.0.1:{peer}",
                "--initial-advertise-peer-urls",
                f"http://127.0.0.1:{peer}",
                "--initial-cluster",
                f"default=http://127.0.0.1:{peer}",
                "--unsafe-no-fsync",
            ],
        )
        self._run(
            "apiserver",
            [
                str(program),
                f"--etcd-servers=http://127.0.0.1:{etcd}",
                "--bind-address=127.0.0.1",
                f"--secure-port={port}",
                "--advertise-address=192.0.2.1",
                "--service-cluster-ip-range=10.0.0.0/24",
                f"--cert-dir={self.folder}/certificates",
                f"--token-auth-file={self.folder}/tokens.csv",
                "--authorization-mode=RBAC",
                "--service-account-issuer=https://test",
                f"--service-account-key-file={key}",
                f"--service-account-signing-key-file={key}",
                "--disable-admission-plugins=ServiceAccount",
                "--kubelet-preferred-address-types=InternalIP",
                "--enable-priority-and-fairness=false",
                # Debian's etcd is too old for it; Spark's client would wait for ever.
                "--feature-gates=WatchList=false",
            ],
        )
        self.url = f"https://127.0.0.1:{port}"
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and all(
            process.poll() is None for process in self._processes
        ):
            with suppress(Exception):
                self.core().read_namespace("default", _request_timeout=2)
                return True
            time.sleep(0.2)
        return False

    def _run(self, name: str, command: list[str]) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self._processes.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            )

    @property
    def certificate(self) -> Path:
        """The certificate that the server shows, which it signed itself."""
        return self.folder / "certificates" / "apiserver.crt"

    def api(self, token: str = ADMIN) -> Any:
        """A client of the user with this token."""
        from kubernetes import client

        configuration = client.Configuration()
        configuration.host, configuration.ssl_ca_cert = self.url, str(self.certificate)
        configuration.api_key = {"authorization": token}
        configuration.api_key_prefix = {"authorization": "Bearer"}
        configuration.retries = 0
        return client.ApiClient(configuration)

    def core(self) -> Any:
        """The core API, as an administrator."""
        from kubernetes import client

        return client.CoreV1Api(self.api())

    def kubeconfig(self, token: str = ADMIN, namespace: str = "default") -> Path:
        """A kubeconfig file of the user with this token."""
        path = self.folder / f"kubeconfig-{token}-{namespace}"
        server = {"server": self.url, "certificate-authority": str(self.certificate)}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "c", "cluster": server}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [
                {"name": "test", "context": {"cluster": "c", "user": "u", "namespace": namespace}}
            ],
        }
        path.write_text(json.dumps(document))
        path.chmod(0o600)
        return path

    def pause(self, *, is_paused: bool) -> None:
        """Let the API server stop answering, or answer again."""
        import signal

        self._processes[-1].send_signal(signal.SIGSTOP if is_paused else signal.SIGCONT)

    def stop(self) -> None:
        """End both processes and wait for them."""
        for process in reversed(self._processes):
            process.kill()
            process.wait(PATIENCE)
        self._processes = []


class Kubelet:
    """What the API server asks of a node: the logs of pods.

    ``logs``: namespace/pod → lines. A log goes on until the pod is in ``ended``.
    """

    def __init__(self, server: KubeServer) -> None:
        self.logs: dict[str, list[str]] = {}
        self.ended: set[str] = set()
        kubelet = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                pod = "/".join(self.path.split("?")[0].split("/")[2:4])
                self.send_response(200)
                self.end_headers()
                sent = 0
                for _ in range(3000):
                    is_over = pod in kubelet.ended
                    lines = kubelet.logs.get(pod, [])
                    for line in lines[sent:]:
                        self.wfile.write(line.encode() + b"\n")
                    self.wfile.flush()
                    sent = len(lines)
                    if is_over:
                        return
                    time.sleep(0.02)

            def log_message(self, format: str, *arguments: Any) -> None:
                """Nothing."""

        self._server = http.server.ThreadingHTTPServer(("", 0), Handler)
        self._server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(server.certificate, server.certificate.with_suffix(".key"))
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._register(server)

    def _register(self, server: KubeServer) -> None:
        core = server.core()
        core.create_node({"metadata": {"name": NODE}})
        status = {
            "addresses": [{"type": "InternalIP", "address": own_address()}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._server.server_address[1]}},
        }
        core.patch_node_status(NODE, {"status": status})

    def stop(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
