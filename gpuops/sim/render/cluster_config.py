"""Configuration and summary of a cluster."""

from __future__ import annotations

from typing import Any

from pyVmomi import VmomiSupport, vim

from gpuops.sim.render.defaults import default
from gpuops.sim.state.drs import ClusterRule, DrsState, Group, HaAdmission


def configuration_ex(drs: DrsState) -> Any:
    """ClusterConfigInfoEx."""
    return default(
        "ClusterConfigInfoEx",
        drsConfig=_drs(drs),
        drsVmConfig=_overrides(drs),
        dasConfig=_ha(drs),
        group=[_group(group) for group in drs.groups.values()],
        rule=[_rule(rule) for rule in drs.rules.values()],
        proactiveDrsConfig=vim.cluster.ProactiveDrsConfigInfo(enabled=drs.predictive),
    )


def configuration(drs: DrsState) -> Any:
    """The older ClusterConfigInfo."""
    return vim.cluster.ConfigInfo(
        dasConfig=_ha(drs),
        drsConfig=_drs(drs),
        drsVmConfig=_overrides(drs),
        rule=[_rule(rule) for rule in drs.rules.values()],
    )


def summary(totals: dict[str, Any]) -> Any:
    return default("ClusterComputeResourceSummary", **totals)


def resource_usage(totals: dict[str, Any], host_usages: list[tuple[int, int]], datastores: list[Any]) -> Any:
    """ClusterResourceUsageSummary; `host_usages` are (MHz, MiB) of each host."""
    capacity = sum(store.capacity_mib for store in datastores)
    return vim.cluster.ResourceUsageSummary(
        cpuUsedMHz=sum(mhz for mhz, _ in host_usages),
        cpuCapacityMHz=totals["totalCpu"],
        memUsedMB=sum(mib for _, mib in host_usages),
        memCapacityMB=totals["totalMemory"] >> 20,
        storageUsedMB=capacity - sum(store.free_mib for store in datastores),
        storageCapacityMB=capacity,
    )


def _drs(drs: DrsState) -> Any:
    return vim.cluster.DrsConfigInfo(
        enabled=drs.enabled,
        enableVmBehaviorOverrides=drs.overrides_allowed,
        defaultVmBehavior=drs.behavior.value,
        vmotionRate=drs.vmotion_rate,
        scaleDescendantsShares="disabled",
        option=[vim.option.OptionValue(key=key, value=value) for key, value in sorted(drs.options.items())],
    )


def _ha(drs: DrsState) -> Any:
    return default(
        "ClusterDasConfigInfo",
        enabled=drs.ha_enabled,
        failoverLevel=drs.ha_admission.failover_level if drs.ha_admission else 1,
        admissionControlEnabled=drs.ha_admission is not None,
        admissionControlPolicy=None if drs.ha_admission is None else _admission(drs.ha_admission),
    )


def _admission(admission: HaAdmission) -> Any:
    """Return the policy of HA's admission control: failover hosts, percentages, or a number of host failures."""
    if admission.failover_hosts is not None:
        hosts = [vim.HostSystem(moid) for moid in admission.failover_hosts]
        return vim.cluster.FailoverHostAdmissionControlPolicy(
            resourceReductionToToleratePercent=100, failoverHosts=hosts, failoverLevel=len(hosts)
        )
    if admission.memory_percent is not None:
        return default(
            "ClusterFailoverResourcesAdmissionControlPolicy",
            cpuFailoverResourcesPercent=admission.memory_percent
            if admission.cpu_percent is None
            else admission.cpu_percent,
            memoryFailoverResourcesPercent=admission.memory_percent,
            failoverLevel=admission.failover_level,
        )
    return vim.cluster.FailoverLevelAdmissionControlPolicy(
        resourceReductionToToleratePercent=100, failoverLevel=admission.failover_level
    )


def _overrides(drs: DrsState) -> list[Any]:
    return [
        vim.cluster.DrsVmConfigInfo(
            key=vim.VirtualMachine(vm), enabled=override.enabled, behavior=(override.behavior or drs.behavior).value
        )
        for vm, override in drs.overrides.items()
    ]


def _group(group: Group) -> Any:
    if group.of_hosts:
        return vim.cluster.HostGroup(name=group.name, host=[vim.HostSystem(moid) for moid in group.members])
    return vim.cluster.VmGroup(name=group.name, vm=[vim.VirtualMachine(moid) for moid in group.members])


def _rule(rule: ClusterRule) -> Any:
    """Return a DRS rule between VMs, or between a group of VMs and groups of hosts."""
    rendered = VmomiSupport.GetWsdlType("urn:vim25", rule.kind)(
        key=rule.key,
        name=rule.name,
        enabled=rule.enabled,
        mandatory=rule.mandatory,
        userCreated=True,
        status="green",
        inCompliance=True,
        ruleUuid=f"00000000-0000-4000-8000-{rule.key:012d}",
    )
    if rule.vm_group is not None:
        rendered.vmGroupName = rule.vm_group
        rendered.affineHostGroupName = rule.affine_hosts
        rendered.antiAffineHostGroupName = rule.anti_affine_hosts
    elif rule.vms:
        rendered.vm = [vim.VirtualMachine(moid) for moid in rule.vms]
    return rendered
