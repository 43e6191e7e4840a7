"""``cmsspark publish --verify`` with servers that do not answer as they should, wrong
command lines and login files.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cmsspark.base.errors import InputMissing, NotAllowed, NotReady, SettingsError, UsageError
from cmsspark.publish.search_index import SearchClient, index_names, search_server
from cmsspark.settings.http_client import HttpAddress
from tests.activemq import Certificates
from tests.opensearch import OpenSearch
from tests.ports import free_port
from tests.publish.days import Clock
from tests.publish.search_proxy import PREFIX, Instead, search_proxy
from tests.publish.test_publish_command import Place
from tests.publish.test_verify import MONIT, index, place, published, put, under_data, verify

__all__ = ["index", "place"]  # fixtures
TOKEN = "planted-token-73"


def login(folder: Path, mode: int = 0o600, **content: str) -> str:
    path = folder / "opensearch.json"
    path.write_text(json.dumps(content))
    path.chmod(mode)
    return str(path)


def test_through_a_proxy_with_a_token_and_tls(
    place: Place, opensearch: OpenSearch, index: str, certificates: Certificates
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates["server.pem"], certificates["server.key"])
    put(opensearch, index, published(place), under_data, MONIT)
    with search_proxy(opensearch.url, f"Bearer {TOKEN}", context=context) as proxy:
        url = f"https://localhost:{proxy.port}{PREFIX}/"
        file = login(place.folder, url=url, token=TOKEN, ca=certificates["ca.pem"])
        settings = f"publishing: {{verify_login: {file}, verify_index: {index}}}\n"
        done = place.publish("--verify", settings=settings)
        assert done.returncode == 0, done.stdout + done.stderr
        assert {request[:2] for request in proxy.requests} == {("POST", f"{PREFIX}/_msearch")}
        other = login(place.folder, url=url, token=TOKEN, ca=certificates["other-ca.pem"])
        done = place.publish("--verify", "--verify-login", other, "--index", index)
        assert done.returncode == 77
        wrong = login(place.folder, url=url, token=f"{TOKEN}-old", ca=certificates["ca.pem"])
        done = place.publish("--verify", "--verify-login", wrong, "--index", index)
        assert done.returncode == 77
        assert TOKEN not in done.stdout + done.stderr


def answering(*answers: Instead) -> Callable[[int], Instead | None]:
    """The answers, one after another, the last one again and again."""
    return lambda number: answers[min(number, len(answers) - 1)]


def outcome(port: int, **more: Any) -> int:
    """How many hits a client of its own gets, with a clock that only counts."""
    server = HttpAddress("127.0.0.1", port, "", False, authorization="Bearer x", secrets=(TOKEN,))
    client = SearchClient(server, ["some"], clock=Clock(), **more)
    try:
        return len(client.search({}).hits)
    finally:
        client.close()


FOUND = b'{"responses":[{"status":200,"_shards":{"total":1,"failed":0},"hits":{"hits":[{"_id":"1","_index":"i"}]}}]}'


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        ((401, {}, b""), NotAllowed, "401"),
        ((403, {}, b"x"), NotAllowed, "403"),
        ((302, {"Location": "https://auth.example.org/"}, b""), NotAllowed, "redirects"),
        ((200, {}, b"<html>log in</html>"), SettingsError, "another form"),
        ((404, {}, b""), SettingsError, "404"),
        (
            (
                200,
                {},
                b'{"responses":[{"status":403,"error":{"type":"security_exception","reason":"no"}}]}',
            ),
            NotAllowed,
            "security_exception",
        ),
        (
            (
                200,
                {},
                b'{"responses":[{"status":404,"error":{"type":"index_not_found_exception","reason":"no"}}]}',
            ),
            InputMissing,
            "index_not_found",
        ),
        ((200, {}, FOUND.replace(b'"failed":0', b'"failed":1')), NotReady, "1 of 1 shards"),
        (
            (200, {}, FOUND.replace(b'"status":200', b'"status":200,"timed_out":true')),
            NotReady,
            "timed out",
        ),
        ((503, {"Retry-After": "2"}, b""), NotReady, "503"),
    ],
)
def test_what_an_answer_means(answer: Instead, error: type[Exception], text: str) -> None:
    with (
        search_proxy("http://nowhere", instead=answering(answer)) as proxy,
        pytest.raises(error, match=text) as raised,
    ):
        outcome(proxy.port)
    assert TOKEN not in str(raised.value)


def test_a_server_that_is_busy_is_asked_again() -> None:
    busy: Instead = (429, {"Retry-After": "9"}, b"")
    with search_proxy(
        "http://nowhere", instead=answering(busy, (502, {}, b""), (200, {}, FOUND))
    ) as proxy:
        assert outcome(proxy.port) == 1
        assert len(proxy.requests) == 3


def test_a_server_that_is_silent_or_not_there_ends_with_75(place: Place) -> None:
    published(place)
    silent: Instead = (0, {}, b"")
    with search_proxy("http://nowhere", instead=answering(silent)) as proxy:
        done = verify(
            place,
            f"http://127.0.0.1:{proxy.port}",
            "some",
            settings="publishing: {patience: 0.5}\n",
        )
        assert done.returncode == 75, done.stderr
    done = verify(
        place, f"http://127.0.0.1:{free_port()}", "some", settings="publishing: {patience: 0.5}\n"
    )
    assert done.returncode == 75
    assert "127.0.0.1" in done.stderr


# -- command lines and login files
# -----------------------------------------------------------------------------


def test_wrong_command_lines_say_what_is_wanted(place: Place) -> None:
    published(place)
    assert place.publish("--verify").returncode == 2
    assert verify(place, "ftp://x", "some").returncode == 2
    assert verify(place, "http://user:planted@x", "some").returncode == 2
    assert "planted" not in verify(place, "http://user:planted@x", "some").stderr
    assert verify(place, "http://127.0.0.1:1", "-some").returncode == 2
    assert verify(place, "http://127.0.0.1:1", "some", "--resume").returncode == 2
    assert place.publish("--index", "some").returncode == 2
    assert (
        place("publish", "--date", "20260114", "--verify", "http://127.0.0.1:1").returncode == 66
    )


def test_a_login_is_private_and_goes_to_its_own_server_encrypted(tmp_path: Path) -> None:
    with pytest.raises(NotAllowed, match="unencrypted"):
        search_server("http://search.example.org", Path(login(tmp_path, token="x")))
    with pytest.raises(NotAllowed, match="of another server"):
        search_server(
            "https://other.example.org",
            Path(login(tmp_path, url="https://search.example.org", token="x")),
        )
    with pytest.raises(NotAllowed, match="0640"):
        search_server("https://search.example.org", Path(login(tmp_path, 0o640, token="x")))
    for content in (
        {"token": "x", "api_key": "y"},
        {"password": "x"},
        {"tokn": "x"},
        {"token": "x\ny"},
        {"token": ""},
    ):
        with pytest.raises(SettingsError):
            search_server("https://search.example.org", Path(login(tmp_path, **content)))
    assert search_server("http://search.example.org", None).authorization is None


@pytest.mark.parametrize(
    ("content", "header"),
    [
        ({"token": "abc"}, "Bearer abc"),
        ({"api_key": "abc"}, "ApiKey abc"),
        ({"username": "u", "password": "p"}, "Basic dTpw"),
    ],
)
def test_each_kind_of_login_has_its_header(
    tmp_path: Path, content: dict[str, str], header: str
) -> None:
    server = search_server("https://search.example.org:9200/os/", Path(login(tmp_path, **content)))
    assert (server.authorization, server.where) == (header, "https://search.example.org:9200/os")
    assert "abc" not in repr(server)


@pytest.mark.parametrize("text", ["", "a,", "A", "-a", "_all", "a/b", "a?x", "<a-{now}>", ".."])
def test_what_is_no_name_of_an_index_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        index_names(text)
    assert index_names("monit_prod_x_agg_y*, other-2026.01.15") == [
        "monit_prod_x_agg_y*",
        "other-2026.01.15",
    ]


def test_the_example_of_a_login_is_valid() -> None:
    example = Path(__file__).parents[2] / "etc" / "opensearch.example.json"
    content = json.loads(example.read_text())
    assert content["url"].startswith("https://")
    assert set(content) == {"url", "token"}
