"""Guests of pools, made up: which program serves, which shares are there until when, which clients are let in.

The scripts of gpuops are words here (`ServerWords`, `ClientWords` in the place of `ServerCall`, `ClientCall`): what a
guest answers is by this file alone. A program and its shares end with the start of the VM that they began in, and a
share at the moment that it was given too, whoever is away; files stay.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any, Final

from gpuops.errors import OutcomeUnknown, StepFailed
from gpuops.model.guests.guest_command import CommandEnd, RunningCommand
from gpuops.model.workloads.lease_book import LentShare
from gpuops.model.workloads.remote_gpu import RemoteProgram
from gpuops.sim.state.vm_state import Power
from gpuops.sim.world import World
from tests.nights.pools.site import NETWORK, WHOLE_MIB

BOOTS: Final = timedelta(minutes=1)
"""So long after its start a guest answers nobody."""
CALLS: Final = ("start", "stop", "check", "look", "admit", "dismiss", "key", "enter", "leave")


@dataclass
class Share:
    """A share in the guest of a server."""

    server: str
    """Name of its VM."""
    lease: str
    gpu: int
    memory_mib: int
    boot: datetime
    admitted: datetime
    until: datetime
    """It ends then by itself."""
    ended: datetime | None = None
    """When gpuops ended it."""
    lost: bool = False
    """The start that it began in was over when it was ended."""


@dataclass
class Let:
    """A client that was let in: its environment is in its guest."""

    client: str
    lease: str
    since: datetime
    left: datetime | None = None


@dataclass(frozen=True, slots=True)
class ServerWords:
    """In the place of `ServerCall`."""

    program: RemoteProgram
    address: str
    gpus: tuple[int, ...]

    def start(self) -> str:
        return json.dumps({"what": "start"})

    def stop(self) -> str:
        return json.dumps({"what": "stop"})

    def check(self) -> str:
        return json.dumps({"what": "check"})

    def look(self) -> str:
        return json.dumps({"what": "look"})

    def used(self) -> str:
        return json.dumps({"what": "used"})

    def admit(self, lease: str, share: LentShare, client: str, seconds_left: int, key: str) -> str:
        told = {"lease": lease, "gpu": share.gpu, "memory_mib": share.memory_mib, "seconds": seconds_left}
        return json.dumps({"what": "admit", **told})

    def dismiss(self, lease: str, gpu: int) -> str:
        return json.dumps({"what": "dismiss", "lease": lease, "gpu": gpu})


@dataclass(frozen=True, slots=True)
class ClientWords:
    """In the place of `ClientCall`."""

    program: RemoteProgram

    def key(self, lease: str) -> str:
        return json.dumps({"what": "key", "lease": lease})

    def enter(self, lease: str, environment: str) -> str:
        return json.dumps({"what": "enter", "lease": lease})

    def leave(self, lease: str) -> str:
        return json.dumps({"what": "leave", "lease": lease})


@dataclass
class MadePoolGuests:
    """Implements `GuestWork`. `point` is called before and after each script: where a run can be killed."""

    world: World
    rng: Random
    point: Callable[[str], None]
    troubled: bool = True
    """Whether guests are silent now and then."""
    shares: list[Share] = field(default_factory=list)
    lets: list[Let] = field(default_factory=list)
    programs: dict[str, datetime] = field(default_factory=dict)
    """By name of a VM whose program was started, the start of the VM in which it was."""
    over: set[tuple[str, str]] = field(default_factory=set)
    """Leases that a guest does not let back in, with the name of its VM and the GPU."""
    not_left: set[tuple[str, str]] = field(default_factory=set)
    """Clients and leases of which a guest was silent when it was to take the environment away, which is tried once."""
    too_much: list[str] = field(default_factory=list)
    """Where more of a GPU was used than there is."""
    met: Counter[str] = field(default_factory=Counter)
    _ends: dict[int, CommandEnd] = field(default_factory=dict)

    simulated = True

    @property
    def now(self) -> datetime:
        return self.world.clock.now()

    def serves(self, vm: Any) -> bool:
        """Whether the program of that server runs, so far as the VM does."""
        return bool(vm.state.power is not Power.OFF and self.programs.get(vm.name) == vm.state.boot_time)

    def live(self, name: str | None = None) -> list[Share]:
        """The shares that somebody can use now, or could if their server were not suspended."""
        boots = {vm.name: vm.state.boot_time for vm in self._vms() if vm.state.power is not Power.OFF}
        return [
            each
            for each in self.shares
            if each.ended is None
            and each.until > self.now
            and boots.get(each.server) == each.boot
            and name in (None, each.server)
        ]

    def guest_addresses(self, vm: str) -> Mapping[str, tuple[str, ...]]:
        here: Any = self.world.get(vm)
        number = sorted(each.moid for each in self._vms()).index(vm) + 1
        return {NETWORK: (f"10.0.0.{number}",)} if here.state.power is Power.ON else {}

    def start_command(
        self, vm: str, name: str, command: str, op_id: str, prefix: str = "", refusals: int = 1
    ) -> RunningCommand:
        told = json.loads(command)
        what = told["what"]
        self.point(f"before {what}")
        self.world.clock.advance(1)
        here: Any = self.world.find(vm)
        started = here.state.boot_time if here is not None else None
        if here is None or here.state.power is not Power.ON or started is None or self.now - started < BOOTS:
            self._not_done(name, told, "guest not up")
            raise StepFailed(f"{name}: VMware Tools do not answer")
        drawn = self.rng.random() if self.troubled else 1.0
        if drawn < 0.02:
            self._not_done(name, told, "guest silent")
            raise OutcomeUnknown(f"{name}: its guest does not answer")
        end = self._done(here, what, told)
        if drawn < 0.03:
            self.met["answer lost"] += 1
            end = CommandEnd(here.name, error=f"{name}: its answer was lost")
        pid = len(self._ends) + 1
        self._ends[pid] = end
        self.point(f"after {what}")
        return RunningCommand(vm, name, pid, "")

    def wait_for_commands(self, commands: Sequence[RunningCommand], timeout_s: float) -> Iterator[CommandEnd]:
        for each in commands:
            yield self._ends[each.pid]

    def command_end(self, command: RunningCommand) -> CommandEnd | None:
        return self._ends[command.pid]

    def guest_file_if_there(self, vm: str, name: str, path: str) -> bytes | None:
        raise AssertionError("no call for a pool reads a file of a guest")

    def _not_done(self, name: str, told: dict[str, Any], why: str) -> None:
        self.met[why] += 1
        if told["what"] == "leave":
            self.not_left.add((name, told["lease"]))

    def _done(self, vm: Any, what: str, told: dict[str, Any]) -> CommandEnd:
        name, boot, printed = vm.name, vm.state.boot_time, ""
        lease, gpu = told.get("lease", ""), told.get("gpu", -1)
        match what:
            case "start":
                self.programs[name] = boot
            case "stop":
                self.programs.pop(name, None)
                self._end(each for each in self.shares if each.server == name)
            case "check" | "look" if not self.serves(vm):
                return CommandEnd(name, 1.0, 1, "", f"{name}: its program does not run")
            case "look":
                there = (each for each in self.shares if each.server == name and each.ended is None)
                lines = (f"share {each.lease} {each.gpu} {'same' if each.boot == boot else 'other'}" for each in there)
                printed = "\n".join(lines)
            case "admit":
                return self._admitted(vm, told)
            case "dismiss":
                mine = (each for each in self.shares if (each.server, each.lease, each.gpu) == (name, lease, gpu))
                self._end(mine)
                self.over.add((f"{name}.{gpu}", lease))
            case "key" | "enter" if (name, lease) in self.over:
                return CommandEnd(name, 1.0, 1, "this lease has ended here", f"{name}: exit code 1")
            case "enter":
                if not any((each.client, each.lease) == (name, lease) and each.left is None for each in self.lets):
                    self.lets.append(Let(name, lease, self.now))
            case "leave":
                for each in self.lets:
                    if (each.client, each.lease) == (name, lease) and each.left is None:
                        each.left = self.now
                self.over.add((name, lease))
            case _:  # a check that does well, and what is used, of which nothing is told
                pass
        return CommandEnd(name, 1.0, 0, printed)

    def _admitted(self, vm: Any, told: dict[str, Any]) -> CommandEnd:
        name, boot, lease, gpu = vm.name, vm.state.boot_time, told["lease"], told["gpu"]
        if (f"{name}.{gpu}", lease) in self.over:
            return CommandEnd(name, 1.0, 1, "this lease has ended here", f"{name}: exit code 1")
        if not any((each.lease, each.gpu) == (lease, gpu) for each in self.live(name)):
            until = self.now + timedelta(seconds=told["seconds"])
            self.shares.append(Share(name, lease, gpu, told["memory_mib"], boot, self.now, until))
            used = sum(each.memory_mib for each in self.live(name) if each.gpu == gpu)
            if used > WHOLE_MIB:
                self.too_much.append(f"{self.now:%d %H:%M}: {used} MiB of GPU {gpu} of {name} are used")
        else:
            self.met["admitted again"] += 1
        return CommandEnd(name, 1.0, 0, f"port 14833\ntold label-{gpu}")

    def _end(self, shares: Iterator[Share]) -> None:
        boots = {vm.name: vm.state.boot_time for vm in self._vms()}
        for each in shares:
            if each.ended is None:
                each.ended, each.lost = self.now, boots[each.server] != each.boot

    def _vms(self) -> list[Any]:
        return list(self.world.by_type("VirtualMachine"))
