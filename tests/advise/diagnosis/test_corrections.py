"""What people found helps the same VM at once, and VMs like it from two findings on that agree."""

from __future__ import annotations

from gpuops.extras.diagnosis.answer import Diagnosis, Suspect
from gpuops.extras.diagnosis.case import Component
from gpuops.extras.diagnosis.corrections import LocalCorrections, SettledDiagnosis
from gpuops.model.vcenter.vm import VgpuDevice, Vm

FULL, NONE, NETWORK = Component.FRAME_BUFFER, Component.NONE, Component.NETWORK


def vm(number: int, name: str = "ml", owner: str = "") -> Vm:
    attributes = {"gpuops.owner": owner} if owner else {}
    profile = (VgpuDevice(13000, "nvidia_a40-8q"),)
    named = f"{name}-{number:02}"
    return Vm(f"vm-{name}-{number}", named, path=f"/dc/vm/ml/{named}", attributes=attributes, devices=profile)


def diagnosis_of(*components: Component, by_rule: bool = False) -> Diagnosis:
    return Diagnosis(tuple(Suspect(component, 0.7, (), by_rule) for component in components))


def first(vms: list[Vm], settled: list[SettledDiagnosis], asked_vm: Vm, answer: Diagnosis) -> Component:
    corrections = LocalCorrections.of(settled, {vm.ref: vm for vm in vms})
    return corrections.apply_to(answer, asked_vm).suspects[0].component


def test_the_corrected_vm_at_once_and_others_of_its_image_from_two_on() -> None:
    vms = [vm(number) for number in range(4)]
    one_correction = [SettledDiagnosis(vms[0].ref, FULL, NONE)]
    assert first(vms, one_correction, vms[0], diagnosis_of(FULL)) is NONE
    assert first(vms, one_correction, vms[1], diagnosis_of(FULL)) is FULL, "one wrong correction reaches one VM alone"
    two = [*one_correction, SettledDiagnosis(vms[1].ref, FULL, NONE)]
    assert first(vms, two, vms[3], diagnosis_of(FULL)) is NONE
    assert first(vms, two, vms[3], diagnosis_of(NETWORK)) is NETWORK, "no correction named the network"
    assert first(vms, two, vm(9, "web"), diagnosis_of(FULL)) is FULL, "it was made otherwise"


def test_vms_of_one_owner_and_what_people_do_not_agree_on() -> None:
    vms = [vm(1, "a", "research"), vm(2, "b", "research"), vm(3, "c", "research"), vm(4, "d", "sales")]
    two = [SettledDiagnosis(vms[0].ref, FULL, NETWORK), SettledDiagnosis(vms[1].ref, FULL, NETWORK)]
    assert first(vms, two, vms[2], diagnosis_of(FULL)) is NETWORK
    assert first(vms, two, vms[3], diagnosis_of(FULL)) is FULL
    against = [*two, SettledDiagnosis(vms[2].ref, FULL, FULL), SettledDiagnosis(vms[2].ref, FULL, FULL)]
    assert first(vms, against, vm(5, "e", "research"), diagnosis_of(FULL)) is FULL, "as many confirmed it"
    assert first(vms, against, vms[0], diagnosis_of(FULL)) is NETWORK, "of this VM somebody knows"


def test_ten_corrections_of_a_fleet_leave_no_vm_of_it_accused_anew() -> None:
    vms = [vm(number, owner="research") for number in range(100)]
    ten = [SettledDiagnosis(corrected_vm.ref, FULL, NONE) for corrected_vm in vms[:10]]
    assert all(first(vms, ten, corrected_vm, diagnosis_of(FULL)) is NONE for corrected_vm in vms)


def test_what_a_rule_is_certain_of_stays_and_vms_that_are_gone_teach_nothing() -> None:
    vms = [vm(1)]
    assert first(vms, [SettledDiagnosis(vms[0].ref, FULL, NONE)], vms[0], diagnosis_of(FULL, by_rule=True)) is FULL
    assert first(vms, [SettledDiagnosis("vm-gone", FULL, NONE)] * 3, vms[0], diagnosis_of(FULL)) is FULL
