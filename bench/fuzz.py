"""A bounded fuzz run on the record decoders: the fast way must come to what the way by
the letter comes to.

``python bench/fuzz.py [--seconds 60] [--engine atheris|mutations|known]`` from the top
of the checkout. atheris (``pip install atheris``) is led by what the code does with an
input; without it, records of the tests' corpus are mutated at random. ``known``
compares compiled code with the decoder that has none, on mutated lines of which the
shapes are known. The first input on which the two ways differ is printed, and the exit
code is 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.corpus import hostile
from tests.sources.both_ways import SHORT, TIMES, VALUE, VALUES, Both, decoder_of, examples
from tests.sources.test_decoders import DECODERS, UNSEEN, by_the_letter, result_of

NAMES = sorted(DECODERS)
#: Of names and of people.
PIECES = (
    b"/",
    b"//",
    b"file:",
    b"root://",
    b"h",
    b"/eos/cms",
    b"/CN=",
    b"7",
    b"proxy",
    b"&",
    b" ",
    "é€😀".encode(),
)
FORMS = {"aaa enr": "enr", "aaa raw": "raw", "cmssw": "json", "eos": "json"}


def check(name: str, chunk: bytes) -> None:
    """Raises AssertionError with the input on which the ways differ."""
    if UNSEEN.search(chunk):
        return  # a known gap: a mark of a form without any field that is needed
    fast, strict = DECODERS[name][1](), DECODERS[name][1]()
    fast_result, strict_result = (
        result_of(fast, fast.decode(chunk, "f")),
        result_of(strict, by_the_letter(strict, chunk)),
    )
    assert fast_result == strict_result, (
        f"{name}: {chunk!r}\nfast:   {fast_result}\nstrict: {strict_result}"
    )


def seeds() -> list[tuple[str, bytes]]:
    """(decoder, record) of every case of the corpus."""
    return [
        (name, case.record)
        for name in NAMES
        for case in hostile.cases()
        if isinstance(case.record, bytes)
        and (case.stream, case.form) == (name.split()[0], FORMS[name])
        if len(case.record) < 4000
    ]


def one_input(data: bytes) -> None:
    """What atheris calls: the first byte chooses the decoder."""
    if len(data) > 1:
        check(NAMES[data[0] % len(NAMES)], data[1:] + b"\n")


def with_atheris(seconds: int) -> int:
    """Run atheris in a process of its own: it never returns."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        for number, (name, record) in enumerate(seeds()):
            (Path(scratch) / f"{number:05}").write_bytes(bytes([NAMES.index(name)]) + record)
        options = [
            f"-max_total_time={seconds}",
            "-max_len=4000",
            "-verbosity=0",
            "-print_final_stats=1",
        ]
        return subprocess.call(
            [sys.executable, __file__, "--inside", *options, scratch], cwd=scratch
        )


def inside(arguments: list[str]) -> None:
    """The process that atheris owns."""
    import atheris

    with atheris.instrument_imports(include=["cmsspark.sources"]):
        pass  # modules are imported already: their functions are instrumented one by one
    from cmsspark.sources import access_decoder, eos, record_schema, values
    from cmsspark.sources.formats import json_lines, strict_json

    for module in (access_decoder, record_schema, json_lines, eos, strict_json, values):
        for thing in vars(module).values():
            if (
                callable(thing)
                and getattr(thing, "__module__", "") == module.__name__
                and hasattr(thing, "__code__")
            ):
                atheris.instrument_func(thing)
    atheris.Setup([sys.argv[0], *arguments], one_input)
    atheris.Fuzz()


def with_mutations(seconds: int, seed: int) -> int:
    """Change records of the corpus at random until the time is over."""
    rng, records, tried = random.Random(seed), seeds(), 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        name, _ = rng.choice(records)
        chosen = [record for other, record in rng.choices(records, k=12) if other == name][:4]
        if not chosen:
            continue
        chunk = b"\n".join(hostile.mutated(chosen, rng.randrange(2**32))) + b"\n"
        try:
            check(name, chunk)
        except AssertionError as error:
            print(error)
            return 1
        tried += 1
    print(f"{tried:,} chunks of up to four records, no difference")
    return 0


def with_known(seconds: int, seed: int) -> int:
    """Change lines whose shapes compiled code knows, and compare it with the decoder
    that has none.
    """
    rng, end = random.Random(seed), time.monotonic() + seconds
    short: dict[str, list[bytes]] = {name: examples(name) for name in NAMES}
    for form, line in SHORT.items():
        short[decoder_of(form)].append(line)
    cases: dict[str, list[bytes]] = {
        name: [record for other, record in seeds() if other == name] for name in NAMES
    }
    lines = compiled = 0
    while time.monotonic() < end:
        name = rng.choice(NAMES)
        learned = [*short[name], *rng.choices(cases[name], k=4)]
        readers = Both(name, learned)
        for _ in range(50):
            changed = [_changed(rng.choice(learned), rng) for _ in range(rng.randint(1, 40))]
            try:
                readers.same(b"\n".join(changed) + b"\n", rng.randrange(1, 2**40))
            except AssertionError as error:
                print(f"{name}, known: {learned}\n{error}")
                return 1
            lines += len(changed)
        compiled += readers.taken
    print(f"{lines:,} lines, {compiled:,} of them read by compiled code, no difference")
    return 0


def _changed(line: bytes, rng: random.Random) -> bytes:
    """A line as it is, with other values, or damaged."""
    way = rng.randrange(6)
    if way < 4:
        # Mostly values: lines of other shapes are left to the decoder at once.
        for _ in range(way):
            values = list(VALUE.finditer(line))
            if values:
                value = rng.choice(values)
                line = line[: value.start()] + _value(value[0], rng) + line[value.end() :]
        return line
    (line,) = hostile.mutated([line], rng.randrange(2**32))
    return line


def _value(value: bytes, rng: random.Random) -> bytes:
    """Another value: an odd one, or one of the same kind."""
    way = rng.randrange(4)
    if way == 0:
        return rng.choice(VALUES + TIMES)
    if value[:1] == b'"':
        return b'"' + b"".join(rng.choices(PIECES, k=rng.randrange(8))) + b'"'
    digits = b"".join(b"%d" % rng.randrange(10) for _ in range(rng.randrange(1, 21)))
    return digits + rng.choice((b"", b"", b".0", b".00", b".5", b"e2", b"."))


def main() -> int:
    if sys.argv[1:2] == ["--inside"]:
        inside(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    default = "atheris" if importlib.util.find_spec("atheris") else "mutations"
    parser.add_argument("--engine", choices=["atheris", "mutations", "known"], default=default)
    chosen = parser.parse_args()
    if chosen.engine == "atheris":
        return with_atheris(chosen.seconds)
    if chosen.engine == "known":
        return with_known(chosen.seconds, chosen.seed)
    return with_mutations(chosen.seconds, chosen.seed)


if __name__ == "__main__":
    sys.exit(main())
