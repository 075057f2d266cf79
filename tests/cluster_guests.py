"""Four VMs of a cluster in simulated guests that run real programs, each with an SSH server at its own address."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import yaml
from pyVim.connect import Disconnect, SmartConnect
from pyVmomi import vim

from gpuops.model.workloads.cluster import MARKER_KEY, ClusterMarker, RdmaKind
from gpuops.sim.server import SimServer, start
from tests.ports import listens
from tests.sim.guests.guests_of import Guest
from tests.waiting import wait_until

USER, PASSWORD = "ml", "Kept4now"
AUTH = vim.vm.guest.NamePasswordAuthentication(username=USER, password=PASSWORD, interactiveSession=False)
NODES: Final = 4
NAME: Final = f"train{os.getpid()}"
"""Of the cluster: guests of several test processes share this machine, and a run ends what is left of its namesake."""
_BASE: Final = Path(__file__).parent / "sim" / "guests" / "real_guests.yaml"
_MISSING: Final = [each for each in ("mpirun", "/usr/sbin/sshd", "ssh-keygen") if shutil.which(each) is None]

needs_mpi: Final = pytest.mark.skipif(
    bool(_MISSING) and "CI" not in os.environ,
    reason=f"no {', '.join(_MISSING)}: apt-get install openmpi-bin python3-mpi4py openssh-server",
)


@dataclass(frozen=True)
class ClusterGuests:
    """Their server, and each guest by its rank."""

    server: SimServer
    guests: tuple[Guest, ...]
    ssh_port: int

    def root(self, rank: int) -> Path:
        """Where the files of that guest lie."""
        return self.server.world.guests.guest(self.guests[rank].vm._moId).root

    def left(self) -> list[str]:
        """What a run has left in the guests: files of its own, lines of keys, processes."""
        files = [str(path) for rank in range(NODES) for path in self.root(rank).rglob("*gpuops*")]
        keys = [self.root(rank) / "root/.ssh/authorized_keys" for rank in range(NODES)]
        lines = [key_file.read_text() for key_file in keys if key_file.exists()]
        return files + [line for line in lines if "gpuops" in line] + [str(process) for process in marked_processes()]


def marked_processes() -> list[int]:
    """The processes of runs over clusters on this machine, of whichever guest."""
    pids = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                if f"GPUOPS_CLUSTER_RUN={NAME}/".encode() in (path / "environ").read_bytes():
                    pids.append(int(path.name))
            except OSError:  # it has ended, or is another user's
                continue
    return pids


def scenario(path: Path, rdma: RdmaKind = RdmaKind.NONE) -> Path:
    """The scenario of real guests with a cluster `NAME` of four VMs with a vGPU each, written there."""
    document = yaml.safe_load(_BASE.read_text(encoding="utf-8"))
    vm = {**document["vms"][0], "folder": "ml"}
    document["vms"] = [
        {
            **{name: value for name, value in vm.items() if name not in ("count", "first")},
            "name": f"{NAME}-{rank:02}",
            "extra_config": {MARKER_KEY: ClusterMarker(NAME, rank, NODES, "0a1b2c3d", "0" * 12, 1, rdma).text},
        }
        for rank in range(NODES)
    ]
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


@contextmanager
def cluster_guests(directory: Path, rdma: RdmaKind = RdmaKind.NONE, *, ssh: bool = True) -> Iterator[ClusterGuests]:
    """The guests, with SSH servers that let their keys in, as those of real guests do."""
    with start(str(scenario(directory / "cluster.yaml", rdma)), clock="virtual") as server:
        service = SmartConnect(**server.login)
        guests = tuple(Guest(server, service, f"{NAME}-{rank:02}", AUTH) for rank in range(NODES))
        new_guests = ClusterGuests(server, guests, _free_port(guests) if ssh else 22)
        for rank in range(NODES) if ssh else ():
            _serve_ssh(new_guests, rank)
        yield new_guests
        Disconnect(service)
        assert server.world.bugs == []


def _free_port(guests: tuple[Guest, ...]) -> int:
    with socket.create_server((guests[0].vm.guest.ipAddress, 0)) as tried:
        port: int = tried.getsockname()[1]
    return port


def _serve_ssh(cluster: ClusterGuests, rank: int) -> None:
    """An sshd that is part of the guest: what it starts has the guest's environment, and the simulator's mark.

    It writes its title over its own environment, and so over the mark: it ends with the shell that started it.
    """
    root, guest = cluster.root(rank), cluster.guests[rank]
    keys = root / "etc/ssh"
    keys.mkdir(parents=True)
    key = keys / "ssh_host_ed25519_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    variables = ("HOME", "TMPDIR", "GPUOPS_GUEST_NAME", "GPUOPS_GUEST_ADDRESS", "GPUOPS_SIM_GUEST")
    (keys / "sshd_config").write_text(
        f"Port {cluster.ssh_port}\nListenAddress {guest.vm.guest.ipAddress}\nHostKey {key}\nPidFile none\nUsePAM no\n"
        f"StrictModes no\nPasswordAuthentication no\nAuthorizedKeysFile {root}/root/.ssh/authorized_keys\n"
        "SetEnv " + " ".join(f"{variable}=@{variable}@" for variable in variables) + "\n",
        encoding="utf-8",
    )
    filled = " ".join(f'-e "s|@{variable}@|${variable}|"' for variable in variables)
    serve = f"setpriv --pdeathsig KILL /usr/sbin/sshd -D -e -f {keys}/sshd_config 2> {keys}/log"
    guest.run(f"-c 'sed -i {filled} {keys}/sshd_config; {serve}; true'", directory=str(root / "tmp"))
    try:
        wait_until(lambda: listens(cluster.ssh_port, guest.vm.guest.ipAddress))
    except AssertionError:
        raise AssertionError((keys / "log").read_text(encoding="utf-8")) from None
