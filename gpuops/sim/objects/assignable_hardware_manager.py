"""HostAssignableHardwareManager: which VM holds which device, and what the host offers for Dynamic DirectPath I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuops.sim.managed_object import method, prop
from gpuops.sim.objects.host_part import HostPart
from gpuops.sim.render import config_target
from gpuops.sim.render.device_groups import group_info, offered_groups

if TYPE_CHECKING:
    from gpuops.sim.call import Call


class HostAssignableHardwareManager(HostPart):
    """Assignable hardware of a host."""

    wsdl_name = "HostAssignableHardwareManager"

    @prop("binding")
    def _binding(self) -> Any:
        return self.host.read("config.assignableHardwareBinding")

    @prop("config")
    def _config(self) -> Any:
        from pyVmomi import vim

        return vim.host.AssignableHardwareConfig()

    @method
    def RetrieveDynamicPassthroughInfo(self, call: Call) -> Any:
        return config_target.dynamic_devices([self.host.state])

    @method
    def RetrieveVendorDeviceGroupInfo(self, call: Call) -> Any:
        return [group_info(group) for group in offered_groups(self.host.state)]
