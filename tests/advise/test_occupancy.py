"""Which VMs are on which GPU, where the next vGPU starts, what is fragmented, and whose counters are whose."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.advise.capacity import free_slots
from gpuops.advise.fragmentation import Fragmentation, measure_fragmentation, sum_of_models
from gpuops.advise.gpu_counters import gpus_of_instances
from gpuops.advise.occupancy import GpuState, Tenant, expected_start, gpu_states, with_expected
from gpuops.model.devices.gpu import Passthrough, PciAddress, PhysicalGpu, VgpuMode, VgpuPlacement
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.sim.state.board import GpuMode, board
from gpuops.sim.state.gpu_admission import GpuLoad, NotAdmitted, VgpuPolicy, WantedVgpu, admit
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


MODES = {VgpuMode.MIXED_SIZE: GpuMode.MIXED_SIZE, VgpuMode.MULTI_INSTANCE: GpuMode.MULTI_INSTANCE}
KINDS = [
    ("a100", VgpuMode.MULTI_INSTANCE),
    ("h100", VgpuMode.MULTI_INSTANCE),
    ("a30", VgpuMode.MULTI_INSTANCE),
    ("rtx-pro-6000", VgpuMode.MULTI_INSTANCE),
    ("l40s", VgpuMode.MIXED_SIZE),
    ("a40", VgpuMode.MIXED_SIZE),
    ("h100", VgpuMode.MIXED_SIZE),
]


def empty(key: str, mode: VgpuMode) -> GpuState:
    """A GPU that was asked what runs on it: nothing."""
    return GpuState(replace(gpu("0000:3b:00.0", key, 0, mode), vgpus=()))


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(("key", "mode"), KINDS)
@given(draws=st.data())
def test_it_is_where_the_host_lets_it_start(key: str, mode: VgpuMode, draws: st.DataObject) -> None:
    """VMs come and go; each start is the one that admission gives, and room is exact."""
    model = board(key)
    names = [type_.name for type_ in model.types_in(MODES[mode]) if type_.name]
    load, state = GpuLoad("0000:3b:00.0", model, MODES[mode], serves_vgpus=True), empty(key, mode)
    for number in range(draws.draw(st.integers(1, 12), "VMs")):
        goes: bool = draws.draw(st.booleans(), "one goes")
        if load.seats and goes:
            stopped_vm = draws.draw(st.sampled_from([seat.vm for seat in load.seats]), "which")
            load = replace(load, seats=tuple(seat for seat in load.seats if seat.vm != stopped_vm))
            state = state.without(stopped_vm)
        name = draws.draw(st.sampled_from(names), "profile")
        room = free_slots(state.gpu, state.holders, name, catalog(), state.starts)
        assert room.exact, room
        expected = expected_start(state, name, catalog())
        admitted = admit(f"vm-{number}", [WantedVgpu(name)], [load], VgpuPolicy.PERFORMANCE)
        assert isinstance(admitted, NotAdmitted) is not room.possible
        if isinstance(admitted, NotAdmitted):
            assert expected is None
        else:
            assert (expected,) == tuple(seat.start for seat in admitted)
            load = replace(load, seats=(*load.seats, *admitted))
            state = with_expected(state, Tenant(f"vm-{number}", f"vm-{number}", name), catalog())


def test_nothing_is_expected_where_how_the_others_lie_is_not_known() -> None:
    state = empty("a100", VgpuMode.MULTI_INSTANCE)
    assert expected_start(state, "grid_a100-3-20c", catalog()) == 0
    unknown = state.with_tenants(Tenant("vm-1", "a", "grid_a100-1-5c"))
    assert expected_start(unknown, "grid_a100-3-20c", catalog()) is None
    assert expected_start(GpuState(replace(state.gpu, vgpus=None)), "grid_a100-3-20c", catalog()) is None
    assert expected_start(empty("a40", VgpuMode.SAME_SIZE), "nvidia_a40-8q", catalog()) is None


@pytest.mark.parametrize(("start", "remaining"), [(0, 3), (4, 4), (None, None)])
def test_a_start_that_is_known_makes_room_exact(start: int | None, remaining: int | None) -> None:
    """A 3g at slice 0 leaves three single slices, at slice 4 four (NVIDIA Multi-Instance GPU User Guide)."""
    state = empty("a100", VgpuMode.MULTI_INSTANCE)
    room = free_slots(state.gpu, ["grid_a100-3-20c"], "grid_a100-1-5c", catalog(), [start])
    assert (room.at_least, room.at_most) == ((3, 4) if remaining is None else (remaining, remaining))


GIB = 1024
SMALL, LARGE = "nvidia_a40-8q", "nvidia_a40-24q"


def running(number: int, profile: str) -> Vm:
    return vm(number, f"ml-{number}", "1", f"vgpu {profile}", power=PowerState.ON)


def off(number: int, profile: str) -> Vm:
    return vm(number, f"off-{number}", "1", f"vgpu {profile}")


def pair(mode: VgpuMode = VgpuMode.SAME_SIZE) -> Host:
    """Two A40, of which the first lists the running VM."""
    return on_gpu(host("esx-1", gpu(FIRST, "a40", 0, mode), gpu(SECOND, "a40", 1, mode)), FIRST, "vm-1")


def fragmentation_of(esx: Host, *vms: Vm) -> Fragmentation:
    [answer] = measure_fragmentation([esx], inventory([esx], vms), catalog())
    return answer


@pytest.mark.parametrize(
    ("waiting", "fragmented_gib", "unusable_gpus"),
    [
        ((), 0, None),  # the only profile fits everywhere
        ((LARGE,), 20, 1),  # half of the VMs cannot use 40 GiB
        ((LARGE, LARGE, LARGE), 30, 1),  # three of four
        ((LARGE, SMALL), 40 / 3, 0),  # a small VM waits too, which both GPUs take
    ],
)
def test_two_gpus_in_same_size_mode(waiting: tuple[str, ...], fragmented_gib: float, unusable_gpus: int | None) -> None:
    vms = [off(number, profile) for number, profile in enumerate(waiting, 2)]
    answer = fragmentation_of(pair(), running(1, SMALL), *vms)
    assert (answer.gpus, answer.free_mib) == (2, 88 * GIB)
    assert answer.fragmented_mib == pytest.approx(fragmented_gib * GIB)
    assert answer.percent == pytest.approx(100 * fragmented_gib / 88)
    assert answer.unusable_gpus == unusable_gpus


def test_a_gpu_that_takes_any_size_is_not_fragmented() -> None:
    answer = fragmentation_of(pair(VgpuMode.MIXED_SIZE), running(1, SMALL), off(2, LARGE))
    assert (answer.fragmented_mib, answer.unusable_gpus) == (0, 0)


def test_what_cannot_take_a_vm_now_is_left_out() -> None:
    vms = [running(1, SMALL), off(2, LARGE)]
    in_maintenance = replace(pair(), in_maintenance=True)
    assert measure_fragmentation([in_maintenance], inventory([in_maintenance], vms), catalog()) == ()


def test_models_are_told_apart_and_summed() -> None:
    esx = replace(pair(), gpus=(*pair().gpus, gpu("0000:af:00.0", "a100", 1, VgpuMode.MULTI_INSTANCE)))
    vms = [running(1, SMALL), off(2, LARGE), off(3, "grid_a100-7-40c")]
    answers = measure_fragmentation([esx], inventory([esx], vms), catalog())
    assert [answer.gpus for answer in answers] == [1, 2] or [answer.gpus for answer in answers] == [2, 1]
    whole = sum_of_models(answers)
    assert (whole.gpus, whole.free_mib, whole.fragmented_mib) == (3, (88 + 40) * GIB, 20 * GIB)
    assert whole.unusable_gpus == 1


ADDRESS_0, ADDRESS_1 = PciAddress(0, 0x3B, 0, 0), PciAddress(0, 0x5E, 0, 0)
HOST = Host(
    "host-1", "esx-01", gpus=tuple(PhysicalGpu(each, "NVIDIA A40", 0x10DE, 0x2235) for each in (ADDRESS_0, ADDRESS_1))
)


def test_an_address_is_that_gpu_and_one_that_the_host_does_not_have_is_none() -> None:
    gpu_by_instance = gpus_of_instances(("0000:5e:00.0", "0000:3b:00.0", "0000:99:00.0"), HOST)
    assert gpu_by_instance == {"0000:5e:00.0": ADDRESS_1, "0000:3b:00.0": ADDRESS_0}
    assert gpus_of_instances(("0000:99:00.0", "0000:9a:00.0"), HOST) == {}, "as many as it has, and others all the same"


def test_other_words_are_gpus_in_the_order_of_their_numbers() -> None:
    assert gpus_of_instances(("gpu-10", "gpu-9"), HOST) == {"gpu-9": ADDRESS_0, "gpu-10": ADDRESS_1}
    gpu_by_instance = gpus_of_instances(("000:094:00.0", "000:059:00.0"), HOST)
    assert gpu_by_instance == {"000:059:00.0": ADDRESS_0, "000:094:00.0": ADDRESS_1}


def test_which_of_two_cannot_be_told() -> None:
    assert gpus_of_instances(("gpu-1",), HOST) == {}
    assert gpus_of_instances((), HOST) == {}


def test_the_counter_of_the_host_as_a_whole_is_no_gpu() -> None:
    assert gpus_of_instances(("", "gpu-0", "gpu-1"), HOST) == {"gpu-0": ADDRESS_0, "gpu-1": ADDRESS_1}


def test_a_gpu_that_is_given_to_vms_as_a_whole_has_no_counters() -> None:
    passed_through = replace(HOST.gpus[0], passthrough=Passthrough(capable=True, enabled=True, active=True))
    assert gpus_of_instances(("gpu-1",), replace(HOST, gpus=(passed_through, HOST.gpus[1]))) == {"gpu-1": ADDRESS_1}
