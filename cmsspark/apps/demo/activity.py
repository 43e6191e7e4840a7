"""What happened on a day: for each stream, tasks of people on datasets, and the records
that they leave.

Each record falls into one bin of ``docs/counting.md`` by construction, in exact
numbers, so that what a job should find is known before it runs.
"""

from __future__ import annotations

from datetime import date
from typing import Final, Literal, get_args

import msgspec
import numpy as np

from cmsspark.apps.demo.world import T2, T3, Ints, Person, World, guids
from cmsspark.apps.demo.write import orphan_lfns
from cmsspark.base.dates import start_ms

Stream = Literal["aaa", "eos", "cmssw", "crab"]
#: The streams that the demo writes.
STREAMS: Final[tuple[Stream, ...]] = get_args(Stream)

#: Bins, in the order of the numbers in ``Activity.bins``.
BINS: Final = (
    "matched",
    "malformed",
    "out_of_day",
    "write_only",
    "no_lfn",
    "user_file",
    "temporary",
    "not_in_dbs",
)
MATCHED, MALFORMED, OUT_OF_DAY, WRITE_ONLY, NO_LFN, USER_FILE, TEMPORARY, NOT_IN_DBS = range(
    len(BINS)
)

#: Shares of records by stream; the rest matches. Each that is not 0 gets at least one
#: record of a hundred.
SHARES: Final[dict[Stream, dict[int, float]]] = {
    "aaa": {
        MALFORMED: 2e-4,
        OUT_OF_DAY: 4e-3,
        WRITE_ONLY: 0.03,
        NO_LFN: 6e-3,
        USER_FILE: 0.06,
        TEMPORARY: 0.02,
        NOT_IN_DBS: 0.03,
    },
    "eos": {
        MALFORMED: 2e-4,
        OUT_OF_DAY: 3e-3,
        WRITE_ONLY: 0.12,
        NO_LFN: 2e-3,
        USER_FILE: 0.12,
        TEMPORARY: 0.04,
        NOT_IN_DBS: 0.04,
    },
    "cmssw": {
        MALFORMED: 2e-4,
        OUT_OF_DAY: 5e-3,
        NO_LFN: 4e-3,
        USER_FILE: 0.05,
        TEMPORARY: 0.015,
        NOT_IN_DBS: 0.02,
    },
    "crab": {MALFORMED: 2e-4, NO_LFN: 0.01, USER_FILE: 0.04, NOT_IN_DBS: 0.03},
}

#: How names are dressed up in each stream's logs: (prefix, share); the rest stands plain.
PREFIXES: Final[dict[Stream, tuple[tuple[str, float], ...]]] = {
    "aaa": (
        ("/eos/cms", 0.10),
        ("/", 0.01),
        ("root://cms-xrd-global.cern.ch/", 0.005),
        ("root://xrd.example.org:1094//eos/cms", 0.005),
    ),
    "eos": (("/eos/cms", 0.60),),
    "cmssw": (("file:", 0.02), ("root://cmsxrootd.fnal.gov/", 0.03), ("file:/eos/cms", 0.005)),
    "crab": (("/", 0.40),),
}

APPS: Final[dict[Stream, tuple[tuple[str, float], ...]]] = {
    "aaa": (
        ("", 0.30),
        ("{id}_https://glidein.cern.ch/{id}/260115:{login}:crab:{primary}:ana_0", 0.35),
        ("cmsRun", 0.20),
        ("wmagent_{login}_task_{id}", 0.05),
        ("xrdcp", 0.05),
        ("python3 analysis.py", 0.05),
    ),
    "eos": (
        ("", 0.20),
        ("fuse", 0.30),
        ("eoscp", 0.15),
        ("xrootd", 0.10),
        ("gridftp", 0.05),
        ("cmsRun", 0.10),
        ("crab/{id}", 0.05),
        ("fts3", 0.05),
    ),
    "cmssw": (
        ("{id}_https://glidein.cern.ch/{id}/260115:{login}:crab:{primary}:DSm:4b_0", 0.55),
        ("wmagent_{login}_task_{id}__v1_T", 0.30),
        ("", 0.10),
        ("cmsRun_local", 0.05),
    ),
    "crab": (("crab3", 0.70), ("wmagent", 0.20), ("", 0.05), ("jobrobot", 0.05)),
}
#: Certificate forms (as issued, proxies, ``proxy``, with ``&``), null or empty users,
#: unknown sites.
DN_FORMS: Final[dict[Stream, tuple[float, float, float, float]]] = {
    "aaa": (0.80, 0.15, 0.03, 0.02),
    "eos": (0.90, 0.08, 0.02, 0.0),
    "cmssw": (0.50, 0.45, 0.03, 0.02),
    "crab": (1.0, 0.0, 0.0, 0.0),
}
NOBODY: Final[dict[Stream, float]] = {"aaa": 0.08, "eos": 0.25, "cmssw": 0.01, "crab": 0.01}
UNKNOWN_SITE: Final[dict[Stream, float]] = {"aaa": 0.01, "eos": 0.0, "cmssw": 0.005, "crab": 0.005}


