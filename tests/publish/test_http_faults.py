"""The HTTP sink against a server that fails on demand (P25): what each failure means
for the batch.
"""

from __future__ import annotations

import base64
import json
import select
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from cmsspark.base.errors import NotAllowed
from cmsspark.publish.batch_log import Batch
from cmsspark.publish.credentials import Endpoint
from cmsspark.publish.document_schemas import document_schema
from cmsspark.publish.documents import canonical
from cmsspark.publish.sink import RejectedError, RetryableError, SendError
from cmsspark.publish.sinks.http import HttpSink, HttpTimeouts
from tests.activemq import Certificates
from tests.ports import free_port
from tests.publish.days import Clock
from tests.publish.fake_http import Answer, FakeServer, http_server

ROOT = Path(__file__).parents[2]
BATCH = Batch(1, 1, "part-0001.jsonl", 0, 0, 3, "")
DOCUMENTS = [b'{"a":1}', b'{"b":"\xc3\xa9"}', b'{"c":3}']
LARGE = [b'{"x":"' + b"x" * 990_000 + b'"}'] * 12
#: Only what shows life is waited for so long: these tests hold on a busy machine, too.
PATIENT = HttpTimeouts(connect=30, move=30, whole=60)
#: For a server that is silent or drips.
QUICK = HttpTimeouts(connect=30, move=0.4, whole=0.8)
#: The same with room for requests that are answered as they should be.
SILENT = HttpTimeouts(connect=30, move=4, whole=6)
WAITED_OUT = ("silent", "drip")
SECRETS = (
    "planted-user",
    "planted-secret",
    base64.b64encode(b"planted-user:planted-secret").decode(),
)


def endpoint(port: int, host: str = "127.0.0.1", **more: Any) -> Endpoint:
    login = {"secrets": SECRETS[::-1], "authorization": f"Basic {SECRETS[2]}"}
    given = {"is_secure": False, **login, **more}
    return Endpoint(host, port, "/cms-test", producer="cms-test", **given)


def sink_to(fake: FakeServer, timeouts: HttpTimeouts = PATIENT, **more: Any) -> HttpSink:
    return HttpSink(endpoint(fake.port, **more), timeouts)


def send(
    fake: FakeServer, documents: list[bytes] | None = None, timeouts: HttpTimeouts = PATIENT
) -> None:
    sink = sink_to(fake, timeouts)
    sink.open()
    try:
        sink.send(BATCH, documents or DOCUMENTS)
    finally:
        sink.close()


def test_a_batch_is_one_json_array_posted_to_the_producer_s_path() -> None:
    with http_server() as fake:
        send(fake)
        (request,) = fake.requests
        assert (request.path, request.body) == ("/cms-test", b"[" + b",".join(DOCUMENTS) + b"]")
        assert request.headers["Content-Type"] == "application/json; charset=UTF-8"
        assert request.headers["Authorization"] == f"Basic {SECRETS[2]}"
        assert request.headers["Host"] == f"127.0.0.1:{fake.port}"
        assert fake.stored == [json.loads(document) for document in DOCUMENTS]


class LinesSink(HttpSink):
    """For a server that wants one document a line."""

    def content(self, documents: Sequence[bytes]) -> bytes:
        return b"".join(self.body(document) + b"\n" for document in documents)


def test_a_sink_of_another_form_says_only_how_a_body_looks() -> None:
    with http_server() as fake:
        sink = LinesSink(endpoint(fake.port), PATIENT)
        sink.open()
        # The server of the test confirms arrays only.
        with suppress(SendError):
            sink.send(BATCH, DOCUMENTS)
        sink.close()
        assert fake.requests[0].body == b"".join(document + b"\n" for document in DOCUMENTS)


@pytest.mark.parametrize(
    ("has_metadata", "has_top_level"), [(True, True), (True, False), (False, True)]
)
def test_producer_and_type_stand_under_metadata_at_the_top_or_both(
    has_metadata: bool, has_top_level: bool
) -> None:
    metadata = {"_id": "x", "producer": "p", "timestamp": 5, "type": "t", "type_prefix": "agg"}
    document = {"nacc": 3, "timestamp": 5, "metadata": metadata}
    with http_server() as fake:
        sink = HttpSink(
            endpoint(fake.port), PATIENT, has_metadata=has_metadata, has_top_level=has_top_level
        )
        sink.open()
        sink.send(BATCH, [canonical(document)])
        sink.close()
        (stored,) = fake.stored
    assert stored.get("metadata") == (metadata if has_metadata else None)
    assert {key: stored[key] for key in metadata if key in stored} == (
        metadata if has_top_level else {"timestamp": 5}
    )
    assert stored["nacc"] == 3


def test_no_column_of_a_document_has_a_name_of_the_metadata() -> None:
    reserved = {
        *document_schema("data_aggregation")["properties"]["metadata"]["properties"],
        "metadata",
    } - {"timestamp"}
    for file in (ROOT / "schemas" / "documents").glob("*.json"):
        assert not reserved & json.loads(file.read_text())["properties"].keys() - {"metadata"}, (
            file
        )


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_any_2xx_confirms(status: int) -> None:
    with http_server(Answer(status, body=b"")) as fake:
        send(fake)
        assert len(fake.stored) == 3


