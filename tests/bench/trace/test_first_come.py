"""What can be served in the order of coming: the example of the module, and never more than the offline bound."""

from __future__ import annotations

import pytest

from gpuops.plan.placement.fleet.geometry import PoolRequest
from gpuops.plan.queue.batch.solve import bound
from tests.bench.placement import batch
from tests.bench.placement.batch import problem_of
from tests.bench.placement.filling_bound import repack
from tests.bench.placement.filling_fleet import FLEETS
from tests.bench.trace import first_come
from tests.bench.trace.first_come import WHOLE, reference
from tests.bench.trace.profiles import HOSTS_EACH
from tests.bench.trace.vgpu_world import HOSTS, Request, SameSize, Scenario

GPU = SameSize.whole
OF = Scenario("made up", "ts", "G3", (), False)


def in_turn(monkeypatch: pytest.MonkeyPatch, *asks: PoolRequest) -> tuple[float, float]:
    """Percent that the reference and the bound have of these."""
    for module in (batch, first_come):
        monkeypatch.setattr(module, "drawn", lambda of, seed: (Request(ask, 0.0, 1.0) for ask in asks))
    return reference(OF, 1), 100 * bound(problem_of(OF, 1)) / WHOLE


def test_who_comes_first_is_not_refused_for_who_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    asks = [PoolRequest(GPU, 1, 0, 1024), *[PoolRequest(GPU, 8, 0, 1024)] * HOSTS_EACH]
    served, most = in_turn(monkeypatch, *asks)
    assert served == pytest.approx(100 * (1 + 8 * (HOSTS_EACH - 1)) / (8 * HOSTS_EACH))
    assert most == pytest.approx(100)


def test_cores_are_all_that_there_is_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four VMs take the cores of a host of eight GPUs."""
    thirsty = PoolRequest(GPU, 1, HOSTS["G3"][0] // 4, 1024)
    assert in_turn(monkeypatch, *[thirsty] * 8 * HOSTS_EACH) == pytest.approx((50, 50))


def test_halves_are_packed_anew_for_whole_gpus_that_come_later() -> None:
    """64 halves fill 32 GPUs once they are packed anew, and 32 whole ones find theirs; of 33 the last finds none."""
    kind = next(kind for kind in FLEETS if kind.name == "L40S mixed size")
    half, whole = ("nvidia_l40s-24q", 1), ("nvidia_l40s-48q", 1)
    assert repack(kind, [half] * 64 + [whole] * 32) == pytest.approx(100)
    assert repack(kind, [half] * 63 + [whole] * 33) == pytest.approx(100 * (63 * 24 + 32 * 48) / (64 * 48))
