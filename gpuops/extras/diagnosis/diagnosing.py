"""Find the component that slows VMs down: by the store of measurements and one bulk read, or by cases in files."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from gpuops.errors import UsageError
from gpuops.execute.site import Site, catalog_of
from gpuops.extras.diagnosis.answer import Diagnosed, DiagnosedVm, JudgedCases, diagnose_cases, scores
from gpuops.extras.diagnosis.case import WORDS, Component
from gpuops.extras.diagnosis.case_reading import read_cases
from gpuops.extras.diagnosis.corrections import LocalCorrections
from gpuops.extras.diagnosis.diagnoses import Diagnoses
from gpuops.extras.diagnosis.learning import components_right
from gpuops.model.notice import Notice, NoticeKind
from gpuops.report.text import count

if TYPE_CHECKING:
    from datetime import datetime

    from gpuops.execute.site.notice_way import NoticeWay
    from gpuops.extras.diagnosis.case import LabelledCase
    from gpuops.extras.diagnosis.learning import TrainingOutcome
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
    """Diagnose the running VMs with a vGPU; `vm`: only VMs of this name or pattern. Changes nothing in vCenter.

    Each answer is stored, so that it can be confirmed or corrected. Reads the settings of the VMs' hosts.
    Raises UsageError for VMs that do not exist or have no history, VmNotFound, HostNotFound, StateDamaged.
    """
    vms = _vms_to_diagnose(inventory, vm, host)
    inventory = site.hosts.with_settings(
        inventory, sorted({machine.host for machine in vms if machine.host is not None})
    )
    cases, left_out = read_cases(site.measurements_store, inventory, catalog_of(inventory), vms, since)
    diagnoses = Diagnoses(site.state_dir)
    model = diagnoses.model()
    with_case = [machine for machine in vms if machine.ref in cases]
    corrections = LocalCorrections.of(diagnoses.settled_diagnoses(inventory.vcenter), inventory.vms)
    by_model = diagnose_cases([cases[machine.ref] for machine in with_case], model)
    answers = [corrections.apply_to(answer, machine) for machine, answer in zip(with_case, by_model, strict=True)]
    machines = []
    for machine, answer in zip(with_case, answers, strict=True):
        case = cases[machine.ref]
        host_of_vm = inventory.hosts.get(machine.host or "")
        steps = max(int((samples == samples).sum()) for samples in case.series.values())  # NaN alone is not itself
        name = diagnoses.note(inventory.vcenter, machine.ref, case, answer.suspects, inventory.taken_at)
        machines.append(
            DiagnosedVm(name, machine.name, host_of_vm.name if host_of_vm else None, steps * case.step_s / 3600, answer)
        )
    return Diagnosed(tuple(machines), left_out, model)


def tell_diagnosis(way: NoticeWay, diagnosis: Diagnosed, least: float) -> None:
    """Send a notice of components with at least this probability (0 to 1). Raises no errors of sending."""
    from gpuops.extras.notify.watch import RunWatch

    watch = RunWatch(way, "diagnose")
    watch.end(notice_of_diagnosis(diagnosis, watch.run.vcenter, least, way.clock()))


def notice_of_diagnosis(diagnosed: Diagnosed, vcenter: str, least: float, at: datetime) -> Notice | None:
    """Return the notice of components whose probability is at least `least` (0 to 1), or None.

    The same components of the same VMs are reported once a day, however often cron runs.
    """
    suspects = [
        (vm, suspect)
        for vm in diagnosed.vms
        for suspect in vm.diagnosis.suspects
        if suspect.component is not Component.NONE and suspect.probability >= least
    ]
    if not suspects:
        return None
    # names the notice: an equal one is not sent again
    about = ("diagnose", f"{at.date()}", *sorted({f"{vm.vm} {suspect.component}" for vm, suspect in suspects}))
    names = tuple(
        f"{vm.vm} ({vm.id}): {suspect.probability:.0%} {WORDS[suspect.component]}" for vm, suspect in suspects
    )
    headline = f"diagnose: {count(len({vm.vm for vm, _ in suspects}), 'VM')} with a component that is probably at fault"
    return Notice(NoticeKind.SLOW, vcenter, about, at, headline, names, f"gpuops diagnose --vcenter {quote(vcenter)}")


def judge_cases(cases: Sequence[LabelledCase], state_dir: Path) -> JudgedCases:
    """Diagnose these cases, and count how often that is right. Reads no vCenter. Raises StateDamaged."""
    model = Diagnoses(state_dir).model()
    plain = [labelled.case for labelled in cases]
    right = components_right(scores(plain, model), [labelled.at_fault for labelled in cases])
    return JudgedCases(tuple(zip(cases, diagnose_cases(plain, model), strict=True)), right, model)


def settle(state_dir: Path, name: str, component: Component | None) -> tuple[Component, ...]:
    """Store the component that a person found; None = they confirm the diagnosis. Raises UsageError, StateDamaged."""
    return Diagnoses(state_dir).settle(name, component)


def train(state_dir: Path) -> TrainingOutcome:
    """Train the next model with made and confirmed cases, and use it unless the current one is better.

    Raises UsageError if the extra is not installed; StateDamaged.
    """
    from importlib.util import find_spec

    from gpuops.distribution import install_extra

    if find_spec("sklearn") is None:
        raise UsageError("training needs scikit-learn, which is not installed", hint=install_extra("diagnose"))
    from gpuops.extras.diagnosis.learning import train

    diagnoses = Diagnoses(state_dir)
    training = train(diagnoses.confirmed_cases(), diagnoses.model())
    if training.replaced:
        diagnoses.set_model(training.model)
    return training


def _vms_to_diagnose(inventory: Inventory, vm: str | None, host: str | None) -> list[Vm]:
    """Return the selected VMs with a vGPU, by name. VMs that are selected by name may be off: they have a history."""
    if vm is not None and not set("*?[") & set(vm):
        candidates = [inventory.find_vm(vm)]
    else:
        candidates = [machine for machine in inventory.vms.values() if vm is None or fnmatchcase(machine.name, vm)]
    host_ref = inventory.find_host(host).ref if host is not None else None
    vgpu_vms = [
        machine for machine in candidates if machine.vgpus and not machine.template and host_ref in (None, machine.host)
    ]
    if vm is None:
        vgpu_vms = [machine for machine in vgpu_vms if machine.may_run]
    if not vgpu_vms:
        raise UsageError("no VM with a vGPU is selected", hint="gpuops inventory --vms shows VMs and their vGPUs")
    return sorted(vgpu_vms, key=lambda machine: (machine.name, machine.ref))