class Activity(msgspec.Struct, frozen=True):
    """One stream's records of one day, in columns of equal length.

    ``lfns`` as logged, None where there is none; ``sites`` and ``clients`` (where the
    job runs) None or empty where unknown; ``users`` None where nobody is named; times
    in ms, ``timestamps`` in whatever unit the record carries.
    """

    stream: Stream
    day: date
    bins: list[int]
    lfns: list[str | None]
    sizes: list[int]
    users: list[Person | None]
    dns: list[str | None]
    apps: list[str]
    sites: list[str | None]
    clients: list[str | None]
    read_bytes: list[int]
    write_bytes: list[int]
    starts: list[int]
    ends: list[int]
    timestamps: list[int]
    #: Random identifiers, and small integers for what else a record varies in.
    ids: list[str]
    noise: list[int]

    def counts(self) -> dict[str, int]:
        """Records by bin."""
        counts = np.bincount(np.array(self.bins, dtype=np.int64), minlength=len(BINS))
        return {name: int(count) for name, count in zip(BINS, counts, strict=True)}


class _Tasks(msgspec.Struct, frozen=True):
    """Somebody's jobs on one dataset: what their records share."""

    dataset: list[int]
    user: list[Person]
    app: list[str]
    site: list[str]
    client: list[str]


