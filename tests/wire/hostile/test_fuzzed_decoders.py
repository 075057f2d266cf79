"""200,000 mutated replies and files for every decoder, some of them in each `make long`; and whatever once broke
one, in every run."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sample import every_nth
from tests.wire.hostile.fuzz import CORPUS, FILES, ROOT, Decoder, broken, decoders

NAMES = ("parsed", "typed", "pages", "json", "tags", *FILES)
PARTS = [
    *(("parsed", 20_000, seeds) for seeds in ((0, 1), (2, 3))),
    *(("typed", 20_000, seeds) for seeds in ((0, 1), (2, 3))),
    *(("pages", 5_000, seeds) for seeds in ((0, 1), (2, 3))),
    ("json", 5_000, (0, 1)),
    ("tags", 2_500, (0, 1)),
    ("snapshot", 5_000, (0,)),
    *((name, 8_000, (0,)) for name in ("ready", "configuration", "requests-csv")),
    *((name, 1_000, (0,)) for name in ("policy", "roles", "scenario", "faults")),
]
"""Decoder, mutations and seeds, of which a run draws one."""


@pytest.fixture(scope="module")
def decoders_by_name() -> Iterator[dict[str, Decoder]]:
    with decoders(*NAMES) as all_decoders:
        yield all_decoders


@pytest.mark.long
def test_every_decoder_has_cases_and_takes_part(decoders_by_name: dict[str, Decoder]) -> None:
    assert {name for name, _, _ in PARTS} == set(NAMES) == set(decoders_by_name)
    assert sum(turns * len(seeds) for _, turns, seeds in PARTS) >= 200_000
    assert {path.name.rpartition("-")[0] for path in CORPUS.iterdir()} <= set(NAMES)


@pytest.mark.long
@pytest.mark.parametrize("path", sorted(CORPUS.iterdir()), ids=lambda path: path.name)
def test_what_once_broke_a_decoder_does_so_no_more(decoders_by_name: dict[str, Decoder], path: Path) -> None:

    assert broken(decoders_by_name[path.name.rpartition("-")[0]], path.read_bytes()) is None


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_few(decoders_by_name: dict[str, Decoder], name: str) -> None:
    decoder, rng = decoders_by_name[name], random.Random(0)
    for example in decoder.examples[:5]:
        assert broken(decoder, example) is None
        assert broken(decoder, decoder.change(example, rng)) is None


def test_an_error_that_is_not_ours_is_found() -> None:
    def play(case: bytes) -> None:
        raise OverflowError(case)

    assert "OverflowError: b'x'" in (broken(Decoder([b"x"], play), b"x") or "")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "turns", "seeds"), PARTS)
def test_thousands(name: str, turns: int, seeds: tuple[int, ...]) -> None:
    """In a process of its own, for its memory is judged too. Half of the decoders a run: ten seconds of CPU each."""
    [seed] = every_nth(seeds, len(seeds))
    command = [sys.executable, "-W", "ignore", "-m", "tests.wire.hostile.fuzz", name, str(turns), str(seed)]
    completed = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, cwd=ROOT, timeout=500)
    assert completed.returncode == 0, completed.stdout[-3000:] + completed.stderr[-3000:]
