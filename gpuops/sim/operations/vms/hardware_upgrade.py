"""UpgradeVM_Task: a VM that is off gets newer virtual hardware, which newer devices need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim

from gpuops.sim.inventory import faults
from gpuops.sim.operations.recording import recorded
from gpuops.sim.render.config_option import NEWEST, VERSIONS
from gpuops.sim.state.vm_state import Power

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import VmEntity

UPGRADE_S: Final = 1.0


def upgrade(vm: VmEntity, call: Call, version: str | None) -> Any:
    """The task. Without a version, to the newest of the host (vSphere API, VirtualMachine.UpgradeVM_Task)."""

    def begin() -> None:
        _target(vm, version)

    def finish() -> None:
        number = _target(vm, version)
        with recorded(vm, call):
            vm.state.hardware_version = number
            vm.state.change, vm.state.changed_at = vm.state.change + 1, vm.world.clock.now()
            vm.configuration_changed(renamed=False)
        vm.post(call, "VmUpgradeCompleteEvent", version=f"vmx-{number:02d}")

    return vm.world.tasks.start(call, "UpgradeVM_Task", vm, UPGRADE_S, begin=begin, finish=finish)


def _target(vm: VmEntity, version: str | None) -> int:
    """The hardware version that the VM gets. Faults and their order are those of vcsim (govmomi, UpgradeVMTask):
    InvalidPowerState, InvalidState, NotSupported for a version that hosts do not have, AlreadyUpgraded."""
    if vm.state.power is not Power.OFF:
        raise faults.wrong_power_state(vm.state.power, Power.OFF)
    if vm.host().state.in_maintenance:
        raise faults.wrong_state(f"The host {vm.host().name} is in maintenance mode.")
    if vm.state.is_template:
        raise faults.wrong_state("The virtual machine is a template.")
    number = version_number(version or NEWEST)
    if number <= vm.state.hardware_version:
        raise vim.fault.AlreadyUpgraded(msg="The virtual hardware of the virtual machine is already up-to-date.")
    return number


def version_number(version: str) -> int:
    """20 of `vmx-20`. Raises NotSupported for a version that hosts do not have."""
    if version not in VERSIONS:
        raise faults.not_supported(f"No host supports the virtual hardware version {version}.")
    return int(version.removeprefix("vmx-"))
