"""Clusters through real pyVmomi: DRS settings, overrides, groups and rules, and what they do at power-on."""

from __future__ import annotations

from typing import Any

import pytest
from pyVmomi import vim, vmodl

from tests.sim.lab import Lab

C = vim.cluster


def reconfigure(lab: Lab, modify: bool = True, **fields: Any) -> None:
    lab.run(lab.cluster().ReconfigureComputeResource_Task(C.ConfigSpecEx(**fields), modify))


def override(lab: Lab, name: str, operation: str = "add", **fields: Any) -> Any:
    return C.DrsVmConfigSpec(operation=operation, info=C.DrsVmConfigInfo(key=lab.vm(name), **fields))


@pytest.mark.long
def test_override_comes_changes_and_goes(lab: Lab) -> None:
    reconfigure(lab, drsVmConfigSpec=[override(lab, "vdi-01", behavior="manual")])
    (drs_override,) = lab.cluster().configurationEx.drsVmConfig
    assert (drs_override.key, drs_override.behavior, drs_override.enabled) == (lab.vm("vdi-01"), "manual", True)
    with pytest.raises(vmodl.fault.InvalidArgument):
        reconfigure(lab, drsVmConfigSpec=[override(lab, "vdi-01", behavior="manual")])
    reconfigure(lab, drsVmConfigSpec=[override(lab, "vdi-01", "edit", enabled=False)])
    assert lab.cluster().configurationEx.drsVmConfig[0].enabled is False
    reconfigure(lab, drsVmConfigSpec=[C.DrsVmConfigSpec(operation="remove", removeKey=lab.vm("vdi-01"))])
    assert lab.cluster().configurationEx.drsVmConfig == []


@pytest.mark.long
def test_options_are_kept_and_without_modify_all_is_reset(lab: Lab) -> None:
    option = vim.option.OptionValue(key="VgpuMMAutomationTimeoutSecs", value="-1")
    reconfigure(lab, drsConfig=C.DrsConfigInfo(defaultVmBehavior="fullyAutomated", vmotionRate=5, option=[option]))
    drs = lab.cluster().configurationEx.drsConfig
    assert (drs.defaultVmBehavior, drs.vmotionRate, drs.option[0].value) == ("fullyAutomated", 5, "-1")
    reconfigure(lab, False, drsConfig=C.DrsConfigInfo(enabled=True))
    drs = lab.cluster().configurationEx.drsConfig
    assert (drs.defaultVmBehavior, drs.option) == ("partiallyAutomated", [])


@pytest.mark.long
@pytest.mark.parametrize("fields", [{"behavior": "manual"}, {"enabled": False}])
def test_vm_that_drs_leaves_alone_starts_on_its_own_host_or_not_at_all(lab: Lab, fields: dict[str, Any]) -> None:
    reconfigure(lab, drsVmConfigSpec=[override(lab, "ml-06", **fields)])
    with pytest.raises(vim.fault.InsufficientGraphicsResourcesFault):
        lab.power_on("ml-06")


@pytest.mark.long
def test_mandatory_rule_binds_power_on(lab: Lab) -> None:
    vms = C.VmGroup(name="ml", vm=[lab.vm("ml-06")])
    hosts = C.HostGroup(name="first", host=[lab.host("esx-01.lab")])
    rule = C.VmHostRuleInfo(name="stay", enabled=True, mandatory=True, vmGroupName="ml", affineHostGroupName="first")
    reconfigure(
        lab,
        groupSpec=[C.GroupSpec(operation="add", info=group) for group in (vms, hosts)],
        rulesSpec=[C.RuleSpec(operation="add", info=rule)],
    )
    with pytest.raises(vim.fault.NoCompatibleHost) as refused:
        lab.power_on("ml-06")
    assert [type(error) for error in refused.value.error] == [
        vim.fault.InsufficientGraphicsResourcesFault,
        vim.fault.VmHostAffinityRuleViolation,
    ]
    (drs_rule,) = lab.cluster().configurationEx.rule
    assert (drs_rule.name, drs_rule.mandatory, drs_rule.affineHostGroupName) == ("stay", True, "first")
    reconfigure(lab, rulesSpec=[C.RuleSpec(operation="remove", removeKey=drs_rule.key)])
    lab.power_on("ml-06")


@pytest.mark.long
def test_unknown_part_of_a_spec_is_refused_by_name(lab: Lab) -> None:
    with pytest.raises(vmodl.fault.NotSupported, match="dpmConfig"):
        reconfigure(lab, dpmConfig=C.DpmConfigInfo(enabled=True))


def test_summary_counts_hosts_that_can_be_used(lab: Lab) -> None:
    summary = lab.cluster().summary
    assert (summary.numHosts, summary.numEffectiveHosts, summary.numCpuCores) == (2, 2, 128)
    assert summary.totalMemory == 2 << 40


@pytest.mark.long
def test_full_automation_moves_vms_out_of_maintenance_if_vgpus_may_move(lab: Lab) -> None:
    lab.world.options["vgpu.hotmigrate.enabled"] = True
    lab.run(lab.vm("vdi-09").SuspendVM_Task())
    lab.run(lab.vm("vdi-10").SuspendVM_Task())
    for name in ("vdi-01", "vdi-02"):
        lab.power_off(name)
    option = vim.option.OptionValue(key="VgpuMMAutomationTimeoutSecs", value="-1")
    reconfigure(lab, drsConfig=C.DrsConfigInfo(defaultVmBehavior="fullyAutomated", option=[option]))
    lab.run(lab.host("esx-02.lab").EnterMaintenanceMode_Task(0))
    assert lab.vm("vdi-07").runtime.host == lab.host("esx-01.lab")
    assert lab.gpus("esx-01.lab")["0000:d8:00.0"] == ["vdi-03", "vdi-04", "vdi-05", "vdi-07", "vdi-08"]


def test_resource_usage_is_what_hosts_and_datastores_have(lab: Lab) -> None:
    usage, summary = lab.cluster().GetResourceUsage(), lab.cluster().summary
    assert (usage.cpuCapacityMHz, usage.memCapacityMB << 20) == (summary.totalCpu, summary.totalMemory)
    stats = [host.summary.quickStats for host in lab.cluster().host]
    assert usage.cpuUsedMHz == sum(quick_stats.overallCpuUsage for quick_stats in stats) > 0
    assert usage.memUsedMB == sum(quick_stats.overallMemoryUsage for quick_stats in stats) > 0
    (store,) = lab.cluster().datastore
    assert usage.storageCapacityMB << 20 == store.summary.capacity
    assert (usage.storageCapacityMB - usage.storageUsedMB) << 20 == store.summary.freeSpace


def test_the_older_reconfiguration_changes_the_same(lab: Lab) -> None:
    lab.run(lab.cluster().ReconfigureCluster_Task(C.ConfigSpec(drsVmConfigSpec=[override(lab, "vdi-01")]), True))
    assert [drs_override.key for drs_override in lab.cluster().configurationEx.drsVmConfig] == [lab.vm("vdi-01")]


@pytest.mark.long
def test_predictive_drs_is_kept(lab: Lab) -> None:
    reconfigure(lab, proactiveDrsConfig=C.ProactiveDrsConfigInfo(enabled=True))
    assert lab.cluster().configurationEx.proactiveDrsConfig.enabled is True
    reconfigure(lab, drsConfig=C.DrsConfigInfo(enabled=True), modify=False)
    assert lab.cluster().configurationEx.proactiveDrsConfig.enabled is False