def test_one_connection_serves_many_batches_and_a_closed_one_is_replaced() -> None:
    with http_server(
        Answer(), Answer(headers={"Connection": "close"}), Answer(instead="close")
    ) as fake:
        sink = sink_to(fake)
        sink.open()
        for _ in range(2):
            sink.send(BATCH, DOCUMENTS)
        assert fake.connections == 1
        with pytest.raises(RetryableError, match="closed the connection"):
            sink.send(BATCH, DOCUMENTS)
        assert fake.connections == 2
        sink.send(BATCH, DOCUMENTS)
        sink.close()
        assert fake.connections == 3


def test_a_connection_that_the_server_closed_while_idle_leaves_no_doubt() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        closed, taken = threading.Event(), []

        def serve() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                with connection:
                    request = b""
                    while not request.endswith(b"]"):
                        request += connection.recv(65_536)
                    taken.append(request)
                    connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
                closed.set()

        thread = threading.Thread(target=serve)
        thread.start()
        sink = HttpSink(endpoint(port), PATIENT)
        sink.open()
        sink.send(BATCH, DOCUMENTS)
        assert closed.wait(300)
        sink.send(BATCH, DOCUMENTS)
        sink.close()
        thread.join()
        assert len(taken) == 2


@pytest.mark.parametrize("status", [400, 409, 413, 422])
def test_a_4xx_about_the_content_refuses_the_batch(status: int) -> None:
    with http_server(Answer(status, body=b"field nacc is no number")) as fake:
        with pytest.raises(RejectedError, match=f"{status} .*field nacc is no number") as caught:
            send(fake)
        assert not caught.value.in_doubt


@pytest.mark.parametrize("status", [401, 403, 407])
def test_what_is_not_allowed_is_reported_at_once_and_no_secret_is(status: int) -> None:
    body = f"user {SECRETS[0]} with {SECRETS[1]} or {SECRETS[2]}".encode()
    with http_server(Answer(status, body=body)) as fake:
        with pytest.raises(NotAllowed) as caught:
            send(fake)
        assert len(fake.requests) == 1
    assert f"{status}" in str(caught.value) and "user *** with *** or ***" in str(caught.value)
    assert not any(secret in str(caught.value) for secret in SECRETS)


@pytest.mark.parametrize(
    ("answer", "in_doubt"),
    [
        (Answer(500), True),
        (Answer(502), True),
        (Answer(504), True),
        (Answer(503), False),
        (Answer(429), False),
        (Answer(404), False),
        (Answer(408), False),
        (Answer(instead="reset"), True),
        (Answer(instead="close"), True),
        (Answer(instead="silent"), True),
        (Answer(instead="drip"), True),
        (Answer(instead="short"), True),
        (Answer(instead="garbage"), True),
    ],
    ids=lambda value: (value.instead or str(value.status)) if isinstance(value, Answer) else None,
)
def test_what_may_pass_is_no_confirmation_and_no_refusal(answer: Answer, in_doubt: bool) -> None:
    with http_server(answer) as fake:
        started = time.monotonic()
        with pytest.raises(RetryableError) as caught:
            send(fake, timeouts=QUICK if answer.instead in WAITED_OUT else PATIENT)
        assert time.monotonic() - started < 300  # the server would be silent, or drip, for longer
    assert not isinstance(caught.value, RejectedError)
    assert caught.value.in_doubt is in_doubt


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_reported_and_not_followed(status: int) -> None:
    with http_server() as elsewhere:
        place = f"http://someone:planted-secret@localhost:{elsewhere.port}/x?token=planted-secret"
        with http_server(Answer(status, {"Location": place})) as fake:
            with pytest.raises(
                RetryableError, match="redirects to localhost, which is not followed"
            ) as caught:
                send(fake)
            assert len(fake.requests) == 1 and fake.stored == []
        assert elsewhere.requests == []
    assert "planted" not in caught.value.reason


def test_cookies_and_proxies_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    with http_server(Answer(headers={"Set-Cookie": "a=b"})) as fake:
        sink = sink_to(fake)
        sink.open()
        sink.send(BATCH, DOCUMENTS)
        sink.send(BATCH, DOCUMENTS)
        sink.close()
        assert all("Cookie" not in request.headers for request in fake.requests)


@pytest.mark.parametrize("given", ["7", formatdate(1_000_007, usegmt=True)])
def test_retry_after_is_seconds_or_a_date(given: str) -> None:
    with http_server(Answer(429, {"Retry-After": given})) as fake:
        sink = HttpSink(endpoint(fake.port), PATIENT, now=lambda: 1_000_000.0)
        sink.open()
        with pytest.raises(RetryableError) as caught:
            sink.send(BATCH, DOCUMENTS)
        sink.close()
    assert caught.value.retry_after == 7


