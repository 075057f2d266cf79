"""Tasks that ask the hosts themselves: by SSH, as `--host-shell ssh` does, from the arguments to the answer."""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gpuops.console.options import HostShellOptions, Shell
from gpuops.errors import UsageError
from gpuops.hostshell.nvidia_smi import DETAILS, INDEX, INSTANCES, QUERY, VGPUS
from gpuops.sim.state.host_state import GpuFault
from gpuops.tasks.changes import vm_gpu, vm_gpus
from gpuops.tasks.perform import TaskResult
from gpuops.tasks.reads import gpu_capacity_info, gpu_placement, host_gpu_info
from gpuops.tasks.task_connection import ConnectionArguments, HostShellArguments
from tests.hostshell.server import ShellHost, ssh_server
from tests.sim.guests import nvidia_smi
from tests.tasks.conftest import Lab

NAME, OTHER = "esx-01.lab", "esx-02.lab"
ASKED = Counter([VGPUS, INDEX, INSTANCES, *[QUERY, DETAILS] * 2])
"""What the hosts are asked: both for the health of their GPUs, one for its vGPUs in GPU instances."""


@dataclass(frozen=True)
class Hosts:
    """The lab with ml-01 (a 3g instance) running on an A100 in MIG mode, and the SSH of its host."""

    lab: Lab
    shell: ShellHost
    said: HostShellArguments


@pytest.fixture
def hosts(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    """The host has the name that vCenter gives it; what DNS would say of it is this machine."""
    (esx,) = (host for host in lab.server.world.by_type("HostSystem") if host.display_name == NAME)
    resolve = socket.getaddrinfo

    def resolved(host: Any, *arguments: Any, **named: Any) -> Any:
        return resolve("127.0.0.1" if host in (NAME, OTHER) else host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    started = vm_gpu(lab.said, state="present", vm="ml-01", profile="a100-3-20c", power="on", apply=True)
    assert started.exit_code == 0, started.message
    with ssh_server(tmp_path, f"{NAME},{OTHER}", lambda command: nvidia_smi.answer(esx, command)) as shell:
        ssh = HostShellArguments("ssh", "root", str(shell.known_hosts), str(shell.ssh.key), shell.ssh.port)
        yield Hosts(lab, shell, ssh)


def slots(answer: TaskResult) -> tuple[int, int]:
    (profile,) = answer.result["capacity"]["profiles"]
    return profile["now"]["at_least"], profile["now"]["at_most"]


@pytest.mark.long
def test_capacity_is_exact_where_hosts_are_asked(hosts: Hosts) -> None:
    """A 3g instance leaves room for three single slices or for four, by where it starts."""
    assert slots(gpu_capacity_info(hosts.lab.said, profile="a100-1-5c", host=NAME)) == (10, 11)
    assert hosts.shell.asked == [], "no host is entered unless the task asks for it"
    answer = gpu_capacity_info(hosts.lab.said, profile="a100-1-5c", host=NAME, shell=hosts.said)
    assert (slots(answer), answer.warnings) == ((10, 10), ())
    assert Counter(hosts.shell.asked) == ASKED


def test_the_health_of_gpus_is_read_with_the_hosts(hosts: Hosts) -> None:
    (esx,) = (host for host in hosts.lab.server.world.by_type("HostSystem") if host.display_name == NAME)
    esx.state.gpus[1].faults = frozenset({GpuFault.LOST})
    answer = host_gpu_info(hosts.lab.said, host=NAME, shell=hosts.said)
    (host,) = answer.result["hosts"]
    (lost,) = (gpu for node in host["numa_nodes"] for gpu in node["gpus"] if gpu["health"]["lost"])
    assert (lost["health"]["takes_vgpus"], answer.warnings) == (False, ())
    assert host_gpu_info(hosts.lab.said, host=NAME).result["hosts"][0]["numa_nodes"][0]["gpus"][0]["health"] is None


@pytest.mark.long
def test_places_and_changes_ask_too(hosts: Hosts) -> None:
    connection = hosts.lab.said
    vm: dict[str, Any] = {"vm": "ml-07", "profile": "a100-1-5c"}
    gpu_placement(
        connection, requests=[{"name": "one", "vcpu": 2, "memory": "8GiB", "profile": "a100-1-5c"}], shell=hosts.said
    )
    assert Counter(hosts.shell.asked) == ASKED
    for apply in (False, True):
        answer = vm_gpu(connection, state="present", **vm, apply=apply, shell=hosts.said)
        assert (answer.exit_code, answer.result["changed"], answer.warnings) == (0, True, ())
    vm_gpus(connection, [{"state": "present", **vm}], partial=False, apply=False, shell=hosts.said)
    clone = {"vm": "ml-10", "template": "golden"}
    wish = {"vm": "ml-10", "profile": "a100-1-5c"}
    vm_gpu(connection, state="present", **wish, apply=False, after_clone=clone, shell=hosts.said)
    assert Counter(hosts.shell.asked) == Counter({command: 5 * count for command, count in ASKED.items()})


@pytest.mark.long
def test_a_host_that_is_not_entered_is_warned_of(hosts: Hosts) -> None:
    strange = replace(hosts.said, ssh_known_hosts="~/other_hosts")
    answer = gpu_capacity_info(hosts.lab.said, profile="a100-1-5c", host=NAME, shell=strange)
    assert slots(answer) == (10, 11), "it stays as vCenter tells it"
    (warning,) = answer.warnings
    assert re.match("where the vGPUs lie on their GPUs is not known: .*home/other_hosts does not exist", warning)
    assert hosts.shell.asked == []


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        (HostShellArguments("telnet"), "host_shell is not a known host shell"),
        (HostShellArguments("ssh", ssh_port=0), "ssh_port 0 is not a port"),
        (HostShellArguments("ssh", ssh_port=65536), "ssh_port 65536 is not a port"),
    ],
)
def test_a_shell_that_means_nothing_is_refused_before_vcenter_is_asked(shell: HostShellArguments, line: str) -> None:
    with pytest.raises(UsageError, match=line):
        gpu_capacity_info(ConnectionArguments(hostname="127.0.0.1:1"), shell=shell)


@pytest.mark.long
def test_what_is_left_out_is_as_the_command_line_has_it() -> None:
    assert HostShellArguments().shell() is None
    assert HostShellArguments("none", "keeper").shell() is None
    assert HostShellArguments("ssh").shell() == HostShellOptions(Shell.SSH).shell()
