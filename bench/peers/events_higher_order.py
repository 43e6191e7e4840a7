"""Features of events by Spark's higher-order functions: written from docs/events.md,
without code of the package.

It is what the compiled pass is compared with, in tests and in :mod:`bench.events`.
"""

from __future__ import annotations

from typing import Any

_PI = "3.141592653589793D"
_TWO_PI = "6.283185307179586D"


def wrapped(angle: str) -> str:
    return f"(({angle}) - {_TWO_PI} * ceil((({angle}) - {_PI}) / {_TWO_PI}))"


def distance2(one: str, other: str) -> str:
    return f"(pow({one}.eta - {other}.eta, 2) + pow({wrapped(f'{one}.phi - {other}.phi')}, 2))"


def _cone(particle: str, collection: str, condition: str) -> str:
    """Sum of transverse momenta within ΔR < 0.3 of a particle over its own momentum."""
    near = f"filter({collection}, c -> {distance2('c', particle)} < 0.09D and {condition})"
    return f"(aggregate({near}, 0D, (sum, c) -> sum + c.pt) / {particle}.pt)"


def _collection(name: str, pt: str, least: str, more: str = "") -> str:
    fields = f"i, double(p.{pt}) as pt, double(p.Eta) as eta, double(p.Phi) as phi{more}"
    return f"filter(transform({name}, (p, i) -> struct({fields})), p -> p.pt > {least})"


def _leptons(name: str, is_electron: str) -> str:
    fields = f"double(p.PT) as pt, double(p.Eta) as eta, double(p.Phi) as phi, double(p.Charge) as q, {is_electron} as ele"
    return f"filter(transform({name}, p -> struct({fields})), p -> p.pt >= 23D)"


def with_leptons(events: Any) -> Any:
    """Events with collections, hard and isolated leptons, and ``cut``: the step that
    rejects them, or 'selected'.
    """
    from pyspark.sql import functions as F

    own = f"{distance2('c', 'l')} > 1e-8D"
    cones = (
        _cone("l", "tracks", own),
        _cone("l", "photons", "true"),
        _cone("l", "neutrals", "true"),
    )
    isolated = (
        "transform(hard, l -> struct(l.pt as pt, l.eta as eta, l.phi as phi, l.q as q, l.ele as ele, "
        f"{cones[0]} as ch, {cones[1]} as gamma, {cones[2]} as neu))"
    )
    more = ", double(p.Charge) as q, double(p.X) as x, double(p.Y) as y, double(p.Z) as z"
    return (
        events.withColumn("tracks", F.expr(_collection("EFlowTrack", "PT", "0.5D", more)))
        .withColumn("photons", F.expr(_collection("EFlowPhoton", "ET", "1D")))
        .withColumn("neutrals", F.expr(_collection("EFlowNeutralHadron", "ET", "1D")))
        .withColumn(
            "hard", F.expr(f"concat({_leptons('Electron', '1D')}, {_leptons('MuonTight', '0D')})")
        )
        .withColumn("good", F.expr(f"filter({isolated}, l -> l.ch + l.gamma + l.neu < 0.45D)"))
        .withColumn(
            "cut",
            F.expr(
                "case when size(MissingET) = 0 then 'no_met' when size(hard) = 0 then 'no_lepton' "
                "when size(good) = 0 then 'not_isolated' when size(good) > 1 then 'several_leptons' else 'selected' end"
            ),
        )
    )


