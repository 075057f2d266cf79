"""The configuration of a cluster: DRS with its overrides, groups and rules, and HA's admission control."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Behavior(StrEnum):
    """DrsBehavior: how much DRS does without asking."""

    MANUAL = "manual"
    PARTIAL = "partiallyAutomated"
    FULL = "fullyAutomated"


@dataclass(frozen=True, slots=True)
class Override:
    """DRS of one VM; `behavior` None follows the cluster."""

    enabled: bool = True
    behavior: Behavior | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A named set of VMs or of hosts, by moid."""

    name: str
    of_hosts: bool
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterRule:
    """A VM-host rule, or an (anti-)affinity rule between VMs."""

    key: int
    name: str
    kind: str
    """ClusterVmHostRuleInfo, ClusterAffinityRuleSpec or ClusterAntiAffinityRuleSpec."""
    enabled: bool
    mandatory: bool
    vms: tuple[str, ...] = ()
    vm_group: str | None = None
    affine_hosts: str | None = None
    anti_affine_hosts: str | None = None


@dataclass(frozen=True, slots=True)
class HaAdmission:
    """HA's admission control, one of three ways: slots for a failover level, percentages, or failover hosts."""

    failover_level: int = 1
    memory_percent: int | None = None
    cpu_percent: int | None = None
    """None = as much as of the memory."""
    failover_hosts: tuple[str, ...] | None = None
    """By moid."""


@dataclass(slots=True)
class DrsState:
    """The DRS configuration of one cluster."""

    enabled: bool = True
    behavior: Behavior = Behavior.PARTIAL
    overrides_allowed: bool = True
    predictive: bool = False
    vmotion_rate: int = 3
    options: dict[str, str] = field(default_factory=dict)
    overrides: dict[str, Override] = field(default_factory=dict)
    """VM moid -> its override."""
    groups: dict[str, Group] = field(default_factory=dict)
    rules: dict[int, ClusterRule] = field(default_factory=dict)
    ha_enabled: bool = False
    ha_admission: HaAdmission | None = None
    """None = HA refuses no power-on."""

    def behavior_for(self, vm: str) -> Behavior | None:
        """Return how DRS treats a VM; None = DRS is off for it."""
        if not self.enabled:
            return None
        override = self.overrides.get(vm) if self.overrides_allowed else None
        if override is None:
            return self.behavior
        if not override.enabled:
            return None
        return override.behavior or self.behavior

    def allows(self, vm: str, host: str) -> bool:
        """Whether no mandatory VM-host rule keeps the VM off the host; such rules bind even without DRS."""
        return all(self._rule_allows(rule, vm, host) for rule in self._binding_rules(vm))

    def forget(self, vm: str) -> None:
        """Drop the override and the group memberships of a VM."""
        self.overrides.pop(vm, None)
        for name, group in self.groups.items():
            if vm in group.members:
                self.groups[name] = replace(group, members=tuple(moid for moid in group.members if moid != vm))

    def _binding_rules(self, vm: str) -> Iterable[ClusterRule]:
        for rule in self.rules.values():
            if rule.enabled and rule.mandatory and rule.vm_group and vm in self._members(rule.vm_group):
                yield rule

    def _rule_allows(self, rule: ClusterRule, vm: str, host: str) -> bool:
        if rule.affine_hosts and host not in self._members(rule.affine_hosts):
            return False
        return not (rule.anti_affine_hosts and host in self._members(rule.anti_affine_hosts))

    def _members(self, name: str) -> tuple[str, ...]:
        group = self.groups.get(name)
        return group.members if group else ()
