"""Credentials are their owner's alone, and no message ever shows one."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

import pytest

from cmsspark.base.errors import CmssparkError, NotAllowed, SettingsError
from cmsspark.base.resources import read_text
from cmsspark.publish.credentials import read_broker, read_endpoint
from tests.activemq import Certificates

GOOD: dict[str, Any] = {
    "username": "someone",
    "password": "planted-secret",
    "producer": "cms",
    "topic": "/topic/cms.popularity",
    "host_and_ports": "one.example.org:61313,two.example.org:61314",
}


def file(folder: Path, content: object, mode: int = 0o600) -> Path:
    path = folder / "amq_broker.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    path.chmod(mode)
    return path


def test_a_good_file_gives_a_broker_whose_text_shows_no_secret(tmp_path: Path) -> None:
    broker = read_broker(file(tmp_path, GOOD))
    assert broker.addresses == (("one.example.org", 61313), ("two.example.org", 61314))
    assert (
        broker.where == "stomp://one.example.org:61313,two.example.org:61314 /topic/cms.popularity"
    )
    assert broker.password == "planted-secret"
    assert "planted-secret" not in repr(broker) and "someone" not in repr(broker)
    assert broker.safe_text("no someone with planted-secret") == "no *** with ***"


def test_the_example_file_is_a_good_one(tmp_path: Path) -> None:
    assert (
        read_broker(file(tmp_path, read_text("etc/amq_broker.example.json"))).producer
        == "cms-popularity"
    )


@pytest.mark.parametrize("port", [61323, "61323"])
def test_the_file_of_cms_jobs_is_understood(tmp_path: Path, port: object) -> None:
    cms = {
        "host": "broker.example.org",
        "port": port,
        "cert": "usercert.pem",
        "ckey": "userkey.pem",
        "producer": "cms",
        "topic": "/topic/cms.popularity",
    }
    broker = read_broker(file(tmp_path, cms))
    assert broker.where == "stomp+ssl://broker.example.org:61323 /topic/cms.popularity"
    assert (broker.cert, broker.key, broker.ca) == (
        tmp_path / "usercert.pem",
        tmp_path / "userkey.pem",
        None,
    )
    assert read_broker(file(tmp_path, {**cms, "host": "::1"})).addresses == (("::1", 61323),)


def test_with_a_certificate_and_no_ca_the_system_s_authorities_are_trusted_and_names_checked(
    tmp_path: Path, certificates: Certificates
) -> None:
    given = {
        **GOOD,
        "cert": str(certificates["client.pem"]),
        "ckey": str(certificates["client.key"]),
    }
    context = read_broker(file(tmp_path, given)).tls()
    assert (
        context is not None and context.check_hostname and context.verify_mode == ssl.CERT_REQUIRED
    )


def test_an_error_names_the_line_of_its_key(tmp_path: Path) -> None:
    path = file(tmp_path, '{\n "topic": "/topic/x",\n "host_and_ports": "a:1",\n "password": 7\n}')
    with pytest.raises(SettingsError, match=r"amq_broker\.json, line 4"):
        read_broker(path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610])
def test_a_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(NotAllowed, match="chmod 600"):
        read_broker(file(tmp_path, GOOD, mode))


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "cms.popularity"},
        {"topic": "/topic/"},
        {"topic": "/topic/a b"},
        {"topic": None},
        {"topic": 3},
        {"host_and_ports": "planted-secret"},
        {"host_and_ports": "a:b"},
        {"host_and_ports": "a:0"},
        {"host_and_ports": []},
        {"host_and_ports": [["a", 1, 2]]},
        {"host_and_ports": "a:99999"},
        {"password": 7},
        {"username": ""},
        {"passwort": "planted-secret"},
        {"host": "a", "port": 1},
        {"key": "a", "ckey": "b"},
    ],
)
def test_what_is_wrong_is_named_without_its_value(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(SettingsError) as caught:
        read_broker(file(tmp_path, {**GOOD, **change}))
    assert "planted-secret" not in str(caught.value)


@pytest.mark.parametrize("content", ["{planted-secret", "[]", "", '"planted-secret"'])
def test_a_file_that_is_no_object_is_refused_without_quoting_it(
    tmp_path: Path, content: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        read_broker(file(tmp_path, content))
    assert "planted-secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no file of that name"):
        read_broker(tmp_path / "nothing.json")


def test_certificates_that_are_missing_or_none_are_a_setting_s_fault(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    for ca in ("nothing.pem", "ca.pem"):
        with pytest.raises(SettingsError):
            read_broker(file(tmp_path, {**GOOD, "ca": ca})).tls()


def test_without_a_ca_there_is_no_tls_and_with_one_names_are_checked(tmp_path: Path) -> None:
    assert read_broker(file(tmp_path, GOOD)).tls() is None
    context = read_broker(file(tmp_path, {**GOOD, "ca": "."})).tls()
    assert context is not None and context.check_hostname


def test_every_error_of_the_file_ends_in_an_exit_code(tmp_path: Path) -> None:
    with pytest.raises(CmssparkError) as caught:
        read_broker(file(tmp_path, {}))
    assert caught.value.exit_code in (77, 78)


# -- HTTP
# ------------------------------------------------------------------------------------------------------

HTTP: dict[str, Any] = {
    "url": "https://monit.example.org:10014/cms-test",
    "username": "someone",
    "password": "planted-secret",
}


def test_an_endpoint_s_producer_is_its_path_and_its_text_shows_no_secret(tmp_path: Path) -> None:
    endpoint = read_endpoint(file(tmp_path, HTTP))
    assert (endpoint.producer, endpoint.where) == (
        "cms-test",
        "https://monit.example.org:10014/cms-test",
    )
    assert "planted-secret" not in repr(endpoint) and "someone" not in repr(endpoint)
    coded = str(endpoint.authorization)
    assert endpoint.safe_text(f"{coded} someone planted-secret") == "Basic *** *** ***"


@pytest.mark.parametrize(
    "change",
    [
        {"url": "https://monit.example.org:10014", "producer": "cms-test"},
        {"url": "https://monit.example.org:10014/", "producer": "cms-test"},
        {"url": None, "host_and_ports": "monit.example.org:10014", "producer": "cms-test"},
        {"producer": "cms-test"},
    ],
)
def test_the_producer_may_stand_beside_the_address(tmp_path: Path, change: dict[str, Any]) -> None:
    content = {key: value for key, value in {**HTTP, **change}.items() if value is not None}
    endpoint = read_endpoint(file(tmp_path, content))
    assert (endpoint.producer, endpoint.where) == (
        "cms-test",
        "https://monit.example.org:10014/cms-test",
    )


def test_the_http_example_file_is_a_good_one(tmp_path: Path) -> None:
    assert (
        read_endpoint(file(tmp_path, read_text("etc/monit_http.example.json"))).producer
        == "cms-popularity"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"url": "http://monit.example.org/p"},
        {"url": "https://u:planted-secret@monit.example.org/p"},
        {"url": "https://monit.example.org/p?token=planted-secret"},
        {"url": "ftp://x/p"},
        {"url": "https://x:0/p"},
        {"url": "https://x"},
        {"url": 7},
        {"producer": "other"},
        {"password": ""},
        {"pass": "planted-secret"},
        {"url": "https://x", "producer": "a b"},
        {"url": "https://x/p\nplanted-secret"},
    ],
)
def test_what_is_wrong_with_an_endpoint_is_named_without_its_value(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    with pytest.raises(SettingsError) as caught:
        read_endpoint(file(tmp_path, {**HTTP, **change}))
    assert "planted-secret" not in str(caught.value)


def test_a_file_for_http_is_no_broker_s(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--sink http"):
        read_broker(file(tmp_path, HTTP))


def test_a_key_with_a_pass_phrase_is_reported_and_not_asked_for(tmp_path: Path) -> None:
    import subprocess

    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-passout",
            "pass:planted-secret",
            "-subj",
            "/CN=x",
            "-keyout",
            str(tmp_path / "key.pem"),
            "-out",
            str(tmp_path / "cert.pem"),
        ],
        check=True,
        capture_output=True,
    )
    (tmp_path / "key.pem").chmod(0o600)
    content = {**HTTP, "ca": "cert.pem", "cert": "cert.pem", "key": "key.pem"}
    with pytest.raises(SettingsError, match="pass phrase"):
        read_endpoint(file(tmp_path, content)).tls()
