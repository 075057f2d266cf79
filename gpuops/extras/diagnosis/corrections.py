"""Applies what admins found to the next diagnosis of the same VM, owner or image, before any model learns from it.

Pure. A model learns slowly: ten corrections among 2,600 generated cases change few leaves. So if admins found that the
first suspect of the model was wrong for a VM, their finding takes its place at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from gpuops.extras.diagnosis.answer import LEAST, Diagnosis, Suspect
from gpuops.extras.diagnosis.case import Component
from gpuops.model.vcenter.owner import NOBODY, OwnerKey
from gpuops.model.vcenter.vm import Vm

OWNER: Final = OwnerKey("attribute", "gpuops.owner")
CORRECTED: Final = 0.9
"""The probability of a component on which the corrections agree; less than 1, because people err."""
LEAST_OF_OTHERS: Final = 2
"""This many findings about other VMs must agree, so that one wrong correction affects only its own VM."""


@dataclass(frozen=True, slots=True)
class SettledDiagnosis:
    """A diagnosis that a person confirmed or corrected."""

    vm: str
    """Its managed object id."""
    named: Component
    """The first suspect of the diagnosis."""
    cause: Component
    """The component that was at fault."""


@dataclass(frozen=True, slots=True)
class LocalCorrections:
    """What people found, by group of VMs: the VM itself, its image, its owner."""

    by_group: Mapping[tuple[str, ...], tuple[SettledDiagnosis, ...]]

    @classmethod
    def of(cls, settled: Iterable[SettledDiagnosis], vms: Mapping[str, Vm]) -> LocalCorrections:
        """Return the diagnoses by the groups that their VMs are in now; those of removed VMs are left out."""
        by_group: dict[tuple[str, ...], list[SettledDiagnosis]] = {}
        for finding in settled:
            if finding.vm in vms:
                for group in _groups(vms[finding.vm]):
                    by_group.setdefault(group, []).append(finding)
        return cls({group: tuple(findings) for group, findings in by_group.items()})

    def apply_to(self, diagnosis: Diagnosis, vm: Vm) -> Diagnosis:
        """Return the diagnosis with the component that people found in place of the first suspect.

        Unchanged if a rule proves the first suspect, or if no findings agree. Findings about the VM itself have
        priority, then those about its image, then those about its owner.
        """
        if not diagnosis.suspects or diagnosis.suspects[0].by_rule:
            return diagnosis
        named = diagnosis.suspects[0].component
        for group in _groups(vm):
            findings = [finding for finding in self.by_group.get(group, ()) if finding.named is named]
            agreement = _agreement(findings, LEAST_OF_OTHERS if group[0] != "VM" else 1)
            if agreement is not None:
                component, agreeing = agreement
                return _replace_first_suspect(
                    diagnosis, component, f"{agreeing} of {len(findings)} people's findings", group[0]
                )
        return diagnosis


def _groups(vm: Vm) -> tuple[tuple[str, ...], ...]:
    """Return the groups of a VM: the VM itself, the VMs of its image, and those of its owner.

    vCenter does not store an image: VMs with the same folder, vGPU profiles and name without its number share one.
    """
    owner = OWNER.of(vm)
    image = ("image", vm.folder, vm.name.rstrip("0123456789"), *vm.profiles)
    return (("VM", vm.ref), image, *((("owner", owner),) if owner != NOBODY else ()))


def _agreement(findings: Collection[SettledDiagnosis], least: int) -> tuple[Component, int] | None:
    """Return the cause in more than half of the findings, and in how many; None = too few agree."""
    for component in {finding.cause for finding in findings}:
        agreeing = sum(finding.cause is component for finding in findings)
        if agreeing >= least and 2 * agreeing > len(findings):
            return component, agreeing
    return None


def _replace_first_suspect(diagnosis: Diagnosis, component: Component, why: str, group: str) -> Diagnosis:
    named = diagnosis.suspects[0].component
    if component is named:
        return diagnosis
    further_suspects = [suspect for suspect in diagnosis.suspects[1:] if suspect.component is not component]
    # the model's other suspects cannot be more probable than the finding leaves
    doubted = [replace(suspect, probability=min(suspect.probability, 1 - CORRECTED)) for suspect in further_suspects]
    corrected = Suspect(component, CORRECTED, (f"{why} on this {group}, not {named.value}",), by_rule=False)
    return replace(diagnosis, suspects=(corrected, *(suspect for suspect in doubted if suspect.probability >= LEAST)))
