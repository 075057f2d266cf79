"""Steps on the wire: what each does to the simulated vCenter, how often, and what becomes of a lost reply."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from gpuops.errors import GpuopsError, OutcomeUnknown, Refused, StepFailed
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.target import Secret
from gpuops.model.vcenter.task import TaskRef
from gpuops.model.vcenter.vm import DirectPathDevice, DynamicDevice, PowerState, Vm
from gpuops.plan.core.steps import (
    NewDirectPath,
    NewDynamic,
    NewVgpu,
    PowerOffVm,
    PowerOnVm,
    ReconfigureVm,
    RelocateVm,
    ResumeVm,
    SetAttribute,
    ShutDownGuest,
    Step,
    SuspendVm,
    VmChange,
)
from gpuops.sim.fault_injection.rule import Effect, Phase, Rule
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of

pytestmark = pytest.mark.long

OP_ID = "gpuops-test-0001"
NVLINK = "Nvidia:2@grid_a100d-80c%NVLink"


class Bench:
    """A connection to `lab`, and steps by the names of its VMs."""

    def __init__(self, server: SimServer, connection: Connection) -> None:
        self.server = server
        self.connection = connection
        self.inventory = connection.inventory()

    def ref(self, name: str) -> str:
        return self.inventory.find_vm(name).ref

    def vm(self, name: str) -> Vm:
        """The VM as vCenter shows it now."""
        self.inventory = self.connection.observe(self.inventory, [self.ref(name)])
        return self.inventory.vm(self.ref(name))

    def submit(self, step: Step) -> TaskRef | None:
        return self.connection.submit(step, self.inventory, OP_ID)

    def perform(self, step: Step) -> GpuopsError | None:
        """Submits, waits for the end, and answers the task's error."""
        task = self.submit(step)
        assert task is not None
        [end] = self.connection.wait([task], 600)
        assert end.task == task
        return end.error

    def effects(self) -> list[tuple[str, str]]:
        return [(change.method, change.name) for change in self.server.world.ledger]


@pytest.fixture
def bench(lab: SimServer) -> Iterator[Bench]:
    with Connection(target_of(lab)) as connection:
        yield Bench(lab, connection)


def test_a_change_of_a_vm_is_one_task_with_our_id(bench: Bench) -> None:
    change = VmChange(
        add=(NewVgpu("grid_a100-3-20c"),),
        extra_config={"pciPassthru.use64bitMMIO": "TRUE", "pciPassthru.64bitMMIOSizeGB": "128"},
        memory_locked=True,
        cores_per_numa_node=4,
    )
    assert bench.perform(ReconfigureVm(bench.ref("ml-07"), change)) is None
    vm = bench.vm("ml-07")
    assert vm.profiles == ("grid_a100-3-20c",)
    assert (vm.memory_locked, vm.cores_per_numa_node) == (True, 4)
    assert vm.extra_config is not None
    assert vm.extra_config["pciPassthru.64bitMMIOSizeGB"] == "128"
    [entry] = bench.server.world.ledger
    assert (entry.method, entry.name, entry.operation_id) == ("ReconfigVM_Task", "ml-07", OP_ID)


@pytest.mark.long
def test_a_profile_is_changed_in_place_and_a_device_removed(bench: Bench) -> None:
    ref, [device] = bench.ref("ml-01"), bench.vm("ml-01").vgpus
    assert bench.perform(ReconfigureVm(ref, VmChange(replace_profile=((device.key, "grid_a100-4-20c"),)))) is None
    [changed] = bench.vm("ml-01").vgpus
    assert (changed.key, changed.profile) == (device.key, "grid_a100-4-20c")
    assert bench.perform(ReconfigureVm(ref, VmChange(remove=(device.key,)))) is None
    assert bench.vm("ml-01").devices == ()


@pytest.mark.long
def test_directpath_takes_what_the_config_target_says(bench: Bench) -> None:
    host = bench.inventory.find_host("esx-02").ref
    bench.inventory = bench.connection.with_config_targets(bench.inventory, [host])
    target = bench.inventory.hosts[host].config_target
    assert target is not None
    chosen = next(gpu for gpu in target.passthrough if gpu.address == PciAddress.parse("d8:00.0"))
    new = NewDirectPath(chosen.address, chosen.name, chosen.system_id, chosen.vendor_id, chosen.device_id)
    mmio = {"pciPassthru.use64bitMMIO": "TRUE", "pciPassthru.64bitMMIOSizeGB": "128"}
    change = VmChange(add=(new,), memory_locked=True, extra_config=mmio)
    assert bench.perform(ReconfigureVm(bench.ref("ml-08"), change)) is None
    [device] = bench.vm("ml-08").devices or ()
    assert isinstance(device, DirectPathDevice)
    assert (device.address, device.device_id, device.system_id) == (chosen.address, 0x26B9, chosen.system_id)
    assert bench.perform(PowerOnVm(bench.ref("ml-08"))) is None


