"""Seeded nights by the engine itself, on the simulator's objects without a wire: no desktop is lost, whatever fails."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from statistics import median

import pytest

from tests.nights.__main__ import first_failure
from tests.nights.faults.schedule import ALL
from tests.nights.measuring.coverage import MOST, OFTEN, ORDINARY, PART, SHORT, cover, of_ordinary
from tests.nights.measuring.results import section
from tests.nights.measuring.tally import tally
from tests.nights.playing.log import digest
from tests.nights.playing.night import play
from tests.nights.world.worlds import FULL, site_of, size_of
from tests.sample import every_nth, mostly_long


@pytest.mark.parametrize("nth", mostly_long([2, 1], [2]))
def test_no_night_breaks_an_invariant(nth: int) -> None:
    tally_of_nights = tally(every_nth(range(40), nth), jobs=1)
    assert tally_of_nights.violations == []
    assert sum(tally_of_nights.effects) * nth > 500, "these nights did something"


def test_the_sizes_of_worlds_are_fixed() -> None:
    """Half at most 4 hosts and 12 desktops, one in fifty at full size; nights a minute mean something then."""
    sizes = [size_of(seed, random.Random(f"{seed}:site")) for seed in range(20 * FULL)]
    assert sum(size.hosts <= 4 and size.desktops <= 12 for size in sizes) * 2 >= len(sizes)
    full = [size for size in sizes if size.hosts == 40]
    assert len(full) * FULL == len(sizes)
    assert {(size.desktops, size.ml) for size in full} == {(200, 30)}
    assert all(1 <= size.hosts <= 40 and 0 <= size.desktops <= 200 and size.ml <= 30 for size in sizes)
    assert min(size.desktops for size in sizes) == 0
    site = site_of(1)
    assert site.size in full
    world = site.world(1)
    assert len(list(world.by_type("HostSystem"))) == 40
    names = [vm.name for vm in world.by_type("VirtualMachine")]
    assert sum(name.startswith("desktop-") for name in names) == 200
    assert sum(name.startswith("ml-") for name in names) == 30


@pytest.mark.long
def test_a_night_without_trouble_takes_and_returns() -> None:
    """The checkers could not fail in a night in which nothing happens."""
    night = next(
        busy_night
        for seed in range(0, 400, 2)
        if not (busy_night := play(seed)).events and len(busy_night.world.ledger) > 20
    )
    methods = [change.method for change in night.world.ledger]
    assert methods.count("SuspendVM_Task") > 0
    assert methods.count("SuspendVM_Task") <= methods.count("PowerOnVM_Task")


@pytest.mark.parametrize("seed", [7, pytest.param(11, marks=pytest.mark.long)])
def test_a_seed_tells_the_same_night_in_every_process(seed: int) -> None:
    imports = "from tests.nights.playing.log import digest; from tests.nights.playing.night import play"
    program = f"{imports}; print(digest(play({seed})))"
    salt = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"  # texts have other hashes there than here
    other_digest = subprocess.run(
        [sys.executable, "-c", program],
        check=True, capture_output=True, encoding="utf-8", env={**os.environ, "PYTHONHASHSEED": salt},
    ).stdout.strip()  # fmt: skip
    assert other_digest == digest(play(seed))


@pytest.mark.drawn_cases(2)
@pytest.mark.long
@pytest.mark.timeout(3000)
def test_thousands_of_nights_and_every_fault_of_them_often() -> None:
    """What these nights do not bring together often enough is aimed at after them. A part of all, and always the
    same one, so that who changed nothing breaks nothing; `make results` plays all."""
    jobs = os.cpu_count() or 1
    tally_of_nights = tally(ORDINARY[: len(ORDINARY) // PART], jobs=jobs)
    print(tally_of_nights)
    if tally_of_nights.broken:
        print(*first_failure(tally_of_nights.broken[0]), sep="\n")
    assert tally_of_nights.violations == []
    assert median(tally_of_nights.effects) >= 20, "a night does something"
    rarest, times = tally_of_nights.rarest
    assert times >= 50 // PART, f"{rarest} struck {times} times only"
    assert {fault for fault, count in tally_of_nights.struck.items() if count} >= set(ALL)
    reached = cover(MOST // PART, jobs=jobs, before=of_ordinary(tally_of_nights, OFTEN // PART))
    print(section(reached))
    assert reached.broken == []
    assert reached.surprising() == []
    short = reached.rare()
    assert len(short) <= SHORT, f"too seldom, rarest first: {short}"
