"""The site's mix of VMs, counted host by host, so that one VM more costs one host's count."""

from __future__ import annotations

from gpuops.advise.fragmentation import Asked, Mix, asked_by, mix_from
from gpuops.model.catalog import Catalog
from gpuops.model.inventory import Inventory
from gpuops.model.vm import Vm


class SiteMix:
    """What all VMs of the snapshot ask for."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[tuple[Vm, ...], Asked]] = {}
        self._total = Asked()

    def sync(self, inventory: Inventory) -> None:
        """Count again what changed since."""
        now = inventory.vms_by_host
        for ref, vms in now.items():
            seen = self._seen.get(ref)
            if seen is None or seen[0] is not vms:
                self._replace(ref, vms)
        if len(self._seen) > len(now):
            for ref in self._seen.keys() - now.keys():
                self._replace(ref, ())

    def with_vm(self, vm: Vm, inventory: Inventory, catalog: Catalog) -> Mix:
        """The mix with this VM as it is given, instead of what the snapshot knows of it."""
        known = inventory.vms.get(vm.ref)
        others = self._total if known is None else self._total.plus(asked_by((known,)), -1)
        return mix_from(others.plus(asked_by((vm,))), catalog)

    def _replace(self, ref: str, vms: tuple[Vm, ...]) -> None:
        if ref in self._seen:
            self._total = self._total.plus(self._seen[ref][1], -1)
        asked = asked_by(vms)
        self._total = self._total.plus(asked)
        self._seen[ref] = (vms, asked)
