"""EnvironmentBrowser: what VMs of a cluster can be made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuops.sim.managed_object import ManagedObject, method, prop
from gpuops.sim.operations import faults
from gpuops.sim.render import config_option, config_target

if TYPE_CHECKING:
    from gpuops.sim.call import Call
    from gpuops.sim.entities import ComputeEntity, HostEntity
    from gpuops.sim.world import World


class EnvironmentBrowser(ManagedObject):
    """The browser of one compute resource; asked with a host it answers for that host alone."""

    wsdl_name = "EnvironmentBrowser"
    world: World

    def __init__(self, moid: str, owner: ComputeEntity) -> None:
        super().__init__(owner.world, moid)
        self.owner = owner

    def _hosts(self, host: Any) -> list[HostEntity]:
        if host is None:
            return self.owner.hosts()
        found: HostEntity = self.world.get(host)
        if found.compute_resource() is not self.owner:
            raise faults.wrong_argument("host")
        return [found]

    @prop("datastoreBrowser")
    def _datastore_browser(self) -> Any:
        return self.world.get(f"datastoreBrowser-{self.owner.moid}")

    @method
    def QueryConfigTarget(self, call: Call, host: Any = None) -> Any:
        return config_target.config_target(self._hosts(host))

    @method
    def QueryTargetCapabilities(self, call: Call, host: Any = None) -> Any:
        hosts = self._hosts(host)
        return hosts[0].read("capability") if hosts else None

    @method
    def QueryConfigOption(self, call: Call, key: str | None = None, host: Any = None) -> Any:
        self._hosts(host)
        return config_option.config_option(key or config_option.NEWEST, None)

    @method
    def QueryConfigOptionEx(self, call: Call, spec: Any = None) -> Any:
        self._hosts(spec.host if spec else None)
        key = (spec.key if spec else None) or config_option.NEWEST
        return config_option.config_option(key, list(spec.guestId) if spec else None)

    @method
    def QueryConfigOptionDescriptor(self, call: Call) -> Any:
        return config_option.descriptors([host.ref for host in self.owner.hosts()])
