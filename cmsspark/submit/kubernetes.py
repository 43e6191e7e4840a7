"""A run on Kubernetes beside spark-submit: what the cluster must have before, and the key
of the pseudonyms as a Secret until the driver has started.

Kubernetes puts the key into the environment of the driver's container when that starts.
The Secret is not needed from then on, and is deleted. It belongs to the driver's pod, so
that it goes with the pod where this process is killed before. Secrets of killed runs
without a pod are deleted by the next run.
"""

from __future__ import annotations

import base64
import re
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from cmsspark.base import extras
from cmsspark.base.errors import CmssparkError, NotReady, SettingsError, UsageError
from cmsspark.settings.pseudonyms import KEY_FILE
from cmsspark.submit.command import KEY_OPTION, POD_OPTION, Command
from cmsspark.submit.host import write_note
from cmsspark.submit.spark_options import cluster_defaults

_UPLOAD: Final = "spark.kubernetes.file.upload.path"
_IMAGE: Final = "spark.kubernetes.container.image"
_NAMESPACE: Final = "spark.kubernetes.namespace"
_LOGIN: Final = "spark.kubernetes.authenticate.submission."
#: What a Secret of ours has, and no other.
_LABELS: Final = {
    "app.kubernetes.io/name": "cmsspark",
    "app.kubernetes.io/component": "pseudonym-key",
}
_POD: Final = "cmsspark/driver-pod"
_TIMEOUT_S: Final = 15
#: Seconds between two looks at the driver's pod, and for which a run that does not wait
#: for the job waits for its start.
_LOOK_S: Final = 2.0
_START_S: Final = 60.0
#: Seconds after which a Secret without a pod is one of a killed run.
_LOST_S: Final = 3600.0


def check_kubernetes(command: Command, defaults: Mapping[str, str]) -> None:
    """Check what a driver and executors on Kubernetes need; ``defaults``: the options of
    ``spark-defaults.conf``.

    Raises SettingsError (78) without an image, a folder for what travels, or a host of
    that name; NotReady (75) where the API server does not answer; UsageError (2) without
    the client that makes the Secret.
    """
    master = command.options.get("spark.master") or ""
    if not master.startswith("k8s:"):
        return

    def is_set(*names: str) -> bool:
        return any(command.options.get(name) or defaults.get(name) for name in names)

    for role in ["executor"] if command.mode == "client" else ["driver", "executor"]:
        if not is_set(_IMAGE, f"spark.kubernetes.{role}.container.image"):
            raise SettingsError(
                f"no image for the {role} on Kubernetes",
                where=f"profile {command.profile}",
                found=f"no {_IMAGE}",
                next_step=f"add --conf {_IMAGE}=REGISTRY/IMAGE:TAG, or the option to `spark` in the settings",
            )
    if command.mode == "cluster" and not is_set(_UPLOAD):
        raise SettingsError(
            "no folder from which a driver on Kubernetes can fetch the package",
            where=f"profile {command.profile}",
            found=f"no {_UPLOAD}",
            next_step=f"add --conf {_UPLOAD}=hdfs:///FOLDER (or s3a://BUCKET/FOLDER), or the option to `spark` in the settings",
        )
    if command.key_file:
        extras.require(
            "run_spark --k8s --deploy-mode cluster needs",
            "kubernetes",
            extra="k8s",
            alternative=f", or make the Secret yourself: --conf {KEY_OPTION}=SECRET:{KEY_FILE}",
        )
    _check_server(_address(master))


def _address(master: str) -> str:
    address = master.removeprefix("k8s://")
    return address if "://" in address else f"https://{address}"


