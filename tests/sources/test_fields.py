"""What fields mean, whatever format carries them: names of files, people and applications."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmsspark.sources.values import AppRule, Apps, normalise_lfn, user_name


@pytest.mark.parametrize(
    ("logged", "wanted"),
    [
        ("/store/a", "/store/a"),
        ("", ""),
        ("/", "/"),
        ("//store//a///b", "/store/a/b"),
        ("file:/store/a", "/store/a"),
        ("file:file:/store/a", "file:/store/a"),
        ("file:", ""),
        ("root://host/store/a", "/store/a"),
        ("root://host:1094//store/a", "/store/a"),
        ("root://h//eos/cms/store/a", "/store/a"),
        ("root://h", "root:/h"),
        ("root:///store/a", "/store/a"),
        ("root://", "root:/"),
        ("root:///", "/"),
        ("file:root://h:1094//eos/cms//store/a", "/store/a"),
        ("/eos/cms/store/a", "/store/a"),
        ("/eos/cms//store/a", "/store/a"),
        ("//eos//cms/store/a", "/store/a"),
        ("/eos/cms/eos/cms/store/a", "/eos/cms/store/a"),
        ("/eos/cmsx/store/a", "/eos/cmsx/store/a"),
        ("/eos/cms", "/eos/cms"),
        ("/eos/cms/", "/"),
        ("/EOS/CMS/store/a", "/EOS/CMS/store/a"),
        (" /store/a", " /store/a"),
        ("/store/a?x=root://h/y", "/store/a?x=root:/h/y"),
        ("xroot://h/store/a", "xroot:/h/store/a"),
        ("/store/a/", "/store/a/"),
        ("File:/store/a", "File:/store/a"),
        ("/store/%2F", "/store/%2F"),
        ("root://a/root://b/store", "/root:/b/store"),
    ],
)
def test_a_logged_name_loses_its_prefixes_each_once_and_in_order(logged: str, wanted: str) -> None:
    assert normalise_lfn(logged) == wanted


@given(st.text(alphabet="/abs:.", max_size=20))
def test_a_plain_name_stays_as_it_is(tail: str) -> None:
    name = "/store/" + tail.lstrip("/").replace("//", "/")
    if "//" not in name:
        assert normalise_lfn(name) == name


DN = "/DC=ch/DC=cern/OU=Organic Units/OU=Users/CN=amaltaro/CN=718748/CN=Alan Malta Rodrigues"


@pytest.mark.parametrize(
    ("identity", "wanted"),
    [
        (DN, "Alan Malta Rodrigues"),
        (f"{DN}/CN=12345", "Alan Malta Rodrigues"),
        (f"{DN}/CN=proxy", "Alan Malta Rodrigues"),
        (f"{DN}/CN=limited proxy/CN=9", "Alan Malta Rodrigues"),
        (f"{DN}&sec.app=/CN=Other", "Alan Malta Rodrigues"),
        (f"  {DN} ", "Alan Malta Rodrigues"),
        (f"{DN}/Email=x@y", "Alan Malta Rodrigues"),
        ("/CN=Proxy", "Proxy"),
        ("/CN=proxy", None),
        ("/CN=1/CN=2", None),
        ("/DC=ch", None),
        ("/", None),
        ("/CN=a1", "a1"),
        ("/CN=٣", "٣"),
        ("Ann", "Ann"),
        ("  Ann  ", "Ann"),
        ("Ann&x", "Ann"),
        ("", None),
        ("  ", None),
        ("&/CN=Ann", None),
        (None, None),
        ("12", "12"),
        ("proxy", "proxy"),
        ("CN=Ann", "CN=Ann"),
        ("/CN=Ann/CN=", None),
        ("/cn=Ann", None),
    ],
)
def test_a_person_is_the_last_name_of_a_certificate(
    identity: str | None, wanted: str | None
) -> None:
    assert user_name(identity) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (None, "unknown"),
        ("", "unknown"),
        (" ", "other"),
        ("x", "other"),
        ("CRAB3", "crab"),
        ("wmagent_crab", "crab"),
        ("WMAgent", "wmagent"),
        ("wmagent cmsRun", "wmagent"),
        ("cmsRun", "cmsrun"),
        ("eoscp", "transfer"),
        ("XRDCP", "transfer"),
        ("gridFTP", "transfer"),
        ("fts-xrdcp", "transfer"),
        ("shifts", "transfer"),
        ("fuse", "fuse"),
        ("fuse eoscp", "transfer"),
        ("cmsrun fuse", "cmsrun"),
        ("unknown", "other"),
        ("cRaB\n", "crab"),
        ("eos/converter", "storage"),
        ("rainplugin", "storage"),
        ("tpc", "transfer"),
        ("tpcx", "other"),
    ],
)
def test_the_first_word_that_fits_decides_the_application(text: str | None, wanted: str) -> None:
    apps = Apps.load()
    assert apps.of[text] == wanted
    assert apps.of[text] == wanted  # remembered


def test_what_is_remembered_of_applications_is_bounded() -> None:
    apps = Apps([AppRule("crab", words=("crab",))], cache_size=3)
    assert [apps.of[f"crab {number}"] for number in range(10)] == ["crab"] * 10
    assert len(apps.of) <= 3
