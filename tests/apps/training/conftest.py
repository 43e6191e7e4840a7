"""Fixtures of tests of the launcher: one Kubernetes API server for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import kubernetes


@pytest.fixture(scope="session")
def kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes.KubeServer]:
    """A running API server; each test makes a namespace of its own."""
    if (reason := kubernetes.missing()) is not None:
        pytest.skip(reason)
    server = kubernetes.KubeServer(tmp_path_factory.mktemp("kubernetes"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def kubelet(kube: kubernetes.KubeServer) -> Iterator[kubernetes.Kubelet]:
    """The one node of that cluster."""
    node = kubernetes.Kubelet(kube)
    yield node
    node.stop()
