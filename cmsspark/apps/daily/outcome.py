"""How a task of ``cmsspark daily`` ended: its outcome, its exit code, and what is recorded of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final, Self

from cmsspark.apps.daily.planner import Rules, is_overdue
from cmsspark.base.errors import CmssparkError, Exit, as_ours
from cmsspark.store.daily_state import GIVEN_UP, DayRecord, StoreState, day_key, signature
from cmsspark.store.day_states import Cell, inputs_named

if TYPE_CHECKING:
    from cmsspark.apps.daily.planner import PlannedTask
    from cmsspark.store.job_index import Job

#: When two days in a row end with the same one of these, all others would, too: daily
#: does not try them.
FATAL_EXIT_CODES: Final = (Exit.USAGE, Exit.NO_OUTPUT, Exit.SETTINGS)

#: The code that daily ends with is the first of these that something ended with.
EXIT_PRIORITY: Final = (
    *(Exit.BUG, Exit.SETTINGS, Exit.NOT_ALLOWED, Exit.NO_OUTPUT, Exit.DATA, Exit.USAGE),
    *(Exit.QUARANTINED, Exit.NOT_READY),
)

#: Days without any daily that are recorded, at most.
_GAP_DAYS: Final = 400


@dataclass(frozen=True)
class TaskOutcome:
    """How a task ended.

    ``word`` is done, published, waiting, unsent, failed, left (not tried), acknowledged
    or skipped. ``where``, ``next_step`` and ``run`` are the file, what to do, and the
    run of a failure; ``since_ms`` says since when it is so.
    """

    task: PlannedTask
    word: str
    code: int
    text: str
    seconds: float = 0.0
    where: str = ""
    next_step: str = ""
    run: str = ""
    since_ms: int | None = None
    is_overdue: bool = False
    is_given_up: bool = False
    #: Whether a job was started for it.
    has_run: bool = False
    #: Identifies the trouble; see :func:`cmsspark.store.daily_state.signature`.
    signature: str = ""

    @classmethod
    def of_error(cls, task: PlannedTask, word: str, code: int, error: CmssparkError) -> Self:
        """Return the outcome of a task that an error ended."""
        observed = "" if error.found is None else f": {error.found}"
        where = "" if error.where is None else str(error.where)
        return cls(
            task,
            word,
            code,
            error.problem + observed,
            where=where,
            next_step=error.next_step or "",
        )

    @property
    def state(self) -> Cell:
        """The outcome as mails, metrics and ``cmsspark status`` tell it."""
        return Cell(
            "given up" if self.is_given_up else self.word,
            reason=self.text,
            where=self.where,
            next_step=self.next_step,
            inputs=inputs_named(self.text) if self.word == "waiting" else (),
            since_ms=self.since_ms,
            is_overdue=self.is_overdue,
            run=self.run,
            code=self.code,
        )

    @property
    def trouble(self) -> str:
        """What a mail was sent of: that a day is given up is told once more."""
        return self.signature + (GIVEN_UP if self.is_given_up else "")


def as_error(error: Exception) -> CmssparkError:
    """Return the error as one of ours; a surprise is a bug (70)."""
    ours = as_ours(error)
    if ours is not None:
        return ours
    return CmssparkError(
        f"a bug in cmsspark: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    )


def in_a_line(error: CmssparkError) -> str:
    """Return what was wanted, where, and what is there instead."""
    where = "" if error.where is None else f": {error.where}"
    return error.problem + where + ("" if error.found is None else f": {error.found}")


def most_serious(exit_codes: Iterable[int]) -> int:
    """Return the most serious of the codes; a code that is not in ``EXIT_PRIORITY`` comes first."""
    codes = set(exit_codes) - {0}
    ranked = [code for code in EXIT_PRIORITY if code in codes]
    unranked = codes - set(EXIT_PRIORITY)
    return int(next(iter(sorted(unranked)), ranked[0] if ranked else 0))


def update_record(record: DayRecord, outcome: TaskOutcome, now_ms: int, rules: Rules) -> None:
    """Put an outcome that is not done into the record of its day."""
    is_same_wait = record.word == outcome.word == "waiting" and inputs_named(
        record.text
    ) == inputs_named(outcome.text)
    if not is_same_wait and record.signature != signature(
        outcome.word, outcome.code, outcome.text
    ):
        record.first_ms = now_ms
    record.word, record.code, record.text = outcome.word, outcome.code, outcome.text
    record.where, record.next_step = outcome.where, outcome.next_step
    record.run = outcome.run or record.run
    record.is_given_up, record.last_ms = outcome.is_given_up, now_ms
    record.is_overdue = outcome.word in ("waiting", "unsent") and is_overdue(
        outcome.task.day, now_ms, rules
    )
    if not outcome.has_run:
        return
    if record.fingerprint != outcome.task.fingerprint:
        record.attempts, record.fingerprint = 0, outcome.task.fingerprint
    # What waits is worth another attempt until it is overdue; what ends all days alike
    # is no fault of this one.
    is_temporary = outcome.word == "waiting" and not is_overdue(outcome.task.day, now_ms, rules)
    if (
        outcome.word in ("failed", "waiting")
        and outcome.code not in FATAL_EXIT_CODES
        and not is_temporary
    ):
        record.attempts += 1


def record_gap(
    state: StoreState, jobs: Sequence[Job], first: date, last: date, now_ms: int
) -> None:
    """Record the days between the last one that a daily looked at and ``first``: no
    daily will look at them.
    """
    until = state.planned_until
    if until is not None:
        for number in range(1, min((first - until).days, _GAP_DAYS + 1)):
            for job in jobs:
                text = "no cmsspark daily has checked it"
                record = DayRecord(
                    word="left", code=int(Exit.NOT_READY), text=text, first_ms=now_ms
                )
                state.days.setdefault(day_key(until + timedelta(days=number), job.name), record)
    state.planned_until = last if until is None else max(until, last)


@dataclass(frozen=True)
class DailyReport:
    """All that is reported of one call. ``unfinished``: days before ``first`` that are
    not done, by key; ``silent``: a line for each stream whose sites fell silent.
    """

    first: date
    last: date
    outcomes: Sequence[TaskOutcome]
    overdue: Sequence[TaskOutcome] = ()
    unfinished: Mapping[str, DayRecord] = field(default_factory=dict)
    silent: Sequence[str] = ()

    @property
    def code(self) -> int:
        """The exit code."""
        unfinished = [record.code or int(Exit.NOT_READY) for record in self.unfinished.values()]
        return most_serious([outcome.code for outcome in self.outcomes] + unfinished)

    def trouble(self) -> dict[str, str]:
        """Return what somebody should look at: the key of the day → the signature of its trouble."""
        result = {key: record.trouble for key, record in self.unfinished.items()}
        for outcome in self.outcomes:
            if (
                outcome.word == "failed"
                or outcome.code == Exit.QUARANTINED
                or outcome in self.overdue
                or outcome.is_given_up
            ):
                result[day_key(outcome.task.day, outcome.task.job.name)] = outcome.trouble
        return result
