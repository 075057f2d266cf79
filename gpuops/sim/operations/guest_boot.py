"""The guest on its way up: the VM runs, and VMware Tools do not yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuops.sim.entities import VmEntity


def boot(vm: VmEntity) -> None:
    """The VM begins to run now, and its guest tells of itself in as many seconds as the scenario says."""
    state, began = vm.state, vm.world.clock.now()
    takes_s = state.template.boot_s
    state.boot_time, state.guest_boots = began, takes_s != 0

    def up() -> None:
        if vm.is_registered and vm.state.boot_time == began:
            vm.state.guest_boots = False
            vm.power_changed()

    if takes_s:
        vm.world.clock.schedule(takes_s, up)
