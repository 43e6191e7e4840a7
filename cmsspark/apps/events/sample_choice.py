"""What is chosen for a sample: as many events of each class, by the order of their keys.

No row passes the driver: it sees counts, and some hundred keys near the last one that
is chosen of a class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cmsspark.apps.events.layout import EventLayout
from cmsspark.apps.events.prepare_task import task_count
from cmsspark.apps.events.sample_tasks import KEY_BITS, KEYS_SCHEMA, TEST, TRAIN, KeysTask
from cmsspark.base.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Bytes of an event of which the key is made.
KEY_BYTES: Final = 9
#: Bits of a key that make a bin: so many bins of a class are counted.
_BIN_BITS: Final = 12

#: (is test, label).
Group = tuple[bool, int]


@dataclass(frozen=True)
class SampleOptions:
    """How to sample. ``per_class``: at most so many events of each class in ``train``,
    and in ``test`` in proportion; ``small``: events of each class in the small samples.
    """

    seed: int = 0
    test_fraction: float = 0.2
    per_class: int | None = None
    small: int = 200


@dataclass(frozen=True)
class Choice:
    """What is chosen: by group the distinct events, those equal to others, and the last
    key; by part the events.
    """

    available: Mapping[Group, int]
    duplicates: Mapping[Group, int]
    last_keys: dict[Group, int]
    chosen: Mapping[bool, int]

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.available) // 2


def choose(
    spark: SparkSession,
    parts: Sequence[str],
    events: int,
    options: SampleOptions,
    layout: EventLayout,
) -> Choice:
    """Count distinct events by group and bin of keys, and find each group's last key.
    Raises DataError (65).
    """
    from pyspark.sql import functions as F

    task = KeysTask(tuple(parts), options.seed, options.test_fraction)
    size = events * KEY_BYTES
    keys = spark.range(0, len(parts), 1, task_count(spark, len(parts), size)).mapInArrow(
        task, KEYS_SCHEMA
    )
    # Keys are distinct but for few: they move once, and none of them would merge before.
    keys = keys.repartition(task_count(spark, len(parts), size), "key", "label", "is_test")
    distinct = keys.groupBy("key", "label", "is_test").agg(F.count(F.lit(1)).alias("n"))
    binned = distinct.withColumn("bin", F.shiftright("key", KEY_BITS - _BIN_BITS)).persist()
    try:
        rows = (
            binned.groupBy("is_test", "label", "bin")
            .agg(F.count(F.lit(1)).alias("events"), F.sum(F.col("n") - 1).alias("duplicates"))
            .collect()
        )
        bins: dict[Group, dict[int, int]] = {
            (test, label): {} for test in (False, True) for label in range(len(layout.classes))
        }
        duplicates: dict[Group, int] = {}
        for row in rows:
            group = (row["is_test"], row["label"])
            bins[group][row["bin"]] = row["events"]
            if row["duplicates"]:
                duplicates[group] = duplicates.get(group, 0) + row["duplicates"]
        available = {group: sum(of_group.values()) for group, of_group in bins.items()}
        chosen = chosen_counts(available, options, layout.class_names)
        last = {group: last_bin(of_group, chosen[group[0]]) for group, of_group in bins.items()}
        condition = F.lit(False)
        for (test, label), (number, _) in last.items():
            condition |= (
                (F.col("is_test") == test) & (F.col("label") == label) & (F.col("bin") == number)
            )
        near: dict[Group, list[int]] = {}
        for row in binned.where(condition).select("is_test", "label", "key").collect():
            near.setdefault((row["is_test"], row["label"]), []).append(row["key"])
    finally:
        binned.unpersist()
    last_keys = {group: sorted(near[group])[before - 1] for group, (_, before) in last.items()}
    return Choice(available, duplicates, last_keys, chosen)


def chosen_counts(
    available: Mapping[Group, int], options: SampleOptions, classes: Sequence[str]
) -> dict[bool, int]:
    """Return the number of events of each class, by part: as many as the smallest class
    has. Raises DataError (65).
    """
    empty = [
        f"{TEST if test else TRAIN} {classes[label]}"
        for (test, label), count in available.items()
        if not count
    ]
    if empty:
        raise DataError(
            "train and test need events of all classes",
            found=f"none of {', '.join(empty)}",
            next_step="prepare files of every class, with some hundred events each",
        )
    counts = {
        test: min(available[test, label] for label in range(len(classes)))
        for test in (False, True)
    }
    if options.per_class is not None:
        of_test = round(options.per_class * options.test_fraction / (1 - options.test_fraction))
        counts = {
            False: min(counts[False], options.per_class),
            True: min(counts[True], max(1, of_test)),
        }
    return counts


def last_bin(bins: Mapping[int, int], count: int) -> tuple[int, int]:
    """Return the bin in which the event number ``count`` by key lies, and its number
    there, from 1 on.
    """
    before = 0
    for number in sorted(bins):
        if before + bins[number] >= count:
            return number, count - before
        before += bins[number]
    raise AssertionError("a class has fewer events than are chosen")