@pytest.mark.parametrize("given", ["soon", "-3", "", "9" * 40])
def test_a_retry_after_that_is_neither_is_none(given: str) -> None:
    with (
        http_server(Answer(503, {"Retry-After": given})) as fake,
        pytest.raises(RetryableError) as caught,
    ):
        send(fake)
    assert caught.value.retry_after == 0


def test_a_server_that_refuses_before_it_has_read_all_is_heard() -> None:
    with (
        http_server(Answer(413, {"Connection": "close"}, instead="early")) as fake,
        pytest.raises(RejectedError, match="413"),
    ):
        send(fake, LARGE)


def test_a_2xx_before_all_was_read_confirms_nothing() -> None:
    with http_server(Answer(200, takes=False, instead="early")) as fake:
        with pytest.raises(RetryableError) as caught:
            send(fake, LARGE)
        assert not caught.value.in_doubt


def test_an_answer_that_is_there_confirms_however_long_the_next_batch_took() -> None:
    with http_server(Answer(204, body=b"")) as fake:
        clock = Clock()
        sink = HttpSink(endpoint(fake.port), PATIENT, clock)
        sink.open()

        def meanwhile() -> None:
            assert sink._client._socket is not None
            assert select.select([sink._client._socket._connection], [], [], 30)[0]
            clock.sleep(1_000)

        sink.send(BATCH, DOCUMENTS, meanwhile)
        sink.close()
        assert len(fake.stored) == 3


def test_a_server_that_takes_no_data_ends_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        started = time.monotonic()
        sink = HttpSink(endpoint(server.getsockname()[1]), QUICK)
        sink.open()
        with pytest.raises(RetryableError) as caught:
            sink.send(BATCH, LARGE)
        sink.close()
        assert time.monotonic() - started < 300
        assert not caught.value.in_doubt


def test_refused_by_all_names_the_address() -> None:
    port = free_port()
    with pytest.raises(RetryableError, match=f"127.0.0.1:{port}: Connection refused"):
        HttpSink(endpoint(port), PATIENT).open()


# -- TLS
# -------------------------------------------------------------------------------------------------------


def server_context(certificates: Certificates, name: str = "server") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates[f"{name}.pem"], certificates[f"{name}.key"])
    return context


def test_tls_with_the_right_authority_confirms_on_one_connection(
    certificates: Certificates,
) -> None:
    with http_server(context=server_context(certificates)) as fake:
        sink = sink_to(fake, host="localhost", is_secure=True, ca=Path(certificates["ca.pem"]))
        sink.open()
        for _ in range(3):
            sink.send(BATCH, DOCUMENTS)
        sink.close()
        assert len(fake.stored) == 9
        assert fake.connections == 1


@pytest.mark.parametrize(
    ("server", "host", "ca"),
    [
        ("server", "localhost", "other-ca.pem"),
        ("server", "localhost", None),
        ("server", "127.0.0.1", "ca.pem"),
        ("elsewhere", "localhost", "ca.pem"),
        ("expired", "localhost", "ca.pem"),
    ],
)
def test_a_certificate_that_does_not_fit_is_77_and_nothing_is_sent(
    certificates: Certificates, server: str, host: str, ca: str | None
) -> None:
    with http_server(context=server_context(certificates, server)) as fake:
        sink = sink_to(fake, host=host, is_secure=True, ca=Path(certificates[ca]) if ca else None)
        with pytest.raises(NotAllowed, match="certificate"):
            sink.open()
        assert fake.requests == []


def test_a_missing_client_certificate_is_77(certificates: Certificates) -> None:
    context = server_context(certificates)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificates["ca.pem"])
    more: dict[str, Any] = {
        "host": "localhost",
        "is_secure": True,
        "ca": Path(certificates["ca.pem"]),
    }
    with http_server(context=context) as fake:
        sink = sink_to(fake, **more)
        with pytest.raises(NotAllowed):
            sink.open()
            sink.send(BATCH, DOCUMENTS)
        cert, key = Path(certificates["client.pem"]), Path(certificates["client.key"])
        sink = sink_to(fake, **more, cert=cert, key=key)
        sink.open()
        sink.send(BATCH, DOCUMENTS)
        sink.close()
        assert len(fake.stored) == 3


def test_a_handshake_that_drips_ends_at_the_deadline(certificates: Certificates) -> None:
    gate = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            # A TLS record that announces 16,000 bytes, of which one comes at a time.
            with connection, suppress(OSError):
                connection.sendall(b"\x16\x03\x03\x3e\x80")
                while not gate.wait(0.05):
                    connection.sendall(b"\x02")

        thread = threading.Thread(target=serve)
        thread.start()
        started = time.monotonic()
        sink = HttpSink(
            endpoint(server.getsockname()[1], is_secure=True), HttpTimeouts(connect=0.5)
        )
        with pytest.raises(RetryableError):
            sink.open()
        assert time.monotonic() - started < 300
        gate.set()
        thread.join()
