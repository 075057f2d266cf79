"""Reading a whole fleet: gpuops' reader beside govc and pyvmomi, for the same properties of the same server.

The server's time says nothing about a real vCenter, so only the client's CPU is judged, above what any client pays:
`drop` receives the same bytes over the same TLS and looks at none of them. The judged CPU begins after imports and
login; whole processes stand in the table beside it.

Two questions. `HEAVY` is judged: the properties that hold nearly all of a fleet's bytes, read whole, as any tool for
GPUs would ask for them. `LEAVES` is what gpuops itself asks for, many small paths; each is an element more for every
object, which costs a reader of elements more than it costs the peers. It is shown and not judged.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from gpuops.vsphere.reading.bulk.pages import PAGE_OBJECTS
from gpuops.vsphere.reading.bulk.property_paths import HOST, HOST_DEVICES, VM, VM_DETAIL
from tests.bench.measure import Contender, Rounds, Usage, interleave, paired_ratio, python
from tests.bench.readers.question import Question
from tests.bench.simulator.simulators import our_simulator, unbuilt_peers, vcsim_fleet
from tests.bench.verdict import Figure, Result
from tests.peers.processes import BINARIES, Endpoint, Govc

ROUNDS = 3
Paths = dict[str, list[str]]
HEAVY: Paths = {
    "VirtualMachine": [
        "name",
        "runtime.host",
        "runtime.powerState",
        "config.hardware.device",
        "config.extraConfig",
        "summary",
    ],
    "HostSystem": ["name", "hardware.numaInfo", "hardware.pciDevice", "config.graphicsInfo"],
}
LEAVES: Paths = {"VirtualMachine": [*VM, *VM_DETAIL], "HostSystem": [*HOST, *HOST_DEVICES]}
GOVC_KINDS = {"VirtualMachine": "m", "HostSystem": "h"}

GOVC_BUDGET = 1 / 4
PYVMOMI_BUDGET = 1 / 12
MEMORY_BUDGET_MIB = 150.0

DROP, GPUOPS, INVENTORY, GOVC, GOVC_START, PYVMOMI = (
    "read and drop (floor)",
    "gpuops reader",
    "gpuops, whole inventory",
    "govc object.collect -json",
    "govc about",
    "pyvmomi",
)


def run() -> Iterator[Result]:
    """200 hosts and 2,000 VMs of vcsim, then 1,000 and 10,000 of our simulator."""
    if lacking := unbuilt_peers():
        yield Result(f"bulk read beside govc: not run, {lacking}", ())
        return
    with vcsim_fleet(200, 2_000) as served:
        yield from _compare("vcsim, 200 hosts, 2,000 VMs", served.endpoint)
    with our_simulator("fleet:hosts=1000,vms=10000") as served:
        yield from _compare("our simulator, 1,000 hosts, 10,000 VMs", served.endpoint)


def _compare(server: str, endpoint: Endpoint) -> Iterator[Result]:
    judged = _rounds(endpoint, HEAVY, ROUNDS)
    yield Result(f"bulk read, heavy properties: {server}", tuple(_figures(judged, judged=True)), judged)
    shown = _rounds(endpoint, LEAVES, 1)
    yield Result(f"bulk read, gpuops' own properties: {server}", tuple(_figures(shown, judged=False)), shown)


def _rounds(endpoint: Endpoint, paths: Paths, rounds: int) -> Rounds:
    with tempfile.TemporaryDirectory() as directory:
        contenders = _contenders(endpoint, paths, Path(directory))
        contenders[0].run()  # the server makes its answers once; no contender pays for that
        return interleave(contenders, rounds)


def _contenders(endpoint: Endpoint, paths: Paths, directory: Path) -> list[Contender]:
    login = (endpoint.url, endpoint.username, endpoint.password, str(endpoint.ca_file))
    same = str(Question(*login, paths=paths, page=PAGE_OBJECTS).write(directory / "same.json"))
    whole = str(Question(*login, paths={}, page=PAGE_OBJECTS).write(directory / "whole.json"))
    environment = Govc(endpoint, directory).environment()
    return [
        python(DROP, "-m", "tests.bench.readers.drop", same),
        python(GPUOPS, "-m", "tests.bench.readers.gpuops", same),
        python(INVENTORY, "-m", "tests.bench.readers.gpuops", whole),
        Contender(GOVC, ("sh", "-c", govc_script(paths)), environment),
        Contender(GOVC_START, (str(BINARIES / "govc"), "about"), environment),
        python(PYVMOMI, "-m", "tests.bench.readers.pyvmomi", same),
    ]


def govc_script(paths: Paths) -> str:
    """govc reads one type a call; the shell's account includes both."""
    govc = BINARIES / "govc"
    calls = (
        [str(govc), "object.collect", "-json", "-type", letter, "/", *paths[kind]]
        for kind, letter in GOVC_KINDS.items()
    )
    return " && ".join(shlex.join(call) for call in calls)


def _figures(rounds: Rounds, *, judged: bool) -> Iterator[Figure]:
    govc_budget, pyvmomi_budget = (GOVC_BUDGET, PYVMOMI_BUDGET) if judged else (None, None)
    yield Figure("CPU above the floor: gpuops / govc", _ratio(rounds, GOVC), "x", govc_budget)
    yield Figure("CPU above the floor: gpuops / pyvmomi", _ratio(rounds, PYVMOMI), "x", pyvmomi_budget)
    yield Figure("whole process: gpuops / govc", paired_ratio(rounds, GPUOPS, GOVC), "x")
    yield Figure("whole process: gpuops / pyvmomi", paired_ratio(rounds, GPUOPS, PYVMOMI), "x")
    yield Figure("peak memory of the reader", _peak(rounds, GPUOPS), "MiB", MEMORY_BUDGET_MIB)
    yield Figure("peak memory of the whole inventory", _peak(rounds, INVENTORY), "MiB", MEMORY_BUDGET_MIB)
    inventory = rounds[INVENTORY][-1].said
    yield Figure("round trips of the whole inventory", float(inventory["requests"]), "requests")
    yield Figure("round trips per 500 objects", inventory["requests"] / (inventory["objects"] / 500), "requests")


def _peak(rounds: Rounds, name: str) -> float:
    return max(usage.peak_mib for usage in rounds[name])


def _ratio(rounds: Rounds, peer: str) -> float:
    """The median over rounds of (gpuops - floor) / (peer - floor), of the reading alone."""
    return median(
        (_read_cpu_s(own) - _read_cpu_s(floor)) / (_peer_cpu_s(rounds, peer, turn) - _read_cpu_s(floor))
        for turn, (own, floor) in enumerate(zip(rounds[GPUOPS], rounds[DROP], strict=True))
    )


def _peer_cpu_s(rounds: Rounds, peer: str, turn: int) -> float:
    if peer != GOVC:
        return _read_cpu_s(rounds[peer][turn])
    # govc cannot say what it used before the read; what it needs to start and log in, twice, is `govc about`.
    return rounds[GOVC][turn].cpu_s - len(GOVC_KINDS) * rounds[GOVC_START][turn].cpu_s


def _read_cpu_s(usage: Usage) -> float:
    return float(usage.said["read_cpu_s"])
