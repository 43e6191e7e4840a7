"""What a worker left in its pod, fetched through the API server while the pod waits for it."""

from __future__ import annotations

import json
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from cmsspark.apps.training.k8s_manifests import SERVE_PORT
from cmsspark.apps.training.pod_worker import TOKEN_HEADER
from cmsspark.base.errors import NotReady

_TIMEOUT: Final = (10, 120)


class PodOutput:
    """The output of pods, by the API server's proxy to ``pod_worker``; ``token`` is the run's."""

    def __init__(self, core: Any, namespace: str, token: str) -> None:
        self._core, self._namespace = core, namespace
        self._headers = {TOKEN_HEADER: token}

    def code(self, pod: str) -> int | None:
        """Return the exit code of a pod's script; None where it cannot be had now."""
        try:
            answer = self._get(pod, "result")
            code = json.loads(answer.read())["code"]
        except Exception:  # the pod may be on its way out: the next look at it tells
            return None
        return None if code is None else int(code)

    def fetch(self, pod: str, folder: Path) -> None:
        """Unpack a pod's output into a folder. Raises NotReady (75) where it breaks off."""
        folder.mkdir(parents=True, exist_ok=True)
        try:
            answer = self._get(pod, "output")
            with tarfile.open(fileobj=answer, mode="r|gz") as archive:
                archive.extractall(folder, filter="data")
        except Exception as error:
            raise NotReady(
                "the output of a worker cannot be fetched", where=pod, found=str(error)[:300]
            ) from None

    def release(self, pod: str) -> None:
        """Let a pod end: its output is here."""
        with suppress(Exception):  # it ends by itself after a time
            self._core.connect_post_namespaced_pod_proxy_with_path(
                f"{pod}:{SERVE_PORT}",
                self._namespace,
                "done",
                _headers=self._headers,
                _request_timeout=_TIMEOUT,
            )

    def _get(self, pod: str, path: str) -> Any:
        return self._core.connect_get_namespaced_pod_proxy_with_path(
            f"{pod}:{SERVE_PORT}",
            self._namespace,
            path,
            _headers=self._headers,
            _preload_content=False,
            _request_timeout=_TIMEOUT,
        )