def draw(
    world: World,
    rng: np.random.Generator,
    stream: Stream,
    day: date,
    records: int,
    *,
    is_dated: bool = True,
) -> Activity:
    """``records`` records of ``stream``; without ``is_dated`` the format has no
    timestamp, so none is out of day.
    """
    bins = np.full(records, MATCHED, dtype=np.int64)
    filled = 0
    for number, share in SHARES[stream].items():
        if number == OUT_OF_DAY and not is_dated:
            continue
        count = max(round(share * records), 1 if records >= 100 else 0)
        bins[filled : filled + count] = number
        filled += count
    rng.shuffle(bins)
    tasks = _tasks(rng, world, stream, max(1, records // 25))
    task = _heavy(rng, records, len(tasks.dataset))
    dataset = np.array(tasks.dataset)[task]
    first, last = world.dataset_start[dataset], world.dataset_start[dataset + 1]
    # Some files are read more than others: the first ones of a dataset.
    file = first + ((last - first) * rng.random(records) ** 1.4).astype(np.int64)
    start, end, stamp = _times(rng, bins, day)
    tasks_of = task.tolist()
    users = [tasks.user[t] for t in tasks_of]
    nobody = (rng.random(len(users)) < NOBODY[stream]).tolist()
    people = [None if is_nobody else user for is_nobody, user in zip(nobody, users, strict=True)]
    read, written = _volumes(rng, bins, world.file_bytes[file])
    variants = np.searchsorted(
        np.cumsum(DN_FORMS[stream])[:3], rng.random(len(people)), side="right"
    ).tolist()
    return Activity(
        stream=stream,
        day=day,
        bins=bins.tolist(),
        lfns=_logged_lfns(rng, world, stream, bins, file),
        sizes=world.file_bytes[file].tolist(),
        users=people,
        dns=[user.dn_forms[i] if user else None for user, i in zip(people, variants, strict=True)],
        apps=[tasks.app[t] for t in tasks_of],
        sites=_some_unknown(rng, [tasks.site[t] for t in tasks_of], UNKNOWN_SITE[stream]),
        clients=_some_unknown(rng, [tasks.client[t] for t in tasks_of], 0.03),
        read_bytes=read.tolist(),
        write_bytes=written.tolist(),
        starts=start.tolist(),
        ends=end.tolist(),
        timestamps=stamp.tolist(),
        ids=guids(rng, records),
        noise=rng.integers(0, 1 << 30, records).tolist(),
    )


def _heavy(rng: np.random.Generator, count: int, kinds: int) -> Ints:
    """``count`` draws among ``kinds``, a few of them much more often than others."""
    weights = rng.pareto(1.8, kinds) + 0.05
    return rng.choice(kinds, count, p=weights / weights.sum())


def _choose(
    rng: np.random.Generator, shares: tuple[tuple[str, float], ...], count: int, last: str = ""
) -> list[str]:
    """Texts by their shares; what the shares leave of 1 is ``last``."""
    names = [name for name, _ in shares] + [last]
    edges = np.cumsum([share for _, share in shares])
    return [
        names[i]
        for i in np.searchsorted(edges, rng.random(count) * 0.999_999, side="right").tolist()
    ]


def _tasks(rng: np.random.Generator, world: World, stream: Stream, count: int) -> _Tasks:
    dataset = rng.choice(len(world.names), count, p=world.popularity).tolist()
    user = [world.people[i] for i in _heavy(rng, count, len(world.people)).tolist()]
    forms = _choose(rng, APPS[stream], count)
    numbers = rng.integers(1_000, 9_999, count).tolist()
    app = [
        template.format(id=number, login=person.login, primary=world.names[d].split("/")[1])
        if "{" in template
        else template
        for template, number, person, d in zip(forms, numbers, user, dataset, strict=True)
    ]
    site, client = [], []
    elsewhere = (*T2, *T3)
    lucks, picks = rng.random((count, 2)), rng.integers(0, 1 << 30, count)
    alternatives = rng.integers(0, len(elsewhere), count)
    for d, luck, pick, alternative in zip(dataset, lucks, picks, alternatives, strict=True):
        home = world.sites[d]
        # Most jobs go where the data are; the others read over the network, or from a
        # site that lost them.
        at = home[pick % len(home)] if home and luck[0] < 0.88 else elsewhere[alternative]
        site.append(at)
        client.append(at if luck[1] < 0.75 else elsewhere[alternative])
    return _Tasks(dataset, user, app, site, client)


def _times(rng: np.random.Generator, bins: Ints, day: date) -> tuple[Ints, Ints, Ints]:
    begin = start_ms(day)
    end = begin + (rng.random(len(bins)) ** 0.9 * 86_000_000).astype(np.int64)
    start = end - rng.integers(500, 14_000_000, len(bins))
    stamp = end + rng.integers(100, 390_000, len(bins))
    away = np.where(rng.random(len(bins)) < 0.7, -86_400_000, 86_400_000)
    stamp = np.where(bins == OUT_OF_DAY, stamp + away, stamp)
    # A few producers write seconds or microseconds.
    unit = rng.random(len(bins))
    stamp = np.where(unit < 1e-3, stamp // 1_000, np.where(unit < 2e-3, stamp * 1_000, stamp))
    return start, end, stamp


def _volumes(rng: np.random.Generator, bins: Ints, sizes: Ints) -> tuple[Ints, Ints]:
    """Bytes read and written: mostly a part of the file, sometimes opened only,
    write-only records nothing.
    """
    part = rng.beta(0.7, 1.2, len(bins))
    read = np.where(rng.random(len(bins)) < 0.04, 0, (sizes * part).astype(np.int64))
    written = np.where(bins == WRITE_ONLY, np.maximum(1, sizes), 0)
    return np.where(bins == WRITE_ONLY, 0, read), written


def _logged_lfns(
    rng: np.random.Generator, world: World, stream: Stream, bins: Ints, file: Ints
) -> list[str | None]:
    prefixes = _choose(rng, PREFIXES[stream], len(bins))
    orphans = orphan_lfns(world)
    people = len(world.people)
    lfns: list[str | None] = []
    for i, (number, f, prefix) in enumerate(
        zip(bins.tolist(), file.tolist(), prefixes, strict=True)
    ):
        if number == NO_LFN:
            lfns.append(None if i % 2 else "")
            continue
        lfn = world.lfns[f]
        if number == USER_FILE:
            area = "group/phys_higgs" if f % 5 == 0 else f"user/{world.people[f % people].login}"
            lfn = f"/store/{area}/ntuples/v{f % 7}/tree_{f % 5_000}.root"
        elif number in (TEMPORARY, WRITE_ONLY):
            area = "unmerged" if f % 3 else "temp/user"
            lfn = f"/store/{area}/{lfn.removeprefix('/store/')}"
        elif number == NOT_IN_DBS:
            lfn = orphans[f % len(orphans)] if i % 40 == 0 else f"{lfn[:-9]}{f % 97:04d}.root.gone"
        lfns.append(prefix + lfn)
    return lfns


def _some_unknown(rng: np.random.Generator, sites: list[str], share: float) -> list[str | None]:
    """``sites`` with a share unknown: null, empty or ``unknown``."""
    if not share:
        return list(sites)
    logged: list[str | None] = list(sites)
    for n, i in enumerate(np.flatnonzero(rng.random(len(sites)) < share).tolist()):
        logged[i] = (None, "", "unknown")[n % 3]
    return logged
