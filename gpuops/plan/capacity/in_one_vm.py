"""In one VM: how many vGPUs of a profile the driver and the vSphere release allow it."""

from __future__ import annotations

from itertools import count

from gpuops.advise.capacity import Slots
from gpuops.model.catalog import Catalog
from gpuops.model.host import Host
from gpuops.model.vm import Vm
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.steps import NewVgpu
from gpuops.plan.devices.rules import Case, several_vgpus

_MOST = 64
"""More passthrough devices no release allows (VMware configuration maximums)."""


class InOneVm:
    """The rules of `attach`, asked once per profile and release: 500 hosts of a fleet are alike."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._known: dict[tuple[str, str | None], tuple[int, str]] = {}

    def of(self, slots: Slots, profile: str, host: Host) -> Slots:
        """How many of the free slots one VM may have."""
        key = (profile, host.version)
        if key not in self._known:
            self._known[key] = self._limit(profile, host)
        limit, because = self._known[key]
        found = slots.capped(limit, because)
        if host.version is None and found.at_least > 1:
            return Slots(1, found.at_most, "the ESXi release of its host is not known")
        return found

    def _limit(self, profile: str, host: Host) -> tuple[int, str]:
        for number in count(2):
            case = Case(Vm("", "one VM"), (NewVgpu(profile),) * number, False, host, self._catalog)
            refused = next((found for found in several_vgpus(case) if isinstance(found, Rejection)), None)
            if refused is not None or number > _MOST:
                return number - 1, str(refused or "")
        raise AssertionError("counts without end")
