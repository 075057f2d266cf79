"""Two servers and two clients of a pool in simulated guests that run real programs, and the tests' loopback program."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import yaml
from pyVim.connect import Disconnect, SmartConnect
from pyVmomi import vim

from gpuops.model.vcenter.target import GuestLogin, Secret
from gpuops.sim.server import SimServer, start
from gpuops.vsphere.connection import Connection
from tests.sim.guests.guests_of import Guest
from tests.waiting import wait_until
from tests.wire.conftest import target_of

USER, PASSWORD = "ml", "Kept4now"
AUTH = vim.vm.guest.NamePasswordAuthentication(username=USER, password=PASSWORD, interactiveSession=False)
SERVERS, CLIENTS = ("gpu-01", "gpu-02"), ("ds-01", "ds-02")
NETWORK: Final = "VM Network"
_BASE: Final = Path(__file__).parent / "sim" / "guests" / "real_guests.yaml"
PROGRAM: Final = Path(__file__).parent / "pool_program"


def loopback_text() -> str:
    """Its file, for this directory."""
    return (PROGRAM / "loopback.yaml").read_text(encoding="utf-8").replace("@HERE@", str(PROGRAM))


def pool_scenario(path: Path, ml: Sequence[str] = ()) -> Path:
    """The scenario of real guests with these VMs in place of its own, written there; `ml`: VMs beside them that are off
    and are to have a whole GPU too."""
    document = yaml.safe_load(_BASE.read_text(encoding="utf-8"))
    vm = {name: value for name, value in document["vms"][0].items() if name not in ("count", "first", "devices")}
    whole = {"devices": [{"vgpu": "nvidia_a40-48c"}]}
    document["vms"] = [{**vm, "name": name, **(whole if name in SERVERS else {})} for name in (*SERVERS, *CLIENTS)]
    document["vms"] += [{**vm, **whole, "name": name, "power": "off"} for name in ml]
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


@dataclass(frozen=True)
class HeldMemory:
    """A client's program that holds memory of a GPU."""

    guest: Guest
    pid: int
    printed: Path

    def end(self) -> str:
        """The last line that it has printed, once it has ended."""
        self.guest.ended(self.pid)
        return self.printed.read_text().splitlines()[-1]


@dataclass(frozen=True)
class PoolWorld:
    """The guests, and a connection that reaches them."""

    server: SimServer
    connection: Connection
    guests: dict[str, Guest]

    def root(self, name: str) -> Path:
        """Where the files of that guest lie."""
        return self.server.world.guests.guest(self.guests[name].vm._moId).root

    def home(self, name: str) -> Path:
        """The home directory of the guest's user."""
        return self.root(name) / "root"

    def fail(self, hook: str, name: str, fails: bool = True) -> None:
        """Let this hook of the loopback program fail in that guest, or work again."""
        file = self.home(name) / f"fail-{hook}"
        file.touch() if fails else file.unlink()

    def kept(self, name: str) -> list[str]:
        """The names of leases, shares and ports that the pool has in that guest."""
        lie = (self.home(name) / ".gpuops-pool").glob("*")
        return sorted(path.name for path in lie if path.name not in ("lock", "ended"))

    def until_quiet(self) -> None:
        """Until every program that was started in a guest has ended, one that goes on without its caller too."""
        for guest in self.guests.values():
            for process in self.server.world.guests.processes(guest.vm._moId):
                process.child.wait(timeout=60)

    def use(self, client: str, *lines: str) -> list[str]:
        """What the client's program is answered, in its guest, with the environment of the last lease."""
        guest = self.guests[client]
        pid, printed = self._begin(client, *lines)
        guest.ended(pid)
        return printed.read_text().splitlines()

    def hold(self, client: str, mib: int) -> HeldMemory:
        """The client's program, which has taken so much of one GPU and holds it until it is cut off."""
        memory = HeldMemory(self.guests[client], *self._begin(client, f"ALLOC {mib}", "hold"))
        wait_until(lambda: memory.printed.exists() and f"0 OK {mib}" in memory.printed.read_text().splitlines())
        return memory

    def _begin(self, client: str, *lines: str) -> tuple[int, Path]:
        """The process of the client's program, and the file of what it prints."""
        guest, directory = self.guests[client], self.guests[client].temporary_directory()
        words = " ".join(f'"{line}"' for line in lines)
        command = f'. $HOME/.gpuops-pool/env; python3 "{PROGRAM}/client.py" {words} > printed 2>&1'
        pid = guest.run(f"-c '{command}'", directory=directory)
        return pid, Path(directory) / "printed"


@contextmanager
def pool_world(directory: Path, ml: Sequence[str] = ()) -> Iterator[PoolWorld]:
    """The world, whose guests end with it. Their addresses are its own: several test processes share this machine."""
    with start(str(pool_scenario(directory / "pool.yaml", ml)), clock="virtual", seed=os.getpid()) as server:
        service = SmartConnect(**server.login)
        guests = {name: Guest(server, service, name, AUTH) for name in (*SERVERS, *CLIENTS, *ml)}
        login = GuestLogin(USER, Secret(PASSWORD))
        with Connection(replace(target_of(server), guest=login)) as connection:
            yield PoolWorld(server, connection, guests)
        Disconnect(service)
        assert server.world.bugs == []
