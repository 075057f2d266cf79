"""Memory of services that run for long, against a simulated vCenter in which a VM stops or starts every few seconds.

`python -m tests.soak_services [--minutes 30] [SERVICE ...]` runs `serve`, `metrics --listen`, `observe`, `rotate watch`
and `runner run` side by side and prints the memory of each (resident set, MB) minute by minute. It ends with 1 where a
service grew by more than 5 MB after its first third.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Final

import httpx

from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.outside_events.vm_events import power_off, power_on
from gpuops.sim.server import SimServer, start
from gpuops.sim.state.vm_state import Power
from gpuops.sim.wire import sim_client
from tests.execute.journal.postgres import binaries, running_server
from tests.fleet.processes import ANY, disturbed_fleet
from tests.fleet.world import Size
from tests.ports import free_port

CHANGE_EVERY_S: Final = 3.0
GROWTH_MB: Final = 5.0
"""That a service may add after the first third of its time."""
SPARE_POLICY: Final = Path(__file__).parents[1] / "templates" / "spare-policy.yaml"
LISTENING: Final = ("serve", "metrics")
COMMANDS: Final[Mapping[str, Sequence[str]]] = {
    "serve": ("serve", "--listen", "127.0.0.1:PORT"),
    "metrics": ("metrics", "--listen", "127.0.0.1:PORT", "--every", "10"),
    "observe": ("observe",),
    "watch": ("rotate", "watch", "--policy", str(SPARE_POLICY)),
}
RUNNER: Final = "runner"
FLEET: Final = Size(hosts=4, desktops=16, ml_vms=4, memory_gib=1, in_flight=4)


@contextmanager
def changing_vcenter(folder: Path) -> Iterator[Path]:
    """Serve the lab on the clock of the day, stop and start its VMs in turn, and give the ready file."""
    ends = Event()
    with start("lab", clock="real") as server:
        thread = Thread(target=_change, args=(server, ends), daemon=True)
        thread.start()
        path = folder / "ready.json"
        sim_client.write(path, sim_client.of(server))
        yield path
        ends.set()
        thread.join()


def _change(server: SimServer, ends: Event) -> None:
    rule = Rule(Effect.HAPPEN)
    vms = [vm for vm in server.world.by_type("VirtualMachine") if vm.name.startswith("vdi-")]
    turn = 0
    while not ends.wait(CHANGE_EVERY_S):
        vm = vms[turn % len(vms)]
        turn += 1
        with server.world.lock:
            (power_off if vm.state.power is Power.ON else power_on)(vm, rule)


@contextmanager
def service(name: str, ready: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of `COMMANDS` in a state directory of its own; of one that listens somebody asks every second."""
    port = free_port()
    words = [word.replace("PORT", str(port)) for word in COMMANDS[name]]
    environ = {**os.environ, "GPUOPS_STATE_DIR": str(folder / f"state-{name}")}
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuops", *words, "--vcenter", f"sim@{ready}"],
        env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    if name in LISTENING:
        Thread(target=_ask, args=(f"http://127.0.0.1:{port}/metrics", process), daemon=True).start()
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=60)


def _ask(url: str, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        time.sleep(1.0)
        try:
            httpx.get(url, timeout=30.0)
        except httpx.HTTPError:
            continue  # it has not begun to listen, or ends


def memory_mb(process: subprocess.Popen[bytes]) -> float:
    """Return the resident set of a process. AssertionError where it has ended."""
    assert process.poll() is None, f"it ended with exit code {process.returncode}"
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    match = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    assert match is not None, "Linux tells it of every process that runs"
    return int(match[1]) / 1000


@contextmanager
def runner(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a runner with the turns of one vCenter, on a PostgreSQL of its own."""
    programs = binaries()
    assert programs is not None, "it needs a PostgreSQL server: apt-get install postgresql"
    with running_server(programs) as server, disturbed_fleet(folder, server.database(), [FLEET]) as fleet:
        init = fleet.command("runner", "init", at=ANY)
        assert init.returncode == 0, init.stderr
        yield fleet.runner(ANY).process


def main() -> int:
    """Run the services that are named, or all, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak_services")
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("services", nargs="*", default=[], metavar="SERVICE", help=", ".join((*COMMANDS, RUNNER)))
    chosen = parser.parse_args()
    names = chosen.services or [*COMMANDS, RUNNER]
    with TemporaryDirectory(prefix="gpuops-soak-") as name, ExitStack() as stack:
        folder = Path(name)
        ready = stack.enter_context(changing_vcenter(folder))
        processes = {
            service_name: stack.enter_context(
                runner(folder / RUNNER) if service_name == RUNNER else service(service_name, ready, folder)
            )
            for service_name in names
        }
        measured: dict[str, list[float]] = {service_name: [] for service_name in names}
        print("minute", *(f"{service_name:>8}" for service_name in names))
        for minute in range(1, chosen.minutes + 1):
            time.sleep(60.0)
            for running_service, process in processes.items():
                measured[running_service].append(memory_mb(process))
            print(f"{minute:6}", *(f"{readings[-1]:8.1f}" for readings in measured.values()), flush=True)
    grown = {service_name: max(readings) - readings[len(readings) // 3] for service_name, readings in measured.items()}
    print("after a third:", ", ".join(f"{service_name} {growth:+.1f} MB" for service_name, growth in grown.items()))
    return int(max(grown.values()) > GROWTH_MB)


if __name__ == "__main__":
    sys.exit(main())
