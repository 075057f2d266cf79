"""Which component slows VMs down: by the store of measurements and one bulk read, or by cases of files."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.advise.diagnosis.answer import Diagnosed, DiagnosedVm, JudgedCases, diagnose_cases, scores
from gpuops.advise.diagnosis.corrections import LocalCorrections
from gpuops.advise.diagnosis.judging import components_right
from gpuops.errors import UsageError
from gpuops.execute.measurements.case_reading import read_cases
from gpuops.execute.measurements.diagnoses import Diagnoses
from gpuops.execute.site import Site, catalog_of

if TYPE_CHECKING:
    from datetime import datetime

    from gpuops.advise.diagnosis.learning import TrainingOutcome
    from gpuops.execute.site.notice_way import NoticeWay
    from gpuops.model.measurements.case import LabelledCase
    from gpuops.model.measurements.component import Component
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.model.vcenter.vm import Vm


def diagnose(
    inventory: Inventory,
    site: Site,
    *,
    vm: str | None = None,
    host: str | None = None,
    since: datetime | None = None,
) -> Diagnosed:
    """What is at fault of each running VM with a vGPU, of those named so, or of those on a host. Changes nothing in
    vCenter; each answer is kept, so that it can be confirmed or corrected. Reads the settings of the VMs' hosts.

    Raises UsageError for VMs that are not there or without history, VmNotFound, HostNotFound, StateDamaged.
    """
    vms = _meant(inventory, vm, host)
    inventory = site.hosts.with_settings(inventory, sorted({each.host for each in vms if each.host is not None}))
    cases, left_out = read_cases(site.measurements_store, inventory, catalog_of(inventory), vms, since)
    kept = Diagnoses(site.state_dir)
    model = kept.model()
    there = [each for each in vms if each.ref in cases]
    corrections = LocalCorrections.of(kept.settled(inventory.vcenter), inventory.vms)
    by_model = diagnose_cases([cases[each.ref] for each in there], model)
    answers = [corrections.apply_to(answer, each) for each, answer in zip(there, by_model, strict=True)]
    found = []
    for each, answer in zip(there, answers, strict=True):
        case = cases[each.ref]
        of = inventory.hosts.get(each.host or "")
        steps = max(int((values == values).sum()) for values in case.series.values())  # NaN alone is not itself
        name = kept.note(inventory.vcenter, each.ref, case, answer.suspects, inventory.taken_at)
        found.append(DiagnosedVm(name, each.name, of.name if of else None, steps * case.step_s / 3600, answer))
    return Diagnosed(tuple(found), left_out, model)


def tell_diagnosis(way: NoticeWay, found: Diagnosed, least: float) -> None:
    """Sends a notice of components that are at least so probable (0 to 1). Raises nothing that sending meets."""
    from gpuops.notify.watch import tell_diagnosis as tell

    tell(way, found, least)


def judge_cases(cases: Sequence[LabelledCase], state_dir: Path) -> JudgedCases:
    """What is said of these cases, and how much of it is right. Asks no vCenter. Raises StateDamaged."""
    model = Diagnoses(state_dir).model()
    plain = [each.case for each in cases]
    right = components_right(scores(plain, model), [each.at_fault for each in cases])
    return JudgedCases(tuple(zip(cases, diagnose_cases(plain, model), strict=True)), right, model)


def settle(state_dir: Path, name: str, component: Component | None) -> tuple[Component, ...]:
    """Notes what a person found; None = what had been said. Raises UsageError, StateDamaged."""
    return Diagnoses(state_dir).settle(name, component)


def train(state_dir: Path) -> TrainingOutcome:
    """Makes the next model of made and confirmed cases, and lets it stand unless the one that stands is better.

    Raises UsageError where the extra is not installed; StateDamaged.
    """
    from importlib.util import find_spec

    from gpuops.distribution import install_extra

    if find_spec("sklearn") is None:
        raise UsageError("models are made by scikit-learn, which is not installed", hint=install_extra("diagnose"))
    from gpuops.advise.diagnosis.learning import train

    kept = Diagnoses(state_dir)
    found = train(kept.confirmed(), kept.model())
    if found.replaced:
        kept.set_model(found.model)
    return found


def _meant(inventory: Inventory, vm: str | None, host: str | None) -> list[Vm]:
    if vm is not None and not set("*?[") & set(vm):
        found = [inventory.find_vm(vm)]
    else:
        found = [each for each in inventory.vms.values() if vm is None or fnmatchcase(each.name, vm)]
    on = inventory.find_host(host).ref if host is not None else None
    meant = [each for each in found if each.vgpus and not each.template and on in (None, each.host)]
    if vm is None:
        meant = [each for each in meant if each.may_run]
    if not meant:
        raise UsageError("no VM with a vGPU is meant", hint="gpuops inventory --vms shows VMs and their vGPUs")
    return sorted(meant, key=lambda each: (each.name, each.ref))