def _check_server(address: str) -> None:
    """Raise where nothing answers at the address of the API server."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)
    except ValueError as error:
        raise UsageError(
            "--master must be k8s://https://HOST:PORT", found=f"{address}: {error}"
        ) from None
    try:
        socket.create_connection((host, port), _TIMEOUT_S).close()
    except socket.gaierror as error:
        kind = NotReady if error.errno == socket.EAI_AGAIN else SettingsError
        raise kind(
            f"there is no host {host}",
            where=f"--master k8s://{address}",
            found=error.strerror,
            next_step="check the name: kubectl cluster-info prints it",
        ) from None
    except OSError as error:
        raise NotReady(
            "the API server of Kubernetes does not answer",
            where=address,
            found=error.strerror or str(error),
            next_step="check the address (kubectl cluster-info) and the network, then run it again",
        ) from None


@dataclass
class RunSecret:
    """The Secret of a run with the key of the pseudonyms, from its entry to the start of
    the driver. Does nothing for a command without a key.
    """

    command: Command
    environ: Mapping[str, str]

    def __post_init__(self) -> None:
        options = {name: chosen.value for name, chosen in self.command.options.chosen.items()}
        spark_home = Path(self.command.argv[0]).resolve().parents[1]
        self._options = {**cluster_defaults(spark_home, self.environ), **options}
        self._namespace = self._options.get(_NAMESPACE, "default")
        self._name = self._options.get(KEY_OPTION, "").partition(":")[0]
        self._pod = self._options.get(POD_OPTION, "")
        self._is_made = self._is_owned = False
        self._is_over = threading.Event()
        self._watcher: threading.Thread | None = None

    def __enter__(self) -> RunSecret:
        if self.command.key_file is None:
            return self
        from cmsspark.apps.training.k8s_backend import api_errors

        self._core = _connect(self._options, self.environ)
        address = _address(self._options["spark.master"])
        content = base64.b64encode(Path(self.command.key_file).read_bytes()).decode()
        metadata = {"name": self._name, "labels": _LABELS, "annotations": {_POD: self._pod}}
        body = {"metadata": metadata, "immutable": True, "data": {KEY_FILE: content}}
        # Before the call: where it is interrupted, the Secret may be there all the same.
        self._is_made = True
        try:
            with api_errors(
                f"making the Secret {self._name} in {self._namespace}",
                address,
                "ask its administrators for the role in etc/k8s/submit-role.yaml",
            ):
                self._core.create_namespaced_secret(
                    self._namespace, body, _request_timeout=_TIMEOUT_S
                )
        except BaseException as error:
            # A server that refused it made none; one that is silent may have.
            if isinstance(error, NotReady) or not isinstance(error, CmssparkError):
                self._delete(tries=1)
            raise
        self._delete_lost()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *ignored: object) -> None:
        if not self._is_made:
            return
        is_waited_for = (
            self._options.get("spark.kubernetes.submission.waitAppCompletion") != "false"
        )
        if self._watcher is not None and not is_waited_for and kind is None:
            self._watcher.join(_START_S)
        self._is_over.set()
        if self._watcher is not None:
            self._watcher.join(_TIMEOUT_S)
        if not is_waited_for and self._is_owned and self._is_made:
            write_note(
                f"the Secret {self._name} goes with the pod {self._pod}, which has not started yet"
            )
            return
        self._delete()

    def _watch(self) -> None:
        """Delete the Secret when the driver has started; have its pod own it before."""
        while self._is_made and not self._is_over.wait(_LOOK_S):
            with suppress(Exception):  # the API server may be away: the next look tells
                pod = self._core.read_namespaced_pod(
                    self._pod, self._namespace, _request_timeout=_TIMEOUT_S
                )
                if not self._is_owned:
                    self._set_owner(pod.metadata.uid)
                if pod.status.phase != "Pending":
                    self._delete()

    def _set_owner(self, uid: str) -> None:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": self._pod, "uid": uid}
        self._core.patch_namespaced_secret(
            self._name,
            self._namespace,
            {"metadata": {"ownerReferences": [owner]}},
            _request_timeout=_TIMEOUT_S,
        )
        self._is_owned = True

    def _delete(self, tries: int = 3) -> None:
        """Delete the Secret, or say how a person does."""
        for _ in range(tries if self._is_made else 0):
            try:
                self._core.delete_namespaced_secret(
                    self._name, self._namespace, _request_timeout=_TIMEOUT_S
                )
            except Exception as error:
                if getattr(error, "status", None) != 404:
                    time.sleep(_LOOK_S)
                    continue
            self._is_made = False
            return
        if self._is_made:
            write_note(
                f"the Secret {self._name} could not be deleted: "
                f"kubectl -n {self._namespace} delete secret {self._name}"
            )

    def _delete_lost(self) -> None:
        """Delete the Secrets of runs that were killed, as far as this user may see them."""
        from kubernetes.client.exceptions import ApiException

        selector = ",".join(f"{name}={value}" for name, value in _LABELS.items())
        with suppress(Exception):
            secrets: Iterable[Any] = self._core.list_namespaced_secret(
                self._namespace, label_selector=selector, _request_timeout=_TIMEOUT_S
            ).items
            for secret in secrets:
                pod = (secret.metadata.annotations or {}).get(_POD, "")
                age_s = time.time() - secret.metadata.creation_timestamp.timestamp()
                try:
                    phase = self._core.read_namespaced_pod(
                        pod, self._namespace, _request_timeout=_TIMEOUT_S
                    ).status.phase
                except ApiException as error:
                    is_lost = error.status == 404 and age_s > _LOST_S
                else:
                    is_lost = phase != "Pending"
                if is_lost:
                    self._core.delete_namespaced_secret(
                        secret.metadata.name, self._namespace, _request_timeout=_TIMEOUT_S
                    )


def _connect(options: Mapping[str, str], environ: Mapping[str, str]) -> Any:
    """Return a client of the cluster with the login that spark-submit uses: that of its
    options, else of the kubeconfig.

    Raises SettingsError (78) without either.
    """
    from kubernetes import client, config
    from kubernetes.config.config_exception import ConfigException

    configuration = client.Configuration()
    token_file = options.get(f"{_LOGIN}oauthTokenFile")
    try:
        config.load_kube_config(
            environ.get("KUBECONFIG"),
            options.get("spark.kubernetes.context"),
            client_configuration=configuration,
        )
    except (ConfigException, OSError, TypeError) as error:
        if not token_file and not options.get(f"{_LOGIN}clientCertFile"):
            raise SettingsError(
                "nothing names a user of the Kubernetes cluster",
                where="KUBECONFIG, or ~/.kube/config",
                found=re.sub(r"\s+", " ", str(error))[:300],
                next_step=f"fetch a kubeconfig of the cluster, or set {_LOGIN}oauthTokenFile",
            ) from None
    configuration.host = _address(options["spark.master"])
    if token_file:
        token = Path(token_file).read_text(encoding="utf-8").strip()
        configuration.api_key = {"authorization": token}
        configuration.api_key_prefix = {"authorization": "Bearer"}
    for attribute, name in (
        ("ssl_ca_cert", "caCertFile"),
        ("cert_file", "clientCertFile"),
        ("key_file", "clientKeyFile"),
    ):
        if file := options.get(f"{_LOGIN}{name}"):
            setattr(configuration, attribute, file)
    configuration.retries = 0
    return client.CoreV1Api(client.ApiClient(configuration))


def kubernetes_refusal(text: str, where: str) -> CmssparkError | None:
    """Return what the API server refused spark-submit, or why it was not reached, from the
    messages of its client; None for others.
    """
    from cmsspark.apps.training.k8s_backend import ApiAway, tls_error, translated

    match = _REFUSED.search(text)
    if match is not None:
        return translated(
            int(match["code"]),
            match["message"],
            "starting the driver on Kubernetes",
            match["url"],
            "ask the administrators of the namespace for the role in etc/k8s/submit-role.yaml",
        )
    _, of_client, trace = text.partition('Exception in thread "main" io.fabric8.')
    if not of_client:
        return None
    reasons = [trace.partition("\n")[0], *_CAUSE.findall(trace)]
    if "javax.net.ssl." in trace or "netty.handler.ssl." in trace:
        return tls_error(reasons[-1], where)
    return ApiAway(
        "the API server does not answer as it should",
        where=where,
        found=reasons[-1][:300],
        next_step="check the address (kubectl cluster-info) and the network, then run it again",
    )


_CAUSE: Final = re.compile(r"^Caused by: (.*)", re.MULTILINE)
#: How the client of spark-submit tells what the API server refused.
_REFUSED: Final = re.compile(
    r"Failure executing: \w+ at: (?P<url>\S+?)\.? Message: (?P<message>[^\n]*?)\.?"
    r" Received status: Status\([^\n]*?\bcode=(?P<code>\d+)"
)
