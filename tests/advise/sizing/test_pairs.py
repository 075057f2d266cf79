"""Two numbers for each workload, of pairs that shared a GPU: found again, not moved by one that is odd, and honest."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest

from gpuops.extras.sizing.pairs import error_on_unknown, fit_pairs
from gpuops.model.devices.shared_gpu import ObservedPair

KEEPS = {"a": 0.95, "b": 0.8, "c": 0.6, "d": 0.7, "e": 0.85, "f": 0.5}
LEAVES = {"a": 0.9, "b": 0.6, "c": 0.75, "d": 0.95, "e": 0.5, "f": 0.8}


def pairs(noise: float = 0.0) -> list[ObservedPair]:
    chance = np.random.default_rng(3)

    def speed(of: str, beside: str) -> float:
        return float(KEEPS[of] * LEAVES[beside] + noise * chance.normal())

    return [
        ObservedPair((first, second), (speed(first, second), speed(second, first)))
        for first, second in combinations_with_replacement(KEEPS, 2)
    ]


def test_a_pair_that_was_never_seen_is_foreseen() -> None:
    without_pair = [pair for pair in pairs() if pair.names != ("b", "e")]
    model = fit_pairs(without_pair)
    assert model.speed("b", "e") == pytest.approx(0.8 * 0.5, abs=0.02)
    assert model.speed("e", "b") == pytest.approx(0.85 * 0.6, abs=0.02)
    assert model.speed("b", "unseen") is None


def test_sensitivity_and_pressure_are_shares_of_speed() -> None:
    model = fit_pairs(pairs())
    assert min(model.sensitivity, key=lambda name: model.sensitivity[name]) == "a", "it keeps most"
    assert max(model.pressure, key=lambda name: model.pressure[name]) == "e", "it leaves least"
    assert all(0.0 < share < 1.0 for share in (*model.sensitivity.values(), *model.pressure.values()))


def test_one_odd_pair_moves_no_other() -> None:
    odd = [ObservedPair(pair.names, (0.05, 0.05)) if pair.names == ("a", "d") else pair for pair in pairs()]
    model = fit_pairs(odd)
    assert model.speed("a", "b") == pytest.approx(0.95 * 0.6, abs=0.03)
    assert model.speed("d", "c") == pytest.approx(0.7 * 0.75, abs=0.03)


def test_the_error_is_that_of_pairs_the_fit_does_not_know() -> None:
    exact, noisy = error_on_unknown(pairs()), error_on_unknown(pairs(noise=0.1))
    assert exact is not None and noisy is not None
    assert exact < 0.03 < noisy
    assert error_on_unknown(pairs()[:4]) is None, "too few to say"


def test_nothing_is_made_of_nothing() -> None:
    model = fit_pairs([])
    assert (model.names, dict(model.sensitivity) if model.names else {}) == ((), {})
    assert np.isnan(model.slowdowns(["a", "b"])).all()
