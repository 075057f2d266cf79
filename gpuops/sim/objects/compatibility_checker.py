"""VirtualMachineCompatibilityChecker: would this VM start there? Asked without starting it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuops.sim.managed_object import ManagedObject, method
from gpuops.sim.operations import trial

if TYPE_CHECKING:
    from gpuops.sim.call import Call
    from gpuops.sim.world import World

MOID: Final = "VmCompatibilityChecker"


class VirtualMachineCompatibilityChecker(ManagedObject):
    """Trials of power-on; the task succeeds, what would fail is in its result."""

    wsdl_name = "VirtualMachineCompatibilityChecker"
    world: World

    @method
    def CheckPowerOn_Task(self, call: Call, vm: Any, host: Any = None, pool: Any = None, testType: Any = None) -> Any:
        return trial.check_power_on(self.world.get(vm), call, self.world.get(host) if host else None)
