"""Decodes clusters of a bulk read: what DRS does with their VMs, and what HA keeps free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpuops.model.vcenter.host import AdmissionControl, Cluster, DrsRule, RuleKind
from gpuops.vsphere.reading.bulk.pages import ReadObject
from gpuops.vsphere.reading.bulk.values import child, children, flag, kind, number, text, texts

_BETWEEN_VMS: Final = {
    "ClusterAffinityRuleSpec": RuleKind.TOGETHER,
    "ClusterAntiAffinityRuleSpec": RuleKind.APART,
}
_VMS_AND_HOSTS: Final = "ClusterVmHostRuleInfo"


def decode_cluster(found: ReadObject, name: str) -> Cluster:
    """The cluster of a read of `configurationEx`; what this login cannot read of it is unknown."""
    configuration: Any = found.properties.get("configurationEx")
    drs = child(configuration, "drsConfig")
    overrides = [(vm, each) for each in children(configuration, "drsVmConfig") if (vm := text(each, "key"))]
    return Cluster(
        ref=found.ref,
        name=name,
        drs_enabled=flag(drs, "enabled"),
        drs_behavior=text(drs, "defaultVmBehavior"),
        drs_overrides=tuple((vm, text(each, "behavior") or "") for vm, each in overrides),
        admission=_admission(child(configuration, "dasConfig")),
        rules=None if configuration is None else tuple(_rules(configuration)),
        drs_excluded=tuple(vm for vm, each in overrides if flag(each, "enabled") is False),
        drs_options=None if drs is None else tuple(_options(drs)),
    )


def _options(drs: Any) -> Iterator[tuple[str, str]]:
    """The advanced options of DRS; vCenter takes and tells their values as text."""
    for each in children(drs, "option"):
        if key := text(each, "key"):
            yield key, text(each, "value") or ""


def _admission(das: Any) -> AdmissionControl | None:
    """What HA keeps free. `failoverLevel` of dasConfig itself is what vCenter before 4.0 had in place of a policy."""
    if not (flag(das, "enabled") and flag(das, "admissionControlEnabled")):
        return None
    policy = child(das, "admissionControlPolicy")
    way = "" if policy is None else kind(policy)
    if way == "ClusterFailoverHostAdmissionControlPolicy":
        return AdmissionControl(failover_hosts=texts(policy, "failoverHosts"))
    level = number(das if policy is None else policy, "failoverLevel")
    if way != "ClusterFailoverResourcesAdmissionControlPolicy":
        return AdmissionControl(failover_level=level)
    computed = flag(policy, "autoComputePercentages")
    memory = number(policy, "memoryFailoverResourcesPercent") or None
    cpu = number(policy, "cpuFailoverResourcesPercent") or None
    by_level = level if computed and memory is None and cpu is None else None
    return AdmissionControl(memory_percent=memory, cpu_percent=cpu, failover_level=by_level)


def _rules(configuration: Any) -> Iterator[DrsRule]:
    """The enabled rules that say where VMs are; one between groups of VMs says when they start."""
    groups = {text(each, "name"): _members(each) for each in children(configuration, "group")}
    for each in children(configuration, "rule"):
        if flag(each, "enabled") is False:
            continue
        spoken = kind(each)
        if spoken in _BETWEEN_VMS:
            vms = texts(each, "vm")
            yield DrsRule(text(each, "name") or "", _BETWEEN_VMS[spoken], vms, mandatory=flag(each, "mandatory"))
        elif spoken == _VMS_AND_HOSTS:
            yield _vms_and_hosts(each, groups)


def _vms_and_hosts(rule: Any, groups: Mapping[str | None, tuple[str, ...]]) -> DrsRule:
    """A group that is not there has no members: a rule that names it lets its VMs be nowhere, which is refused."""
    named = text(rule, "affineHostGroupName")
    return DrsRule(
        name=text(rule, "name") or "",
        kind=RuleKind.HOSTS,
        vms=groups.get(text(rule, "vmGroupName"), ()),
        on=None if named is None else groups.get(named, ()),
        off=groups.get(text(rule, "antiAffineHostGroupName") or "", ()),
        mandatory=flag(rule, "mandatory"),
    )


def _members(group: Any) -> tuple[str, ...]:
    return (*texts(group, "vm"), *texts(group, "host"))
