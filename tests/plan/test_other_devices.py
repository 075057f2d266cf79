"""Devices that are no NVIDIA GPU in generated fleets: they change no answer about GPUs, and none is given twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.model.devices.gpu import Passthrough, PciAddress
from gpuops.model.devices.other_device import DeviceKind, OtherDevice
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.capacity.capacity_request import capacity
from gpuops.plan.placement.gpu_filters import holders
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.vm_blockers import MoveMode, PowerPolicy
from tests.plan.snapshots import catalog
from tests.plan.test_properties import FAST, attachments, carried_out, fleets, plan_attach

pytestmark = pytest.mark.long

TYPES: Final = {
    (0x1002, 0x75A3): (DeviceKind.GPU, "Aqua Vanjaram [Instinct MI355X]"),
    (0x8086, 0x09C4): (DeviceKind.FPGA, "PAC with Intel Arria 10 GX FPGA"),
    (0x15B3, 0x101D): (DeviceKind.NIC, "MT2892 Family [ConnectX-6 Dx]"),
    (0x144D, 0xA80A): (DeviceKind.STORAGE, "NVMe SSD"),
}
WRITTEN: Final = [f"{vendor:04x}:{device:04x}" for vendor, device in TYPES]


@st.composite
def other_devices(draw: st.DrawFn) -> tuple[OtherDevice, ...]:
    """Up to four devices of a host, each passed through, waiting for a reboot, or not."""
    devices = []
    for bus in range(0x10, 0x10 + draw(st.integers(0, 4))):
        vendor, device = draw(st.sampled_from(sorted(TYPES)))
        kind, name = TYPES[vendor, device]
        state = Passthrough(
            draw(st.booleans()), draw(st.booleans()), draw(st.booleans()), draw(st.sampled_from([None, "fast"]))
        )
        node, memory_mib = draw(st.sampled_from([0, 1, None])), draw(st.sampled_from([None, 16384]))
        address = PciAddress(0, bus, 0, 0)
        devices.append(
            OtherDevice(address, name, kind, vendor, device, memory_mib=memory_mib, numa_node=node, passthrough=state)
        )
    return tuple(devices)


@st.composite
def mixed_fleets(draw: st.DrawFn) -> tuple[Inventory, Inventory]:
    """The same fleet without and with such devices."""
    plain = draw(fleets())
    return plain, plain.with_hosts([replace(host, others=draw(other_devices())) for host in plain.hosts.values()])


@FAST
@given(mixed_fleets())
def test_capacity_for_gpus_is_the_same_with_and_without_them(pair: tuple[Inventory, Inventory]) -> None:
    plain, mixed = (capacity(world, catalog()).now for world in pair)
    assert (mixed.gpus, mixed.fits, mixed.largest) == (plain.gpus, plain.fits, plain.largest)
    assert {kind: room for kind, room in mixed.devices.items() if not kind.kind} == plain.devices
    free = [
        device
        for host in pair[1].hosts.values()
        for device in host.others
        if device.passthrough is not None and device.passthrough.active and device.passthrough.enabled
    ]
    assert sum(room.at_least for kind, room in mixed.devices.items() if kind.kind) == len(free), "no VM holds any"


@FAST
@given(st.data(), mixed_fleets())
def test_no_attachment_of_a_vgpu_changes_its_mind(draws: st.DataObject, pair: tuple[Inventory, Inventory]) -> None:
    plain, mixed = pair
    if not plain.vms:
        return
    request = draws.draw(attachments(plain))
    assert plan_attach(request, mixed) == plan_attach(request, plain)


@FAST
@given(st.data(), mixed_fleets())
def test_none_is_given_to_two_vms_and_a_second_run_changes_nothing(
    draws: st.DataObject, pair: tuple[Inventory, Inventory]
) -> None:
    _, world = pair
    for name in sorted(vm.name for vm in world.vms.values()):
        request = Attach(
            name,
            device_type=(draws.draw(st.sampled_from(WRITTEN)),),
            label=draws.draw(st.sampled_from([None, "fast"])),
            move=draws.draw(st.sampled_from([None, MoveMode.COLD])),
            power=PowerPolicy.ON,
        )
        before = world
        world = carried_out(plan_attach(request, world), world)
        running = world is not before and world.find_vm(name).power is PowerState.ON
        assert not running or plan_attach(replace(request, move=None), world).steps == ()
    for host in world.hosts.values():
        held_kinds = Counter(
            device.address
            for address in holders(host, world)
            for device in host.others
            if device.address == address and device.passthrough is not None and device.passthrough.active
        )
        carriers = [
            vm.name
            for vm in world.vms_on(host)
            if vm.power is PowerState.ON and any(each.kind == "dynamic" for each in vm.devices or ())
        ]
        assert len(carriers) <= sum(held_kinds.values()), f"{carriers} run on {dict(held_kinds)}"
