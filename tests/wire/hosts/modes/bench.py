"""A simulated vCenter whose second host has a GPU that nothing runs on, and the changes of its mode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuops.api import Site, configure, mode_show
from gpuops.model.devices.device_mode import HostDevice
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import SizeMode
from gpuops.plan.core.plan import Report
from gpuops.plan.core.scope import Scope
from gpuops.plan.core.steps import HostStep
from gpuops.plan.hosts.graphics.mode import SetMode
from gpuops.plan.hosts.graphics.passthrough import SetPassthrough
from gpuops.sim.server import SimServer

FREE = PciAddress.parse("0000:af:00.0")
BUSY = PciAddress.parse("0000:3b:00.0")
HOST = "esx-02.sup"
MIXED = SetMode(vgpu_mode=SizeMode.MIXED_SIZE, gpu=(str(FREE),), host=HOST)
WHOLE = SetPassthrough(True, (str(FREE),), None, HOST)


@dataclass
class Bench:
    """A site on `supervisor`, whose second host has a GPU that nothing runs on."""

    server: SimServer
    site: Site

    @property
    def state(self) -> Any:
        return next(host for host in self.server.world.by_type("HostSystem") if host.display_name == HOST).state

    @property
    def gpu(self) -> Any:
        return self.state.gpu(str(FREE))

    @property
    def effects(self) -> list[str]:
        return [change.method for change in self.server.world.ledger]

    def set(self, request: Any, *, apply: bool = True) -> Report[HostStep]:
        return configure(request, self.site, apply=apply)

    def host(self) -> Host:
        [host] = mode_show(self.site, Scope(host=HOST))[1]
        return host

    def device(self, address: PciAddress = FREE) -> HostDevice:
        settings = self.host().settings
        assert settings is not None
        assert settings.devices is not None, settings.unread
        return next(device for device in settings.devices if device.address == address)
