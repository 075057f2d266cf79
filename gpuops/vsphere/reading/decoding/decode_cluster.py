"""Decodes clusters of a bulk read: DRS settings and rules, and the capacity that HA reserves."""

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


def decode_cluster(read_object: ReadObject, name: str) -> Cluster:
    """Return the cluster of a read of `configurationEx`; properties that this login cannot read are unknown."""
    configuration: Any = read_object.properties.get("configurationEx")
    drs = child(configuration, "drsConfig")
    overrides = [(vm, override) for override in children(configuration, "drsVmConfig") if (vm := text(override, "key"))]
    return Cluster(
        ref=read_object.ref,
        name=name,
        drs_enabled=flag(drs, "enabled"),
        drs_behavior=text(drs, "defaultVmBehavior"),
        drs_overrides=tuple((vm, text(override, "behavior") or "") for vm, override in overrides),
        admission=_admission(child(configuration, "dasConfig")),
        rules=None if configuration is None else tuple(_rules(configuration)),
        drs_excluded=tuple(vm for vm, override in overrides if flag(override, "enabled") is False),
        drs_options=None if drs is None else tuple(_options(drs)),
    )


def _options(drs: Any) -> Iterator[tuple[str, str]]:
    """Yield the advanced options of DRS with their values, which vCenter stores as text."""
    for option in children(drs, "option"):
        if key := text(option, "key"):
            yield key, text(option, "value") or ""


def _admission(das: Any) -> AdmissionControl | None:
    """Return what HA reserves. vCenter before 4.0 had `failoverLevel` of dasConfig itself in place of a policy."""
    if not (flag(das, "enabled") and flag(das, "admissionControlEnabled")):
        return None
    policy = child(das, "admissionControlPolicy")
    policy_type = "" if policy is None else kind(policy)
    if policy_type == "ClusterFailoverHostAdmissionControlPolicy":
        return AdmissionControl(failover_hosts=texts(policy, "failoverHosts"))
    level = number(das if policy is None else policy, "failoverLevel")
    if policy_type != "ClusterFailoverResourcesAdmissionControlPolicy":
        return AdmissionControl(failover_level=level)
    computed = flag(policy, "autoComputePercentages")
    memory = number(policy, "memoryFailoverResourcesPercent") or None
    cpu = number(policy, "cpuFailoverResourcesPercent") or None
    by_level = level if computed and memory is None and cpu is None else None
    return AdmissionControl(memory_percent=memory, cpu_percent=cpu, failover_level=by_level)


def _rules(configuration: Any) -> Iterator[DrsRule]:
    """Yield the enabled rules about the placement of VMs. A rule between groups of VMs is about their start order."""
    groups = {text(group, "name"): _members(group) for group in children(configuration, "group")}
    for rule in children(configuration, "rule"):
        if flag(rule, "enabled") is False:
            continue
        rule_type = kind(rule)
        if rule_type in _BETWEEN_VMS:
            vms = texts(rule, "vm")
            yield DrsRule(text(rule, "name") or "", _BETWEEN_VMS[rule_type], vms, mandatory=flag(rule, "mandatory"))
        elif rule_type == _VMS_AND_HOSTS:
            yield _vms_and_hosts(rule, groups)


def _vms_and_hosts(rule: Any, groups: Mapping[str | None, tuple[str, ...]]) -> DrsRule:
    """Return the rule. A group that does not exist has no members: the rule then allows no host."""
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
