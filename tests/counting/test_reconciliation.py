"""Reconciliation: every record is somewhere, and a day beyond the tolerances is no result."""

from __future__ import annotations

import pytest

from cmsspark.base.errors import DataError, UsageError
from cmsspark.counting import reconciliation
from cmsspark.counting.reconciliation import StreamBins, Tolerance, from_rows, parse_tolerances
from cmsspark.pages.day_report import bins_table

STREAMS = ("aaa", "eos")


def bins(**counts: int) -> StreamBins:
    found = StreamBins()
    for name, count in counts.items():
        found.add(name, count, "2019-06-14" if name == "out_of_day" else None)
    found.read = found.binned
    return found


def check(
    one: StreamBins, tolerance: Tolerance | None = None, examples: tuple[str, ...] = ()
) -> list[str]:
    return reconciliation.check(
        {"aaa": one}, {"aaa": tolerance or Tolerance()}, {"eos": ("another",), "aaa": examples}
    )


def test_shares_are_of_the_records_that_could_have_matched() -> None:
    def day(**counts: int) -> StreamBins:
        rows = [("eos", name, count, None) for name, count in counts.items()]
        return from_rows([*rows, ("eos", "read", sum(counts.values()), None)], ("eos",))["eos"]

    usual = [day(matched=90, not_in_dbs=10).as_dict()] * 3
    before = [{"eos": counts} for counts in usual]
    # As many files were removed as were read: of those that were looked up a third.
    removed = day(matched=60, not_in_dbs=31, deletion=300)
    assert removed.binned == removed.read == 391
    (warning,) = reconciliation.unusual({"eos": removed}, before)
    assert warning.startswith("eos: 34.1% of the records are unmatched")
    only_removed = day(deletion=2000)
    tolerances = {"eos": Tolerance()}
    assert reconciliation.check({"eos": only_removed}, tolerances, {}) == []


def test_rows_of_a_scan_add_up_by_stream_and_bin() -> None:
    rows = [
        ("aaa", "read", 10, None),
        ("aaa", "read", 5, None),
        ("aaa", "matched", 6, None),
        ("aaa", "no_lfn", 1, None),
        ("aaa", "user_file", 1, None),
        ("aaa", "temporary", 2, None),
        ("aaa", "not_in_dbs", 1, None),
        ("aaa", "malformed", 1, None),
        ("aaa", "write_only", 1, None),
        ("aaa", "out_of_day", 1, "2019-06-14"),
        ("aaa", "out_of_day", 1, "beyond 9999-12-31"),
        ("aaa", "generation G1", 4, None),
    ]
    found = from_rows(rows, STREAMS)
    assert found["aaa"].as_dict() == {
        "read": 15,
        "matched": 6,
        "unmatched": {"no_lfn": 1, "user_file": 1, "temporary": 2, "not_in_dbs": 1},
        "malformed": 1,
        "out_of_day": 2,
        "write_only": 1,
    }
    assert found["aaa"].binned == 15
    assert dict(found["aaa"].out_of_day) == {"2019-06-14": 1, "beyond 9999-12-31": 1}
    assert dict(found["aaa"].generations) == {"G1": 4}
    assert found["eos"].as_dict()["unmatched"] == {
        "no_lfn": 0,
        "user_file": 0,
        "temporary": 0,
        "not_in_dbs": 0,
    }


def test_a_bin_of_no_known_name_is_a_bug() -> None:
    with pytest.raises(ValueError, match="lost"):
        from_rows([("aaa", "lost", 1, None)], STREAMS)


def test_bins_that_do_not_add_up_are_a_bug() -> None:
    one = bins(matched=5)
    one.read = 6
    with pytest.raises(RuntimeError, match="6 records were read and 5 are in bins"):
        check(one)


@pytest.mark.parametrize(
    ("malformed", "rest", "fails"),
    [
        (10, 0, False),
        (11, 0, True),
        (11, 10_988, True),
        (11, 10_989, False),
        (11, 10_990, False),
        (12, 11_988, False),
        (13, 11_987, True),
        (0, 0, False),
        (10, 5, False),
    ],
)
def test_more_than_a_thousandth_and_more_than_ten_malformed_fail(
    malformed: int, rest: int, fails: bool
) -> None:
    one = bins(malformed=malformed, matched=rest)
    if not fails:
        assert check(one) == []
        return
    with pytest.raises(DataError) as error:
        check(one, examples=("part-0, record 1: not a JSON object",) * 9)
    assert f"{malformed} of {malformed + rest:,} records" in str(error.value)
    assert str(error.value).count("part-0") == 5
    assert "another" not in str(error.value)
    assert error.value.exit_code == 65


