"""HostPciPassthruSystem: which PCI devices of a host VMs may have for themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuops.sim.managed_object import method, prop
from gpuops.sim.objects.host_part import HostPart
from gpuops.sim.operations import passthrough_change

if TYPE_CHECKING:
    from gpuops.sim.call import Call


class HostPciPassthruSystem(HostPart):
    """Passthrough of the host's devices: configured, and in force."""

    wsdl_name = "HostPciPassthruSystem"

    @prop("pciPassthruInfo")
    def _info(self) -> Any:
        return self.host.read("config.pciPassthruInfo")

    @method
    def UpdatePassthruConfig(self, call: Call, config: Any) -> None:
        passthrough_change.update(self.host, call, config)

    @method
    def Refresh(self, call: Call) -> None:
        self.host.graphics_changed()
