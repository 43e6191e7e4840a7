"""``--on k8s``: workers as pods of an indexed Job, by the official client."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from cmsspark.apps.training import k8s_manifests as manifests
from cmsspark.apps.training import pod_worker
from cmsspark.apps.training.backend import Attempt, WorkerFailure
from cmsspark.apps.training.k8s_attempt import JobAttempt
from cmsspark.apps.training.k8s_errors import api_errors
from cmsspark.apps.training.shipped_files import K8S_BYTES, pack_files
from cmsspark.apps.training.spec import TrainingRun, is_object_name
from cmsspark.base import extras
from cmsspark.base.errors import InputMissing, SettingsError, UsageError

_TIMEOUT: Final = (10, 60)


@dataclass
class K8sBackend(manifests.Cluster):
    """A namespace of a cluster. ``api``: a client of it; without it that of the
    kubeconfig, or of this pod.
    """

    context: str | None = None
    api: Any = None
    has_this_python: bool = False

    def check(self, run: TrainingRun) -> None:
        """Raises UsageError (2) without an image or the client, DataError (65) for too
        large files.

        The cluster is not asked.
        """
        extras.require("--on k8s needs", "kubernetes", extra="k8s")
        if not self.image or any(letter.isspace() for letter in self.image):
            raise UsageError(
                "--on k8s needs --image",
                found=repr(self.image),
                next_step="--image registry/image:tag",
            )
        if run.files is not None:
            pack_files(run.files, K8S_BYTES)

    def yaml(self, run: TrainingRun, source: str) -> str:
        """Return the manifests of a run as YAML; values of secrets are ``***``."""
        self.namespace = self.namespace or "default"
        owners = [manifests.owner(run.name, "UID-OF-THE-JOB")]
        objects = [
            manifests.job(run, self, 1),
            *manifests.owned(run, self, 1, source, "***", owners),
        ]
        for document in objects:
            if document["kind"] == "Secret":
                document["stringData"] = dict.fromkeys(document["stringData"], "***")
        return yaml.safe_dump_all(objects, sort_keys=False, default_flow_style=False)

    def attempt(self, attempt: Attempt) -> WorkerFailure | None:
        """As :meth:`Backend.attempt`."""
        with JobAttempt(self, attempt, self._connected()) as pods:
            return pods.wait()

    def connect(self) -> None:
        """Read the kubeconfig: afterwards ``namespace`` is known. The cluster is not asked."""
        extras.require("--on k8s needs", "kubernetes", extra="k8s")
        self.api = self._connected()

    def remove(self, names: list[str]) -> None:
        """Delete the Jobs of these names, with all that they own; those that are gone
        already are no error.
        """
        from kubernetes import client

        self.connect()
        for name in names:
            with (
                suppress(InputMissing),
                api_errors(f"deleting the Job {name}", str(self.api.configuration.host)),
            ):
                options = client.V1DeleteOptions(propagation_policy="Background")
                client.BatchV1Api(self.api).delete_namespaced_job(
                    name, str(self.namespace), body=options, _request_timeout=_TIMEOUT
                )

    def _connected(self) -> Any:
        """Return a client of the cluster. Raises UsageError (2) without a kubeconfig."""
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
            chosen = next((entry for entry in contexts if entry["name"] == self.context), active)
            if self.context is not None and chosen["name"] != self.context:
                names = ", ".join(entry["name"] for entry in contexts)
                raise UsageError(
                    "--context is one of the kubeconfig",
                    found=self.context,
                    next_step=f"use one of: {names}",
                )
            self.namespace = self.namespace or chosen["context"].get("namespace") or "default"
            return config.new_client_from_config(file, chosen["name"])
        except (ConfigException, OSError, KeyError, TypeError) as error:
            raise UsageError(
                "no kubeconfig, as kubectl uses it",
                where="KUBECONFIG, or ~/.kube/config",
                found=str(error)[:300],
            ) from None


def parse_volume(text: str) -> manifests.Volume:
    """Return the volume ``CLAIM:/folder`` or ``CLAIM:/folder:ro``. Raises UsageError (2)."""
    claim, _, options = text.partition(":")
    path, _, mode = options.partition(":")
    if (
        not is_object_name(claim)
        or not path.startswith("/")
        or path == "/"
        or mode not in ("", "ro")
    ):
        raise UsageError(
            "--volume has the form CLAIM:/FOLDER or CLAIM:/FOLDER:ro", found=repr(text)
        )
    if path.rstrip("/") == str(pod_worker.FOLDER) or path.startswith(f"{pod_worker.FOLDER}/"):
        raise UsageError(
            f"--volume: {pod_worker.FOLDER} is the launcher's folder", found=repr(text)
        )
    return manifests.Volume(claim, path, mode == "ro")


def read_template(path: Path) -> dict[str, Any]:
    """Return a Pod from a YAML file. Raises InputMissing (66), SettingsError (78) for
    what is no Pod.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputMissing(
            "the pod template cannot be read", where=path, found=error.strerror
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(
            "the pod template is not YAML", where=path, found=str(error)[:300]
        ) from None
    is_pod = (
        isinstance(document, dict)
        and document.get("kind") == "Pod"
        and isinstance(document.get("spec"), dict)
    )
    if not is_pod or not isinstance(document.get("metadata", {}), dict):
        raise SettingsError(
            "a pod template has `kind: Pod` and a spec",
            where=path,
            found=str(document)[:100],
            next_step="its container `worker` is merged with that of the launcher",
        )
    return {"metadata": document.get("metadata") or {}, "spec": document["spec"]}


def _own_namespace() -> str:
    with (
        suppress(OSError),
        open(
            "/var/run/secrets/kubernetes.io/serviceaccount/namespace", encoding="utf-8"
        ) as stream,
    ):
        return stream.read().strip()
    return "default"
