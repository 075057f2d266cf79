"""What else is on a host that is rebooted: host profiles, vSAN, vCLS machines, templates, VMs with DirectPath I/O."""

from __future__ import annotations

from typing import Any, Final

import pytest

from gpuops.model.vcenter.host_settings import Displacement, VsanMode
from gpuops.plan.core.plan import Verdict
from gpuops.plan.hosts.change.emptying import Leaving
from gpuops.plan.hosts.graphics.passthrough import SetPassthrough
from gpuops.sim.fault_injection.rule import Effect, Rule, rules_of
from gpuops.sim.objects.host_system import HostProfile
from gpuops.sim.state.drs import HaAdmission
from gpuops.sim.state.vm_state import Power
from tests.sample import mostly_long
from tests.wire.hosts.clusters import cluster, desktops
from tests.wire.hosts.rolling import ONE, OPTIONS, Bench, Start

pytestmark = pytest.mark.long

PLAIN: Final[dict[str, Any]] = {"devices": []}
GIVEN: Final = "0000:af:00.0"
MMIO: Final = {"pciPassthru.use64bitMMIO": "TRUE", "pciPassthru.64bitMMIOSizeGB": "128"}


def state(bench: Bench, name: str = "esx-01") -> Any:
    return bench.host(name).state


@pytest.mark.long
def test_a_host_profile_is_warned_of_and_what_it_sets_back_stops_the_change(start: Start) -> None:
    bench = start(cluster(2, [], host_profile={"name": "golden"}))
    [warning] = bench.roll(ONE, apply=False).plan.warnings
    assert warning == (
        "host profile golden is attached to esx-01: remediation, and each boot of a stateless host, reset "
        "module options that are not in it; change the profile too"
    )
    report = bench.roll(ONE)
    [outcome] = report.outcomes
    assert (report.exit_code, outcome.verdict) == (4, Verdict.FAILED)
    assert "it is back, and its module nvidia was loaded with '', not with" in outcome.reason
    assert state(bench).in_maintenance


@pytest.mark.long
def test_a_host_profile_with_the_same_options_is_warned_of_and_stops_nothing(start: Start) -> None:
    bench = start(cluster(1, [], host_profile={"name": "golden", "module_options": OPTIONS}))
    report = bench.roll(ONE)
    assert (report.exit_code, len(report.plan.warnings)) == (0, 1), report.outcomes


def test_a_profile_of_the_host_itself_is_found_and_one_of_another_is_not(start: Start) -> None:
    bench = start(cluster(2, []))
    for number, name in enumerate(("esx-01", "esx-02"), 1):
        attached = (bench.host(name).moid,)
        bench.world.register(HostProfile(bench.world, f"hostprofile-{number}", f"of-{name}", attached, ""))
    [warning] = bench.roll(ONE, apply=False).plan.warnings
    assert warning.startswith("host profile of-esx-01 is attached to esx-01: ")


def test_a_cluster_that_keeps_the_configuration_of_its_hosts_is_warned_of(start: Start) -> None:
    bench = start(cluster(2, [], config_managed=True))
    [warning] = bench.roll(ONE, apply=False).plan.warnings
    assert warning.startswith("cluster c manages the configuration of its hosts (esx-01): its next remediation resets")


@pytest.mark.long
def test_where_nobody_else_sets_hosts_there_is_nothing_to_warn_of(start: Start) -> None:
    assert start(cluster(2, [])).roll(ONE, apply=False).plan.warnings == ()


@pytest.mark.long
@pytest.mark.parametrize(
    "fault", mostly_long(["MethodNotFound", "NoPermission", "ManagedObjectNotFound"], ["NoPermission"])
)
def test_where_vcenter_does_not_tell_that_is_said_and_stops_nothing(start: Start, fault: str) -> None:
    bench = start(cluster(2, []))
    bench.world.injector.add(Rule(Effect.FAULT, "FindAssociatedProfile", fault=fault, times=None))
    [warning] = bench.roll(ONE, apply=False).plan.warnings
    assert warning == (
        "this login cannot read whether a host profile or the cluster's configuration resets module options of esx-01"
    )


@pytest.mark.long
def test_before_vsphere_8_no_cluster_keeps_the_configuration_of_its_hosts(start: Start) -> None:
    world = cluster(2, [])
    world.api_version = "7.0.3.0"
    assert start(world).roll(ONE, apply=False).plan.warnings == ()


