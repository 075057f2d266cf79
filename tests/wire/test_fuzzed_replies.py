"""Our simulator's replies with a few bytes changed: a value, a fault, or an error of the transport, and nothing else.

vcsim's are in tests/peers/test_fuzzed_vcsim.py.
"""

from __future__ import annotations

import pytest

from gpuops.model.target import Target
from tests.wire.mutated_replies import fuzz_both, fuzz_reader, recorded


def test_a_few_hundred(lab_target: Target) -> None:
    found = recorded(lab_target)
    fuzz_both(found.replies, 300, seed=0)
    assert 0 < fuzz_reader(lab_target, found, 20, seed=0) < 20


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(1, 11))
def test_a_hundred_thousand_in_ten_parts(lab_target: Target, seed: int) -> None:
    fuzz_both(recorded(lab_target).replies, 10_000, seed=seed)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(1, 6))
def test_whole_inventories(lab_target: Target, seed: int) -> None:
    assert fuzz_reader(lab_target, recorded(lab_target), 500, seed=seed) > 100