def test_none_matched_of_a_thousand_fails_and_of_fewer_does_not() -> None:
    assert check(bins(not_in_dbs=999)) == []
    with pytest.raises(DataError, match="none of 1,000 records matched"):
        check(bins(not_in_dbs=1000))
    assert check(bins(not_in_dbs=1000, matched=1)) == []
    with pytest.raises(DataError, match="none of 1,000"):
        check(bins(user_file=500, write_only=500))


def test_many_records_of_other_days_are_a_warning_that_names_the_days() -> None:
    assert check(bins(out_of_day=5, matched=95)) == []
    (warning,) = check(bins(out_of_day=6, matched=94))
    assert "6 of 100" in warning
    assert "2019-06-14: 6" in warning


def test_each_stream_is_judged_alone() -> None:
    both = {"aaa": bins(matched=100_000), "eos": bins(malformed=11)}
    with pytest.raises(DataError, match=r"^eos: 11 of 11"):
        reconciliation.check(both, dict.fromkeys(both, Tolerance()), {})
    reconciliation.check(both, {"aaa": Tolerance(), "eos": Tolerance(1.0)}, {})


@pytest.mark.parametrize(
    ("text", "aaa", "eos"),
    [
        (None, Tolerance(), Tolerance()),
        ("", Tolerance(), Tolerance()),
        ("0.01", Tolerance(0.01), Tolerance(0.01)),
        (".5", Tolerance(0.5), Tolerance(0.5)),
        ("1%", Tolerance(0.01), Tolerance(0.01)),
        ("100%", Tolerance(1.0), Tolerance(1.0)),
        ("1", Tolerance(1.0), Tolerance(1.0)),
        ("50", Tolerance(None, 50), Tolerance(None, 50)),
        ("aaa=1%", Tolerance(0.01), Tolerance()),
        ("aaa=1%, eos=20", Tolerance(0.01), Tolerance(None, 20)),
        ("0.5,eos=1%", Tolerance(0.5), Tolerance(0.01)),
        ("0", Tolerance(0.0), Tolerance(0.0)),
    ],
)
def test_tolerances_are_a_share_or_a_number_for_all_or_for_one(
    text: str | None, aaa: Tolerance, eos: Tolerance
) -> None:
    assert parse_tolerances(text, STREAMS) == {"aaa": aaa, "eos": eos}


@pytest.mark.parametrize(
    "text", ["x", "-1", "1e3", "101%", "crab=1%", "aaa=", "=1", "1 %", "aaa:1%", "nan", "1.", "٣"]
)
def test_what_is_no_tolerance_is_reported(text: str) -> None:
    with pytest.raises(UsageError, match="--max-malformed"):
        parse_tolerances(text, STREAMS)


def test_a_number_of_malformed_records_is_tolerated_whatever_the_share() -> None:
    assert check(bins(malformed=50, matched=1), Tolerance(None, 50)) == []
    with pytest.raises(DataError, match="50 records are tolerated"):
        check(bins(malformed=51, matched=10**6), Tolerance(None, 50))


def test_a_reconciliation_prints_one_line_for_each_bin_that_a_stream_has() -> None:
    lines = bins_table(
        {"aaa": bins(matched=1234567).as_dict(), "eos": bins().as_dict()}
    ).splitlines()
    assert [line.split() for line in lines] == [
        ["bin", "aaa", "eos"],
        ["read", "1,234,567", "0"],
        ["matched", "1,234,567", "0"],
        *([name, "0", "0"] for name in ("no_lfn", "user_file", "temporary", "not_in_dbs")),
        *([name, "0", "0"] for name in ("malformed", "out_of_day", "write_only")),
    ]
    assert bins_table({}) == ""


