"""HostFirewallSystem: shows the firewall of a host, and enables and disables its rule sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gpuops.sim.core.managed_object import Methods, Properties
from gpuops.sim.inventory import faults
from gpuops.sim.objects.host_managers import HostManager
from gpuops.sim.render.host_network import installed_rulesets

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call


class HostFirewallSystem(HostManager):
    """Rule sets of a host's firewall."""

    wsdl_name = "HostFirewallSystem"

    property_table: ClassVar[Properties] = {"firewallInfo": lambda self: self.host.read("config.firewall")}

    method_table: ClassVar[Methods] = {
        "EnableRuleset": lambda self, call, id: self._set(call, id, enabled=True),
        "DisableRuleset": lambda self, call, id: self._set(call, id, enabled=False),
        "RefreshFirewall": lambda self, call: self.touch("firewallInfo"),
    }

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
