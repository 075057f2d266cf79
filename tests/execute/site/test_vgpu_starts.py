"""Where vGPUs lie, as a host's nvidia-smi tells it, in the memory slices of the catalogue."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from gpuops.execute.site.host_shell import HostShell, with_vgpus
from gpuops.model.devices.gpu import PciAddress, VgpuMode
from gpuops.model.vcenter.host_settings import SmiState, SmiVgpu
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.capacity.capacity_request import capacity
from tests.plan.snapshots import FIRST, catalog, gpu, host, inventory, vm

PREFIX = "nvidia_rtx_pro_6000_blackwell_dc-"


class Shell:
    """A host that tells three vGPUs, each in a GPU instance of so many memory slices."""

    def __init__(self, starts: tuple[int, ...], slices: int) -> None:
        self.starts, self.slices = starts, slices

    def mig(self, host: str) -> tuple[SmiState, ...]:
        return ()

    def vgpus(self, host: str) -> tuple[SmiVgpu, ...]:
        at = PciAddress.parse(FIRST)
        return tuple(
            SmiVgpu(at, f"a-{number}", f"{PREFIX}1-3q", start, instance_slices=self.slices)
            for number, start in enumerate(self.starts, 1)
        )


@pytest.mark.parametrize(
    ("starts", "slices", "lying", "free"),
    [
        ((0, 3, 6), 3, [0, 3, 6], (0, 0)),
        ((0, 1, 2), 1, [0, 3, 6], (0, 0)),  # counted in quarters of the GPU
        ((3, 3, 2), 1, [9, 9, 6], (1, 1)),
        ((0, 1, 2), 3, [0, 1, 2], (0, 0)),  # no starts of the catalogue: three instances all the same
    ],
)
def test_starts_are_read_in_the_slices_of_the_catalogue(
    starts: tuple[int, ...], slices: int, lying: list[int], free: tuple[int, int]
) -> None:
    three = [vm(n, f"a-{n}", "1", f"vgpu {PREFIX}1-3q", power=PowerState.ON) for n in (1, 2, 3)]
    shared = gpu(FIRST, "rtx-pro-6000", 0, VgpuMode.MULTI_INSTANCE)
    snapshot = inventory([host("esx-1", replace(shared, vms=tuple(small_vm.ref for small_vm in three)))], three)
    with_starts = with_vgpus(snapshot, cast("HostShell", Shell(starts, slices)), print, catalog())
    [esx] = with_starts.hosts.values()
    assert [vgpu.start for vgpu in esx.gpus[0].vgpus or ()] == lying
    assert with_starts.as_read == with_starts, "what a host tells was read, it is no change"
    [part] = capacity(with_starts, catalog()).now.parts
    slots = part.fits[f"{PREFIX}2-48q"].slots
    assert (slots.at_least, slots.at_most) == free
