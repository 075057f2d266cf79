"""What is asked of a step before it is sent and after: done, still allowed, and known everywhere."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Final, get_args

import pytest

from gpuops.errors import VmNotFound
from gpuops.model.vcenter.vm import ManagedBy, PowerState, VmDrs
from gpuops.plan.core.step_checks import as_it_is_now, is_satisfied, objection
from gpuops.plan.core.steps import (
    CloneVm,
    CloseGate,
    CreateVm,
    NewVgpu,
    OpenGate,
    PowerOffForRemoval,
    PowerOffVm,
    PowerOnVm,
    ReconfigureVm,
    RelocateVm,
    RemoveVm,
    ResumeVm,
    RunInGuest,
    SetAttribute,
    SetVmDrs,
    ShutDownGuest,
    Step,
    SuspendVm,
    VmChange,
)
from gpuops.plan.placement.project import project
from tests.execute.small_vcenter import small_world
from tests.plan.snapshots import FIRST, catalog, lab


def test_a_desktop_is_resumed_where_it_is_registered_now() -> None:
    """HA, or a person, may have moved it since the morning was planned: the host of a resume would move it back."""
    snapshot = small_world().snapshot()
    moved = snapshot.with_vm(replace(snapshot.vm("vm-1"), host="host-2"))
    assert as_it_is_now(ResumeVm("vm-1", "host-1"), snapshot) == ResumeVm("vm-1", "host-1")
    assert as_it_is_now(ResumeVm("vm-1", "host-1"), moved) == ResumeVm("vm-1", "host-2")
    unknown = snapshot.with_vm(replace(snapshot.vm("vm-1"), host=None))
    assert as_it_is_now(ResumeVm("vm-1", "host-1"), unknown) == ResumeVm("vm-1", "host-1")
    assert as_it_is_now(ResumeVm("vm-0", "host-1"), snapshot) == ResumeVm("vm-0", "host-1"), "gone: said by `objection`"
    assert as_it_is_now(PowerOnVm("vm-91", "host-2"), snapshot) == PowerOnVm("vm-91", "host-2"), "where it has room"


def test_a_template_that_is_another_one_or_none_any_more_is_not_cloned() -> None:
    snapshot = small_world().snapshot()
    template = replace(snapshot.vm("vm-1"), template=True)
    planned = snapshot.with_vm(template)
    step = CloneVm("new:/dc/vm/new", "new", "vm-1", "host-1", None, None, 2, 2048)
    assert objection(step, planned, planned) is None
    another = planned.with_vm(replace(template, instance_uuid="another"))
    assert "its template is another VM" in (objection(step, planned, another) or "")
    assert objection(step, planned, snapshot) == "its template is not a template any more"
    without_template = replace(planned, vms={ref: vm for ref, vm in planned.vms.items() if ref != "vm-1"})
    assert objection(step, planned, without_template) == "its template is gone from vCenter"


KUBE = ManagedBy("com.vmware.vcenter.wcp", "VirtualMachine")

TAKING: list[Step] = [
    ReconfigureVm("vm-1", VmChange()),
    RelocateVm("vm-1", "host-2"),
    PowerOnVm("vm-1"),
    PowerOffVm("vm-1"),
    PowerOffForRemoval("vm-1", "desktop-01", "made"),
    RemoveVm("vm-1", "desktop-01", "made"),
    ShutDownGuest("vm-1"),
    SuspendVm("vm-1"),
    RunInGuest("vm-1", "/opt/save"),
    SetVmDrs("vm-1", VmDrs.MANUAL),
    SetAttribute("vm-1", "gpuops.rotation", "2026-11-02 desktop"),
    CloseGate("vm-1", "machine"),
]

GIVING_BACK: list[Step] = [
    ResumeVm("vm-1"),
    OpenGate("vm-1", "machine"),
    SetVmDrs("vm-1", VmDrs.FULL),
    SetAttribute("vm-1", "gpuops.rotation", ""),
]


@pytest.mark.parametrize("step", TAKING, ids=lambda step: type(step).__name__)
def test_nothing_is_done_to_a_vm_that_belongs_to_another_product_by_now(step: Step) -> None:
    planned = small_world().snapshot()
    for changed in ({"managed_by": KUBE}, {"unreadable": ("config.managedBy",)}):
        now = planned.with_vm(replace(planned.vm("vm-1"), **changed))
        assert "another product" in (message := objection(step, planned, now) or "") or "Kubernetes" in message


@pytest.mark.parametrize("step", GIVING_BACK, ids=lambda step: type(step).__name__)
def test_what_a_night_did_to_it_before_is_undone(step: Step) -> None:
    planned = small_world().snapshot()
    now = planned.with_vm(replace(planned.vm("vm-1"), managed_by=KUBE, power=PowerState.SUSPENDED))
    assert objection(step, planned, now) is None


def test_a_desktop_that_a_night_has_shut_down_is_powered_on_again() -> None:
    """Its marker says so; a desktop that is off for other reasons is its manager's to start."""
    planned = small_world().snapshot()
    off = replace(planned.vm("vm-1"), managed_by=KUBE, power=PowerState.OFF)
    for role, allowed in (("desktop-off", True), ("desktop", False), ("ml", False)):
        now = planned.with_vm(replace(off, attributes={"gpuops.rotation": f"2026-11-02 {role}"}))
        assert (objection(PowerOnVm("vm-1"), planned, now) is None) is allowed, role


