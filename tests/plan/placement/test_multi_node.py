"""VMs that are larger than a NUMA node: however many GPUs they have, and where some places are in doubt."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from gpuops.model.devices.gpu import PciAddress, VgpuMode
from gpuops.model.vcenter.host import Host, NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.placement.multi_node import place_near
from gpuops.plan.placement.vm_demand import (
    NOTHING_KEPT,
    KeepFree,
    KeptProfile,
    PinPolicy,
    Placement,
    Wanted,
    demands_of,
)
from tests.plan.snapshots import CORES, FIRST, FOURTH, SECOND, THIRD, catalog, gpu, host, inventory, on_gpu, vm
from tests.sample import mostly_long

WIDE = CORES + 4
"""vCPUs: more than a node has cores."""


def place_vm(
    world: Inventory, *devices: str, numa: NumaPolicy, vcpus: int = 4, keep: KeepFree = NOTHING_KEPT
) -> Placement | tuple[Rejection, ...]:
    new_vm = replace(vm(90, "new", "9", *devices, vcpus=vcpus, memory_mib=8192), host=None)
    demands = demands_of(new_vm.devices or (), {})
    return place_near(
        Wanted(new_vm, demands, tuple(world.hosts), numa, PinPolicy.AUTO, chooses_gpu=True, keep_free=keep),
        world,
        catalog(),
    )


def seats(placement: Placement | tuple[Rejection, ...]) -> list[str]:
    assert isinstance(placement, Placement), placement
    return sorted(str(address) for address in placement.seats.values())


class TestThreeGpusOnTwoNodes:
    GPUS = tuple(gpu(address, "a40", node) for address, node in ((FIRST, 0), (SECOND, 0), (THIRD, 1), (FOURTH, 1)))
    ASKED = ("vgpu nvidia_a40-48q",) * 3

    def test_two_beside_the_first_node(self) -> None:
        placement = place_vm(inventory([host("esx-1", *self.GPUS)], []), *self.ASKED, numa=NumaPolicy.REQUIRED)
        assert seats(placement) == [FIRST, SECOND, THIRD]

    def test_two_beside_the_other_where_the_first_has_room_for_one(self) -> None:
        busy = vm(1, "busy", "1", "vgpu nvidia_a40-48q", power=PowerState.ON)
        world = inventory([on_gpu(host("esx-1", *self.GPUS), FIRST, "vm-1")], [busy])
        placement = place_vm(world, *self.ASKED, numa=NumaPolicy.REQUIRED)
        assert seats(placement) == [SECOND, THIRD, FOURTH]
        assert isinstance(placement, Placement)
        assert placement.numa_nodes == (0, 1)


def busy_on(esx: Host, profile: str, *addresses: str) -> tuple[Host, list[Vm]]:
    """The host with a small VM that runs on each of these GPUs, as often as the GPU is named."""
    memory, vms = {"memory_mib": 4096, "memory_reservation_mib": 4096}, []
    for number, address in enumerate(addresses, 1):
        vms.append(vm(number, f"busy-{number}", esx.ref[5:], f"vgpu {profile}", power=PowerState.ON, **memory))
        gpu_there = esx.gpu(PciAddress.parse(address))
        assert gpu_there is not None
        esx = on_gpu(esx, address, *(gpu_there.vms or ()), vms[-1].ref)
    return esx, vms


def test_a_place_that_is_sure_before_one_in_doubt() -> None:
    """On the GPUs of the first host the start of an instance is unknown: the requested half may be free."""
    mig = VgpuMode.MULTI_INSTANCE
    hosts = [host(name, gpu(FIRST, "a100", 0, mig), gpu(SECOND, "a100", 1, mig)) for name in ("esx-1", "esx-2")]
    unknown, busy = busy_on(hosts[0], "grid_a100-2-10c", FIRST, SECOND)
    devices = ("vgpu grid_a100-4-20c",) * 2
    alone = place_vm(inventory([unknown], busy), *devices, numa=NumaPolicy.REQUIRED, vcpus=WIDE)
    assert isinstance(alone, Placement)
    assert alone.doubts
    with_known_host = place_vm(inventory([unknown, hosts[1]], busy), *devices, numa=NumaPolicy.REQUIRED, vcpus=WIDE)
    assert isinstance(with_known_host, Placement)
    assert (with_known_host.host.name, with_known_host.doubts) == ("esx-2", ())


def test_what_would_leave_too_little_anywhere_else_is_spread_over_nodes() -> None:
    """The host would take the empty GPU, which is beside no node that is known; each node has a slot on another."""
    gpus = gpu(FIRST, "a40", 0), gpu(SECOND, "a40", None), gpu(THIRD, "a40", 1)
    esx, busy = busy_on(host("esx-1", *gpus), "nvidia_a40-8q", *[FIRST, THIRD] * 5)
    keep = KeepFree((KeptProfile("nvidia_a40-48q", 1),))
    devices, world = ("vgpu nvidia_a40-8q",) * 2, inventory([esx], busy)
    assert SECOND in seats(place_vm(world, *devices, numa=NumaPolicy.NONE, vcpus=WIDE))
    assert seats(place_vm(world, *devices, numa=NumaPolicy.PREFERRED, vcpus=WIDE, keep=keep)) == [FIRST, THIRD]


class TestManyWorlds:
    """Wide VMs on GPUs that are free, full, or free only perhaps, beside a count that knows nothing of the planner.

    A GPU with a 2g instance has room for a 4g only where that did not start in its way, which vCenter does not tell.
    """

    FREE, PERHAPS, FULL = "", "grid_a100-2-10c", "grid_a100-7-40c"
    WANTED = "grid_a100-4-20c"
    HELD = Mapping[str, Sequence[Sequence[str]]]

    def drawn(self, chance: random.Random) -> tuple[Inventory, HELD]:
        """Hosts with four GPUs beside each of two nodes, and what each GPU holds."""
        hosts: list[Host] = []
        vms: list[Vm] = []
        seat_options: dict[str, list[list[str]]] = {}
        for name in ("esx-1", "esx-2", "esx-3")[: chance.randint(1, 3)]:
            weights = chance.choice(((5, 0, 3), (4, 2, 3), (3, 4, 3)))
            beside = [chance.choices((self.FREE, self.PERHAPS, self.FULL), weights, k=4) for _ in range(2)]
            places = [(f"0000:{16 + 8 * at:02x}:00.0", at // 4, at % 4) for at in range(8)]
            esx = host(name, *(gpu(address, "a100", node, VgpuMode.MULTI_INSTANCE) for address, node, _ in places))
            for address, node, at in places:
                if profile := beside[node][at]:
                    number = len(vms) + 1
                    running_vm = vm(number, f"on-{number}", esx.ref[5:], f"vgpu {profile}", power=PowerState.ON)
                    vms.append(
                        replace(running_vm, memory_mib=8192, memory_reservation_mib=8192)
                    )  # GPUs alone are scarce
                    esx = on_gpu(esx, address, vms[-1].ref)
            hosts.append(esx)
            seat_options[esx.ref] = beside
        return inventory(hosts, vms), seat_options

    @pytest.mark.parametrize("seed", mostly_long(range(400), range(0, 400, 10)))
    def test_a_place_is_found_where_there_is_one_and_a_sure_one_first(self, seed: int) -> None:
        chance = random.Random(seed)
        world, seat_options = self.drawn(chance)
        count, vcpus = chance.randint(2, 7), chance.choice((2, WIDE))
        required = chance.random() < 0.5
        numa = NumaPolicy.REQUIRED if required else NumaPolicy.PREFERRED
        placement = place_vm(world, *([f"vgpu {self.WANTED}"] * count), numa=numa, vcpus=vcpus)

        def rooms(*kinds: str) -> list[tuple[int, int]]:
            return [
                (sum(k in kinds for k in near), sum(k in kinds for k in distant))
                for near, distant in seat_options.values()
            ]

        def has_local(room: tuple[int, int]) -> bool:
            """Beside one node, or as evenly beside both as the number divides where it is wider than one."""
            wider = vcpus == WIDE or count > 4
            return min(room) >= count // 2 and max(room) >= -(-count // 2) if wider else max(room) >= count

        local = [any(map(has_local, rooms(*kinds))) for kinds in ((self.FREE,), (self.FREE, self.PERHAPS))]
        anywhere = [any(sum(r) >= count for r in rooms(*kinds)) for kinds in ((self.FREE,), (self.FREE, self.PERHAPS))]
        sure, possible = local if required or local[0] else anywhere
        assert isinstance(placement, Placement) is possible
        if isinstance(placement, Placement):
            assert bool(placement.doubts) is not sure
            beside = placement.numa_node is not None or len(placement.numa_nodes) == 2
            assert beside or not (required or local[0])
