"""Which vGPUs run on a host and where each lies, as its nvidia-smi writes it: read, and used by a plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpuops.advise.capacity import Slots
from gpuops.advise.occupancy import gpu_states, room_for
from gpuops.api import Site, run
from gpuops.catalog import load
from gpuops.clock import wall_clock
from gpuops.errors import Refused
from gpuops.hostshell.nvidia_smi import DETAILS, INDEX, INSTANCES, QUERY, VGPUS, NvidiaSmi, read_instances, read_vgpus
from gpuops.hostshell.ssh import Ssh
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host_settings import SmiVgpu
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.vm_blockers import PowerPolicy
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.hostshell.server import ssh_server
from tests.sim.guests import nvidia_smi
from tests.wire.conftest import target_of

NAME = "esx-01.lab"
GPU = PciAddress.parse("0000:c8:00.0")
LISTING = """\
GPU 00000000:C8:00.0
    Active vGPUs                          : 2
    vGPU ID                               : 3251634213
        VM UUID                           : 422a8ae2-0000-0000-0000-000000000000
        VM Name                           : desk: 7
        vGPU Name                         : NVIDIA A40-8Q
        vGPU Type                         : 557
        GPU Instance ID                   : N/A
        Placement ID                      : 16
        PCI
            Bus Id                        : 00000000:02:02.0
    vGPU ID                               : 3251634214
        VM Name                           : ml-1
        vGPU Name                         : NVIDIA A40-12Q
        GPU Instance ID                   : N/A
        Placement ID                      : 0
GPU 00000000:D8:00.0
    Active vGPUs                          : 0
"""
MIG = LISTING.replace("GPU Instance ID                   : N/A", "GPU Instance ID                   : 5", 1)
NUMBERS = "0, 00000000:3B:00.0\n1, 00000000:C8:00.0\n"
TABLE = """\
+-------------------------------------------------------+
| GPU instances:                                        |
| GPU   Name             Profile  Instance   Placement  |
|                          ID       ID       Start:Size |
|=======================================================|
|   0  MIG 3g.20gb          9        5          0:4     |
|   1  MIG 3g.20gb          9        5          4:4     |
|   1  MIG 1g.5gb+me       20        9          3:1     |
+-------------------------------------------------------+
"""


def test_placement_ids_are_read_as_nvidia_smi_writes_them() -> None:
    assert list(read_vgpus(LISTING, {})) == [
        SmiVgpu(GPU, "desk: 7", "nvidia_a40-8q", 16),
        SmiVgpu(GPU, "ml-1", "nvidia_a40-12q", 0),
    ]


def test_gpu_instances_are_found_by_gpu_and_id() -> None:
    instances = read_instances(NUMBERS, TABLE)
    assert instances == {
        (PciAddress.parse("0000:3b:00.0"), "5"): (0, 4),
        (GPU, "5"): (4, 4),
        (GPU, "9"): (3, 1),
    }
    assert [vgpu.start for vgpu in read_vgpus(MIG, instances)] == [4, 0]
    assert [vgpu.start for vgpu in read_vgpus(MIG, {})] == [None, 0], "an instance that the table lacks is not known"


NO_NAME = LISTING.replace("VM Name", "Name").partition("GPU 00000000:D8")[0]


@pytest.mark.parametrize("text", ["", "<html>login</html>\n", NO_NAME, "GPU 0:0\n"])
def test_a_listing_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    with (
        ssh_server(tmp_path, NAME, lambda command: (text, 0)) as host,
        pytest.raises(Refused, match="gpuops cannot read the output of nvidia-smi"),
    ):
        NvidiaSmi(host.ssh).vgpus(NAME)


@dataclass
class Lab:
    """The lab with ml-01 (a 3g instance) running on an A100 in MIG mode; its host can be entered over SSH."""

    server: SimServer
    site: Site
    asked: list[str]
    said: list[str] = field(default_factory=list)

    def room(self, profile: str) -> Slots:
        """On the A100 that ml-01 runs on."""
        snapshot = self.site.with_vgpus(self.site.vcenter.inventory())
        states = gpu_states(snapshot.find_host(NAME), snapshot, load(everything=True))
        (state,) = (state for state in states if "ml-01" in state.vm_names)
        return room_for(state, profile, load(everything=True))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    world = build("lab")
    world.patience_s = 0
    with SimServer(world) as server:
        (esx,) = (host for host in world.by_type("HostSystem") if host.display_name == NAME)
        with (
            ssh_server(tmp_path, f"{NAME},esx-02.lab", lambda command: nvidia_smi.answer(esx, command)) as shell,
            Connection(target_of(server)) as connection,
            Site(connection, tmp_path / "state", wall_clock, shell=NvidiaSmi(shell.ssh)) as site,
        ):
            report = run(Attach("ml-01", profile="a100-3-20c", power=PowerPolicy.ON), site, apply=True)
            assert report.exit_code == 0, report.outcomes
            shell.asked.clear()
            lab = Lab(server, site, shell.asked)
            site.say = lab.said.append
            yield lab


@pytest.mark.long
def test_room_is_exact_where_the_host_tells_how_vgpus_lie(lab: Lab) -> None:
    """vCenter alone leaves open whether three or four single slices are free beside a 3g."""
    assert (lab.room("grid_a100-1-5c"), lab.said) == (Slots(3, 3), [])
    assert sorted(lab.asked) == sorted([*[QUERY, DETAILS] * 2, VGPUS, INDEX, INSTANCES]), "one host has MIG instances"
    lab.site.shell = None
    assert (lab.room("grid_a100-1-5c").at_least, lab.room("grid_a100-1-5c").at_most) == (3, 4)


@pytest.mark.long
def test_a_host_that_does_not_answer_stays_as_vcenter_tells_it(lab: Lab) -> None:
    lab.site.shell = NvidiaSmi(Ssh(known_hosts=Path("/nowhere")))
    assert lab.room("grid_a100-1-5c").at_most == 4
    (message,) = lab.said
    assert message.startswith("where the vGPUs lie on their GPUs is not known: "), message


@pytest.mark.long
def test_a_vm_of_another_name_is_not_taken_for_the_one_that_vcenter_lists(tmp_path: Path, lab: Lab) -> None:
    strange = LISTING.replace("00000000:C8:00.0", "00000000:3B:00.0").replace("ml-1", "ml-01")
    folder = tmp_path / "other"
    folder.mkdir()
    with ssh_server(folder, NAME, lambda command: (strange, 0)) as shell:
        lab.site.shell = NvidiaSmi(shell.ssh)
        assert lab.room("grid_a100-1-5c").at_most == 4