ML_07, ML_03, DESK_4 = "vm-7", "vm-3", "vm-24"
PROFILE = "grid_a100-3-20c"
CLONE = CloneVm("new:/dc/vm/new", "new", ML_07, "host-2", None, None, 2, 2048, settings={"gpuops.cluster": "v1"})


@pytest.mark.parametrize(
    "step",
    [
        ReconfigureVm(ML_07, VmChange(add=(NewVgpu(PROFILE),))),
        ReconfigureVm(ML_07, VmChange(add=(NewVgpu(PROFILE),), devices_after=(f"vgpu {PROFILE}",))),
        ReconfigureVm(ML_07, VmChange(extra_config={"a": "b"})),
        ReconfigureVm(ML_07, VmChange(memory_locked=True)),
        ReconfigureVm(ML_07, VmChange(memory_reservation_mib=512)),
        ReconfigureVm(ML_07, VmChange(cpu_hot_add=True)),
        ReconfigureVm(ML_07, VmChange(cores_per_numa_node=8)),
        ReconfigureVm(ML_03, VmChange(remove=(13000,))),
        ReconfigureVm(ML_03, VmChange(replace_profile=((13000, "grid_a100-2-10c"),))),
        RelocateVm(ML_07, "host-5"),
        PowerOnVm(ML_07),
        ResumeVm(DESK_4),
        SuspendVm(ML_03),
        PowerOffVm(ML_03),
        ShutDownGuest(ML_03),
        SetAttribute(ML_07, "owner", "ml"),
        PowerOffForRemoval(ML_03, "ml-03", "made"),
        RemoveVm(ML_07, "ml-07", "made"),
        CLONE,
        CreateVm("new:gpuops-lock", "gpuops-lock", "host-2", "esx-02", "ds-1", "carries the lease"),
    ],
    ids=str,
)
def test_every_step_is_open_before_and_done_after(step: Step) -> None:
    before = lab()
    assert not is_satisfied(step, before)
    assert is_satisfied(step, project(step, before, catalog()))


def test_another_vm_of_the_same_path_is_not_the_one_to_make() -> None:
    after_clone = project(CLONE, lab(), catalog())
    vm = after_clone.vm(CLONE.vm)
    assert not is_satisfied(CLONE, after_clone.with_vm(replace(vm, extra_config={"gpuops.cluster": "v1 of others"})))
    assert not is_satisfied(CLONE, after_clone.with_vm(replace(vm, template=True)))
    assert not is_satisfied(CLONE, after_clone.with_vm(replace(vm, path="/dc/vm/other/new")))
    assert is_satisfied(replace(CLONE, settings={}), after_clone.with_vm(replace(vm, extra_config=None)))


def test_a_pin_of_another_number_than_the_new_device_got_is_not_done() -> None:
    before = lab()
    step = ReconfigureVm(ML_07, VmChange(add=(NewVgpu(PROFILE),), extra_config={"pciPassthru0.cfg.gpu-pci-id": FIRST}))
    after = project(step, before, catalog())
    assert is_satisfied(step, after)
    vm = after.vm(ML_07)
    other_key = replace(vm, devices=tuple(replace(device, key=13001) for device in vm.devices or ()))
    assert not is_satisfied(step, after.with_vm(other_key))


def test_a_second_addition_is_not_taken_for_the_first() -> None:
    before = lab()
    second_addition = VmChange(add=(NewVgpu(PROFILE),), devices_after=(f"vgpu {PROFILE}", f"vgpu {PROFILE}"))
    assert not is_satisfied(ReconfigureVm(ML_03, second_addition), before)


def test_a_removed_key_that_vcenter_gives_out_again_is_not_mistaken() -> None:
    change = VmChange(remove=(13000,), add=(NewVgpu("grid_a100-2-10c"),), devices_after=("vgpu grid_a100-2-10c",))
    after = project(ReconfigureVm(ML_03, change), lab(), catalog())
    assert [device.key for device in after.vms[ML_03].devices or ()] == [13000]
    assert is_satisfied(ReconfigureVm(ML_03, change), after)


