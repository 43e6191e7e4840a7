"""Bytes that plans of copies serve for each byte copied, in made worlds, beside simple rules.

``python -m bench.placement`` from the top of a checkout; ``--real FILE`` adds a world by
the accesses of real datasets (CSV with day, dataset, accesses). The worlds are made up:
they compare rules, and do not measure CMS.
"""

from __future__ import annotations

import argparse
import time
from datetime import date
from pathlib import Path

from msgspec.structs import replace

from bench.placement_worlds import WORLDS, World, real_series
from cmsspark.apps.placement.inputs import PlacementInputs, make_reads
from cmsspark.apps.placement.plan import Limits, backtest


def inputs_of(world: World, budget_share: float) -> PlacementInputs:
    """Return the inputs of a world whose sites have a fifth more room than their copies take."""
    table = world.replicas
    inputs = PlacementInputs(make_reads(world.accesses), lambda day: table, "made")
    used = dict(inputs.space(inputs.replicas_before(date.max)).select("site", "used").iter_rows())
    room = {name: (1.2 * volume, None) for name, volume in used.items()}
    budget = budget_share * sum(used.values()) / len(used)
    return replace(inputs, given_space=room, budget=budget)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", type=Path, help="accesses of real datasets")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--weeks", type=int, default=6)
    chosen = parser.parse_args()
    makers = dict(WORLDS)
    if chosen.real:
        makers["real"] = lambda seed: real_series(chosen.real, seed)
    for name, make in makers.items():
        for seed in range(chosen.seeds):
            world = make(seed)
            for share in (0.01, 0.05):
                began = time.perf_counter()
                rows = backtest(inputs_of(world, share), Limits(), chosen.weeks)
                texts = [
                    f"{rule} {served or 0:.2f} ({unread or 0:.0%} unread, {copied / 1e12:,.0f} TB)"
                    for rule, served, unread, copied in rows.select(
                        "rule", "served_per_byte", "unread_share", "copied_bytes"
                    ).iter_rows()
                ]
                seconds = time.perf_counter() - began
                print(
                    f"{name} {seed} {share:.0%}: {', '.join(texts)}; {seconds:.1f} s", flush=True
                )


if __name__ == "__main__":
    main()
