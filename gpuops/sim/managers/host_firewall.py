"""HostFirewallSystem: shows the firewall of a host, and enables and disables its rule sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuops.sim.core.managed_object import method, prop
from gpuops.sim.inventory import faults
from gpuops.sim.objects.host_managers import HostManager
from gpuops.sim.render.host_network import installed_rulesets

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call


class HostFirewallSystem(HostManager):
    """Rule sets of a host's firewall."""

    wsdl_name = "HostFirewallSystem"

    @prop("firewallInfo")
    def _info(self) -> Any:
        return self.host.read("config.firewall")

    @method
    def EnableRuleset(self, call: Call, id: str) -> None:
        self._set(call, id, enabled=True)

    @method
    def DisableRuleset(self, call: Call, id: str) -> None:
        self._set(call, id, enabled=False)

    @method
    def RefreshFirewall(self, call: Call) -> None:
        self.touch("firewallInfo")

    def _set(self, call: Call, key: str, *, enabled: bool) -> None:
        """Raises NotFound."""
        installed = installed_rulesets()
        if key not in installed:
            raise faults.not_found(f"Host {self.host.name} has no rule set {key}.")
        rulesets = self.host.state.rulesets
        before = rulesets.get(key, installed[key])
        rulesets[key] = enabled
        self.touch("firewallInfo")
        self.host.touch("config")
        self.world.ledger.record(
            call, self.host, before={"rulesets": {key: before}}, after={"rulesets": {key: enabled}}
        )
