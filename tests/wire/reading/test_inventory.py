"""The bulk read over the wire: what a snapshot holds, how many calls it costs, and what it survives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpuops.errors import ProtocolError
from gpuops.model.devices.gpu import AssignmentPolicy, GraphicsType, PciAddress, VgpuMode
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.target import Target
from gpuops.model.vcenter.vm import DirectPathDevice, DynamicDevice, Firmware, PowerState
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.outside_events.host_events import fill_datastore
from gpuops.sim.outside_events.vm_events import move_to_parent_folder, rename
from gpuops.sim.server import SimServer
from gpuops.vsphere.reading import collect
from gpuops.vsphere.session import Session
from tests.wire.conftest import target_of

pytestmark = pytest.mark.long


def read(target: Target) -> Inventory:
    with Session(target) as session:
        return collect.inventory(session)


def test_the_snapshot_holds_hosts_with_numa_gpus_and_profiles(lab_target: Target) -> None:
    inventory = read(lab_target)
    host = inventory.find_host("esx-01")
    assert inventory.clusters[host.cluster or ""].name == "lab-cluster"
    assert (host.connected, host.in_maintenance, host.memory_mib) == (True, False, 1024 * 1024)
    assert host.default_graphics_type is GraphicsType.SHARED_DIRECT
    assert inventory.find_host("esx-02.lab").assignment_policy is AssignmentPolicy.CONSOLIDATION
    assert [node.id for node in host.numa_nodes] == [0, 1]
    gpus = {str(gpu.address): gpu for gpu in host.gpus}
    assert gpus["0000:3b:00.0"].vgpu_mode is VgpuMode.MULTI_INSTANCE
    assert (gpus["0000:3b:00.0"].numa_node, gpus["0000:af:00.0"].numa_node) == (0, 1)
    assert gpus["0000:3b:00.0"].device_id == 0x20F1
    offer = host.offers("grid_a100-3-20c")
    assert offer is not None
    assert offer.suspend is True


def test_who_holds_what_is_in_it(lab_target: Target) -> None:
    inventory = read(lab_target)
    gpu = inventory.find_host("esx-01").gpu(PciAddress.parse("d8:00.0"))
    assert gpu is not None
    assert [inventory.vm(ref).name for ref in gpu.vms or ()] == [f"vdi-{number:02}" for number in range(1, 6)]


def test_passthrough_devices_show_state_and_label(lab_target: Target) -> None:
    gpu = read(lab_target).find_host("esx-02").gpu(PciAddress.parse("5e:00.0"))
    assert gpu is not None
    assert gpu.passthrough is not None
    assert (gpu.passthrough.active, gpu.passthrough.reboot_pending, gpu.passthrough.label) == (True, False, "l40s-ml")


def test_vms_carry_what_a_plan_asks_about(lab_target: Target) -> None:
    inventory = read(lab_target)
    ml07 = inventory.find_vm("ml-07")
    assert (ml07.power, ml07.vcpus, ml07.memory_mib, ml07.devices) == (PowerState.OFF, 8, 65536, ())
    assert ml07.path == "/lab-dc/vm/ml/ml-07"
    assert ml07.attributes == {"gpuops.role": "ml", "gpuops.owner": "research"}
    assert inventory.find_vm("/lab-dc/vm/misc/a/twin").ref != inventory.find_vm("misc/b/twin").ref
    assert inventory.find_vm("snapped").snapshots == 1
    assert inventory.find_vm("legacy").firmware is Firmware.BIOS
    assert "no more space" in (inventory.find_vm("asking").question or "")
    assert inventory.find_vm("golden").template
    assert inventory.find_vm("vdi-04").console_connections == 1
    assert isinstance((inventory.find_vm("ml-03").devices or ())[0], DirectPathDevice)
    assert isinstance((inventory.find_vm("ml-04").devices or ())[0], DynamicDevice)
    assert inventory.find_vm("ml-05").profiles == ("grid_a100d-80c", "grid_a100d-80c")


def test_a_running_task_is_seen_and_a_finished_one_is_not(lab: SimServer, lab_target: Target) -> None:
    with Session(lab_target) as session:
        vm = session.content.searchIndex.FindByInventoryPath("/lab-dc/vm/vdi/vdi-01")
        vm.SuspendVM_Task()
        (task,) = collect.inventory(session).find_vm("vdi-01").tasks
        assert (task.name, task.state) == ("SuspendVM_Task", "running")
        lab.world.clock.advance(600)
        after = collect.inventory(session).find_vm("vdi-01")
        assert (after.tasks, after.power) == ((), PowerState.SUSPENDED)


def test_observe_reads_anew_what_it_names_and_drops_what_is_gone(lab: SimServer, lab_target: Target) -> None:
    with Session(lab_target) as session:
        before = collect.inventory(session)
        desktop, removed_vm, untouched_vm = (before.find_vm(name) for name in ("vdi-01", "snapped", "vdi-02"))
        search = session.content.searchIndex
        search.FindByInventoryPath("/lab-dc/vm/vdi/vdi-01").SuspendVM_Task()
        search.FindByInventoryPath("/lab-dc/vm/misc/snapped").Destroy_Task()
        lab.world.clock.advance(600)
        after = collect.observe(session, before, [desktop.ref, removed_vm.ref])
    assert after.vm(desktop.ref).power is PowerState.SUSPENDED
    assert after.vm(desktop.ref).path == desktop.path
    assert removed_vm.ref not in after.vms
    assert after.vm(untouched_vm.ref) == untouched_vm
    gpu = after.find_host("esx-01").gpu(PciAddress.parse("d8:00.0"))
    assert gpu is not None
    assert desktop.ref not in (gpu.vms or ())
    assert after.find_host("esx-01").cluster == before.find_host("esx-01").cluster
    assert after.taken_at > before.taken_at


def test_what_is_observed_is_where_it_is_now_under_its_name_of_now(lab: SimServer, lab_target: Target) -> None:
    with Session(lab_target) as session:
        before = collect.inventory(session)
        desktop, renamed_vm = before.find_vm("vdi-01"), before.find_vm("vdi-02")
        world = lab.world
        with world.changed:
            move_to_parent_folder(world.get(desktop.ref), Rule(Effect.HAPPEN))
            rename(world.get(renamed_vm.ref), Rule(Effect.HAPPEN))
            fill_datastore(world.get(desktop.datastores[0]), Rule(Effect.HAPPEN))
        observed = collect.observe(session, before, [desktop.ref, renamed_vm.ref])
        assert observed.vm(desktop.ref).path == f"{desktop.path.removesuffix('/vdi/vdi-01')}/vdi-01" != desktop.path
        assert observed.vm(renamed_vm.ref).path == f"{renamed_vm.path}-renamed"
        assert observed.datastores[desktop.datastores[0]].free_mib == 0
        everything = collect.observe(session, before, list(before.vms))
        assert replace(everything, taken_at=before.taken_at) == replace(
            collect.inventory(session), taken_at=before.taken_at
        )


@pytest.mark.parametrize("method", ["RetrievePropertiesEx", "ContinueRetrievePropertiesEx"])
def test_a_session_that_ends_in_the_middle_is_opened_again(serve: Callable[[str], SimServer], method: str) -> None:
    server = serve("fleet:hosts=20,vms=700")
    whole = read(target_of(server))
    server.world.injector.add(Rule(Effect.EXPIRE, method=method))
    assert read(target_of(server)).vms.keys() == whole.vms.keys()


def test_a_cut_reply_is_asked_for_again_and_a_second_cut_is_an_error(lab: SimServer, lab_target: Target) -> None:
    with Session(lab_target) as session:
        lab.world.injector.add(Rule(Effect.RESET, method="RetrievePropertiesEx", skip=1))
        assert len(collect.inventory(session).vms) == 28
        lab.world.injector.add(Rule(Effect.FAULT, method="RetrievePropertiesEx", fault="SystemError", times=None))
        with pytest.raises(ProtocolError, match="refuses a bulk read"):
            collect.inventory(session)


def test_calls_do_not_grow_with_the_fleet(serve: Callable[[str], SimServer]) -> None:
    def calls(scenario: str) -> int:
        server = serve(scenario)
        with Session(target_of(server)) as session:
            (login,) = server.world.sessions
            before = login.calls
            collect.inventory(session)
            return int(login.calls) - int(before)

    small, large = calls("fleet:hosts=20,vms=40"), calls("fleet:hosts=40,vms=150")
    assert small == large


def test_a_look_at_a_vm_takes_two_calls_and_a_second_inventory_makes_no_view(
    lab: SimServer, lab_target: Target
) -> None:
    with Session(lab_target) as session:
        (login,) = lab.world.sessions

        def calls(read: Callable[[], object]) -> int:
            before = login.calls
            read()
            return int(login.calls) - int(before)

        inventory = collect.inventory(session)
        assert calls(lambda: collect.observe(session, inventory, [inventory.find_vm("vdi-01").ref])) == 2
        assert calls(lambda: collect.inventory(session)) == 5
        assert [view.wsdl_name for view in login.objects].count("ContainerView") == 1


def test_a_second_inventory_shows_what_has_come_since_and_outlives_the_login(
    lab: SimServer, lab_target: Target
) -> None:
    with Session(lab_target) as session:
        removed_vm = collect.inventory(session).find_vm("snapped").ref
        session.content.searchIndex.FindByInventoryPath("/lab-dc/vm/misc/snapped").Destroy_Task()
        lab.world.clock.advance(600)
        assert removed_vm not in collect.inventory(session).vms
        lab.world.injector.add(Rule(Effect.EXPIRE, method="RetrievePropertiesEx"))
        second_inventory = collect.inventory(session)
        assert removed_vm not in second_inventory.vms
        assert replace(collect.inventory(session), taken_at=second_inventory.taken_at) == second_inventory


@pytest.mark.parametrize(
    ("value", "enabled"), [(True, True), (False, False), ("true", True), ("false", False), ("perhaps", None)]
)
def test_a_setting_of_vcenter_is_read_as_it_is_meant(
    lab: SimServer, lab_target: Target, value: bool | str, enabled: bool | None
) -> None:
    lab.world.options["vgpu.hotmigrate.enabled"] = value
    assert read(lab_target).hot_migrate_enabled is enabled


def test_a_setting_that_this_login_may_not_read_is_unknown(lab: SimServer, lab_target: Target) -> None:
    lab.world.injector.add(Rule(Effect.FAULT, "QueryOptions", fault="NoPermission"))
    assert read(lab_target).hot_migrate_enabled is None


def test_every_page_of_a_fleet_is_read(serve: Callable[[str], SimServer]) -> None:
    server = serve("fleet:hosts=20,vms=700")
    inventory = read(target_of(server))
    assert (len(inventory.hosts), len(inventory.vms)) == (20, 700)
    on_gpus = [vm for vm in inventory.vms.values() if (host := inventory.host_of(vm)) is not None and host.gpus]
    assert len(on_gpus) > 250, "more than a page"
    assert [vm.name for vm in on_gpus if vm.devices is None] == []
