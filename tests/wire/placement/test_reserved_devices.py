"""Whole GPUs and device groups that are reserved on a vCenter 9.0, over the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpuops.api import Site, configure, run
from gpuops.execute.site import catalog_of
from gpuops.model.vcenter.inventory import DeviceCapacity, Inventory
from gpuops.plan.capacity.capacity_request import capacity
from gpuops.plan.core.scope import Scope
from gpuops.plan.doctor.examination import examine
from gpuops.plan.hosts.graphics.passthrough import SetPassthrough
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.vm_blockers import PowerPolicy
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.services.direct_path_profile_manager import DirectPathProfileManager
from gpuops.sim.state.direct_path import DirectPathConfig, DirectPathProfileState, DirectPathState, ReservationState
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of
from tests.wire.placement.test_headroom import find_entity

L40S = (0x10DE, 0x26B9)
WHOLE = DirectPathConfig(devices=(L40S,), label="l40s-ml")
PAIR = DirectPathConfig(group="Nvidia:2@grid_a100d-80c%NVLink")
VGPU = DirectPathConfig(vgpu="grid_a100-3-20c")
OTHER = DirectPathConfig(devices=((0x10DE, 0x20B5),))

Reserve = Callable[..., Site]


@pytest.fixture
def reserve(tmp_path: Path) -> Iterator[Reserve]:
    """The lab on a vCenter 9.0, where these have a DirectPath profile and so many of each are reserved."""
    world = build("lab", api_version="9.0.0.0")
    with SimServer(world) as server, Connection(target_of(server)) as connection:

        def reserve_units(*units: tuple[DirectPathConfig, int]) -> Site:
            place = find_entity(server, "ClusterComputeResource", "lab-cluster").moid
            profiles = {
                f"dpp-{number}": DirectPathProfileState(f"dpp-{number}", f"kind-{number}", "", config)
                for number, (config, _) in enumerate(units)
            }
            reservations = tuple(
                ReservationState(config, count, place, ("kube-*",)) for config, count in units if count
            )
            with world.changed:
                world.direct_path = DirectPathState(profiles, reservations)
            return Site(connection, tmp_path, lambda: datetime(2026, 11, 2, 18, tzinfo=UTC))

        yield reserve_units
        assert world.bugs == []


@pytest.mark.long
def test_of_profiles_that_mean_the_same_the_answer_that_leaves_least_counts(
    reserve: Reserve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vCenter may count what is reserved by profile."""
    real, profile_ids = DirectPathProfileManager._capacity_result, []

    def by_profile(self: DirectPathProfileManager, spec: Any, count: Any) -> Any:
        profile_ids.append(spec.id)
        answer = real(self, spec, count)
        if spec.id == "dpp-1":
            answer.unusedReservation, answer.remaining = 2, 1
        return answer

    monkeypatch.setattr(DirectPathProfileManager, "_capacity_result", by_profile)
    inventory = reserve((WHOLE, 0), (WHOLE, 0), (VGPU, 0), (replace(VGPU), 0)).vcenter.inventory()
    assert inventory.reservations is not None
    place = inventory.find_host("esx-01.lab").cluster or ""
    assert profile_ids == ["dpp-0", "dpp-1", "dpp-2", "dpp-3"]
    assert inventory.reservations.devices == (DeviceCapacity("kind-0, kind-1", (L40S,), "l40s-ml", place, 0, 2, 1, 2),)
    assert [capacity.profile for capacity in inventory.reservations.capacities] == [VGPU.vgpu]
    assert inventory.reservations.unknown == ()


@pytest.mark.long
def test_a_whole_gpu_that_is_reserved_is_not_free(reserve: Reserve) -> None:
    site = reserve((WHOLE, 1), (OTHER, 0))
    inventory = site.vcenter.inventory()
    assert inventory.reservations is not None
    place = inventory.find_host("esx-01.lab").cluster or ""
    assert inventory.reservations.devices == (
        DeviceCapacity("kind-0", (L40S,), "l40s-ml", place, 0, 2, 2, 1),
        DeviceCapacity("kind-1", OTHER.devices, None, place, 0, 0, 0, 0),
    )
    [part] = capacity(inventory, catalog_of(inventory)).now.parts
    [(device, slots)] = part.devices.items()
    assert (device.label, slots.at_least, slots.at_most) == ("l40s-ml", 1, 1)
    assert part.notes == ("1 of kind-0 reserved, not free",)
    assert run(Attach("ml-04", dynamic=True, label="l40s-ml", power=PowerPolicy.ON), site, apply=True).exit_code == 0
    report = run(
        Attach("ml-03", device=("0000:d8:00.0",), replace="0000:5e:00.0", power=PowerPolicy.ON), site, apply=False
    )
    assert ["1 of kind-0 are reserved for other VMs" in str(rejection) for rejection in report.plan.rejections] == [
        True
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    "request_",
    [Attach("ml-04", dynamic=True, label="l40s-ml", power=PowerPolicy.ON),
     Attach("ml-03", device=("0000:5e:00.0",), power=PowerPolicy.ON),
     Attach("ml-08", device=("0000:d8:00.0",), power=PowerPolicy.ON)],
    ids=["dynamic", "the one that it has", "a new one"],
)  # fmt: skip
def test_a_start_that_would_take_of_it_is_refused(reserve: Reserve, request_: Attach) -> None:
    site = reserve((WHOLE, 2))
    report = run(request_, site, apply=True)
    reserved = "esx-02.lab: 2 of kind-0 are reserved for other VMs in lab-cluster"
    expected_reason = f"{reserved}, and too few would be left: needs 2, 1 there"
    assert (report.exit_code, [str(rejection) for rejection in report.plan.rejections]) == (3, [expected_reason])