@pytest.mark.long
@pytest.mark.parametrize("mode", mostly_long(VsanMode, [VsanMode.ENSURE, VsanMode.EVACUATE]))
def test_vsan_does_with_the_data_of_the_host_what_was_said(start: Start, mode: VsanMode) -> None:
    bench = start(cluster(1, []))
    report = bench.roll(ONE) if mode is VsanMode.ENSURE else bench.roll(ONE, vsan_mode=mode)
    assert report.exit_code == 0, report.outcomes
    vsan_modes = [change.after["vsan_mode"] for change in bench.world.ledger if "vsan_mode" in change.after]
    assert vsan_modes == [mode.value], "ensureObjectAccessibility unless something else is said"


@pytest.mark.long
def test_vcls_machines_are_left_to_vcenter_and_templates_stay(start: Start) -> None:
    agent = {**desktops(1, 1, first=1), **PLAIN, "name": "vCLS-{:04}", "guest": "bare"}
    template = {**desktops(1, 1, first=1), "name": "golden-{:02}", "power": "off", "template": True}
    bench = start(cluster(2, [agent, template]))
    before = bench.places()
    [turn] = bench.roll(ONE, apply=False).plan.planned_hosts
    assert [(departure.vm.name, departure.leaving) for departure in turn.away] == [("vCLS-0001", Leaving.DRS)]
    report = bench.roll(ONE)
    assert report.exit_code == 0, report.outcomes
    bench.world.clock.advance(60)
    assert bench.places() == before
    ours = [change for change in bench.world.ledger if change.operation_id.startswith("gpuops-")]
    assert {entry.name for entry in ours} == {"esx-01"}


@pytest.mark.long
def test_a_host_with_a_directpath_vm_is_refused_by_name_or_has_it_shut_down(start: Start) -> None:
    device = {"devices": [{"direct_path": GIVEN}], "extra_config": MMIO}
    bench = start(
        cluster(2, [{**desktops(1, 1, first=1), "name": "ml-{:02}", **device}], gpus=2, in_directpath=[GIVEN])
    )
    report = bench.roll(ONE)
    assert (report.exit_code, list(bench.world.ledger)) == (3, [])
    assert [str(rejection) for rejection in report.plan.rejections] == [
        "esx-01: ml-01 cannot leave the host while it runs: has a passthrough device that is not a vGPU"
    ]
    before = bench.places()
    report = bench.roll(ONE, vms=Displacement.SHUT_DOWN)
    assert report.exit_code == 0, report.outcomes
    assert bench.places() == before
    assert before["ml-01"] == ("esx-01", Power.ON)
    stopped = [change.name for change in bench.world.ledger if change.after.get("power") == "poweredOff"]
    assert stopped == ["ml-01"]


@pytest.mark.long
@pytest.mark.parametrize("survives", [True, False])
def test_a_host_whose_mig_mode_does_not_survive_its_boot_stops_the_change(start: Start, survives: bool) -> None:
    bench = start(cluster(1, [], gpus=2, board="a100", mode="multiInstanceGpu"))
    if not survives:
        bench.world.injector.add(*rules_of("B4"))
    report = bench.roll(SetPassthrough(True, (GIVEN,), host="esx-01"))
    [outcome] = report.outcomes
    if survives:
        assert report.exit_code == 0, outcome
    else:
        assert (report.exit_code, outcome.verdict) == (4, Verdict.FAILED)
        assert "MIG mode of 0000:3b:00.0 did not survive its boot: gpuops host mig on --host esx-01" in outcome.reason


@pytest.mark.long
def test_a_failover_host_of_ha_takes_no_vm_and_what_ha_keeps_free_refuses_the_change(start: Start) -> None:
    bench = start(cluster(3, [desktops(1, 2, first=1)]))
    [cluster_entity] = bench.world.by_type("ClusterComputeResource")
    cluster_entity.drs.ha_enabled, cluster_entity.drs.ha_admission = (
        True,
        HaAdmission(failover_hosts=(bench.host("esx-02").moid,)),
    )
    [turn] = bench.roll(ONE, apply=False).plan.planned_hosts
    assert {departure.target.name for departure in turn.away if departure.target} == {"esx-03"}
    cluster_entity.drs.ha_admission = HaAdmission(memory_percent=99)
    cluster_entity.touch("configurationEx", "configuration")
    report = bench.roll(ONE)
    assert (report.exit_code, list(bench.world.ledger)) == (3, [])
    assert "that HA keeps free for the failure of a host" in str(report.plan.rejections[0])
