"""How many desktops were in use, counted in the store: as a replay judges each, and not known where it is not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.advise.forecast import SLOT, UseHistory
from gpuops.advise.idle import Use
from gpuops.extras.observe.blocks import MISSING, WHOLE, Block
from gpuops.extras.observe.desktop_demand import in_use, limits_of, slot_use
from gpuops.extras.observe.replay import STEP, desktop_night
from gpuops.extras.observe.store import Measurements
from gpuops.model.measurements.measurement import CPU_MHZ, GPU_USE, CounterSeries, Measured, Span
from gpuops.model.measurements.measurement_settings import Retention
from gpuops.model.nights.rotation_policy import IdleRule, Policy, Pool
from gpuops.model.nights.selector import Selector
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.model.window import Night
from tests.measured_use import measure

VC: Final = "vc-1"
NOON: Final = datetime(2026, 11, 20, 12, tzinfo=UTC)
RULE: Final = IdleRule(500, 900)
POLICY: Final = Policy("p", (Pool("office", Selector(folder="vdi"), RULE), Pool("cad", Selector(folder="cad"), RULE)))
STEPS: Final = st.lists(
    st.one_of(
        st.just((MISSING, MISSING, 0)),
        st.tuples(st.sampled_from([60, 499, 500, 900]), st.sampled_from([MISSING, 60, 499, 500, 900]), st.just(WHOLE)),
        st.just((60, 60, 7)),
        st.just((60, 500, 7)),
    ),
    min_size=3,
    max_size=3,
)


def desktop(number: int, folder: str = "vdi", template: bool = False) -> Vm:
    return Vm(f"vm-{number}", f"d-{number}", path=f"/dc/vm/{folder}/d-{number}", template=template)


def inventory_with(*vms: Vm, at: datetime = NOON + timedelta(hours=2)) -> Inventory:
    return Inventory(VC, "8.0.3.0", at, vms={vm.ref: vm for vm in vms})


def counts_of(history: UseHistory, hours: int = 2) -> list[int | None]:
    return [history.at(NOON + at * SLOT) for at in range(hours * 4)]


@given(STEPS, STEPS)
def test_a_desktop_is_in_use_where_a_replay_calls_it_busy_in_a_step(
    cpu: list[tuple[int, int, int]], gpu: list[tuple[int, int, int]]
) -> None:
    """Three steps; each is the one in which a night of five minutes may take the desktop."""
    rule = IdleRule(500, 300, ((GPU_USE, 500),))
    uses = []
    for at in range(3):
        opens = NOON + (at + 1) * STEP
        night = Night(NOON.date(), opens, opens + timedelta(seconds=1), opens + timedelta(seconds=1), UTC)
        series = {
            name: CounterSeries(NOON - STEP, STEP, (None, *map(_measured_step, steps[: at + 1]), None, None))
            for name, steps in ((CPU_MHZ, cpu), (GPU_USE, gpu))
        }
        uses.append(desktop_night(desktop(1), rule, night, series, (Span(NOON - STEP, NOON + timedelta(hours=1)),)).use)
    arrays = {CPU_MHZ: np.array(cpu, np.int64), GPU_USE: np.array(gpu, np.int64)}
    [[used], [ran], [unsure]] = slot_use(arrays, rule.limits).tolist()
    missing = [cpu[at][2] == 0 and gpu[at][2] == 0 for at in range(3)]
    assert ran == (not all(missing))
    assert used == (Use.BUSY in uses)
    assert unsure == (
        not used and any(use is Use.UNKNOWN and not is_missing for use, is_missing in zip(uses, missing, strict=True))
    )


def _measured_step(step: tuple[int, int, int]) -> Measured | None:
    average, highest, covered = step
    return Measured(average, None if highest == MISSING else highest, covered / WHOLE) if covered else None


def test_each_pool_has_its_own_and_templates_and_others_are_in_none(tmp_path: Path) -> None:
    vms = [desktop(1), desktop(2), desktop(3, "cad"), desktop(4, "ml"), desktop(5, template=True)]
    used = _by_slot([5, 0, 2, 3, 1, 0, 5, 5])
    measure(tmp_path, VC, [vm.ref for vm in vms], NOON, NOON + timedelta(hours=2), used)
    demand = in_use(tmp_path, "", inventory_with(*vms), POLICY)
    assert counts_of(demand["office"]) == [2, 0, 2, 2, 1, 0, 2, 2]
    assert counts_of(demand["cad"]) == [1, 0, 0, 1, 0, 0, 1, 1]


def test_a_slot_that_nobody_watched_whole_is_not_known(tmp_path: Path) -> None:
    refs = ["vm-1", "vm-2"]
    measure(tmp_path, VC, refs, NOON, NOON + 2 * SLOT, lambda _: 2)
    measure(tmp_path, VC, refs, NOON + 4 * SLOT, NOON + 6 * SLOT, lambda _: 1)
    with Measurements.open(tmp_path, "", VC) as store:
        begin_s = int((NOON + 3 * SLOT).timestamp())
        store.note_observed(begin_s, begin_s + 300)
    demand = in_use(tmp_path, "", inventory_with(desktop(1), desktop(2)), POLICY)
    assert counts_of(demand["office"]) == [2, 2, None, None, 1, 1, None, None]


@pytest.mark.parametrize(("unsure", "is_known"), [(0, True), (2, True), (3, False), (20, False)])
def test_where_too_much_is_unknown_the_slot_is(tmp_path: Path, unsure: int, is_known: bool) -> None:
    """Of twenty running desktops, so many are known by averages alone; two more are off and unused."""
    measure(tmp_path, VC, [f"vm-{number}" for number in range(unsure, 20)], NOON, NOON + SLOT, lambda _: 0)
    average = Block(3, {CPU_MHZ: np.array([(60, MISSING, WHOLE)] * 3, np.int64)})
    with Measurements.open(tmp_path, "", VC) as store:
        store.write(int(NOON.timestamp()), {f"vm-{number}": average for number in range(unsure)})
        store.note_observed(int(NOON.timestamp()), int((NOON + SLOT).timestamp()))
    demand = in_use(tmp_path, "", inventory_with(*map(desktop, range(22)), at=NOON + SLOT), POLICY)
    assert demand["office"].at(NOON) == (0 if is_known else None)


def test_steps_that_were_removed_are_not_counted_as_no_use(tmp_path: Path) -> None:
    """Observed spans are stored longer than the steps: without steps the number of used desktops is unknown."""
    refs, begin = ["vm-1", "vm-2"], NOON - timedelta(days=28)
    measure(tmp_path, VC, refs, begin, NOON, lambda _: 2)
    weeks_ago = [NOON - timedelta(days=days, hours=-1) for days in (7, 13, 20, 27)]
    inventory = inventory_with(desktop(1), desktop(2), at=NOON)
    assert [in_use(tmp_path, "", inventory, POLICY)["office"].at(slot) for slot in weeks_ago] == [2, 2, 2, 2]
    with Measurements.open(tmp_path, "", VC) as store:
        store.remove_old(NOON, Retention())
    assert [in_use(tmp_path, "", inventory, POLICY)["office"].at(slot) for slot in weeks_ago] == [2, 2, None, None]


def test_where_nothing_was_measured_there_is_no_history_and_no_store_is_made(tmp_path: Path) -> None:
    assert in_use(tmp_path, "", inventory_with(desktop(1)), POLICY) == {}
    assert list(tmp_path.iterdir()) == []
    with Measurements.open(tmp_path, "", "another"):
        pass
    assert in_use(tmp_path, "", inventory_with(desktop(1)), POLICY) == {}


def test_a_rule_goes_by_the_counters_that_are_kept_and_by_the_cpu_where_it_names_none() -> None:
    assert limits_of(IdleRule(300)) == {CPU_MHZ: 300}
    assert limits_of(IdleRule(300, 900, ((GPU_USE, 50), ("disk.read.average", 9)))) == {CPU_MHZ: 300, GPU_USE: 50}


def _by_slot(counts: list[int]) -> Callable[[datetime], int]:
    return lambda moment: counts[(moment - NOON) // SLOT]
