"""A bundle is the vCenter that it was made of: read from the simulator, and asked the same, it answers the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from gpuops.api import capacity, catalog_of, readiness
from gpuops.clock import wall_clock
from gpuops.execute.site import Site
from gpuops.extras.bundle.archive import Bundle, bundle
from gpuops.extras.bundle.bundle_scenario import world
from gpuops.extras.bundle.harmless import NameKind, Pseudonyms
from gpuops.model.devices.gpu import GraphicsType, VgpuMode
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.workloads.workload import Workload
from gpuops.plan.capacity.capacity_request import CapacityRequest
from gpuops.plan.core.scope import Scope, gpu_hosts
from gpuops.plan.queue.place import Place
from gpuops.report.advice.capacity_view import capacity_document
from gpuops.report.advice.placement_view import placements_document
from gpuops.report.document import AnyDocument, as_values
from gpuops.report.monitoring.readiness_view import readiness_document
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.state.direct_path import DirectPathConfig, DirectPathProfileState, DirectPathState, ReservationState
from gpuops.sim.state.drs import ClusterRule, Group, HaAdmission, Override
from gpuops.sim.world import World
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of

KEY: Final = b"k" * 32
WRITTEN: Final = datetime(2026, 11, 27, 9, tzinfo=UTC)
OF_THE_SITE: Final = frozenset(
    {
        "name", "path", "uuid", "instance_uuid", "change_version", "attributes", "label", "system_id", "question",
        "kind", "nics",
    }
)  # fmt: skip
"""Fields that a bundle has a pseudonym for, or nothing."""


@contextmanager
def site_of(simulated: World, folder: Path) -> Iterator[Site]:
    with SimServer(simulated) as server, Connection(target_of(server)) as vcenter:
        yield Site(vcenter, folder, wall_clock)
        assert simulated.bugs == []


def make_bundle(site: Site) -> tuple[Inventory, Bundle]:
    inventory = site.vcenter.inventory()
    inventory = site.hosts.with_settings(inventory, [host.ref for host in gpu_hosts(inventory) if host.connected])
    names = Pseudonyms(KEY)
    return inventory, bundle(world(inventory, catalog_of(inventory), names), {}, names, WRITTEN)


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Callable[[World], tuple[Site, Site, Bundle]]]:
    """The site of a world, and that of its bundle."""
    with ExitStack() as stack:

        def build_both(original: World) -> tuple[Site, Site, Bundle]:
            site = stack.enter_context(site_of(original, tmp_path))
            _, site_bundle = make_bundle(site)
            path = tmp_path / "bundle.zip"
            path.write_bytes(site_bundle.pack())
            return site, stack.enter_context(site_of(build(str(path)), tmp_path)), site_bundle

        yield build_both


def differences(before: Any, now: Any, at: str = "") -> Iterator[str]:
    match before, now:
        case dict(), dict():
            for key in before.keys() | now.keys():
                if key not in OF_THE_SITE:
                    yield from differences(before.get(key), now.get(key), f"{at}.{key}")
        case ((list() | tuple()), (list() | tuple())) if len(before) == len(now):
            for number, (element_before, element_now) in enumerate(zip(before, now, strict=True)):
                yield from differences(element_before, element_now, f"{at}.{number}")
        case _ if before != now:
            yield f"{at}: {before!r} is played as {now!r}"


def require_same(original_site: Inventory, now: Inventory) -> None:
    """All that plans go by, names aside, and each name as its pseudonym."""
    comparable = [
        asdict(replace(inventory, vcenter="", taken_at=WRITTEN, origin=None)) for inventory in (original_site, now)
    ]
    assert list(differences(comparable[0], comparable[1])) == []
    names = Pseudonyms(KEY)
    for kind, before, after in (
        (NameKind.VM, original_site.vms, now.vms),
        (NameKind.HOST, original_site.hosts, now.hosts),
        (NameKind.CLUSTER, original_site.clusters, now.clusters),
        (NameKind.DATASTORE, original_site.datastores, now.datastores),
    ):
        assert {ref: inventory.name for ref, inventory in after.items()} == {
            ref: names.of(kind, inventory.name) for ref, inventory in before.items()
        }


SCENARIOS: Final = ("lab", "vdi", "scattered", "supervisor", "accelerators", "fleet:hosts=20,vms=150")


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_simulator_shows_what_was_read(scenario: str, play: Callable[[World], tuple[Site, Site, Bundle]]) -> None:
    original_site, now, _ = play(build(scenario))
    require_same(original_site.vcenter.inventory(), now.vcenter.inventory())


@pytest.mark.long
@pytest.mark.parametrize("version", ["8.0.2.0", "8.0.3.0", "9.0.0.0", "9.1.0.0"])
def test_at_each_version(version: str, play: Callable[[World], tuple[Site, Site, Bundle]]) -> None:
    original_site, now, _ = play(build("lab", api_version=version))
    require_same(original_site.vcenter.inventory(), now.vcenter.inventory())
    assert now.vcenter.inventory().api_version == version


def unlike_a_scenario(simulated: World) -> None:
    """What administrators do: nothing of it can be declared in a scenario of people."""
    first_host, two = simulated.by_type("HostSystem")
    desktops = [vm for vm in simulated.by_type("VirtualMachine") if vm.name.startswith("vdi-")]
    cluster = first_host.compute_resource()
    cluster.drs.ha_enabled, cluster.drs.ha_admission = True, HaAdmission(1, memory_percent=25, cpu_percent=30)
    cluster.drs.overrides.update({desktops[0].moid: Override(enabled=False), desktops[1].moid: Override()})
    cluster.drs.groups = {
        "a": Group("a", of_hosts=False, members=(desktops[2].moid,)),
        "b": Group("b", of_hosts=True, members=(first_host.moid,)),
    }
    cluster.drs.rules = {
        1: ClusterRule(1, "apart", "ClusterAntiAffinityRuleSpec", True, False, (desktops[0].moid, desktops[1].moid)),
        2: ClusterRule(2, "on", "ClusterVmHostRuleInfo", True, True, vm_group="a", affine_hosts="b"),
        3: ClusterRule(3, "off", "ClusterVmHostRuleInfo", True, False, vm_group="a", anti_affine_hosts="b"),
    }
    cluster.drs.options["VgpuMMAutomationTimeoutSecs"] = "-1"
    two.state.gpus[0].configured_type = "shared"
    two.state.gpus[1].passthrough_enabled = False
    two.state.gpus[4].numa_node = None
    two.state.default_graphics_type = "shared"
    desktops[3].state.memory_mib = 8191
    desktops[3].state.cores_per_socket, desktops[3].state.cpu_hot_add = 2, True
    desktops[5].state.cpu_reservation_mhz = 1200
    [vgpu] = desktops[6].state.devices  # the last of several: those before it were removed
    desktops[6].state.devices = (replace(vgpu, key=13002, unit=20),)
    desktops[6].state.extra_config = (("pciPassthru2.cfg.gpu-pci-id", "0000:3b:00.0"),)
    simulated.options["vgpu.hotmigrate.enabled"] = True


@pytest.mark.long
def test_a_world_that_no_scenario_declares(play: Callable[[World], tuple[Site, Site, Bundle]]) -> None:
    lab = build("lab")
    unlike_a_scenario(lab)
    original_site, now, _ = play(lab)
    before, after = original_site.vcenter.inventory(), now.vcenter.inventory()
    require_same(before, after)
    [host] = [host for host in after.hosts.values() if len(host.gpus) == 6]
    assert host.gpus[0].configured_graphics_type is GraphicsType.SHARED
    assert host.gpus[4].numa_node is None
    assert host.gpus[4].vgpu_mode is VgpuMode.MIXED_SIZE


@pytest.mark.long
def test_a_vm_runs_where_it_ran_whatever_the_rules_say(play: Callable[[World], tuple[Site, Site, Bundle]]) -> None:
    """Seven vGPUs on a GPU where our rules fit six: the bundle of such a bug report must show it."""
    lab = build("lab")
    first_host, _ = lab.by_type("HostSystem")
    running = [vm for vm in first_host.vms() if vm.state.seats]
    seat = running[0].state.seats[0]
    for vm in [vm for vm in first_host.vms() if vm.name in ("vdi-06", "ml-01")]:
        vm.state.power, vm.state.boot_time = running[0].state.power, running[0].state.boot_time
        vm.state.devices = running[0].state.devices
        vm.state.seats = (replace(seat, vm=vm.moid),)
    original_site, now, _ = play(lab)
    require_same(original_site.vcenter.inventory(), now.vcenter.inventory())


@pytest.mark.long
def test_other_devices_come_back(play: Callable[[World], tuple[Site, Site, Bundle]]) -> None:
    """Their kinds too, by which `passthrough on` and `capacity` go, and one that waits for a reboot."""
    accelerators = build("accelerators")
    first = next(host for host in accelerators.by_type("HostSystem") if host.name == "esx-01.acc")
    first.state.others[0].passthrough_enabled = False
    first.state.others[2].numa_node = None
    original_site, now, _ = play(accelerators)
    before, after = original_site.vcenter.inventory(), now.vcenter.inventory()
    require_same(before, after)
    kinds = [
        {(host.ref, device.address): device.kind for host in inventory.hosts.values() for device in host.others}
        for inventory in (before, after)
    ]
    assert kinds[0] == kinds[1]
    assert sorted(kinds[1].values()) == ["FPGA"] * 3 + ["GPU"] * 3 + ["NIC"]
    assert (
        sum(device.passthrough.reboot_pending for device in after.hosts[first.moid].others if device.passthrough) == 1
    )


@pytest.mark.long
def test_reserved_devices_come_back(play: Callable[[World], tuple[Site, Site, Bundle]]) -> None:
    """For passed-through GPUs and for other devices; devices that cannot be identified are counted."""
    things = (
        (DirectPathConfig(devices=((0x1002, 0x75A3),), label="mi355x"), 1),
        (DirectPathConfig(devices=((0x8086, 0x09C4), (0x15B3, 0x101D))), 2),
        (DirectPathConfig(vgpu="nvidia_a40-8q"), 3),
        (DirectPathConfig(vgpu="nvidia_of_tomorrow-8q"), 1),
        (DirectPathConfig(group="Nvidia:2@nvidia_a40-8q%NVLink"), 1),
    )
    accelerators = build("accelerators", api_version="9.0.0.0")
    [cluster] = accelerators.by_type("ClusterComputeResource")
    accelerators.direct_path = DirectPathState(
        {
            f"dpp-{n}": DirectPathProfileState(f"dpp-{n}", f"kind-{n}", "", config_of_kind)
            for n, (config_of_kind, _) in enumerate(things)
        },
        tuple(ReservationState(config_of_kind, units, cluster.moid, ("kube-*",)) for config_of_kind, units in things),
    )
    original_site, now, _ = play(accelerators)
    before, after = original_site.vcenter.inventory().reservations, now.vcenter.inventory().reservations
    assert before is not None
    assert after is not None
    assert [device.unused_reservation for device in before.devices] == [1, 2]
    label = Pseudonyms(KEY).of(NameKind.LABEL, "mi355x")
    assert [replace(device, name="", label=device.label and label) for device in before.devices] == [
        replace(device, name="") for device in after.devices
    ]
    assert after.capacities == tuple(capacity for capacity in before.capacities if capacity.profile == "nvidia_a40-8q")
    assert after.capacities[0].unused_reservation == 3


def in_pseudonyms(inventory: Inventory) -> Inventory:
    """The snapshot under the names that a bundle gives. Between equal places a name decides, so answers go by them."""
    names = Pseudonyms(KEY)

    def rename(kind: NameKind, named: Any) -> Any:
        return replace(named, name=names.of(kind, named.name))

    def with_label(gpu: Any) -> Any:
        if gpu.passthrough is None or gpu.passthrough.label is None:
            return gpu
        return replace(gpu, passthrough=replace(gpu.passthrough, label=names.of(NameKind.LABEL, gpu.passthrough.label)))

    return replace(
        inventory,
        vms={ref: rename(NameKind.VM, vm) for ref, vm in inventory.vms.items()},
        clusters={ref: rename(NameKind.CLUSTER, named) for ref, named in inventory.clusters.items()},
        hosts={
            ref: replace(
                rename(NameKind.HOST, host),
                gpus=tuple(map(with_label, host.gpus)),
                others=tuple(
                    with_label(replace(named, name=f"{named.kind} {named.vendor_id:04x}:{named.device_id:04x}"))
                    for named in host.others
                ),
            )
            for ref, host in inventory.hosts.items()
        },
    )


def answers(inventory: Inventory, site: Site) -> list[Any]:
    """What capacity, readiness and place say, but for the vCenter and the moment."""
    catalog = catalog_of(inventory)
    workloads = [
        Workload(f"new-{number}", profile=profile, vcpus=4, memory_mib=16384)
        for number, profile in enumerate(inventory.offered_profiles[:24])
    ]
    documents: list[AnyDocument] = [
        capacity_document(capacity(CapacityRequest(), inventory, site, None), None),
        readiness_document(readiness(Scope(), inventory, site)),
        *(
            placements_document(Place((document,), explain=True).placements(inventory, catalog), catalog)
            for document in workloads
        ),
    ]
    return [
        {key: value for key, value in as_values(document).items() if key not in ("vcenter", "read_at")}
        for document in documents
    ]


def numbers_in(document: Any, at: str = "") -> Iterator[tuple[str, float]]:
    match document:
        case dict():
            for key, value in document.items():
                yield from numbers_in(value, f"{at}.{key}")
        case list() | tuple():
            for element in document:
                yield from numbers_in(element, at)
        case int() | float():
            yield at, document
        case _:
            pass


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_same_questions_have_the_same_answers(
    scenario: str, play: Callable[[World], tuple[Site, Site, Bundle]]
) -> None:
    original_site, now, _ = play(build(scenario))
    before, after = original_site.vcenter.inventory(), now.vcenter.inventory()
    expected = answers(in_pseudonyms(before), original_site)
    assert answers(after, now) == expected
    # under the true names another one of equal places may be first, and no figure is another one
    assert sorted(numbers_in(answers(before, original_site)[:2])) == sorted(numbers_in(expected[:2]))
