"""Other vCenters than 8.0.3: what their API has no words for is unknown or refused by name; all else works alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuops.api import Site, rotate_day, rotate_night, run
from gpuops.clock import wall_clock
from gpuops.config.policy import load_policy
from gpuops.errors import ProtocolError
from gpuops.model.devices.gpu import VgpuMode
from gpuops.model.vcenter.host import NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DynamicDevice, OtherPassthrough, VgpuDevice
from gpuops.plan.core.plan import Report, Request, Verdict
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.detach import Detach
from gpuops.plan.vm.vm_blockers import PowerPolicy
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from gpuops.vsphere.session import Session
from tests.sample import mostly_long
from tests.wire.conftest import target_of

pytestmark = pytest.mark.long

CHANGED = ("7.0.3.0", "8.0.0.1", "8.0.2.0", "8.0.3.0", "9.0.0.0", "9.1.0.0")
VERSIONS = ("6.7", *CHANGED)
POLICY = Path(__file__).resolve().parents[3] / "gpuops" / "sim" / "scenarios" / "lab-policy.yaml"
NVLINK = "Nvidia:2@grid_a100d-80c%NVLink"


@contextmanager
def vcenter(version: str, state_dir: Path) -> Iterator[tuple[SimServer, Site]]:
    with SimServer(build("lab", api_version=version)) as server:
        with Connection(target_of(server)) as connection:
            yield server, Site(connection, state_dir, wall_clock)
        assert (server.world.bugs, list(server.world.sessions)) == ([], [])


@pytest.fixture(scope="module", params=VERSIONS)
def version_and_inventory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Inventory]:
    with vcenter(request.param, tmp_path_factory.mktemp("state")) as (_, site):
        return request.param, site.vcenter.inventory()


def since(version: str, first: str) -> bool:
    return version >= first  # as texts: all of these have one digit per place


def test_the_newest_version_that_both_know_is_spoken(version_and_inventory: tuple[str, Inventory]) -> None:
    version, inventory = version_and_inventory
    assert inventory.api_version == version
    release = (version + ".0")[:5]
    assert {host.version for host in inventory.hosts.values()} == {release}, "three numbers, as device rules read them"


def test_a_field_the_version_lacks_is_unknown(version_and_inventory: tuple[str, Inventory]) -> None:
    version, inventory = version_and_inventory
    first = inventory.find_host("esx-01")
    modes = {gpu.vgpu_mode for gpu in first.gpus}
    assert modes == ({VgpuMode.MULTI_INSTANCE, VgpuMode.SAME_SIZE} if since(version, "8.0.3.0") else {None})
    labels = {gpu.passthrough.label for gpu in inventory.find_host("esx-02").gpus if gpu.passthrough}
    assert ("l40s-ml" in labels) is since(version, "7.0.2.0")
    vm = inventory.find_vm("ml-07")
    assert vm.cores_per_numa_node == (0 if since(version, "8.0.0.1") else None), "it is not set"
    assert [vgpu.group for vgpu in inventory.find_vm("ml-05").vgpus] == [1 if since(version, "8.0.0.1") else None] * 2
    assert [kind for host in inventory.hosts.values() for kind in host.unreadable] == []


def test_what_every_version_has_is_read_the_same(version_and_inventory: tuple[str, Inventory]) -> None:
    version, inventory = version_and_inventory
    host = inventory.find_host("esx-01")
    assert [(node.id, node.memory_mib, len(node.devices)) for node in host.numa_nodes] == [
        (0, 524288, 4),
        (1, 524288, 4),
    ]
    assert [gpu.numa_node for gpu in host.gpus] == [0, 1, 1]
    offer = host.offers("grid_a100-3-20c")
    assert offer is not None and offer.suspend is True
    [dynamic] = inventory.find_vm("ml-04").devices or ()
    assert isinstance(dynamic, DynamicDevice if since(version, "7.0.0.0") else OtherPassthrough)
    assert all(isinstance(device, VgpuDevice) for device in inventory.find_vm("ml-05").devices or ())


def apply_request(site: Site, request: Request) -> Report:
    report = run(request, site, apply=True)
    assert report.plan.rejections == (), request
    assert {outcome.verdict for outcome in report.outcomes} <= {Verdict.DONE, Verdict.ALREADY}, report.outcomes
    assert report.plan.steps, request
    return report


def refusal_lines(site: Site, request: Request) -> list[str]:
    report = run(request, site, apply=True)
    assert (report.exit_code, report.plan.steps) == (3, ())
    return [str(rejection) for rejection in report.plan.rejections]


@pytest.mark.long
@pytest.mark.parametrize("version", mostly_long(CHANGED, ("7.0.3.0", "8.0.2.0", "9.1.0.0")))
def test_attach_and_detach(version: str, tmp_path: Path) -> None:
    with vcenter(version, tmp_path) as (server, site):
        apply_request(site, Attach("ml-07", profile="a100-3-20c", numa=NumaPolicy.REQUIRED, power=PowerPolicy.ON))
        apply_request(site, Detach("ml-07", all=True, power=PowerPolicy.OFF))
        apply_request(site, Attach("ml-08", device=("0000:5e:00.0",), power=PowerPolicy.ON))
        apply_request(site, Detach("ml-08", all=True, power=PowerPolicy.OFF))
        apply_request(site, Attach("ml-08", device_type=("10de:26b9",)))
        apply_request(site, Detach("ml-08", all=True))
        if since(version, "8.0.0.1"):
            apply_request(site, Detach("ml-05", all=True))
            apply_request(site, Attach("ml-05", device_group=NVLINK, power=PowerPolicy.ON))
        if not since(version, "8.0.3.0"):
            doubted = run(Attach("ml-07", profile="a100-3-20c"), site, apply=False).plan.warnings
            assert "esx-01.lab 0000:3b:00.0: whether it is in MIG mode is not known" in doubted
        methods = {change.method for change in server.world.ledger}
    assert methods == {"ReconfigVM_Task", "PowerOnVM_Task", "ShutdownGuest"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("version", "wish", "limitation"),
    [
        ("6.7", Attach("ml-08", device_type=("10de:26b9",)), "Dynamic DirectPath I/O needs 7.0.0.0"),
        ("6.7", Attach("ml-08", label="l40s-ml"), "Dynamic DirectPath I/O needs 7.0.0.0"),
        ("7.0.1.0", Attach("ml-08", label="l40s-ml"), "a hardware label needs 7.0.2.0"),
        ("7.0.3.0", Attach("ml-05", device_group=NVLINK), "a vendor device group needs 8.0.0.1"),
    ],
)
def test_what_the_version_cannot_say_is_refused_by_name(
    version: str, wish: Attach, limitation: str, tmp_path: Path
) -> None:
    """Not "no such label on the host", nor "it offers: none": this API cannot show whether there is one."""
    with vcenter(version, tmp_path) as (server, site):
        assert refusal_lines(site, wish) == [f"{wish.vm}: this vCenter has API version {version}; {limitation}"]
        assert list(server.world.ledger) == []


@pytest.mark.long
@pytest.mark.parametrize("version", mostly_long(CHANGED, ("7.0.3.0",)))
def test_a_night_and_a_morning(version: str, tmp_path: Path) -> None:
    """Where the mode of a GPU is unknown, no VM starts on a slot that may not be there: before 8.0.3, on which all
    other nights are."""
    policy = load_policy(POLICY)
    with vcenter(version, tmp_path) as (server, site):
        assert rotate_night(policy, site, apply=True).exit_code == 0
        started = {change.name for change in server.world.ledger if change.after.get("power") == "poweredOn"}
        suspended_desktops = {change.name for change in server.world.ledger if change.after.get("power") == "suspended"}
        assert suspended_desktops == {"vdi-07", "vdi-08", "vdi-09", "vdi-10"}
        assert started == {"ml-06", "ml-09"} | ({"ml-01"} if since(version, "8.0.3.0") else set())
        assert rotate_day(policy, site, apply=True).exit_code == 0
        back = {change.name for change in server.world.ledger if change.before.get("power") == "suspended"}
        assert back == suspended_desktops


@pytest.mark.long
def test_a_vcenter_older_than_what_works_says_so() -> None:
    with (
        SimServer(build("lab", api_version="6.0")) as server,
        pytest.raises(ProtocolError, match="offers no API version"),
    ):
        Session(target_of(server))