def test_a_reconciliation_of_all_streams_fits_80_columns_with_the_bins_of_jobs_once() -> None:
    most = bins(matched=9_999_999_999).as_dict()
    jobs = StreamBins.of_jobs().as_dict()
    streams = {stream: most for stream in ("aaa", "eos", "cmssw", "crab")}
    lines = bins_table({**streams, "condor": jobs}).splitlines()
    assert max(map(len, lines)) <= 80
    names = [line.split()[0] for line in lines[1:]]
    assert len(names) == len(set(names)) == 14
    assert next(line.split() for line in lines if line.startswith("repeated")) == ["repeated", "0"]
    assert next(line.split() for line in lines if line.startswith("user_file")) == [
        "user_file",
        *["0"] * 5,
    ]


def test_a_stream_without_a_record_fails_where_the_days_before_had_some() -> None:
    usual = {"aaa": bins(matched=1_000).as_dict()}
    with pytest.raises(
        DataError, match="aaa has no record, the median of the days before is 1,000"
    ):
        reconciliation.unusual({"aaa": bins()}, [usual] * 3)
    assert reconciliation.unusual({"aaa": bins()}, [usual] * 2) == []
    assert reconciliation.unusual({"aaa": bins()}, [{"aaa": bins().as_dict()}] * 5) == []


def test_where_nothing_matched_the_dump_and_how_names_begin_are_reported() -> None:
    one = bins(not_in_dbs=1000, write_only=2)
    prefixes = {
        "aaa": [
            ["/store/mc/Run3/*", 900],
            ["/store/user/*", 60],
            *(["/store/data/*", 1] for _ in range(9)),
        ]
    }
    with pytest.raises(DataError) as error:
        reconciliation.check(
            {"aaa": one}, {"aaa": Tolerance()}, {}, "DBS dump of 2026-01-16 in /dbs", prefixes
        )
    assert error.value.where == "DBS dump of 2026-01-16 in /dbs"
    found = str(error.value.found)
    assert found.startswith(
        "1,000 not_in_dbs, 2 write_only; names begin with /store/mc/Run3/* (900), /store/user/* (6"
    )
    assert found.count("/store/") == 5


def test_too_many_malformed_are_reported_with_their_share_and_where_they_are_kept() -> None:
    with pytest.raises(DataError) as error:
        reconciliation.check(
            {"aaa": bins(malformed=402, matched=7598)},
            {"aaa": Tolerance()},
            {"aaa": ["x"]},
            quarantine="/q",
        )
    assert (
        error.value.problem
        == "aaa: 402 of 8,000 records are malformed (5.03%), 0.1 % are tolerated"
    )
    assert error.value.where == "/q"


@pytest.mark.parametrize(
    ("malformed_bytes", "tolerance", "fails"),
    [
        (10_000, None, False),
        (11_000, None, True),
        (11_000, Tolerance(0.5), False),
        (600_000, Tolerance(0.5), True),
        (50_000, Tolerance(None, 50), False),
        (51_000, Tolerance(None, 50), True),
    ],
)
def test_malformed_bytes_are_limited_as_malformed_records_are(
    malformed_bytes: int, tolerance: Tolerance | None, fails: bool
) -> None:
    # One line in place of many: 1,000 bytes are a record of average size.
    one = bins(matched=500, malformed=1)
    one.malformed_bytes, one.content_bytes = malformed_bytes, 500_000 + malformed_bytes
    if not fails:
        assert check(one, tolerance) == []
        return
    with pytest.raises(DataError, match=f"of {500_000 + malformed_bytes:,} bytes"):
        check(one, tolerance)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (
            {"out_of_day": 4_500},
            ["none of 4,500 records is of the day", "4,500", "--date counts another one"],
        ),
        (
            {"write_only": 2_000, "malformed": 1},
            ["names a file that DBS could have", "2,000 write_only"],
        ),
        ({"not_in_dbs": 2_000}, ["matched a file in DBS", "DBS dump is the right one"]),
    ],
)
def test_the_dump_is_blamed_only_for_records_that_were_looked_up(
    counts: dict[str, int], words: list[str]
) -> None:
    with pytest.raises(DataError) as error:
        check(bins(**counts))
    assert all(text in str(error.value) for text in words)
    assert ("DBS dump" in str(error.value)) == ("not_in_dbs" in counts)
