"""Which VMs are on which GPU: as the host lists them, or the most there can be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuops.advise.occupancy import GpuState, gpu_states
from gpuops.model.devices.gpu import VgpuMode, VgpuPlacement
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.vm import PowerState, Vm
from tests.plan.snapshots import FIRST, SECOND, catalog, gpu, host, inventory, on_gpu, vm

ON = PowerState.ON
A40 = "vgpu nvidia_a40-8q"


def states(esx: Host, *vms: Vm) -> tuple[GpuState, ...]:
    return gpu_states(esx, inventory([esx], vms), catalog())


def two_a40() -> Host:
    return host("esx-1", gpu(SECOND, "a40", 1), gpu(FIRST, "a40", 0))


def test_a_vm_on_one_gpu_has_all_its_vgpus_there() -> None:
    first, second = states(on_gpu(two_a40(), FIRST, "vm-1"), vm(1, "a", "1", A40, A40, power=ON))
    assert first.holders == ("nvidia_a40-8q", "nvidia_a40-8q")
    assert first.vm_names == ("a",)
    assert all(tenant.certain for tenant in first.tenants)
    assert second.holders == ()


def test_three_vgpus_on_two_gpus_are_at_most_two_on_each() -> None:
    esx = on_gpu(on_gpu(two_a40(), FIRST, "vm-1"), SECOND, "vm-1")
    for state in states(esx, vm(1, "a", "1", A40, A40, A40, power=ON)):
        assert [tenant.certain for tenant in state.tenants] == [True, False]


def test_two_vgpus_on_two_gpus_are_one_on_each() -> None:
    esx = on_gpu(on_gpu(two_a40(), FIRST, "vm-1"), SECOND, "vm-1")
    assert [state.holders for state in states(esx, vm(1, "a", "1", A40, A40, power=ON))] == [("nvidia_a40-8q",)] * 2


def test_different_vgpus_on_two_gpus_may_be_on_either() -> None:
    esx = on_gpu(on_gpu(two_a40(), FIRST, "vm-1"), SECOND, "vm-1")
    for state in states(esx, vm(1, "a", "1", A40, "vgpu nvidia_a40-8c", power=ON)):
        assert state.holders == ("nvidia_a40-8q", "nvidia_a40-8c")
        assert not any(tenant.certain for tenant in state.tenants)


def pin(guest_vm: Vm, *addresses: str) -> Vm:
    return replace(
        guest_vm, extra_config={f"pciPassthru{n}.cfg.gpu-pci-id": address for n, address in enumerate(addresses)}
    )


def test_vgpus_that_their_vm_binds_to_the_gpus_that_list_it_are_where_they_are_bound() -> None:
    """Two 8q on the one and an 8c on the other; without the pins each may have two of the three."""
    esx = on_gpu(on_gpu(two_a40(), FIRST, "vm-1"), SECOND, "vm-1")
    a = pin(vm(1, "a", "1", A40, A40, "vgpu nvidia_a40-8c", power=ON), FIRST, FIRST, SECOND)
    first, second = states(esx, a)
    assert (first.holders, second.holders) == (("nvidia_a40-8q",) * 2, ("nvidia_a40-8c",))
    assert all(tenant.certain for tenant in (*first.tenants, *second.tenants))


@pytest.mark.parametrize("pins", [(FIRST,), (FIRST, FIRST), (FIRST, "0000:ff:00.0"), (FIRST, "nowhere")])
def test_pins_that_are_not_those_of_the_gpus_that_list_the_vm_tell_nothing(pins: tuple[str, ...]) -> None:
    esx = on_gpu(on_gpu(two_a40(), FIRST, "vm-1"), SECOND, "vm-1")
    a = vm(1, "a", "1", A40, "vgpu nvidia_a40-8c", power=ON)
    assert [state.tenants for state in states(esx, pin(a, *pins))] == [s.tenants for s in states(esx, a)]


def test_a_vm_that_no_gpu_lists_may_be_on_every_gpu_of_its_model() -> None:
    esx = host("esx-1", gpu(FIRST, "a40"), gpu(SECOND, "a100", 1, VgpuMode.MULTI_INSTANCE))
    first, second = states(esx, vm(1, "a", "1", A40, power=ON))
    assert [tenant.certain for tenant in first.tenants] == [False]
    assert second.tenants == ()


def test_a_vm_that_is_off_or_suspended_holds_nothing_though_it_is_listed() -> None:
    esx = on_gpu(two_a40(), FIRST, "vm-1", "vm-2")
    off, suspended = vm(1, "a", "1", A40), vm(2, "b", "1", A40, power=PowerState.SUSPENDED)
    assert [state.holders for state in states(esx, off, suspended)] == [(), ()]


def test_what_cannot_be_told_makes_the_gpu_unclear() -> None:
    untold = host("esx-1", replace(gpu(FIRST, "a40"), vms=None))
    unseen = on_gpu(host("esx-1", gpu(FIRST, "a40")), FIRST, "vm-9")
    blind = on_gpu(host("esx-1", gpu(FIRST, "a40")), FIRST, "vm-1")
    unclear_states = [
        *states(untold),
        *states(unseen),
        *states(blind, replace(vm(1, "a", "1", power=ON), devices=None)),
    ]
    assert [state.holders for state in unclear_states] == [None, None, None]
    assert [state.unclear for state in unclear_states] == [
        "the host does not tell which VMs run on it",
        "it runs vm-9, a VM that this login cannot see",
        "it runs a, whose devices cannot be read",
    ]


def with_placements(esx: Host, address: str, *vgpus: VgpuPlacement) -> Host:
    """The host with what its own nvidia-smi told of one GPU."""
    gpus = (replace(gpu, vgpus=vgpus) if str(gpu.address) == address else gpu for gpu in esx.gpus)
    return replace(esx, gpus=tuple(gpus))


def test_what_the_host_tells_is_certain() -> None:
    """vCenter alone would leave open which of the two vGPUs is on which GPU, and where it starts."""
    mixed = host("esx-1", *(gpu(address, "a40", 0, VgpuMode.MIXED_SIZE) for address in (FIRST, SECOND)))
    esx = on_gpu(on_gpu(mixed, FIRST, "vm-1"), SECOND, "vm-1")
    esx = with_placements(esx, FIRST, VgpuPlacement("vm-1", "nvidia_a40-8c", 16))
    esx = with_placements(esx, SECOND, VgpuPlacement("vm-1", "nvidia_a40-8q", 0))
    running = vm(1, "a", "1", A40, "vgpu nvidia_a40-8c", power=ON)
    known_states = states(esx, running)
    assert [(state.holders, state.starts) for state in known_states] == [
        (("nvidia_a40-8c",), (16,)),
        (("nvidia_a40-8q",), (0,)),
    ]
    assert all(tenant.certain for state in known_states for tenant in state.tenants)


@pytest.mark.parametrize(
    "vgpus",
    [
        (VgpuPlacement("vm-2", "nvidia_a40-8q", 0),),
        (VgpuPlacement("vm-1", "nvidia_a40-4q", 0),),
        (VgpuPlacement("vm-1", "nvidia_a40-8q", 0), VgpuPlacement("vm-1", "nvidia_a40-8q", 16)),
        (),
    ],
)
def test_what_contradicts_vcenter_is_not_taken(vgpus: tuple[VgpuPlacement, ...]) -> None:
    """Another VM, another profile, one vGPU too many, none at all: it was read before or after vCenter's list."""
    mixed = host("esx-1", gpu(FIRST, "a40", 0, VgpuMode.MIXED_SIZE))
    esx = with_placements(on_gpu(mixed, FIRST, "vm-1"), FIRST, *vgpus)
    (state,) = states(esx, vm(1, "a", "1", A40, power=ON))
    assert (state.holders, state.starts) == (("nvidia_a40-8q",), (None,))
