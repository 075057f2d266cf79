"""HostKernelModuleSystem: modules of the host's kernel, `nvidia` among them, and their options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuops.sim.filled import filled
from gpuops.sim.managed_object import method
from gpuops.sim.objects.host_part import HostPart

if TYPE_CHECKING:
    from gpuops.sim.call import Call

NVIDIA: Final = "nvidia"


class HostKernelModuleSystem(HostPart):
    """Option strings are for the next boot; what QueryModules shows is loaded now."""

    wsdl_name = "HostKernelModuleSystem"

    @method
    def QueryModules(self, call: Call) -> Any:
        from pyVmomi import vim

        names = [NVIDIA, "vmkernel"] if self._has_driver() else ["vmkernel"]
        return [
            filled(
                vim.host.KernelModuleSystem.ModuleInfo,
                id=number,
                name=name,
                version=self.host.state.driver_version if name == NVIDIA else "8.0.3",
                filename=f"/usr/lib/vmware/vmkmod/{name}",
                optionString=self.host.state.loaded_module_options if name == NVIDIA else "",
                loaded=True,
                enabled=True,
                useCount=1,
            )
            for number, name in enumerate(names, start=1)
        ]

    @method
    def QueryConfiguredModuleOptionString(self, call: Call, name: str) -> str:
        self._refuse_unknown(name)
        return self.host.state.module_options

    @method
    def UpdateModuleOptionString(self, call: Call, name: str, options: str) -> None:
        """Replaces the whole string; in force after the next boot."""
        self._refuse_unknown(name)
        before, self.host.state.module_options = self.host.state.module_options, options
        self.host.touch("summary")
        self.world.ledger.record(call, self.host, before={"module_options": before}, after={"module_options": options})

    def _has_driver(self) -> bool:
        return bool(self.host.state.driver_version)

    def _refuse_unknown(self, name: str) -> None:
        from pyVmomi import vim

        if name != NVIDIA or not self._has_driver():
            raise vim.fault.NotFound(msg=f"Kernel module {name} is not installed.")
