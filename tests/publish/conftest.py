"""The real broker, started once for all tests that ask for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.activemq import ActiveMQ, Certificates, missing, running_or_skip


@pytest.fixture(scope="session")
def activemq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ActiveMQ]:
    """A running ActiveMQ. Tests that end it start one of their own."""
    yield from running_or_skip(tmp_path_factory.mktemp("activemq"))


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates for brokers of our own."""
    if missing():
        pytest.skip(str(missing()))
    return Certificates(tmp_path_factory.mktemp("tls") / "certificates")
