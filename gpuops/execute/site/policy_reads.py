"""What a policy goes by that the bulk read does not tell: tags, and performance counters of running desktops."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuops.execute.site.ports import Vcenter
    from gpuops.model.inventory import Inventory
    from gpuops.model.rotation import Policy


def with_policy_reads(
    vcenter: Vcenter, inventory: Inventory, policy: Policy, vms: Collection[str] | None = None
) -> Inventory:
    """The same snapshot with both, as far as the policy asks for them; `vms` None = of all that it is about."""
    if policy.needs_tags:
        inventory = vcenter.with_tags(inventory, vms)
    among = inventory.vms.values() if vms is None else [inventory.vms[ref] for ref in vms if ref in inventory.vms]
    measured = policy.measured(among)
    if not measured:
        return inventory
    return vcenter.with_counters(inventory, measured, policy.counters, policy.counters_for_s)
