"""Which vGPUs run on a host and where each lies, by its nvidia-smi; and what the operator's own idle command tells."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpuops.advise.capacity import Slots
from gpuops.advise.occupancy import gpu_states, room_for
from gpuops.api import Site, run
from gpuops.catalog import load
from gpuops.clock import wall_clock
from gpuops.errors import Refused
from gpuops.hostshell.idle_command import IdleCommand
from gpuops.hostshell.nvidia_smi import DETAILS, INDEX, INSTANCES, QUERY, VGPUS, NvidiaSmi, read_instances, read_vgpus
from gpuops.hostshell.ssh import Ssh
from gpuops.model.desktops.evidence import SessionCount
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host_settings import SmiVgpu
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
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
    assert message.startswith("gpuops does not know where the vGPUs are placed on their GPUs: "), message


@pytest.mark.long
def test_a_vm_of_another_name_is_not_taken_for_the_one_that_vcenter_lists(tmp_path: Path, lab: Lab) -> None:
    strange = LISTING.replace("00000000:C8:00.0", "00000000:3B:00.0").replace("ml-1", "ml-01")
    folder = tmp_path / "other"
    folder.mkdir()
    with ssh_server(folder, NAME, lambda command: (strange, 0)) as shell:
        lab.site.shell = NvidiaSmi(shell.ssh)
        assert lab.room("grid_a100-1-5c").at_most == 4


NOW = datetime(2026, 11, 2, 20, tzinfo=UTC)
VMS = (
    Vm("vm-1", "vdi-01", instance_uuid="u-1"),
    Vm("vm-2", "vdi-02", instance_uuid="u-2"),
    Vm("vm-3", "twin", instance_uuid="u-3"),
    Vm("vm-4", "twin", instance_uuid="u-4"),
)


@pytest.fixture
def messages() -> list[str]:
    return []


def command(tmp_path: Path, script: str, messages: list[str], **options: Any) -> IdleCommand:
    path = tmp_path / "who-works"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    environ = {"PATH": "/usr/bin:/bin", "GPUOPS_PASSWORD": "hunter2", "CREDENTIALS_DIRECTORY": "/run/x"}
    return IdleCommand([str(path), "--all", "; exit 9"], environ, messages.append, **options)


def sessions_of(answer: IdleCommand) -> dict[str, SessionCount]:
    sessions = answer.sessions(VMS, Inventory("vc", "8.0.3.0", NOW))
    assert set(sessions) == {vm.ref for vm in VMS}, "each VM has an answer"
    return dict(sessions)


def test_counts_and_ages_are_kept_and_nothing_else(tmp_path: Path, messages: list[str]) -> None:
    lines = [
        {"vm": "vdi-01", "sessions": 0, "user": "alice"},
        {"uuid": "u-2", "sessions": 2, "age_s": 30, "oldest_s": 7200, "youngest_s": 60},
        {"uuid": "u-2", "sessions": 0},
        {"vm": "twin", "sessions": 0},
        {"uuid": "u-3", "sessions": 1, "disconnected_s": 7200},
        {"uuid": "u-4", "busy": True, "sessions": 1, "disconnected_s": 7200, "who": "alice"},
        {"vm": "of-nobody", "busy": False},
    ]
    printed = "\n".join(json.dumps(line) for line in lines)
    sessions = sessions_of(command(tmp_path, f"cat <<'END'\n{printed}\nEND", messages))
    assert sessions == {
        "vm-1": SessionCount(0, False, NOW),
        "vm-2": SessionCount(2, True, NOW, 30, 7200, 60),
        "vm-3": SessionCount(1, True, NOW, disconnected_s=7200),
        "vm-4": SessionCount(1, True, NOW),
    }
    assert "alice" not in repr(sessions)
    assert messages == []


@pytest.mark.parametrize(
    "line",
    [
        "no JSON",
        '["vdi-01"]',
        '{"vm": "vdi-01"}',
        '{"vm": "vdi-01", "sessions": -1}',
        '{"vm": "vdi-01", "sessions": true}',
        '{"vm": "vdi-01", "sessions": "0"}',
        '{"vm": "vdi-01", "busy": 0}',
        '{"vm": "vdi-01", "sessions": 0, "age_s": -5}',
        '{"vm": "vdi-01", "sessions": 1, "disconnected_s": "7200"}',
        '{"vm": ["vdi-01"], "sessions": 0}',
        '{"sessions": 0}',
    ],
)
def test_a_line_that_is_no_answer_tells_nothing(tmp_path: Path, messages: list[str], line: str) -> None:
    answer = command(tmp_path, f"""echo '{line}'; echo '{{"vm": "vdi-02", "busy": false}}'""", messages)
    for _ in range(2):
        sessions = sessions_of(answer)
    assert (sessions["vm-1"].used, sessions["vm-2"].used) == (None, False)
    assert messages == ["idle_command: the command printed lines that gpuops cannot read (gpuops help idle)"], "once"


IDLE = """echo '{"vm": "vdi-01", "sessions": 0}'"""


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (f"{IDLE}; echo alice >&2; exit 3", "the command ended with exit code 3"),
        (f"{IDLE}; kill -9 $$", "the command ended with exit code -9"),
        (f"{IDLE}; sleep 20", "the command took longer than 0.5 s"),
        (f"{IDLE}; exec >&-; sleep 20", "the command took longer than 0.5 s"),
        (f"{IDLE}; sleep 20 & exit 0", "the command took longer than 0.5 s"),
        ("exec yes", "the command printed more than 1 MiB"),
    ],
)
def test_a_command_that_fails_tells_of_no_vm(
    tmp_path: Path, messages: list[str], script: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuops.hostshell.idle_command.MOST_BYTES", 1024 * 1024)
    sessions = sessions_of(command(tmp_path, script, messages, timeout_s=0.5))
    assert {(session.used, session.because) for session in sessions.values()} == {(None, why)}
    assert messages == [f"idle_command: {why} (gpuops help idle)"]


def test_one_that_is_not_there_is_said(messages: list[str]) -> None:
    sessions = sessions_of(IdleCommand(["/nowhere/who-works"], {}, messages.append))
    assert {session.used for session in sessions.values()} == {None}
    assert messages == [f"idle_command: the command cannot be started: {os.strerror(errno.ENOENT)} (gpuops help idle)"]


def test_it_gets_the_vms_its_arguments_and_no_secret(tmp_path: Path, messages: list[str]) -> None:
    """Run as it stands: a blank or a semicolon in an argument is no shell's."""
    sessions_of(
        command(tmp_path, f'cat > {tmp_path}/in; env > {tmp_path}/env; printf "%s\\n" "$@" > {tmp_path}/args', messages)
    )
    lines_sent = [json.loads(line) for line in (tmp_path / "in").read_text().splitlines()]
    assert lines_sent == [{"vm": vm.name, "uuid": vm.instance_uuid} for vm in VMS]
    assert (tmp_path / "args").read_text() == "--all\n; exit 9\n"
    environment = (tmp_path / "env").read_text()
    assert "PATH=/usr/bin:/bin" in environment
    assert "GPUOPS" not in environment and "hunter2" not in environment and "CREDENTIALS" not in environment
