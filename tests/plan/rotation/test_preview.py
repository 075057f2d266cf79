"""The preview of a night: which ML VMs would run, and the proof that each desktop has its place in the morning."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, time

import pytest

from gpuops.catalog import load
from gpuops.model.devices.gpu import GraphicsType, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.nights.ml_queue import QueuedVm
from gpuops.model.nights.rotation_policy import IdleRule, Policy, Pool
from gpuops.model.nights.selector import Selector
from gpuops.model.vcenter.host import OfferedProfile
from gpuops.model.vcenter.vm import PowerState, VgpuDevice
from gpuops.model.window import Window
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.rotation.nights import preview
from gpuops.plan.rotation.nights.night import RotateNight
from gpuops.plan.rotation.nights.preview import NightPreview, preview_night, prove
from tests.execute.small_vcenter import SLOTS, World, desktop, small_world

CATALOG = load(profiles=SLOTS)
EVENING = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)
POOL = Pool("all", Selector(name="desktop-*"), IdleRule(500), parked=True)
POLICY = Policy(
    "small",
    (POOL,),
    ml=(QueuedVm("ml-01"), QueuedVm("ml-02"), QueuedVm("ml-99")),
    windows=(Window(time(20), time(6), UTC),),
)


def foresee(world: World, policy: Policy = POLICY, at: datetime = EVENING) -> NightPreview:
    return preview_night(RotateNight(policy), world.snapshot(), CATALOG, at)


def test_gpu_hours_are_from_the_start_to_the_time_of_return() -> None:
    preview = foresee(small_world())
    assert [
        (expected_run.start.vm.name, expected_run.gpus, f"{expected_run.run.begins:%H:%M}", expected_run.run.ends)
        for expected_run in preview.expected_runs
    ] == [
        ("ml-01", 1, "21:07", datetime(2026, 11, 21, 5, 15, tzinfo=UTC)),
        ("ml-02", 1, "21:02", datetime(2026, 11, 21, 5, 15, tzinfo=UTC)),
    ]
    assert preview.gpu_hours == pytest.approx(8 + 8 / 60 + 8 + 13 / 60)
    assert foresee(small_world(), replace(POLICY, windows=())).gpu_hours is None


@pytest.mark.parametrize(
    ("lock_vm", "wrong"),
    [
        ("nobody", ("no VM is called nobody (lock_vm)",)),
        ("desktop-01", ("lock_vm: desktop-01 is a desktop of pool all",)),
        ("ml-01", ("lock_vm: ml-01 is a VM of the ML queue",)),
        (None, ()),
    ],
)
def test_a_lock_vm_for_which_the_night_would_be_refused_is_warned_of(
    lock_vm: str | None, wrong: tuple[str, ...]
) -> None:
    preview = foresee(small_world(), replace(POLICY, lock_vm=lock_vm))
    assert preview.warnings[1:] == tuple(
        f"{problem}: no night begins (gpuops rotate init --policy FILE)" for problem in wrong
    ), "beside the VM of the queue that is not there"


def test_every_vm_of_the_pools_and_the_queue_has_one_reason() -> None:
    for at in (EVENING, EVENING.replace(hour=12)):
        preview = foresee(small_world(), at=at)
        subjects = sorted(choice.subject for choice in preview.night_plan.choices)
        assert subjects == [*(f"desktop-0{number}" for number in range(1, 6)), "ml-01", "ml-02", "ml-99"]
        assert all(choice.reason for choice in preview.night_plan.choices)


def test_a_night_that_is_refused_takes_nothing_and_says_so_of_each() -> None:
    preview = foresee(small_world(), at=EVENING.replace(hour=12))
    assert (preview.exit_code, preview.expected_runs, preview.proofs) == (3, (), ())
    reasons = {choice.subject: choice.reason for choice in preview.night_plan.choices}
    assert reasons["desktop-01"] == "idle; there is no night now"
    assert reasons["ml-01"] == "there is no night now"
    assert reasons["ml-99"].startswith("no VM 'ml-99'")


def test_the_proof_names_the_place_of_each_desktop_that_comes_back() -> None:
    [host] = foresee(small_world()).proofs
    assert host.refusals == ()
    assert host.instants == 2
    assert [(back.vm.name, [str(place) for place in back.places]) for back in host.order] == [
        ("desktop-01", ["0000:3b:00.0 slot 1 of 2"]),
        ("desktop-02", ["0000:3b:00.0 slot 2 of 2"]),
    ]


def test_desktops_that_were_taken_before_are_in_the_proof_too() -> None:
    world = small_world()
    for step in foresee(world).report.plan.steps:
        assert world.apply("op", step) is None
    [host] = foresee(world).proofs
    assert [back.vm.name for back in host.order] == ["desktop-01", "desktop-02"]
    assert host.refusals == (), "ml-01, which runs in their place, is stopped by then"


def test_what_does_not_fit_back_is_said_for_the_taking_after_which_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_third(desktops: list[object], *_: object) -> list[Rejection]:
        return [Rejection("desktop-03", "no slot")] if len(desktops) == 3 else []

    monkeypatch.setattr(preview, "refuse_stranded", no_third)
    world = small_world().snapshot()
    for number, refusals in ((2, 0), (3, 1), (4, 1)):
        [host] = prove([world.vms[f"vm-{index}"] for index in range(1, number + 1)], world, CATALOG)
        assert len(host.refusals) == refusals


@pytest.mark.parametrize(
    ("mode", "profiles", "places"),
    [
        (
            VgpuMode.MIXED_SIZE,
            {1: "nvidia_l40s-24q", 2: "nvidia_l40s-12q", 3: "nvidia_l40s-12q"},
            ["placement id 0", "placement id 24", "placement id 36"],
        ),
        (
            VgpuMode.MULTI_INSTANCE,
            {1: "grid_a100-3-20c", 2: "grid_a100-2-10c", 3: "grid_a100-1-5c"},
            ["placement id 0", "placement id 4", "placement id 6"],
        ),
    ],
)
def test_on_mixed_size_and_mig_gpus_places_lie_beside_each_other(
    mode: VgpuMode, profiles: dict[int, str], places: list[str]
) -> None:
    model = ("NVIDIA L40S", 0x26B9) if mode is VgpuMode.MIXED_SIZE else ("NVIDIA A100 PCIe 40GB", 0x20F1)
    gpu = PhysicalGpu(
        PciAddress(0, 0x3B, 0, 0), model[0], 0x10DE, model[1],
        memory_mib=48 * 1024, graphics_type=GraphicsType.SHARED_DIRECT, vgpu_mode=mode, vms=(),
    )  # fmt: skip
    world = small_world()
    offered = tuple(OfferedProfile(name, suspend=True) for name in profiles.values())
    host = replace(world.hosts["host-2"], gpus=(gpu,), profiles=offered)
    vms = [
        replace(desktop(number, profile, "host-2"), devices=(VgpuDevice(13000, profile),), power=PowerState.SUSPENDED)
        for number, profile in profiles.items()
    ]
    snapshot = world.snapshot()
    snapshot = replace(snapshot, hosts={"host-2": host}, vms={vm.ref: vm for vm in vms})
    [proof] = prove(vms, snapshot, load(profiles=sorted(profiles.values())))
    assert proof.refusals == ()
    assert [place.place for back in proof.order for place in back.places] == places
