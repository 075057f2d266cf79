"""HostGraphicsManager: the host's GPUs for shared graphics, and their settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuops.sim.managed_object import method, prop
from gpuops.sim.objects.host_part import HostPart
from gpuops.sim.operations import graphics_change
from gpuops.sim.render import host_graphics

if TYPE_CHECKING:
    from gpuops.sim.call import Call


class HostGraphicsManager(HostPart):
    """Shows what `HostSystem.config` shows of graphics, and changes it."""

    wsdl_name = "HostGraphicsManager"

    @prop("graphicsInfo")
    def _graphics_info(self) -> Any:
        return self.host.read("config.graphicsInfo")

    @prop("graphicsConfig")
    def _graphics_config(self) -> Any:
        return self.host.read("config.graphicsConfig")

    @prop("sharedPassthruGpuTypes")
    def _offered_types(self) -> Any:
        return self.host.read("config.sharedPassthruGpuTypes")

    @prop("sharedGpuCapabilities")
    def _capabilities(self) -> Any:
        return self.host.read("config.sharedGpuCapabilities")

    @method
    def UpdateGraphicsConfig(self, call: Call, config: Any) -> None:
        graphics_change.update(self.host, call, config)

    @method
    def RefreshGraphicsManager(self, call: Call) -> None:
        self.host.graphics_changed()

    @method
    def IsSharedGraphicsActive(self, call: Call) -> bool:
        return any(gpu.listed and gpu.graphics_type != "direct" for gpu in self.host.state.gpus)

    @method
    def RetrieveVgpuDeviceInfo(self, call: Call) -> Any:
        return host_graphics.vgpu_devices(self.host.state)

    @method
    def RetrieveVgpuProfileInfo(self, call: Call) -> Any:
        return host_graphics.vgpu_profiles(self.host.state)
