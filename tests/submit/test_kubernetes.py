"""What an API server of Kubernetes that cannot be used means, and what a run leaves there.

Runs on a real API server are in ``tests/apps/training/test_spark_on_k8s.py``.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from cmsspark.base.errors import CmssparkError, NotAllowed, NotReady, SettingsError
from cmsspark.submit import kubernetes
from tests.submit.hosts import command

urllib3 = pytest.importorskip("urllib3")
pytest.importorskip("kubernetes")


@pytest.mark.parametrize(
    ("reason", "kind", "step"),
    [
        (
            "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate",
            NotAllowed,
            "fetch the kubeconfig",
        ),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number", SettingsError, "scheme and port"),
    ],
)
def test_without_tls_a_later_try_does_not_help(
    reason: str, kind: type[CmssparkError], step: str
) -> None:
    from cmsspark.apps.training.k8s_backend import api_errors

    error = urllib3.exceptions.MaxRetryError(None, "/api", urllib3.exceptions.SSLError(reason))
    with pytest.raises(kind) as raised, api_errors("making the Secret", "https://h:1"):
        raise error
    assert reason in str(raised.value.found) and step in str(raised.value.next_step)


def test_a_silent_server_is_75_after_two_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whether the Secret is there is not known then: it is asked for, and deleted, once.
    monkeypatch.setattr(kubernetes, "_TIMEOUT_S", 0.3)
    monkeypatch.setattr(kubernetes, "_LOOK_S", 0.01)
    questions: list[socket.socket] = []

    def take() -> None:
        with suppress(OSError):
            while True:
                questions.append(server.accept()[0])

    server = socket.create_server(("127.0.0.1", 0))
    silent_server = f"http://127.0.0.1:{server.getsockname()[1]}"
    taking = threading.Thread(target=take, daemon=True)
    taking.start()
    config = tmp_path / "kubeconfig"
    config.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: x\n"
        f"clusters: [{{name: c, cluster: {{server: '{silent_server}'}}}}]\n"
        "users: [{name: u, user: {token: t}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"
    )
    words = ["--k8s", "--master", f"k8s://{silent_server}"]
    words += ["--conf", "spark.kubernetes.container.image=r/i:1"]
    words += ["--conf", "spark.kubernetes.file.upload.path=s3a://b/up"]
    key = tmp_path / "pseudonym.key"
    key.write_text("a key")
    built = replace(command("dbs_aaa", *words), key_file=str(key))
    with (
        pytest.raises(NotReady, match="does not answer"),
        kubernetes.RunSecret(built, {"KUBECONFIG": str(config)}),
    ):
        pass
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    taking.join(10)
    assert len(questions) == 2
    for question in questions:
        question.close()


CLIENT = 'Exception in thread "main" io.fabric8.kubernetes.client.KubernetesClientException: '


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        (
            f"{CLIENT}An error has occurred.\n\tat io.fabric8.kubernetes.client.X(Y.java:1)\n"
            "Caused by: java.io.IOException: Failed to create SSL connection\n"
            "Caused by: javax.net.ssl.SSLHandshakeException: PKIX path building failed: x\n"
            "Caused by: sun.security.SunCertPathBuilderException: no valid certification path\n",
            NotAllowed,
            "no valid certification path",
        ),
        (
            f"{CLIENT}An error has occurred.\n"
            "Caused by: io.netty.handler.ssl.NotSslRecordException: not an SSL/TLS record: 48545450\n",
            SettingsError,
            "not an SSL/TLS record",
        ),
        (
            f"{CLIENT}Failure executing: POST at: http://h/api/v1/namespaces/default/pods. Message: "
            "Internal Server Error.\n",
            NotReady,
            "Internal Server Error",
        ),
        (
            f"{CLIENT}The timeout of 10000 ms has been exceeded when getting a connection to h:1\n"
            "Caused by: io.vertx.core.impl.NoStackTraceTimeoutException: The timeout of 10000 ms\n",
            NotReady,
            "timeout of 10000 ms",
        ),
    ],
)
def test_what_keeps_spark_submit_from_the_server_has_its_code(
    said: str, kind: type[CmssparkError], words: str
) -> None:
    error = kubernetes.kubernetes_refusal(f"WARN something\n{said}", "k8s://https://h:1")
    assert isinstance(error, kind) and words in str(error.found) and error.where


def test_the_trace_of_a_job_is_no_refusal_of_kubernetes() -> None:
    trace = "py4j.protocol.Py4JJavaError\nCaused by: java.io.IOException: mine\n"
    assert kubernetes.kubernetes_refusal(trace, "k8s://https://h:1") is None
