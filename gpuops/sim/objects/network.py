"""Network: a port group of standard switches."""

from __future__ import annotations

from typing import Any

from gpuops.sim.managed_object import prop
from gpuops.sim.objects.managed_entity import ManagedEntity


class Network(ManagedEntity):
    """A network that hosts share by name."""

    wsdl_name = "Network"

    @prop("summary")
    def _summary(self) -> Any:
        from pyVmomi import vim

        return vim.Network.Summary(network=self.ref, name=self.name, accessible=True, ipPoolName="", ipPoolId=-1)

    @prop("host")
    def _hosts(self) -> Any:
        return [host for host in self.world.by_type("HostSystem") if self.moid in host.state.networks]

    @prop("vm")
    def _vms(self) -> Any:
        return [vm for host in self._hosts() for vm in host.vms() if vm.state.template.network == self.name]
