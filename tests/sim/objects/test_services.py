"""The service objects through real pyVmomi: look-ups, options, custom attributes, counters, roles, events."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from pyVmomi import vim, vmodl

from gpuops.sim.core.managed_object import ManagedObject
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.vcenter.authority import NO_ACCESS, READ_ONLY
from gpuops.sim.world import World
from tests.sim.objects.test_property_collector import view_spec
from tests.sim.objects.test_tasks import machine


def test_objects_are_found_by_path_and_name(si: Any) -> None:
    index = si.content.searchIndex
    assert index.FindByInventoryPath("machines/ml-02") == machine(si, 2)
    assert index.FindByInventoryPath("/machines/ml-02/") == machine(si, 2)
    assert index.FindByInventoryPath("machines/nowhere") is None
    assert index.FindChild(si.content.rootFolder, "machines") == si.content.rootFolder.childEntity[0]
    assert index.FindByUuid(None, "00000000-0000-0000-0000-000000000000", True) is None


def test_the_vgpu_vmotion_option_is_there_and_off(world: World, si: Any) -> None:
    setting = si.content.setting
    (option,) = setting.QueryOptions("vgpu.hotmigrate.enabled")
    assert option.value is False
    setting.UpdateOptions([vim.option.OptionValue(key="vgpu.hotmigrate.enabled", value=True)])
    assert world.options["vgpu.hotmigrate.enabled"] is True
    (entry,) = world.ledger
    assert (entry.before, entry.after) == ({"vgpu.hotmigrate.enabled": False}, {"vgpu.hotmigrate.enabled": True})


def test_an_unknown_option_is_an_invalid_name(world: World, si: Any) -> None:
    setting = si.content.setting
    with pytest.raises(vim.fault.InvalidName):
        setting.QueryOptions("vgpu.no.such")
    with pytest.raises(vim.fault.InvalidName):
        setting.UpdateOptions([vim.option.OptionValue(key="vgpu.no.such", value="1")])
    assert [option.key for option in setting.QueryOptions("VirtualCenter.")] == [
        "VirtualCenter.FQDN",
        "VirtualCenter.InstanceName",
    ]


def test_custom_attributes_are_defined_set_and_removed(world: World, si: Any) -> None:
    manager = si.content.customFieldsManager
    field = manager.AddCustomFieldDef("gpuops.role", vim.VirtualMachine)
    assert (field.name, field.managedObjectType, field.type) == ("gpuops.role", vim.VirtualMachine, str)
    with pytest.raises(vim.fault.DuplicateName):
        manager.AddCustomFieldDef("gpuops.role", vim.VirtualMachine)
    manager.SetField(machine(si), field.key, "ml")
    (value,) = machine(si).customValue
    assert (value.key, value.value) == (field.key, "ml")
    with pytest.raises(vmodl.fault.InvalidArgument):
        manager.SetField(machine(si), 999, "x")
    manager.RemoveCustomFieldDef(field.key)
    assert manager.field == []
    assert machine(si).customValue == []
    assert [change.method for change in world.ledger] == ["AddCustomFieldDef", "SetField", "RemoveCustomFieldDef"]


def provider(entity: ManagedObject, moment: datetime) -> dict[tuple[str, str], int]:
    percent = moment.minute * 100
    return {
        ("gpu.utilization.average", "gpu-0"): percent,
        ("gpu.utilization.average", "gpu-1"): 0,
        ("cpu.usagemhz.average", ""): 1200,
    }


@pytest.fixture
def counters(world: World, si: Any) -> dict[str, int]:
    world.counters = provider
    world.sessions.idle_timeout = timedelta(days=1)
    world.clock.advance(3600)
    names = si.content.perfManager.perfCounter
    return {f"{name.groupInfo.key}.{name.nameInfo.key}.{name.rollupType}": name.key for name in names}


def query(machine: Any, counter: int, instance: str = "*", **options: Any) -> Any:
    metric = vim.PerformanceManager.MetricId(counterId=counter, instance=instance)
    settings = {"intervalId": 20, "maxSample": 3, "format": "normal", **options}
    return vim.PerformanceManager.QuerySpec(entity=machine, metricId=[metric], **settings)


@pytest.mark.long
def test_realtime_samples_of_every_instance(si: Any, counters: dict[str, int]) -> None:
    performance = si.content.perfManager
    assert performance.QueryPerfProviderSummary(machine(si)).refreshRate == 20
    (metric,) = performance.QueryPerf([query(machine(si), counters["gpu.utilization.average"])])
    assert [series.id.instance for series in metric.value] == ["gpu-0", "gpu-1"]
    times = [sample.timestamp for sample in metric.sampleInfo]
    assert [later - earlier for earlier, later in pairwise(times)] == [timedelta(seconds=20)] * 2
    assert list(metric.value[0].value) == [moment.minute * 100 for moment in times]


@pytest.mark.long
def test_samples_as_csv(si: Any, counters: dict[str, int]) -> None:
    (metric,) = si.content.perfManager.QueryPerf(
        [query(machine(si), counters["cpu.usagemhz.average"], "", format="csv")]
    )
    assert metric.value[0].value == "1200,1200,1200"
    assert metric.sampleInfoCSV.count("20,") == 3


@pytest.mark.long
def test_the_database_keeps_counters_up_to_the_level_of_the_interval(
    si: Any, counters: dict[str, int], world: World
) -> None:
    """Of a GPU that is level 1 of the whole host and level 3 of each GPU; the intervals have level 1."""
    measured = {
        ("gpu.utilization.average", ""): 500,
        ("gpu.utilization.average", "gpu-0"): 1000,
        ("gpu.mem.usage.average", ""): 9900,  # level 4
        ("cpu.usagemhz.average", ""): 1200,
        ("cpu.idle.summation", ""): 20_000,  # level 2
    }
    world.counters = lambda entity, moment: measured
    performance = si.content.perfManager
    names = {key: name for name, key in counters.items()}

    def available(interval: int | None) -> set[tuple[str, str]]:
        metrics = performance.QueryAvailablePerfMetric(machine(si), intervalId=interval)
        return {(names[available_metric.counterId], available_metric.instance) for available_metric in metrics}

    assert available(20) == available(None) == measured.keys()
    kept_counters = {("gpu.utilization.average", ""), ("cpu.usagemhz.average", "")}
    for interval in performance.historicalInterval:
        assert (interval.level, interval.enabled) == (1, True)
        assert available(interval.samplingPeriod) == kept_counters
    gpu = counters["gpu.utilization.average"]
    (metric,) = performance.QueryPerf([query(machine(si), gpu, intervalId=300)])
    assert [series.id.instance for series in metric.value] == [""]
    assert performance.QueryPerf([query(machine(si), counters["cpu.idle.summation"], intervalId=300)]) == []


def test_a_cluster_has_the_means_of_its_gpus() -> None:
    world = build("lab")
    [cluster] = [entity for entity in world.by_type("ClusterComputeResource") if entity.name == "lab-cluster"]
    of_gpus: dict[str, list[int]] = {}
    for host in cluster.hosts():
        for (name, instance), value in world.counters(host, world.clock.now()).items():
            if instance:
                of_gpus.setdefault(name, []).append(value)
    names = ("gpu.utilization.average", "gpu.mem.usage.average", "gpu.temperature.average")
    expected = {(name, ""): sum(of_gpus[name]) // len(of_gpus[name]) for name in names}
    assert world.counters(cluster, world.clock.now()) == expected


@pytest.mark.long
def test_the_intervals_go_as_far_back_as_they_say(si: Any, counters: dict[str, int], world: World) -> None:
    cpu = counters["cpu.usagemhz.average"]
    lengths = {}
    for interval in si.content.perfManager.historicalInterval:
        (metric,) = si.content.perfManager.QueryPerf(
            [query(machine(si), cpu, "", intervalId=interval.samplingPeriod, maxSample=1)]
        )
        assert len(metric.sampleInfo) == interval.length // interval.samplingPeriod, "maxSample is for real time"
        lengths[interval.name] = len(metric.sampleInfo)
    assert lengths == {"Past day": 288, "Past week": 336, "Past month": 360, "Past year": 365}
    since = world.clock.now() - timedelta(minutes=30)
    (metric,) = si.content.perfManager.QueryPerf([query(machine(si), cpu, "", intervalId=300, startTime=since)])
    assert len(metric.sampleInfo) == 6


@pytest.mark.long
def test_an_interval_that_vcenter_does_not_have_is_refused(si: Any, counters: dict[str, int]) -> None:
    performance = si.content.perfManager
    with pytest.raises(vmodl.fault.InvalidArgument, match=r"querySpec\.interval"):
        performance.QueryPerf([query(machine(si), counters["cpu.usagemhz.average"], intervalId=60)])
    with pytest.raises(vmodl.fault.InvalidArgument, match="intervalId"):
        performance.QueryAvailablePerfMetric(machine(si), intervalId=60)


@pytest.mark.long
def test_realtime_goes_one_hour_back(si: Any, counters: dict[str, int], world: World) -> None:
    spec = query(machine(si), counters["cpu.usagemhz.average"], "", maxSample=None)
    (metric,) = si.content.perfManager.QueryPerf([spec])
    assert len(metric.sampleInfo) == 180


@pytest.mark.long
def test_counters_by_level_and_key(si: Any, counters: dict[str, int]) -> None:
    performance = si.content.perfManager
    assert len(counters) == 810
    by_level = [{counter.key for counter in performance.QueryPerfCounterByLevel(level)} for level in (1, 2, 3, 4)]
    assert [len(keys) for keys in by_level] == sorted(len(keys) for keys in by_level)
    assert by_level[0] < by_level[1] < by_level[2] < by_level[3] == set(counters.values())
    gpu, ecc = counters["gpu.temperature.average"], counters["gpu.mem.errors.ecc.uncorrected.latest"]
    counters_by_key = performance.QueryPerfCounter([gpu, ecc])
    assert [(counter.unitInfo.key, counter.level, counter.perDeviceLevel) for counter in counters_by_key] == [
        ("celsius", 1, 3),
        ("number", 4, 4),
    ]
    assert counters_by_key[0].nameInfo.label == "Temperature in degrees C"
    with pytest.raises(vmodl.fault.InvalidArgument):
        performance.QueryPerfCounter([99999])


def test_an_administrator_has_every_privilege(si: Any, server: SimServer) -> None:
    authority = si.content.authorizationManager
    key = si.content.sessionManager.currentSession.key
    (answer,) = authority.HasPrivilegeOnEntities([machine(si)], key, ["VirtualMachine.Interact.PowerOn"])
    assert [privilege.isGranted for privilege in answer.privAvailability] == [True]
    (fetched,) = authority.FetchUserPrivilegeOnEntities([machine(si)], server.username)
    assert "VirtualMachine.Config.AddRemoveDevice" in fetched.privileges


def test_a_lesser_role_is_refused_by_name(world: World, si: Any, server: SimServer) -> None:
    role = world.authority.add_role("watcher", ["VirtualMachine.Interact.PowerOff"])
    world.authority.permit(server.username, role)
    world.authority.permit(server.username, NO_ACCESS, "vm-2")
    with pytest.raises(vim.fault.NoPermission):
        _ = machine(si, 2).name
    contents = si.content.propertyCollector.RetrieveProperties([view_spec(si, ["name"])])
    assert [content.obj._moId for content in contents] == ["vm-1", "vm-3"]
    with pytest.raises(vim.fault.NoPermission) as caught:
        machine(si).PowerOnVM_Task()
    assert caught.value.privilegeId == "VirtualMachine.Interact.PowerOn"
    assert caught.value.object == machine(si)
    authority = si.content.authorizationManager
    privileges = ["VirtualMachine.Interact.PowerOff", "VirtualMachine.Interact.PowerOn"]
    answers = authority.HasUserPrivilegeOnEntities([machine(si, 1), machine(si, 2)], server.username, privileges)
    assert [[privilege.isGranted for privilege in answer.privAvailability] for answer in answers] == [
        [True, False],
        [False, False],
    ]
    labels = {role.name: role.info.label for role in authority.roleList}
    assert (labels["Admin"], labels["ReadOnly"], labels["watcher"]) == ("Administrator", "Read-only", "watcher")


def test_roles_can_be_managed_over_the_wire(world: World, si: Any, server: SimServer) -> None:
    authority = si.content.authorizationManager
    role_id = authority.AddAuthorizationRole("night shift", ["VirtualMachine.Interact.Suspend"])
    with pytest.raises(vim.fault.AlreadyExists):
        authority.AddAuthorizationRole("night shift", [])
    permission = vim.AuthorizationManager.Permission(
        principal="ops@vsphere.local", group=False, roleId=role_id, propagate=True
    )
    authority.SetEntityPermissions(si.content.rootFolder, [permission])
    assert world.authority.may("ops@vsphere.local", world.get("vm-1"), "VirtualMachine.Interact.Suspend")
    assert not world.authority.may("ops@vsphere.local", world.get("vm-1"), "VirtualMachine.Interact.PowerOn")
    with pytest.raises(vim.fault.RemoveFailed):
        authority.RemoveAuthorizationRole(role_id, True)
    authority.RemoveAuthorizationRole(role_id, False)
    assert [(granted.principal, granted.roleId) for granted in authority.RetrieveAllPermissions()] == [
        (server.username, -1)
    ]


def test_a_reader_sees_but_does_not_touch(world: World, si: Any, server: SimServer) -> None:
    world.authority.permit(server.username, READ_ONLY)
    assert machine(si).name == "ml-01"
    with pytest.raises(vim.fault.NoPermission):
        machine(si).PowerOnVM_Task()


def test_events_are_queried_by_entity_and_type(world: World, si: Any) -> None:
    world.events.post(None, "VmPoweredOnEvent", world.get("vm-1"), template=False)
    world.events.post(None, "VmSuspendedEvent", world.get("vm-2"), template=False)
    manager = si.content.eventManager
    assert [type(event) for event in manager.QueryEvents(vim.event.EventFilterSpec())] == [
        vim.event.VmPoweredOnEvent,
        vim.event.VmSuspendedEvent,
    ]
    assert manager.latestEvent.vm.name == "ml-02"
    by_type = vim.event.EventFilterSpec(eventTypeId=["VmSuspendedEvent"])
    assert [event.vm.vm for event in manager.QueryEvents(by_type)] == [machine(si, 2)]
    below = vim.event.EventFilterSpec.ByEntity(entity=si.content.rootFolder, recursion="all")
    assert len(manager.QueryEvents(vim.event.EventFilterSpec(entity=below))) == 2
    of_vm = vim.event.EventFilterSpec.ByEntity(entity=machine(si, 1), recursion="self")
    collector = manager.CreateCollectorForEvents(vim.event.EventFilterSpec(entity=of_vm))
    assert [event.vm.name for event in collector.latestPage] == ["ml-01"]
    assert [event.vm.name for event in collector.ReadNextEvents(10)] == ["ml-01"]
    assert "ml-01" in collector.latestPage[0].fullFormattedMessage


def test_every_scenario_and_seed_is_a_vcenter_of_its_own() -> None:
    spelled = [("lab", 0), ("lab", 0), ("lab", 1), ("vdi", 0)]
    uuids = [build(name, seed=seed).get("ServiceInstance").instance_uuid for name, seed in spelled]
    assert uuids[0] == uuids[1]
    assert len(set(uuids)) == 3