def with_hlf(events: Any) -> Any:
    """The selected events with ``lepton`` and ``hlf``, an array of fourteen floats."""
    from pyspark.sql import functions as F

    jets = "filter(Jet, j -> j.PT > 30 and abs(double(j.Eta)) < 2.6D)"
    selected = (
        with_leptons(events).where("cut = 'selected'").withColumn("lepton", F.expr("good[0]"))
    )
    selected = selected.withColumn("jets", F.expr(jets)).withColumn(
        "met", F.expr("double(MissingET[0].MET)")
    )
    selected = selected.withColumn("met_phi", F.expr("double(MissingET[0].Phi)"))
    values = (
        "aggregate(jets, 0D, (sum, j) -> sum + double(j.PT))",
        "met",
        wrapped("met_phi"),
        "sqrt(2 * lepton.pt * met * (1 - cos(lepton.phi - met_phi)))",
        "double(size(jets))",
        "double(size(filter(jets, j -> j.BTag != 0)))",
        *(
            "lepton.pt",
            "lepton.eta",
            wrapped("lepton.phi"),
            "lepton.ch",
            "lepton.gamma",
            "lepton.neu",
            "lepton.q",
        ),
        "lepton.ele",
    )
    return selected.withColumn("hlf", F.expr(f"cast(array({', '.join(values)}) as array<float>)"))


def with_matrix(events: Any) -> Any:
    """As :func:`with_hlf`, with ``low_level``: the 801 × 19 values as one array of floats."""
    from pyspark.sql import functions as F

    lepton = (
        "array(array(lepton.pt * cosh(lepton.eta), lepton.pt * cos(lepton.phi), lepton.pt * sin(lepton.phi), "
        f"lepton.pt * sinh(lepton.eta), lepton.pt, lepton.eta, {wrapped('lepton.phi')}, 0D, 0D, 0D, lepton.ch, "
        "lepton.gamma, lepton.neu, 0D, 0D, 0D, lepton.ele, 1 - lepton.ele, lepton.q))"
    )
    found = with_hlf(events).withColumn(
        "others", F.expr(f"filter(tracks, t -> {distance2('t', 'lepton')} > 1e-8D)")
    )
    groups = [
        _rows(
            "others", "tracks", 450, ("p.x", "p.y", "p.z"), ("1D", "0D", "0D", "0D", "0D", "p.q")
        ),
        _rows("photons", "photons", 150, ("0D",) * 3, ("0D", "0D", "1D", "0D", "0D", "0D")),
        _rows("neutrals", "neutrals", 200, ("0D",) * 3, ("0D", "1D", "0D", "0D", "0D", "0D")),
    ]
    matrix = f"cast(flatten(concat({lepton}, {', '.join(groups)})) as array<float>)"
    return found.withColumn("low_level", F.expr(matrix))


def _rows(
    collection: str, own: str, limit: int, vertex: tuple[str, ...], flags: tuple[str, ...]
) -> str:
    """The rows of a group: by falling momentum, cut, and filled with zeros."""
    order = "(a, b) -> case when a.pt > b.pt then -1 when a.pt < b.pt then 1 when a.i < b.i then -1 else 1 end"
    chosen = f"slice(array_sort({collection}, {order}), 1, {limit})"
    cones = [
        _cone("p", name, "c.i != p.i" if name == own else "true")
        for name in ("tracks", "photons", "neutrals")
    ]
    values = (
        *(
            "p.pt * cosh(p.eta)",
            "p.pt * cos(p.phi)",
            "p.pt * sin(p.phi)",
            "p.pt * sinh(p.eta)",
            "p.pt",
            "p.eta",
        ),
        *(wrapped("p.phi"), *vertex, *cones, *flags),
    )
    rows = f"transform({chosen}, p -> array({', '.join(values)}))"
    return f"concat({rows}, array_repeat(array_repeat(0D, 19), {limit} - size({chosen})))"


def write_parquet(collections: Any, path: str) -> None:
    """Write what :func:`cmsspark.apps.events.demo_run.make_events` made, an event a
    row, for :func:`with_hlf`.
    """
    import awkward as ak

    rows = ak.zip(
        {**collections, "number": ak.local_index(collections["MissingET"], axis=0)}, depth_limit=1
    )
    ak.to_parquet(rows, path, extensionarray=False, list_to32=True, row_group_size=1_000)
