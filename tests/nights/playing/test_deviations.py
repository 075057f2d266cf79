"""Nights in vCenters that go by other rules than the assumed ones: nothing is lost, whatever the plans expected."""

from __future__ import annotations

from typing import Final

import pytest

from gpuops.catalog.catalog_files import assumptions
from gpuops.sim.scenario.deviations import deviate
from tests.nights.judging.checkers import violations
from tests.nights.playing.night import Nightly
from tests.sample import every_nth

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