@pytest.mark.long
def test_a_vgpu_takes_nothing_of_whole_gpus(reserve: Reserve) -> None:
    site = reserve((WHOLE, 2))
    assert run(Attach("ml-01", profile="a100-3-20c", power=PowerPolicy.ON), site, apply=True).exit_code == 0


def test_what_a_start_leaves_of_a_device_group_is_unknown(reserve: Reserve) -> None:
    """vCenter tells that one is reserved, not on which GPUs."""
    site = reserve((PAIR, 1))
    report = run(Attach("ml-05", device_group=PAIR.group, power=PowerPolicy.ON), site, apply=False)
    reason = f"1 of the device group {PAIR.group} are reserved, on GPUs that vCenter does not name"
    assert f"lab-cluster: what is reserved for others is not known: {reason}" in report.plan.warnings
    inventory = site.vcenter.inventory()
    [part] = capacity(inventory, catalog_of(inventory)).now.parts
    assert [(slots.at_least, slots.at_most) for slots in part.devices.values()] == [(0, 2)]


@pytest.mark.long
def test_a_device_group_of_which_nothing_is_reserved_keeps_nobody_away(reserve: Reserve) -> None:
    site = reserve((PAIR, 0))
    report = run(Attach("ml-05", device_group=PAIR.group, power=PowerPolicy.ON), site, apply=True)
    assert report.exit_code == 0
    assert not [warning for warning in report.plan.warnings if "reserved" in warning]


@pytest.mark.long
def test_doctor_names_both_counts_of_whole_devices(reserve: Reserve) -> None:
    inventory = reserve((WHOLE, 1)).vcenter.inventory()
    assert inventory.reservations is not None
    assert not found_of("kind-0", inventory)
    (reserved_device,) = inventory.reservations.devices
    fewer = replace(inventory.reservations, devices=(replace(reserved_device, remaining=1),))
    lines = found_of("kind-0", replace(inventory, reservations=fewer))
    assert lines == ["lab-cluster: kind-0: vCenter reports room for 1 more, gpuops for 2"]


def found_of(name: str, inventory: Inventory) -> list[str]:
    findings = examine(inventory, catalog_of(inventory), Scope(), {}).findings
    return [f"{finding.subject}: {finding.reason}" for finding in findings if name in finding.reason]


@pytest.mark.long
@pytest.mark.parametrize("version", ["9.0.0.0", "9.1.0.0"])
def test_passthrough_of_a_device_that_is_no_gpu_warns_of_what_is_reserved(tmp_path: Path, version: str) -> None:
    """A whole AMD GPU; without DirectPath profiles, a vCenter 9 still tells that nothing is reserved."""
    world = build("accelerators", api_version=version)
    with SimServer(world) as server, Connection(target_of(server)) as connection:
        site = Site(connection, tmp_path, lambda: datetime(2026, 11, 2, 18, tzinfo=UTC))
        host = find_entity(server, "HostSystem", "esx-02.acc")
        fpga, amd = "0000:af:00.0", "0000:86:00.0"

        def switch(
            device: str, *, on: bool, apply: bool = True, label: str | None = None
        ) -> tuple[int, tuple[tuple[str, ...], bool]]:
            request = SetPassthrough(on, device=(device,), host="esx-02.acc", label=label)
            report = configure(request, site, apply=apply)
            return report.exit_code, (report.plan.warnings, report.changed)

        assert switch(fpga, on=True, apply=False) == (0, ((), True))
        assert host.state.device(fpga).passthrough_enabled is False
        for on in (True, False):
            assert switch(fpga, on=on) == (0, ((), True))
            assert host.state.device(fpga).passthrough_enabled is on
            assert switch(fpga, on=on) == (0, ((), False)), "a second run changes nothing"
        place = host.compute_resource().moid
        config = DirectPathConfig(devices=((0x1002, 0x75A3),), label="mi355x")
        with world.changed:
            world.direct_path = DirectPathState(
                {"dpp-1": DirectPathProfileState("dpp-1", "amd", "", config)},
                (ReservationState(config, 2, place, ("kube-*",)),),
            )
        remaining = "2 of amd are reserved for other VMs, and only 1 would surely be left"
        warning_text = f"{remaining}: VMs with this reservation may find no GPU"
        for options in ({"on": False}, {"on": True, "label": "other"}):
            code, (warnings, _) = switch(amd, apply=False, **options)
            assert (code, [warning.partition(": ")[2] for warning in warnings if "reserved" in warning]) == (
                0,
                [warning_text],
            )
    assert world.bugs == []
