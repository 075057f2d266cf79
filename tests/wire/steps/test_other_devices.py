"""Devices that are no NVIDIA GPU over the wire: read, attached by either DirectPath, started, refused, taken back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuops.api import Site, configure, run
from gpuops.catalog import load
from gpuops.errors import UsageError
from gpuops.execute.site import catalog_of
from gpuops.model.devices.other_device import DeviceKind
from gpuops.model.vcenter.host import Host, NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DirectPathDevice, DynamicDevice, PowerState, Vm
from gpuops.model.workloads.workload import Workload
from gpuops.plan.capacity.capacity_request import capacity
from gpuops.plan.core.plan import Report, Request
from gpuops.plan.core.scope import Scope
from gpuops.plan.core.steps import HostStep
from gpuops.plan.doctor.examination import examine
from gpuops.plan.hosts.graphics.mode import SetMode
from gpuops.plan.hosts.graphics.passthrough import SetPassthrough
from gpuops.plan.hosts.scheduler.scheduler_state import schedulers
from gpuops.plan.queue.one_workload import Placed, Refusal
from gpuops.plan.queue.place import Place
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.detach import Detach
from gpuops.plan.vm.vm_blockers import MoveMode, PowerPolicy
from gpuops.sim.operations.host_admission import admission
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from gpuops.vsphere.reading import collect
from gpuops.vsphere.session import Session
from tests.wire.conftest import target_of
from tests.wire.placement.test_headroom import find_entity

pytestmark = pytest.mark.long

NOW = datetime(2026, 11, 2, 18, tzinfo=UTC)


@pytest.fixture
def server() -> Iterator[SimServer]:
    with SimServer(build("accelerators")) as running:
        yield running
        assert running.world.bugs == []


@pytest.fixture
def site(server: SimServer, tmp_path: Path) -> Iterator[Site]:
    with Connection(target_of(server)) as connection:
        yield Site(connection, tmp_path, lambda: NOW)


def read(server: SimServer, *, json: bool = False) -> Inventory:
    with Session(target_of(server)) as session:
        if json:
            session.read_over_vi_json(alone=True)
        return collect.inventory(session)


def sent_changes(server: SimServer) -> list[str]:
    """What gpuops has changed, in order."""
    return [change.method for change in server.world.ledger if change.operation_id.startswith("gpuops-")]


def vm_of(site: Site, name: str) -> Vm:
    vm = site.vcenter.inventory().find_vm(name)
    return site.vcenter.observe(site.vcenter.inventory(), [vm.ref]).vm(vm.ref)


def ours(vm: Vm) -> dict[str, str]:
    """Its extraConfig without what ESXi itself writes at a power-on."""
    return {key: value for key, value in (vm.extra_config or {}).items() if not key.startswith("numa.autosize")}


def why(report: Report | Report[HostStep]) -> str:
    return "; ".join(map(str, report.plan.rejections))


@pytest.mark.parametrize("json", [False, True], ids=["SOAP", "VI/JSON"])
def test_they_come_with_the_bulk_read_and_never_among_the_gpus(server: SimServer, *, json: bool) -> None:
    inventory = read(server, json=json)
    devices = {
        host.name: [
            (
                str(device.address),
                str(device.kind),
                device.numa_node,
                bool(device.passthrough and device.passthrough.active),
            )
            for device in host.others
        ]
        for host in inventory.hosts.values()
    }
    assert devices == {
        "esx-01.acc": [
            ("0000:5e:00.0", "FPGA", 0, True),
            ("0000:86:00.0", "NIC", 1, True),
            ("0000:af:00.0", "FPGA", 1, True),
        ],
        "esx-02.acc": [
            ("0000:5e:00.0", "GPU", 0, True),
            ("0000:86:00.0", "GPU", 1, True),
            ("0000:af:00.0", "FPGA", 1, False),
        ],
        "esx-03.acc": [("0000:5e:00.0", "GPU", 0, True)],
    }
    assert [[gpu.name for gpu in host.gpus] for host in inventory.hosts.values()] == [["NVIDIA A40"]] * 2 + [[]]
    assert inventory.find_vm("spare-01").devices == (), "the VMs of a host that gives others are read in detail"


ATTACHED: list[tuple[Attach, Detach]] = [
    (Attach("rocm-02", device=("0000:86:00.0",), power=PowerPolicy.ON), Detach("rocm-02", device=("86:00.0",))),
    (Attach("rocm-02", device_type=("1002:75a3",), power=PowerPolicy.ON), Detach("rocm-02", dynamic=True)),
    (Attach("fpga-02", label="fpga", power=PowerPolicy.ON), Detach("fpga-02", label="fpga")),
    (Attach("fpga-02", device=("0000:86:00.0",), power=PowerPolicy.ON), Detach("fpga-02", device=("0000:86:00.0",))),
    (
        Attach("spare-01", label="mi355x", numa=NumaPolicy.REQUIRED, power=PowerPolicy.ON),
        Detach("spare-01", dynamic=True),
    ),
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("attach", "detach"),
    ATTACHED,
    ids=["AMD GPU", "AMD GPU by type", "FPGA by label", "NIC", "AMD GPU beside its node"],
)
def test_one_is_attached_started_not_attached_again_and_taken_back(
    server: SimServer, site: Site, attach: Attach, detach: Detach
) -> None:
    before = vm_of(site, attach.vm)
    report = run(attach, site, apply=True)
    assert (report.exit_code, sent_changes(server)) == (0, ["ReconfigVM_Task", "PowerOnVM_Task"]), why(report)
    vm_read = vm_of(site, attach.vm)
    assert (vm_read.power, vm_read.memory_locked, len(vm_read.devices or ())) == (PowerState.ON, True, 1)
    (device,) = vm_read.devices or ()
    address = device.address if isinstance(device, DirectPathDevice) else None
    if isinstance(device, DynamicDevice):
        address = device.assigned
    assert address in [other_device.address for other_device in read(server).hosts[vm_read.host or ""].others]
    second_run = run(attach, site, apply=True)
    assert (second_run.exit_code, second_run.plan.steps, len(sent_changes(server))) == (0, (), 2), (
        "a second run changes nothing"
    )
    back = run(replace(detach, power=PowerPolicy.OFF), site, apply=True)
    assert back.exit_code == 0, why(back)
    after = vm_of(site, attach.vm)
    assert (after.devices, after.memory_locked, ours(after), after.memory_reservation_mib) == (
        (),
        before.memory_locked,
        before.extra_config,
        before.memory_reservation_mib,
    )
    assert after.cores_per_numa_node == before.cores_per_numa_node


@pytest.mark.long
def test_the_space_for_its_memory_is_named_where_that_is_known_and_said_where_it_is_not(site: Site) -> None:
    report = run(Attach("rocm-02", device=("86:00.0",)), site, apply=False)
    (step,) = report.plan.steps
    assert step.change.extra_config["pciPassthru.64bitMMIOSizeGB"] == "1024"  # type: ignore[union-attr]
    assert not any("MMIO" in line for line in report.plan.warnings)
    unknown = run(Attach("fpga-02", device=("af:00.0",)), site, apply=False)
    (step,) = unknown.plan.steps
    assert "pciPassthru.64bitMMIOSizeGB" not in step.change.extra_config  # type: ignore[union-attr]
    mmio_unknown = "the MMIO space that directpath 0000:af:00.0 needs is not known: gpuops does not change it"
    assert mmio_unknown in unknown.plan.warnings
    firmware = run(Attach("old-01", label="fpga"), site, apply=False)
    assert (firmware.exit_code, firmware.plan.feasible) == (0, True)
    assert any("whether dynamic 8086:09c4 label fpga needs EFI is not known" in line for line in firmware.plan.warnings)


@pytest.mark.long
def test_without_enough_space_the_host_refuses_its_start(server: SimServer, site: Site) -> None:
    assert run(Attach("rocm-02", device=("86:00.0",)), site, apply=True).exit_code == 0
    with server.world.changed:
        vm = find_entity(server, "VirtualMachine", "rocm-02")
        vm.state.extra_config = tuple(option for option in vm.state.extra_config if "MMIO" not in option[0])
    with pytest.raises(Exception, match="pages needed for 288 GB exceeds limit 32 GB") as refused:
        admission(vm, vm.host())
    assert type(refused.value).__name__ == "vim.fault.GenericVmConfigFault"


REFUSED: list[tuple[Request, str]] = [
    (Attach("rocm-02", device=("0000:5e:00.0",)), "esx-02.acc 0000:5e:00.0: is held by rocm-01, which runs"),
    (
        Attach("rocm-02", device_type=("1002:75a3",), count=2),
        "device of type 1002:75a3 that is free (2 there, held by rocm-01): needs 2, 1 there",
    ),
    (Attach("rocm-02", device=("0000:af:00.0",)), "esx-02.acc 0000:af:00.0: is not switched to passthrough"),
    (Attach("fpga-02", device=("0000:31:00.0",)), "esx-01.acc 0000:31:00.0: is not a passthrough device of this host"),
    (Attach("rocm-02", label="rdma"), "esx-02.acc: has no device with hardware label rdma"),
    (Attach("fpga-02", device_type=("1002:75a3",)), "esx-01.acc: has no device of type 1002:75a3 in passthrough"),
    (Attach("fpga-02", dynamic=True), "esx-01.acc: has no GPU in passthrough"),
    (Attach("old-01", device_type=("1002:75a3",), move=MoveMode.COLD), "old-01: firmware for dynamic 1002:75a3"),
    (Attach("fpga-02", label="fpga", numa=NumaPolicy.REQUIRED, count=2), "is free on NUMA node 0"),
    (Attach("spare-01", profile="a40-8q"), "has no GPU"),
]


@pytest.mark.long
@pytest.mark.parametrize(("request_", "reason"), REFUSED, ids=lambda each: each if isinstance(each, str) else "")
def test_each_refusal_says_what_and_why(server: SimServer, site: Site, request_: Request, reason: str) -> None:
    report = run(request_, site, apply=True)
    assert (report.exit_code, sent_changes(server)) == (3, [])
    assert reason in why(report)


@pytest.mark.long
def test_what_is_no_pci_type_is_refused_before_anything_is_read(site: Site) -> None:
    with pytest.raises(UsageError, match="'MI355X' is not a PCI type"):
        run(Attach("rocm-02", device_type=("MI355X",)), site, apply=False)


@pytest.mark.long
def test_it_goes_beside_a_gpu_and_the_settings_stay_until_the_last_device_goes(server: SimServer, site: Site) -> None:
    first = run(Attach("fpga-02", profile="a40-8c"), site, apply=True)
    assert first.exit_code == 0, why(first)
    beside = run(Attach("fpga-02", device=("0000:af:00.0",), power=PowerPolicy.ON), site, apply=True)
    assert beside.exit_code == 0, why(beside)
    assert len(vm_of(site, "fpga-02").devices or ()) == 2
    without_gpu = run(Detach("fpga-02", all=True, power=PowerPolicy.OFF), site, apply=True)
    assert without_gpu.exit_code == 0, why(without_gpu)
    remaining_vm = vm_of(site, "fpga-02")
    assert [type(device) for device in remaining_vm.devices or ()] == [DirectPathDevice], "--all means GPUs"
    assert remaining_vm.memory_locked
    assert "pciPassthru.64bitMMIOSizeGB" in (remaining_vm.extra_config or {})
    assert run(Detach("fpga-02", device=("af:00.0",)), site, apply=True).exit_code == 0
    bare = vm_of(site, "fpga-02")
    assert (bare.devices, bare.memory_locked, ours(bare)) == ((), False, {})


@pytest.mark.long
def test_a_vm_is_moved_to_a_host_without_gpus_that_has_the_device(server: SimServer, site: Site) -> None:
    assert run(Attach("rocm-02", device=("86:00.0",), power=PowerPolicy.ON), site, apply=True).exit_code == 0
    moved = run(
        Attach("fpga-02", device_type=("1002:75a3",), move=MoveMode.COLD, power=PowerPolicy.ON), site, apply=True
    )
    assert moved.exit_code == 0, why(moved)
    inventory = site.vcenter.inventory()
    host = inventory.host_of(inventory.find_vm("fpga-02"))
    assert host is not None
    assert host.name == "esx-03.acc", "both of esx-02 are held"


def find_place(site: Site, **fields: object) -> Placed | Refusal:
    inventory = site.vcenter.inventory()
    workload = Workload(name="new", vcpus=8, memory_mib=65536, **fields)  # type: ignore[arg-type]
    (answer,) = Place((workload,)).placements(inventory, catalog_of(inventory)).answers
    return answer


@pytest.mark.long
def test_place_chooses_the_host_with_a_free_one(server: SimServer, site: Site) -> None:
    for fields in ({"gpus": 1, "label": "mi355x"}, {"gpus": 1, "model": "instinct mi355x"}):
        answer = find_place(site, **fields)
        assert isinstance(answer, Placed)
        assert answer.placement.host.name == "esx-02.acc"
    assert run(Attach("rocm-02", device=("86:00.0",), power=PowerPolicy.ON), site, apply=True).exit_code == 0
    answer = find_place(site, gpus=1, label="mi355x", numa=NumaPolicy.REQUIRED)
    assert isinstance(answer, Placed)
    assert (answer.placement.host.name, answer.placement.numa_node) == ("esx-03.acc", 0)
    refused = find_place(site, gpus=1)
    assert isinstance(refused, Refusal), "a request without model and label means an NVIDIA GPU"
    assert "no host has a whole GPU in passthrough" in str(refused.rejections[0])


def switch(site: Site, *devices: str, on: bool = True, host: str = "esx-02.acc", **options: object) -> Report[HostStep]:
    return configure(SetPassthrough(on, device=devices, host=host, **options), site, apply=True)  # type: ignore[arg-type]


@pytest.mark.long
def test_passthrough_of_one_is_switched_on_and_off(server: SimServer, site: Site) -> None:
    on = switch(site, "0000:af:00.0", label="fpga")
    assert (on.exit_code, sent_changes(server)) == (0, ["UpdatePassthruConfig"])
    assert "takes effect after a reboot of esx-02.acc" in on.plan.afterwards[0]
    state = site.vcenter.inventory().find_host("esx-02.acc").others[-1].passthrough
    assert state is not None
    assert (state.enabled, state.active, state.label) == (True, False, "fpga")
    inventory = site.vcenter.inventory()
    findings = examine(inventory, catalog_of(inventory), Scope(), {}).findings
    (boot,) = [finding for finding in findings if finding.subject == "esx-02.acc 0000:af:00.0"]
    assert boot.fix == "gpuops host passthrough on --device 0000:af:00.0 --host esx-02.acc --reboot rolling"
    waiting = run(Attach("rocm-02", device=("af:00.0",)), site, apply=True)
    assert "its passthrough is switched on and waits for a reboot of the host" in why(waiting)
    assert "a reboot is pending" in switch(site, "0000:af:00.0", label="fpga").plan.because[0]
    assert switch(site, "0000:af:00.0", on=False).exit_code == 0
    refusal = switch(site, "0000:5e:00.0", on=False)
    assert (refusal.exit_code, why(refusal)) == (3, "esx-02.acc 0000:5e:00.0: is in use by rocm-01")
    switched_off = switch(site, "0000:5e:00.0", on=False, host="esx-03.acc")
    assert switched_off.exit_code == 0
    host_after = site.vcenter.inventory().find_host("esx-03.acc")
    assert host_after.others == (), "a host with nothing in passthrough and no GPU is not looked into"
    back = switch(site, "0000:5e:00.0", host="esx-03.acc")
    assert (back.exit_code, len(site.vcenter.inventory().find_host("esx-03.acc").others)) == (0, 1)


WRONG: list[tuple[SetPassthrough, str]] = [
    (
        SetPassthrough(True, host="esx-01.acc", device=("0000:31:00.0",)),
        "esx-01.acc 0000:31:00.0: is in the host's own use: vmnic0 is an uplink of vSwitch0, which carries vmk0",
    ),
    (SetPassthrough(True, host="esx-01.acc", device=("0000:3b:00.0",)), "has a GPU at 0000:3b:00.0 (NVIDIA A40)"),
    (
        SetPassthrough(True, ("0000:af:00.0",), host="esx-02.acc"),
        "has no GPU 0000:af:00.0: there is another device (FPGA, PAC with Intel Arria 10 GX FPGA)",
    ),
    (
        SetPassthrough(True, host="esx-03.acc", device=("0000:99:00.0",)),
        "has no device 0000:99:00.0 that could be passed through (it has: 0000:31:00.0 MT2892",
    ),
    (SetPassthrough(False, host="esx-01.acc", device=("0000:5e:00.0",)), "belongs to fpga-01 (DirectPath I/O)"),
]


@pytest.mark.long
@pytest.mark.parametrize(("request_", "reason"), WRONG, ids=lambda each: each if isinstance(each, str) else "")
def test_what_must_not_be_passed_through_is_refused(
    server: SimServer, site: Site, request_: SetPassthrough, reason: str
) -> None:
    report = configure(request_, site, apply=True)
    assert (report.exit_code, sent_changes(server)) == (3, [])
    assert reason in why(report)


@pytest.mark.long
@pytest.mark.parametrize("kind", list(DeviceKind))
def test_what_may_carry_the_host_is_given_away_only_by_a_login_that_sees_it_does_not(
    server: SimServer, site: Site, kind: DeviceKind
) -> None:
    inventory = site.vcenter.inventory()
    with_devices = site.hosts.with_other_devices(inventory, list(inventory.hosts))
    host = with_devices.find_host("esx-01.acc")
    hidden = replace(host, others=tuple(replace(device, kind=kind, carries=None) for device in host.others))
    with_settings = site.hosts.with_settings(with_devices.with_hosts([hidden]), [host.ref])
    plan = SetPassthrough(True, host="esx-01.acc", device=("31:00.1",)).plan(with_settings, load())
    made_for_vms = kind in (DeviceKind.GPU, DeviceKind.FPGA, DeviceKind.ACCELERATOR)
    rule = f"what the host has this {kind} for cannot be read"
    assert [rejection.rule for rejection in plan.rejections] == ([] if made_for_vms else [rule])


@pytest.mark.long
def test_verbs_on_modes_know_no_such_device(site: Site) -> None:
    report = configure(SetMode(gpu=("0000:5e:00.0",), vgpu_mode="mixedSize", host="esx-02.acc"), site, apply=True)  # type: ignore[arg-type]
    assert why(report) == "esx-02.acc: has no GPU 0000:5e:00.0"
    inventory = site.vcenter.inventory()
    inventory = site.hosts.with_settings(inventory, list(inventory.hosts))
    listing = schedulers(inventory, catalog_of(inventory), Scope())
    assert [str(gpu.gpu.name) for host in listing.hosts for gpu in host.gpus] == ["NVIDIA A40", "NVIDIA A40"]


@pytest.mark.long
def test_capacity_tells_what_of_them_is_free_apart_from_gpus(site: Site) -> None:
    inventory = site.vcenter.inventory()
    free = capacity(inventory, catalog_of(inventory)).now
    assert {(device_kind.kind, device_kind.label): slots.at_most for device_kind, slots in free.devices.items()} == {
        ("FPGA", "fpga"): 1,
        ("GPU", "mi355x"): 2,
        ("NIC", "rdma"): 1,
    }
    without = inventory.with_hosts([_without_others(host) for host in inventory.hosts.values()])
    plain = capacity(without, catalog_of(without)).now
    assert (free.gpus, free.fits, free.largest) == (plain.gpus, plain.fits, plain.largest)
    assert plain.devices == {}


def _without_others(host: Host) -> Host:
    return replace(host, others=())
