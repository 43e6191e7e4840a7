"""What a case of a counting rule is: a record, and the bin or the access that it must become."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tests.oracle.count import Access

T = TypeVar("T")

MALFORMED, WRITE_ONLY, NO_LFN = "malformed", "write_only", "no_lfn"
DELETION = "deletion"
USER_FILE, TEMPORARY, NOT_IN_DBS = "user_file", "temporary", "not_in_dbs"


@dataclass(frozen=True)
class OutOfDay:
    """The record lies in another day, the one that it names."""

    day: str


#: A bin's name, a day, or the access that matched.
Expected = str | OutOfDay | Access


@dataclass(frozen=True)
class Case:
    """One record of a stream in one of its forms, and what it must become."""

    rule: int
    name: str
    stream: str
    #: enr, raw, json or avro
    form: str
    record: bytes | Mapping[str, object]
    expected: Expected
    #: Avro only: the fields of the file's schema with their types.
    fields: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"r{self.rule:02}-{self.stream}-{self.form}-{self.name}"


@dataclass(frozen=True)
class FileCase:
    """A whole text file of a stream, and how many of its records fall into each bin."""

    rule: int
    name: str
    stream: str
    content: bytes
    bins: Mapping[str, int]

    def __str__(self) -> str:
        return f"r{self.rule:02}-{self.stream}-file-{self.name}"


@dataclass
class Cases:
    """Collects the cases of one stream and form."""

    stream: str
    form: str
    #: What the stream's unchanged record becomes.
    usual: Access
    found: list[Case] = field(default_factory=list)

    def add(
        self,
        rule: int,
        name: str,
        record: bytes | Mapping[str, object],
        expected: Expected,
        fields: Mapping[str, object] | None = None,
    ) -> None:
        self.found.append(Case(rule, name, self.stream, self.form, record, expected, fields or {}))

    def hit(self, **changes: object) -> Access:
        """The usual access with changes."""
        return replace(self.usual, **changes)  # type: ignore[arg-type]


def failures(cases: Iterable[tuple[str, T]], check: Callable[[T], None]) -> list[str]:
    """Check each of the cases, and return the names of those that fail, with what is wrong.

    One test of many small cases: pytest spends more on a test than such a case takes.
    """
    failed = []
    for name, case in cases:
        try:
            check(case)
        except Exception as error:
            failed.append(f"{name}: {type(error).__name__}: {error}")
    return failed
