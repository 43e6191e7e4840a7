"""Answers in full, in time and of a bounded size, or none; tests of the HTTP sink have
the other faults.
"""

from __future__ import annotations

import time

import pytest

from cmsspark.base.sockets import ConnectionLost
from cmsspark.settings.http_client import HttpAddress, fetch_json
from tests.publish.fake_http import Answer, http_server


def test_json_comes_over_a_connection_of_its_own() -> None:
    with http_server() as server:
        assert fetch_json(f"http://127.0.0.1:{server.port}/x?y=1", 5) == {"ok": True}
        (request,) = server.requests
    assert request.path == "GET /x?y=1" and request.headers["Host"] == f"127.0.0.1:{server.port}"


@pytest.mark.parametrize("path", ["drip", "silent"])
def test_an_answer_that_drips_or_never_comes_ends_at_the_deadline(path: str) -> None:
    with http_server() as server:
        server.get_answer = Answer(instead=path)
        began = time.monotonic()
        with pytest.raises(ConnectionLost, match="no answer in time"):
            fetch_json(f"http://127.0.0.1:{server.port}/", 0.3)
        assert time.monotonic() - began < 100


@pytest.mark.parametrize(
    "answer",
    [Answer(302, {"Location": "http://127.0.0.1:1/"}), Answer(500), Answer(body=b"no JSON")],
)
def test_a_redirect_an_error_and_another_form_are_no_answer(answer: Answer) -> None:
    with http_server() as server:
        server.get_answer = answer
        with pytest.raises(ValueError):
            fetch_json(f"http://127.0.0.1:{server.port}/", 5)
        assert len(server.requests) == 1


def test_an_answer_over_the_limit_is_refused() -> None:
    with http_server() as server:
        server.get_answer = Answer(body=b'"' + b"x" * 1000 + b'"')
        with pytest.raises(ValueError):
            fetch_json(f"http://127.0.0.1:{server.port}/", 5, keep=100)


@pytest.mark.parametrize("url", ["ftp://h/", "http:///x", "http://u:p@h/", "http://h:99999/"])
def test_an_address_that_is_none_of_http_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        HttpAddress.from_url(url)
