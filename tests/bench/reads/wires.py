"""A whole fleet over SOAP and over VI/JSON beside govc: whole processes, and gpuops' own properties for all of them.

govc reads one type a call, over SOAP, and prints what it read; gpuops makes its records of it. Starts and logins are
part of it. Only CPU counts: a busy machine stretches the wall time of all of them.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpuops.vsphere.reading.bulk.pages import PAGE_OBJECTS
from gpuops.vsphere.reading.bulk.reader import HOST, HOST_DEVICES, VM, VM_DETAIL
from tests.bench.measure import Contender, Rounds, interleave, paired_ratio, python
from tests.bench.readers.question import Question
from tests.bench.simulator.simulators import our_simulator, unbuilt_govc
from tests.bench.verdict import Figure, Result
from tests.peers.processes import BINARIES, Endpoint, Govc

ROUNDS: Final = 3
Paths = dict[str, list[str]]
LEAVES: Final[Paths] = {"VirtualMachine": [*VM, *VM_DETAIL], "HostSystem": [*HOST, *HOST_DEVICES]}
"""What gpuops itself asks for."""
GOVC_KINDS: Final = {"VirtualMachine": "m", "HostSystem": "h"}
OVER_JSON: Final = 0.25
OVER_SOAP: Final = 0.45
MEMORY_MIB: Final = 150.0
GOVC: Final = "govc object.collect -json"
WIRES: Final = {"SOAP": OVER_SOAP, "VI/JSON": OVER_JSON}
READER, INVENTORY = "gpuops reader, {}", "gpuops, whole inventory, {}"


def run() -> Iterator[Result]:
    """1,000 hosts and 10,000 VMs of our simulator; vcsim speaks no VI/JSON."""
    if lacking := unbuilt_govc():
        yield Result(f"both wires beside govc: not run, {lacking}", ())
        return
    with our_simulator("fleet:hosts=1000,vms=10000") as served, tempfile.TemporaryDirectory() as directory:
        contenders = _contenders(served.endpoint, Path(directory))
        for contender in contenders[:3:2]:  # the server makes its answers of each wire once; no contender pays for that
            contender.run()
        rounds = interleave(contenders, ROUNDS)
    yield Result("both wires: our simulator, 1,000 hosts, 10,000 VMs", tuple(_figures(rounds)), rounds)


def govc_script(paths: Paths) -> str:
    """govc reads one type a call; the shell's account includes both."""
    govc = BINARIES / "govc"
    calls = (
        [str(govc), "object.collect", "-json", "-type", letter, "/", *paths[kind]]
        for kind, letter in GOVC_KINDS.items()
    )
    return " && ".join(shlex.join(call) for call in calls)


def _contenders(endpoint: Endpoint, directory: Path) -> list[Contender]:
    login = (endpoint.url, endpoint.username, endpoint.password, str(endpoint.ca_file))
    contenders: list[Contender] = []
    for wire in WIRES:
        for name, paths in ((READER, LEAVES), (INVENTORY, {})):
            question = Question(*login, paths=paths, page=PAGE_OBJECTS, vi_json=wire != "SOAP")
            file = question.write(directory / f"{len(contenders)}.json")
            contenders.append(python(name.format(wire), "-m", "tests.bench.readers.gpuops", str(file)))
    return [*contenders, Contender(GOVC, ("sh", "-c", govc_script(LEAVES)), Govc(endpoint, directory).environment())]


def _figures(rounds: Rounds) -> Iterator[Figure]:
    for wire, budget in WIRES.items():
        for name in (READER.format(wire), INVENTORY.format(wire)):
            yield Figure(f"whole process: {name} / govc", paired_ratio(rounds, name, GOVC), "x", budget)
        peak = max(usage.peak_mib for usage in rounds[INVENTORY.format(wire)])
        yield Figure(f"peak memory of the whole inventory, {wire}", peak, "MiB", MEMORY_MIB)