def test_dynamic_devices_carry_types_and_label(bench: Bench) -> None:
    new = NewDynamic(((0x10DE, 0x26B9),), "l40s-ml")
    assert bench.perform(ReconfigureVm(bench.ref("ml-08"), VmChange(add=(new,), memory_locked=True))) is None
    [device] = bench.vm("ml-08").devices or ()
    assert isinstance(device, DynamicDevice)
    assert (device.allowed, device.label) == (((0x10DE, 0x26B9),), "l40s-ml")


@pytest.mark.long
def test_a_device_group_arrives_whole(bench: Bench) -> None:
    pair = (NewVgpu("grid_a100d-80c", sequence_id=0), NewVgpu("grid_a100d-80c", sequence_id=1))
    change = VmChange(add=pair, device_group=NVLINK, memory_locked=True)
    assert bench.perform(ReconfigureVm(bench.ref("ml-08"), change)) is None
    vgpus = bench.vm("ml-08").vgpus
    assert [vgpu.profile for vgpu in vgpus] == ["grid_a100d-80c"] * 2
    assert len({vgpu.group for vgpu in vgpus}) == 1


@pytest.mark.long
def test_a_vm_changed_meanwhile_is_not_changed(bench: Bench) -> None:
    ref = bench.ref("ml-07")
    before = bench.inventory
    assert bench.perform(ReconfigureVm(ref, VmChange(memory_locked=True))) is None
    bench.inventory = before
    error = bench.perform(ReconfigureVm(ref, VmChange(add=(NewVgpu("grid_a100-3-20c"),))))
    assert isinstance(error, StepFailed)
    assert error.message == "ml-07: another user or program changed it meanwhile"
    assert bench.vm("ml-07").devices == ()


@pytest.mark.long
def test_an_unread_vm_is_not_changed(bench: Bench) -> None:
    bench.inventory = bench.inventory.with_vm(replace(bench.vm("ml-07"), change_version=None))
    with pytest.raises(Refused, match="could not be read"):
        bench.submit(ReconfigureVm(bench.ref("ml-07"), VmChange(memory_locked=True)))
    assert bench.effects() == []


@pytest.mark.long
def test_a_vm_goes_on_sleeps_wakes_and_goes_off(bench: Bench) -> None:
    ref = bench.ref("ml-01")
    for step, power in (
        (PowerOnVm(ref, bench.inventory.find_host("esx-01").ref), PowerState.ON),
        (SuspendVm(ref), PowerState.SUSPENDED),
        (ResumeVm(ref), PowerState.ON),
        (PowerOffVm(ref), PowerState.OFF),
    ):
        assert bench.perform(step) is None
        assert bench.vm("ml-01").power is power


@pytest.mark.long
def test_resuming_never_boots_a_vm_that_is_off(bench: Bench) -> None:
    with pytest.raises(Refused, match="vdi-06: it is not suspended"):
        bench.submit(ResumeVm(bench.ref("vdi-06")))
    assert bench.effects() == []


@pytest.mark.long
def test_the_state_of_a_suspended_desktop_is_never_discarded(bench: Bench) -> None:
    with pytest.raises(Refused, match="vdi-11: it is suspended"):
        bench.submit(PowerOffVm(bench.ref("vdi-11")))
    assert bench.effects() == []


@pytest.mark.long
def test_a_guest_is_asked_and_stops_in_its_own_time(bench: Bench) -> None:
    ref = bench.ref("vdi-01")
    assert bench.submit(ShutDownGuest(ref)) is None
    assert bench.connection.wait_for_power([ref], PowerState.OFF, 300) == {ref}
    assert bench.vm("vdi-01").power is PowerState.OFF


@pytest.mark.long
def test_a_guest_without_tools_cannot_be_asked(bench: Bench) -> None:
    with pytest.raises(StepFailed, match="bare: VMware Tools does not run"):
        bench.submit(ShutDownGuest(bench.ref("bare")))


