"""ReconfigureComputeResource_Task: DRS settings, per-VM overrides, groups and rules of a cluster.

`modify=False` resets to defaults what the spec leaves out (vSphere API, ReconfigureComputeResource_Task); `add` of an
override or group that exists, or of a rule whose name another one has, is refused (from memory).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import VmomiSupport, vim

from gpuops.sim.inventory import faults
from gpuops.sim.operations import permissions
from gpuops.sim.state.drs import Behavior, ClusterRule, DrsState, Group, HaAdmission, Override

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import ComputeEntity

RECONFIGURE_S: Final = 1.0


def reconfigure(cluster: ComputeEntity, call: Call, spec: Any, *, modify: bool) -> Any:
    """Return the task that applies a ClusterConfigSpecEx; without `modify` the spec replaces all settings."""
    permissions.require_to_edit_cluster(cluster, call)

    def finish() -> None:
        before = asdict(cluster.drs)
        changed = copy.deepcopy(cluster.drs) if modify else DrsState()
        _apply(changed, spec)
        cluster.drs = changed
        cluster.touch("configurationEx", "configuration", "summary")
        cluster.world.ledger.record(call, cluster, before=before, after=asdict(changed))
        cluster.post(call, "ClusterReconfiguredEvent")

    return cluster.world.tasks.start(
        call, "ReconfigureComputeResource_Task", cluster, RECONFIGURE_S, finish=finish, exclusive=True
    )


def settings_of(spec: Any) -> DrsState:
    """Return the settings of a new cluster: DRS and HA are off unless its ClusterConfigSpecEx turns them on."""
    drs = DrsState(enabled=False)
    _apply(drs, spec)
    return drs


def _apply(drs: DrsState, spec: Any) -> None:
    for name in _set_fields(spec):
        apply_field = APPLIERS.get(name)
        if apply_field is None:
            raise faults.not_supported(f"The simulated vCenter does not support ClusterConfigSpecEx.{name}.")
        apply_field(drs, getattr(spec, name))


def _set_fields(value: Any) -> list[str]:
    """Return the names of the fields that are set; an object without set fields counts as unset.

    govc, for example, always sends an empty `<vsanConfig><defaultConfig/></vsanConfig>`.
    """
    return [field.name for field in value._GetPropertyList() if _is_set(getattr(value, field.name))]


def _is_set(value: Any) -> bool:
    if isinstance(value, VmomiSupport.DataObject):
        return bool(_set_fields(value))
    return value not in (None, [])


def _set_drs(drs: DrsState, config: Any) -> None:
    """Apply a ClusterDrsConfigInfo; fields that are not set stay unchanged."""
    if config.enabled is not None:
        drs.enabled = config.enabled
    if config.enableVmBehaviorOverrides is not None:
        drs.overrides_allowed = config.enableVmBehaviorOverrides
    if config.defaultVmBehavior is not None:
        drs.behavior = Behavior(str(config.defaultVmBehavior))
    if config.vmotionRate is not None:
        if not 1 <= config.vmotionRate <= 5:
            raise faults.wrong_argument("spec.drsConfig.vmotionRate")
        drs.vmotion_rate = config.vmotionRate
    for option in config.option:
        if option.value in ("", None):  # an option without a value is removed
            drs.options.pop(option.key, None)
        else:
            drs.options[option.key] = str(option.value)


def _set_predictive_drs(drs: DrsState, config: Any) -> None:
    if config.enabled is not None:
        drs.predictive = config.enabled


def _set_ha(drs: DrsState, config: Any) -> None:
    if config.enabled is not None:
        drs.ha_enabled = config.enabled
    if config.admissionControlEnabled is False:
        drs.ha_admission = None
    elif config.admissionControlEnabled or config.admissionControlPolicy is not None:
        drs.ha_admission = _ha_admission(config.admissionControlPolicy)


def _ha_admission(policy: Any) -> HaAdmission:
    match policy:
        case vim.cluster.FailoverHostAdmissionControlPolicy():
            return HaAdmission(failover_hosts=tuple(host._moId for host in policy.failoverHosts))
        case vim.cluster.FailoverResourcesAdmissionControlPolicy():
            return HaAdmission(
                memory_percent=policy.memoryFailoverResourcesPercent, cpu_percent=policy.cpuFailoverResourcesPercent
            )
        case None:
            return HaAdmission()
        case _:  # FailoverLevelAdmissionControlPolicy
            return HaAdmission(failover_level=policy.failoverLevel)


def _set_overrides(drs: DrsState, specs: list[Any]) -> None:
    for spec in specs:
        key = _key_of(spec, lambda info: info.key._moId)
        _require_existence(spec, key in drs.overrides, "spec.drsVmConfigSpec")
        if spec.operation == "remove":
            del drs.overrides[key]
            continue
        behavior = Behavior(str(spec.info.behavior)) if spec.info.behavior else None
        drs.overrides[key] = Override(spec.info.enabled is not False, behavior)


def _set_groups(drs: DrsState, specs: list[Any]) -> None:
    for spec in specs:
        name = _key_of(spec, lambda info: info.name)
        _require_existence(spec, name in drs.groups, "spec.groupSpec")
        if spec.operation == "remove":
            del drs.groups[name]
            continue
        of_hosts = isinstance(spec.info, vim.cluster.HostGroup)
        members = spec.info.host if of_hosts else spec.info.vm
        drs.groups[name] = Group(name, of_hosts, tuple(member._moId for member in members))


def _set_rules(drs: DrsState, specs: list[Any]) -> None:
    """Add, edit or remove rules; a new rule gets the key after the highest one."""
    for spec in specs:
        if spec.operation == "add":
            key = max(drs.rules, default=0) + 1
            _require_existence(
                spec, spec.info.name in {rule.name for rule in drs.rules.values()}, "spec.rulesSpec.info.name"
            )
        else:
            key = _key_of(spec, lambda info: info.key)
            _require_existence(spec, key in drs.rules, "spec.rulesSpec")
        if spec.operation == "remove":
            del drs.rules[key]
        else:
            drs.rules[key] = _rule(key, spec.info)


def _rule(key: int, info: Any) -> ClusterRule:
    return ClusterRule(
        key=key,
        name=info.name or "",
        kind=info._wsdlName,
        enabled=bool(info.enabled),
        mandatory=bool(info.mandatory),
        vms=tuple(vm._moId for vm in getattr(info, "vm", [])),
        vm_group=getattr(info, "vmGroupName", None),
        affine_hosts=getattr(info, "affineHostGroupName", None),
        anti_affine_hosts=getattr(info, "antiAffineHostGroupName", None),
    )


def _key_of(spec: Any, of_info: Callable[[Any], Any]) -> Any:
    if spec.operation == "remove":
        return getattr(spec.removeKey, "_moId", spec.removeKey)
    return of_info(spec.info)


def _require_existence(spec: Any, exists: bool, name: str) -> None:
    """Raises InvalidArgument for `name` if the spec adds what exists, or edits or removes what does not."""
    if exists is (spec.operation == "add"):
        raise faults.wrong_argument(name)


APPLIERS: Final[dict[str, Callable[[DrsState, Any], None]]] = {
    "drsConfig": _set_drs,
    "proactiveDrsConfig": _set_predictive_drs,
    "dasConfig": _set_ha,
    "drsVmConfigSpec": _set_overrides,
    "groupSpec": _set_groups,
    "rulesSpec": _set_rules,
}
