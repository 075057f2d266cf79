"""What one command costs that reads twenty vCenters of 100 hosts and 1,000 VMs each, beside a command for each of them.

Whole processes over SOAP, starts and logins included; each vCenter is our simulator in a process of its own, whose work
is not counted. Only CPU counts: the kernel's account of the command and of the processes that it started.

Then once more with one vCenter beside them that takes connections and says nothing, the last of them: by how much the
command ends later, in its time-outs.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from shlex import join
from socket import create_server
from statistics import median
from typing import Final

from tests.bench.measure import Contender, interleave, python
from tests.bench.simulator.simulators import our_simulator
from tests.bench.verdict import Figure, Result
from tests.peers.processes import Endpoint

SITES: Final = 20
FLEET: Final = "fleet:hosts=100,vms=1000"
ROUNDS: Final = 1
"""Of twenty single commands each: their sum is no chance."""
OF_SINGLE_READS: Final = 1.1
SILENT_S: Final = 30
"""The --site-timeout, and so what one that says nothing may take."""
OF_A_TIMEOUT: Final = 1.1
COMMANDS: Final = ("inventory --vms", "inventory --output json")


def run() -> Result:
    """Twenty simulated vCenters."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        endpoints = [stack.enter_context(our_simulator(FLEET)).endpoint for _ in range(SITES)]
        file = folder / "config.toml"
        file.write_text("".join(_target(f"s{n}", each, folder) for n, each in enumerate(endpoints)), encoding="utf-8")
        environment = {**os.environ, "HOME": str(folder), "GPUOPS_CONFIG": str(file)}
        beside = [*endpoints, stack.enter_context(_silent(endpoints[0]))]
        with_silent = folder / "silent.toml"
        with_silent.write_text(
            "".join(_target(f"s{n}", each, folder) for n, each in enumerate(beside)), encoding="utf-8"
        )
        together = {words: _contender(words, "--site", "all", environment) for words in COMMANDS}
        alone = {
            words: [_contender(words, "--vcenter", f"s{n}", environment) for n in range(SITES)] for words in COMMANDS
        }
        for each in together.values():
            each.run()  # the servers make their answers once; no contender pays for that
        silent = _one_unanswered(COMMANDS[0], {**environment, "GPUOPS_CONFIG": str(with_silent)})
        contenders = [silent, *(each for words in COMMANDS for each in (together[words], *alone[words]))]
        rounds = interleave(contenders, ROUNDS)
    figures = []
    for words in COMMANDS:
        ratios = [
            rounds[together[words].name][number].cpu_s / sum(rounds[each.name][number].cpu_s for each in alone[words])
            for number in range(ROUNDS)
        ]
        title = f"CPU: gpuops {words} --site all / {SITES} single commands"
        figures.append(Figure(title, median(ratios), "x", OF_SINGLE_READS))
    later_s = [
        slow.wall_s - whole.wall_s
        for slow, whole in zip(rounds[silent.name], rounds[together[COMMANDS[0]].name], strict=True)
    ]
    title = f"one more that says nothing: the command ends later, in time-outs of {SILENT_S} s"
    figures.append(Figure(title, median(later_s) / SILENT_S, "x", OF_A_TIMEOUT))
    shown = {name: rounds[name] for words in COMMANDS for name in (together[words].name, alone[words][0].name)}
    shown[silent.name] = rounds[silent.name]
    return Result(f"sites: {SITES} simulated vCenters of 100 hosts and 1,000 VMs", tuple(figures), shown)


def _target(name: str, endpoint: Endpoint, folder: Path) -> str:
    password = folder / f"{name}.password"
    password.touch(mode=0o600)
    password.write_text(endpoint.password, encoding="utf-8")
    return (
        f'[targets.{name}]\nhost = "{endpoint.url}"\nusername = "{endpoint.username}"\n'
        f'password_file = "{password}"\nca_file = "{endpoint.ca_file}"\n'
    )


def _contender(words: str, option: str, value: str, environment: dict[str, str]) -> Contender:
    name = f"gpuops {words} {option} {value}"
    return Contender(name, python(name, "-m", "gpuops", *words.split(), option, value).command, environment)


@contextmanager
def _silent(like: Endpoint) -> Iterator[Endpoint]:
    """One that takes connections and never says a word."""
    with create_server(("127.0.0.1", 0)) as server:
        yield replace(like, url=f"https://127.0.0.1:{server.getsockname()[1]}")


def _one_unanswered(words: str, environment: dict[str, str]) -> Contender:
    """Its exit code is 4: some did not answer."""
    told = [*words.split(), "--site", "all", "--site-timeout", str(SILENT_S)]
    command = join([sys.executable, "-m", "gpuops", *told])
    name = f"gpuops {' '.join(told)}, with one that says nothing"
    return Contender(name, ("sh", "-c", f"{command}; test $? -eq 4"), environment)