@pytest.mark.parametrize(
    "change",
    [
        VmChange(add=(NewVgpu(PROFILE),)),
        VmChange(remove=(13000,)),
        VmChange(extra_config={"a": ""}),
        VmChange(memory_locked=False),
        VmChange(cpu_hot_add=False),
        VmChange(cores_per_numa_node=0),
        VmChange(memory_reservation_mib=0),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_not_done(change: VmChange) -> None:
    world = lab()
    blind = replace(
        world.vms[ML_07],
        devices=None,
        extra_config=None,
        memory_locked=None,
        cpu_hot_add=None,
        cores_per_numa_node=None,
        memory_reservation_mib=None,
    )
    assert not is_satisfied(ReconfigureVm(ML_07, change), world.with_vm(blind))


def test_an_empty_value_means_the_key_is_gone() -> None:
    world = lab()
    removal = ReconfigureVm(ML_07, VmChange(extra_config={"a": ""}))
    assert is_satisfied(removal, world)
    assert not is_satisfied(removal, world.with_vm(replace(world.vms[ML_07], extra_config={"a": "b"})))


def test_a_suspended_vm_was_not_shut_down() -> None:
    assert not is_satisfied(ShutDownGuest(DESK_4), lab())
    assert not is_satisfied(PowerOffVm(DESK_4), lab())


def test_a_vm_that_is_gone_is_an_error() -> None:
    with pytest.raises(VmNotFound):
        is_satisfied(SuspendVm("vm-404"), lab())


def test_stopping_frees_the_gpu_and_starting_takes_one() -> None:
    world = lab()
    freed = project(SuspendVm(ML_03), world, catalog())
    assert freed.hosts["host-1"].gpus[0].vms == ()
    assert freed.vms[ML_03].power is PowerState.SUSPENDED
    back = project(ResumeVm(ML_03, "host-1"), freed, catalog())
    assert str(next(gpu.address for gpu in back.hosts["host-1"].gpus if ML_03 in (gpu.vms or ()))) == FIRST


def test_a_whole_gpu_is_bound_to_the_vm_that_runs_with_it() -> None:
    world = lab()
    stopped = project(PowerOffVm("vm-8"), world, catalog())
    assert stopped.hosts["host-4"].bindings == ()
    after_restart = project(PowerOnVm("vm-8"), stopped, catalog())
    assert [binding.vm for binding in after_restart.hosts["host-4"].bindings] == ["vm-8"]


def test_a_start_that_the_host_would_refuse_puts_the_vm_on_no_gpu() -> None:
    four = ReconfigureVm(ML_07, VmChange(add=(NewVgpu(PROFILE),) * 4))
    world = project(PowerOnVm(ML_07), project(four, lab(), catalog()), catalog())
    assert all(ML_07 not in (gpu.vms or ()) for gpu in world.hosts["host-1"].gpus)


@pytest.mark.parametrize(
    ("step", "reached"),
    [
        (PowerOnVm(ML_03), PowerState.ON),
        (ResumeVm(ML_03), PowerState.ON),
        (SuspendVm(ML_03), PowerState.SUSPENDED),
        (PowerOffVm(ML_03), PowerState.OFF),
        (ShutDownGuest(ML_03), PowerState.OFF),
    ],
    ids=str,
)
def test_one_power_state_alone_is_the_one_that_was_meant(step: Step, reached: PowerState) -> None:
    """A desktop that somebody powered off is not suspended: what its guest held is lost."""
    for power in (*PowerState, None):
        now = lab()
        assert is_satisfied(step, now.with_vm(replace(now.vms[ML_03], power=power))) is (power is reached)


ROOT: Final = Path(__file__).parents[3]
KINDS: Final = {kind.__name__ for kind in get_args(Step)}
MOST: Final = 5


def kinds_of(match: ast.Match) -> set[str]:
    """The classes that a match statement tells apart."""
    patterns = (node for case in match.cases for node in ast.walk(case.pattern))
    return {
        pattern.cls.id
        for pattern in patterns
        if isinstance(pattern, ast.MatchClass) and isinstance(pattern.cls, ast.Name)
    }


def matching_all() -> set[str]:
    """Files with a match that must know every kind of step, as paths below the package."""
    package = ROOT / "gpuops"
    texts = {path: path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    return {
        str(path.relative_to(package))
        for path, text in texts.items()
        if all(kind in text for kind in KINDS)  # the others need not be parsed
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Match) and kinds_of(node) >= KINDS
    }


def test_a_kind_of_step_touches_at_most_five_files_and_the_guide_names_them() -> None:
    files = {"plan/core/steps.py", *matching_all()}
    assert len(files) <= MOST, sorted(files)
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    [row] = [line for line in guide.splitlines() if line.startswith("| a kind of step |")]
    assert [file for file in sorted(files) if f"`gpuops/{file}`" not in row] == []


def test_each_kind_of_step_has_words_of_its_own_and_says_what_it_needs() -> None:
    kinds = get_args(Step)
    assert len({kind.kind for kind in kinds}) == len({kind.noun for kind in kinds}) == len(kinds)
    assert [kind.__name__ for kind in kinds if not hasattr(kind, "privileges")] == []
