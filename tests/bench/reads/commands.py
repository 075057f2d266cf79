"""The commands that people type on a fleet, as whole processes, beside govc asking the same server.

`gpuops inventory` as text and as JSON reads, works out what is free and prints; govc prints what it read: the same
properties as JSON, and all of each VM (`vm.info`). Whole processes are compared, starts and logins included. Only CPU
counts: a busy machine stretches the wall time of all of them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Final
from urllib.parse import urlsplit

from tests.bench.measure import Contender, Rounds, interleave, paired_ratio, python
from tests.bench.reads.wires import LEAVES, govc_script
from tests.bench.simulator.simulators import our_simulator, unbuilt_govc
from tests.bench.verdict import Figure, Result
from tests.peers.processes import BINARIES, Endpoint, Govc

ROUNDS: Final = 3
OVER_SOAP: Final = 0.45
OVER_JSON: Final = 0.25
PRINTING_S: Final = 0.5
TEXT_MIB: Final = 150.0
JSON_MIB: Final = 200.0
COLLECT, INFO = "govc object.collect -json", "govc vm.info -json '*'"
SUMMARY, VMS, HOSTS, JSON = (
    f"gpuops inventory{words}" for words in ("", " --vms", " --hosts", " --output json")
)  # fmt: skip
NO_LINES: Final = "gpuops inventory --vms --limit 1"
SPEAKING_JSON: Final = {name: f"{name} --reader json" for name in (VMS, HOSTS, JSON)}
PEAKS: Final = {VMS: TEXT_MIB, HOSTS: TEXT_MIB, SUMMARY: TEXT_MIB, JSON: JSON_MIB}


def run() -> Iterator[Result]:
    """1,000 hosts and 10,000 VMs of our simulator."""
    if lacking := unbuilt_govc():
        yield Result(f"commands beside govc: not run, {lacking}", ())
        return
    with our_simulator("fleet:hosts=1000,vms=10000") as served, tempfile.TemporaryDirectory() as directory:
        contenders = _contenders(served.endpoint, Path(directory))
        contenders[0].run()  # the server makes its answers once; no contender pays for that
        contenders[-1].run()
        rounds = interleave(contenders, ROUNDS)
    yield Result("commands: our simulator, 1,000 hosts, 10,000 VMs", tuple(_figures(rounds)), rounds)


def _contenders(endpoint: Endpoint, directory: Path) -> list[Contender]:
    commands = [
        gpuops_command(name, endpoint, directory)
        for name in (SUMMARY, NO_LINES, VMS, HOSTS, JSON, *SPEAKING_JSON.values())
    ]
    info = (str(BINARIES / "govc"), "vm.info", "-json", "*")
    environment = Govc(endpoint, directory).environment()
    return [*commands, govc_collect(endpoint, directory), Contender(INFO, info, environment)]


def govc_collect(endpoint: Endpoint, directory: Path) -> Contender:
    """govc, asked for the properties that gpuops reads."""
    return Contender(COLLECT, ("sh", "-c", govc_script(LEAVES)), Govc(endpoint, directory).environment())


def gpuops_command(name: str, endpoint: Endpoint, directory: Path) -> Contender:
    """A command of gpuops, asked of that server as a whole process."""
    password = directory / "password"
    password.touch(mode=0o600)
    password.write_text(endpoint.password, encoding="utf-8")
    words = [*name.split()[1:], *([] if "--reader" in name else ["--reader", "soap"])]
    words += ["--vcenter", urlsplit(endpoint.url).netloc, "--username", endpoint.username]
    words += ["--password-file", str(password), "--ca-file", str(endpoint.ca_file)]
    environment: Mapping[str, str] = {**os.environ, "HOME": str(directory)}
    return Contender(name, python(name, "-m", "tests.bench.readers.command", *words).command, environment)


def _figures(rounds: Rounds) -> Iterator[Figure]:
    for name in (VMS, HOSTS, JSON):
        for command, budget in ((name, OVER_SOAP), (SPEAKING_JSON[name], OVER_JSON)):
            yield Figure(f"CPU: {command} / {COLLECT}", paired_ratio(rounds, command, COLLECT), "x", budget)
            yield Figure(f"CPU: {command} / {INFO}", paired_ratio(rounds, command, INFO), "x")
    pairs = zip(rounds[VMS], rounds[NO_LINES], strict=True)
    printing = median(all_of_them.cpu_s - none.cpu_s for all_of_them, none in pairs)
    yield Figure("CPU of printing 7,000 lines, above printing one", printing, "s", PRINTING_S)
    for name, budget in PEAKS.items():
        yield Figure(f"peak memory: {name}", max(usage.peak_mib for usage in rounds[name]), "MiB", budget)
