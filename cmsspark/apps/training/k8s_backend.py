"""``--on k8s``: workers as pods of an indexed Job, by the official client."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import yaml

from cmsspark.apps.training import k8s_manifests as manifests
from cmsspark.apps.training.backend import Attempt, WorkerFailure
from cmsspark.apps.training.k8s_attempt import JobAttempt
from cmsspark.apps.training.k8s_errors import api_errors, require_client
from cmsspark.apps.training.spec import TrainingRun
from cmsspark.base.errors import InputMissing, UsageError

#: Seconds between two looks at the pods, and until all pods have to run.
_POLL_SECONDS: Final = 1.0
_START_SECONDS: Final = 900.0
_TIMEOUT: Final = (10, 60)


@dataclass
class K8sBackend:
    """A namespace of a cluster. ``api``: a client of it; without it that of the kubeconfig, or of this pod."""

    image: str
    namespace: str | None = None
    context: str | None = None
    claim: str | None = None
    max_seconds: int = 86_400
    start_seconds: float = _START_SECONDS
    poll_seconds: float = _POLL_SECONDS
    api: Any = None
    has_this_python: bool = False

    def check(self, run: TrainingRun) -> None:
        """Raises UsageError (2) without an image or the client. The cluster is not asked."""
        require_client()
        if not self.image or any(letter.isspace() for letter in self.image):
            raise UsageError("--on k8s needs --image", found=repr(self.image), next_step="--image registry/image:tag")

    def yaml(self, run: TrainingRun, source: str) -> str:
        """The manifests of a run as YAML; values of secrets are ``***``."""
        owners = [manifests.owner(run.name, "UID-OF-THE-JOB")]
        made = [manifests.job(run, self.cluster(), 1), *self.owned(run, 1, source, "***", owners)]
        documents = [_plain(each) for each in made]
        for document in documents:
            if document["kind"] == "Secret":
                document["stringData"] = dict.fromkeys(document["stringData"], "***")
        return yaml.safe_dump_all(documents, sort_keys=False, default_flow_style=False)

    def attempt(self, attempt: Attempt) -> WorkerFailure | None:
        """As :meth:`Backend.attempt`."""
        with JobAttempt(self, attempt, self._connected()) as pods:
            return pods.wait()

    def cluster(self) -> manifests.Cluster:
        """The site's part of the manifests."""
        return manifests.Cluster(self.image, self.namespace or "default", self.claim, self.max_seconds)

    def owned(self, run: TrainingRun, number: int, source: str, token: str, owners: list[Any]) -> list[Any]:
        """The objects of an attempt beside its Job."""
        cluster = self.cluster()
        return [
            *manifests.secrets(run, cluster, number, token, owners),
            manifests.config_map(run, cluster, number, source, owners),
            manifests.service(run, cluster, number, owners),
        ]

    def connect(self) -> None:
        """Read the kubeconfig: afterwards ``namespace`` is known. The cluster is not asked."""
        require_client()
        self.api = self._connected()

    def remove(self, names: list[str]) -> None:
        """Delete the Jobs of these names, with all that they own; those that are gone already are no error."""
        from kubernetes import client

        self.connect()
        for name in names:
            with suppress(InputMissing), api_errors(f"deleting the Job {name}", str(self.api.configuration.host)):
                options = client.V1DeleteOptions(propagation_policy="Background")
                client.BatchV1Api(self.api).delete_namespaced_job(
                    name, str(self.namespace), body=options, _request_timeout=_TIMEOUT
                )

    def _connected(self) -> Any:
        """A client of the cluster. Raises UsageError (2) without a kubeconfig."""
        from kubernetes import client, config
        from kubernetes.config.config_exception import ConfigException

        if self.api is not None:
            self.namespace = self.namespace or "default"
            return self.api
        try:
            if self.context is None:
                with suppress(ConfigException):
                    config.load_incluster_config()
                    self.namespace = self.namespace or _own_namespace()
                    return client.ApiClient()
            # The client reads the variable only when it is imported.
            file = os.environ.get("KUBECONFIG")
            contexts, active = config.list_kube_config_contexts(file)
            chosen = next((each for each in contexts if each["name"] == self.context), active)
            if self.context is not None and chosen["name"] != self.context:
                names = ", ".join(each["name"] for each in contexts)
                raise UsageError(
                    "--context is one of the kubeconfig", found=self.context, next_step=f"use one of: {names}"
                )
            self.namespace = self.namespace or chosen["context"].get("namespace") or "default"
            return config.new_client_from_config(file, chosen["name"])
        except (ConfigException, OSError, KeyError, TypeError) as error:
            raise UsageError(
                "no kubeconfig, as kubectl uses it",
                where="KUBECONFIG, or ~/.kube/config",
                found=str(error)[:300],
            ) from None


def _plain(made: Any) -> dict[str, Any]:
    from kubernetes import client

    document = client.ApiClient().sanitize_for_serialization(made)
    assert isinstance(document, dict)
    first = {name: document.pop(name) for name in ("apiVersion", "kind", "metadata")}
    return {**first, **document}


def _own_namespace() -> str:
    with suppress(OSError), open("/var/run/secrets/kubernetes.io/serviceaccount/namespace", encoding="utf-8") as stream:
        return stream.read().strip()
    return "default"