@pytest.mark.long
def test_vms_that_never_get_there_are_left_out(bench: Bench) -> None:
    refs = [bench.ref("vdi-01"), bench.ref("vdi-06")]
    assert bench.connection.wait_for_power(refs, PowerState.OFF, 60) == {bench.ref("vdi-06")}


@pytest.mark.long
def test_an_attribute_is_defined_when_it_is_first_written(bench: Bench) -> None:
    ref = bench.ref("vdi-01")
    assert bench.submit(SetAttribute(ref, "gpuops.night", "")) is None
    assert bench.effects() == []
    assert bench.submit(SetAttribute(ref, "gpuops.night", "2026-11-20 suspended")) is None
    assert bench.submit(SetAttribute(bench.ref("vdi-02"), "gpuops.night", "2026-11-20 suspended")) is None
    assert bench.vm("vdi-01").attributes["gpuops.night"] == "2026-11-20 suspended"
    assert bench.submit(SetAttribute(ref, "gpuops.night", "")) is None
    assert "gpuops.night" not in bench.vm("vdi-01").attributes
    assert [method for method, _ in bench.effects()] == ["AddCustomFieldDef", *["SetField"] * 3]


@pytest.mark.long
def test_an_attribute_that_somebody_else_defines_meanwhile_is_used(bench: Bench) -> None:
    ref = bench.ref("vdi-01")
    assert bench.submit(SetAttribute(ref, "gpuops.role", "desktop")) is None
    bench.server.world.custom_fields.define("gpuops.night")
    assert bench.submit(SetAttribute(ref, "gpuops.night", "now")) is None
    assert bench.vm("vdi-01").attributes["gpuops.night"] == "now"


@pytest.mark.long
def test_keys_of_attributes_come_with_each_inventory(bench: Bench) -> None:
    """One that an admin removes and defines again has another key; one for hosts is not for VMs."""
    fields = bench.server.world.custom_fields
    fields.define("gpuops.night", "HostSystem")
    first = fields.define("gpuops.role")
    bench.connection.inventory()
    assert bench.connection.attribute_keys["gpuops.role"] == first
    assert "gpuops.night" not in bench.connection.attribute_keys
    del fields.fields[first]
    again = fields.define("gpuops.role")
    bench.connection.inventory()
    assert bench.connection.attribute_keys["gpuops.role"] == again != first


@pytest.mark.long
def test_a_stopped_vm_moves_to_another_host(bench: Bench) -> None:
    host = bench.inventory.find_host("esx-02").ref
    assert bench.perform(RelocateVm(bench.ref("ml-07"), host)) is None
    assert bench.vm("ml-07").host == host


@pytest.mark.long
@pytest.mark.parametrize(
    ("rule", "happened"),
    [
        (Rule(Effect.RESET, "PowerOnVM_Task", phase=Phase.BEFORE), False),
        (Rule(Effect.RESET, "PowerOnVM_Task", phase=Phase.AFTER), True),
        (Rule(Effect.CUT, "PowerOnVM_Task"), True),
        (Rule(Effect.HTTP, "PowerOnVM_Task", phase=Phase.AFTER), True),
    ],
    ids=["lost on the way there", "lost on the way back", "cut short", "swallowed by a proxy"],
)
def test_a_lost_reply_is_unknown_and_never_sent_again(bench: Bench, rule: Rule, happened: bool) -> None:
    step, since = PowerOnVm(bench.ref("ml-01")), bench.inventory.taken_at
    bench.server.world.injector.add(rule)
    with pytest.raises(OutcomeUnknown, match="ml-01: the reply was lost"):
        bench.submit(step)
    task = bench.connection.find_task(step, since)
    assert (task is not None) is happened
    if task is not None:
        [end] = bench.connection.wait([task], 600)
        assert end.error is None
    assert bench.effects() == ([("PowerOnVM_Task", "ml-01")] if happened else [])


@pytest.mark.long
def test_an_older_task_of_the_same_kind_is_not_adopted(bench: Bench) -> None:
    ref = bench.ref("ml-01")
    assert bench.perform(PowerOnVm(ref)) is None
    since = bench.connection.inventory().taken_at
    assert bench.perform(PowerOffVm(ref)) is None
    assert bench.connection.find_task(PowerOnVm(ref), since) is None
    assert bench.connection.find_task(PowerOffVm(ref), since) is not None


