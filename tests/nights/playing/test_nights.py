"""Seeded nights by the engine itself, on the simulator's objects without a wire, and by our own client against the
simulator's SOAP: no desktop is lost, whatever fails, and neither a report nor the journal ever holds the password. Nor
is one lost in vCenters that go by other rules than the assumed ones."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from statistics import median
from typing import Final

import pytest

from gpuops.catalog.catalog_files import assumptions
from gpuops.sim.scenario.deviations import deviate
from tests.canary import require_hidden
from tests.nights.__main__ import first_failure
from tests.nights.faults.schedule import ALL
from tests.nights.judging.checkers import DEFINE, violations
from tests.nights.measuring.coverage import MOST, OFTEN, ORDINARY, PART, SHORT, cover, of_ordinary, section
from tests.nights.measuring.tally import tally
from tests.nights.playing.night import Nightly, play
from tests.nights.playing.played import Played, digest
from tests.nights.playing.soap import SoapNightly, play_over_soap
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
    imports = "from tests.nights.playing.played import digest; from tests.nights.playing.night import play"
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


def broken(seed: int, night: Played) -> list[str]:
    """What a night breaks."""
    problems = [f"seed {seed}: {violation}" for violation in violations(night)]
    for part, content in (
        ("a report", night.told),
        ("the journal", night.kept),
        ("the ledger", list(night.world.ledger)),
    ):
        require_hidden(f"seed {seed}: {part}", repr(content))
    return problems


def play_and_judge(seed: int) -> tuple[list[str], int]:
    """What a night breaks, and how many effects it had."""
    night = play_over_soap(seed)
    return broken(seed, night), sum(1 for change in night.world.ledger if change.operation_id)


def effects_in_order(night: Played) -> list[tuple[str, str]]:
    """What was done to whom, in order; without a wire the marker's definition is no call of its own."""
    return [
        (change.method, change.name) for change in night.world.ledger if change.operation_id and change.method != DEFINE
    ]


@pytest.mark.long
def test_a_few_nights_by_our_own_client() -> None:
    nights_told = [play_and_judge(71), play_and_judge(74)]
    assert [problem for broken, _ in nights_told for problem in broken] == []
    assert sum(effects for _, effects in nights_told) > 30


def same_effects(seed: int) -> None:
    direct, soap = play(seed, ()), SoapNightly(seed, ()).play()
    assert effects_in_order(direct) == effects_in_order(soap) != []
    assert broken(seed, soap) == []


@pytest.mark.long
def test_a_quiet_night_has_the_same_effects_without_soap_and_over_it() -> None:
    same_effects(76)


@pytest.mark.long
def test_quiet_nights_have_the_same_effects_without_soap_and_over_it() -> None:
    for seed in (7, 14, 18, 106, 130, 162, 184, 258):
        same_effects(seed)


@pytest.mark.drawn_cases(2)
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_nights_by_our_own_client() -> None:
    """A tenth of two hundred and ten a run; of the ten tenths the calmest has 13 effects in the median."""
    with ProcessPoolExecutor(os.cpu_count() or 1) as pool:
        nights_told = list(pool.map(play_and_judge, every_nth(range(10_000, 10_210), 10)))
    print(f"{len(nights_told)} nights, {median(effects for _, effects in nights_told)} effects in the median")
    assert [problem for broken, _ in nights_told for problem in broken] == []
    assert len(nights_told) == 21
    assert median(effects for _, effects in nights_told) >= 10


PROMISES: Final = {"suspend-frees-slot": ("I3:", "I4:"), "suspended-vm-host": ("I12:",)}
"""Invariants that say a plan came true, which it cannot under these deviations: an ML VM may then not start, or vCenter
registers a suspended desktop on a host where it has no room. The return names that desktop, as other invariants say."""


DEVIATIONS: Final = [
    row.id for row in assumptions().values() if row.deviation and not row.id.startswith(("broker-", "smi-"))
]
"""Those of the broker are in `tests/wire/nights/gated/test_deviations.py`, those of nvidia-smi in
`tests/wire/reading/test_gpu_health.py`."""


def losses(seed: int, deviation: str, *, calm: bool = False) -> list[str]:
    """Return the invariants that the night of a seed breaks in such a vCenter; `calm`: without trouble of its own."""
    night = Nightly(seed, () if calm else None)
    deviate(night.world, [deviation])
    return [text for text in violations(night.play()) if not text.startswith(PROMISES.get(deviation, "no promise"))]


@pytest.mark.parametrize("deviation", DEVIATIONS)
def test_a_night_without_other_trouble_loses_nothing(deviation: str) -> None:
    assert losses(8, deviation, calm=True) == []


@pytest.mark.long
@pytest.mark.parametrize("deviation", DEVIATIONS)
def test_drawn_nights_with_their_own_trouble_lose_nothing(deviation: str) -> None:
    for seed in every_nth(range(20_000, 20_040), 10):
        assert losses(seed, deviation) == [], f"seed {seed}"