@pytest.mark.long
@pytest.mark.parametrize("hours", [1, -1])
def test_a_running_task_is_adopted_whatever_is_done_to_the_clock_of_vcenter(bench: Bench, hours: int) -> None:
    step, world = PowerOnVm(bench.ref("ml-01")), bench.server.world
    since = bench.inventory.taken_at
    world.skew = timedelta(hours=hours)
    task = bench.submit(step)
    assert bench.connection.find_task(step, since) == task
    assert bench.connection.inventory().taken_at >= since + timedelta(hours=hours)


@pytest.mark.long
def test_a_task_of_this_login_is_adopted_before_somebody_elses(bench: Bench) -> None:
    ref, since = bench.ref("ml-01"), bench.inventory.taken_at
    server = bench.server
    server.world.sessions.passwords["somebody@vsphere.local"] = "else"
    stranger = replace(target_of(server), username="somebody@vsphere.local", password=Secret("else"))
    assert bench.perform(PowerOnVm(ref)) is None
    assert bench.perform(PowerOffVm(ref)) is None
    own_task = bench.connection.find_task(PowerOnVm(ref), since)
    with Connection(stranger) as stranger_connection:
        foreign = stranger_connection.submit(PowerOnVm(ref), bench.inventory, "theirs")
        assert foreign is not None
        assert bench.connection.find_task(PowerOnVm(ref), since) == own_task
        tasks = [
            own_task,
            stranger_connection.find_task(PowerOnVm(ref), since),
            stranger_connection.find_task(PowerOffVm(ref), since),
        ]
        assert tasks[1] == foreign
        assert tasks[2] is not None, "better than to think that nothing runs"
        assert [task is not None and task.foreign for task in tasks] == [False, False, True]


@pytest.mark.long
def test_a_task_that_vcenter_lost_on_the_way_is_found_in_its_history(bench: Bench) -> None:
    step, world = SuspendVm(bench.ref("vdi-01")), bench.server.world
    since = bench.inventory.taken_at
    world.injector.add(Rule(Effect.LOST, "SuspendVM_Task", share=0.1))
    task = bench.submit(step)
    assert task is not None
    [end] = bench.connection.wait([task], 600)
    assert isinstance(end.error, OutcomeUnknown), "its object is gone"
    assert bench.connection.find_task(step, since) == task, "its work goes on"
    with world.lock:
        world.clock.advance(3600)
    assert bench.connection.find_task(step, since) is None, "it has ended: the VM's state says how"
    assert bench.effects() == [("SuspendVM_Task", "vdi-01")]


@pytest.mark.long
def test_nothing_is_adopted_from_a_vm_that_is_gone(bench: Bench) -> None:
    assert bench.connection.find_task(SuspendVm("vm-424242"), bench.inventory.taken_at) is None
    assert not bench.connection.started_by_this_login("vm-424242", bench.inventory.taken_at)


@pytest.mark.long
def test_the_task_history_tells_who_started_a_vm(bench: Bench) -> None:
    ref, before, server = bench.ref("ml-01"), bench.inventory.taken_at, bench.server
    server.world.sessions.passwords["somebody@vsphere.local"] = "else"
    stranger = replace(target_of(server), username="somebody@vsphere.local", password=Secret("else"))
    assert not bench.connection.started_by_this_login(ref, before)
    assert bench.perform(PowerOnVm(ref)) is None
    with server.world.lock:
        server.world.clock.advance(24 * 3600)
    assert bench.connection.find_task(PowerOnVm(ref), before) is None, "its task is forgotten"
    since = bench.connection.inventory().taken_at
    assert bench.connection.started_by_this_login(ref, before)
    assert not bench.connection.started_by_this_login(ref, since), "that was an earlier night"
    with Connection(stranger) as stranger_connection:
        assert not stranger_connection.started_by_this_login(ref, before)
        assert stranger_connection.started_by_others(ref, before)
    assert not bench.connection.started_by_others(ref, before)
    assert bench.perform(PowerOffVm(ref)) is None
    server.world.injector.add(Rule(Effect.TASK, "PowerOnVM_Task", times=1))
    assert bench.perform(PowerOnVm(ref)) is not None
    assert bench.connection.started_by_this_login(ref, since), "what vCenter gave up may still have come"
    with Connection(stranger) as stranger_connection:
        assert stranger_connection.submit(PowerOnVm(ref), bench.inventory, "theirs") is not None
        assert not bench.connection.started_by_this_login(ref, since)
        assert bench.connection.started_by_others(ref, since)
        assert not stranger_connection.started_by_others(ref, before.replace(year=before.year + 1)), (
            "no login has started it since then"
        )
