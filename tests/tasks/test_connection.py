"""The connection of a task, its host shell, and options of the command line as arguments of a module."""

from __future__ import annotations

import doctest
import json
import re
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gpuops.config.vcenter.destination import Destination
from gpuops.console.options import HostShellOptions, Shell
from gpuops.errors import GpuopsError, NotTrusted, Refused, TargetError, UsageError
from gpuops.hostshell.nvidia_smi import DETAILS, INDEX, INSTANCES, QUERY, VGPUS
from gpuops.model.vcenter.target import Secret
from gpuops.sim.state.host_state import GpuFault
from gpuops.tasks import perform
from gpuops.tasks.changes import vm_gpu, vm_gpus
from gpuops.tasks.perform import TaskResult, in_words_of, result_in_words_of
from gpuops.tasks.reads import gpu_capacity_info, gpu_placement, host_gpu_info
from gpuops.tasks.task_connection import ConnectionArguments, HostShellArguments, destination_of, open_site
from tests.hostshell.server import ShellHost, ssh_server
from tests.sim.guests import nvidia_smi
from tests.tasks.conftest import Lab

CONFIGURATION = """
[targets.prod]
host = "vc-prod.example.com"
username = "gpuops"
verify = false
"""


def destination(arguments: ConnectionArguments, environ: dict[str, str] | None = None) -> Destination:
    reached = destination_of(arguments, {"HOME": "/nonexistent", **(environ or {})})
    assert isinstance(reached, Destination)
    return reached


@pytest.mark.parametrize(
    ("hostname", "port", "address"),
    [
        ("vcenter01", None, "https://vcenter01"),
        ("vc.example.com", None, "https://vc.example.com"),
        ("vc.example.com", 8443, "https://vc.example.com:8443"),
        ("vc.example.com:9443", 8443, "https://vc.example.com:9443"),
        ("https://vc.example.com/sdk", 8443, "https://vc.example.com:8443"),
        ("https://vc.example.com:9443/sdk", 8443, "https://vc.example.com:9443"),
        ("2001:db8::1", 8443, "https://[2001:db8::1]:8443"),
        ("[2001:db8::1]", None, "https://[2001:db8::1]"),
        ("[2001:db8::1]:9443", 8443, "https://[2001:db8::1]:9443"),
    ],
)
def test_a_hostname_is_an_address(hostname: str, port: int | None, address: str) -> None:
    assert str(destination(ConnectionArguments(hostname=hostname, port=port)).address) == address


def test_a_target_of_the_configuration_file_goes_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(CONFIGURATION, encoding="utf-8")
    by_target = destination(ConnectionArguments(hostname="prod", password="x"), {"GPUOPS_CONFIG": str(file)})
    assert (by_target.name, by_target.username, by_target.verify) == ("prod", "gpuops", False)
    assert (
        destination(ConnectionArguments(hostname="prod", validate_certs=True), {"GPUOPS_CONFIG": str(file)}).verify
        is True
    )


def test_what_is_left_out_comes_from_the_variables_of_the_vmware_collections() -> None:
    environ = {"VMWARE_HOST": "vc", "VMWARE_PORT": "444", "VMWARE_USER": "u", "VMWARE_PASSWORD": "p"}
    by_variables = destination(
        ConnectionArguments(), {**environ, "VMWARE_VALIDATE_CERTS": "false", "VMWARE_PROXY_HOST": "proxy"}
    )
    assert (str(by_variables.address), by_variables.username, by_variables.password) == (
        "https://vc:444",
        "u",
        Secret("p"),
    )
    assert (by_variables.verify, by_variables.proxy) == (False, "proxy:8080")
    by_arguments = destination(
        ConnectionArguments(username="other", validate_certs=True, proxy_host="mine", proxy_port=3128), environ
    )
    assert (by_arguments.username, by_arguments.verify, by_arguments.proxy) == ("other", True, "mine:3128")


def test_a_journal_with_a_password_is_no_command_line() -> None:
    url = "postgresql://gpuops:secret@db/gpuops"
    with_journal = destination(ConnectionArguments(hostname="vc", journal_url=url))
    assert with_journal.journal_url == url
    assert "secret" not in repr(with_journal)
    assert "secret" not in repr(ConnectionArguments(journal_url=url, password="secret"))


def test_how_inventories_are_read_is_an_argument() -> None:
    assert destination(ConnectionArguments(hostname="vc", reader="json")).reader == "json"
    assert destination(ConnectionArguments(hostname="vc")).reader == "auto"


def test_what_cannot_be_meant_is_said() -> None:
    with pytest.raises(UsageError, match="reader is not a known reader"):
        destination_of(ConnectionArguments(hostname="vc", reader="xml"), {})
    with pytest.raises(UsageError, match="exclude each other"):
        destination_of(ConnectionArguments(hostname="vc", password="p", password_file="/f"), {})
    with pytest.raises(TargetError, match="port is set, but hostname is not"):
        destination_of(ConnectionArguments(port=443), {"HOME": "/nonexistent"})
    with pytest.raises(TargetError, match="no vCenter is configured"):
        destination_of(ConnectionArguments(), {"HOME": "/nonexistent"})


@pytest.mark.parametrize("require_verified", [False, True])
def test_an_unverified_connection_is_noted_and_a_rotation_over_it_is_a_decision_of_the_task(
    tmp_path: Path, require_verified: bool
) -> None:
    environ = {"HOME": str(tmp_path), "GPUOPS_STATE_DIR": str(tmp_path / "state")}
    arguments = ConnectionArguments(hostname="127.0.0.1:1", username="u", password="p", validate_certs=False)
    with pytest.raises(GpuopsError, match=r"127\.0\.0\.1"):  # nothing listens there
        open_site(arguments, require_verified=require_verified, environ=environ)
    (line,) = (tmp_path / "state" / "audit.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["said_by"] == "validate_certs"


def test_a_variable_does_not_decide_it_for_a_rotation(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "VMWARE_HOST": "vc", "VMWARE_VALIDATE_CERTS": "no"}
    with pytest.raises(Refused, match="an unattended rotation refuses VMWARE_VALIDATE_CERTS"):
        open_site(ConnectionArguments(username="u", password="p"), require_verified=True, environ=environ)


def test_a_password_is_not_sent_in_the_clear(tmp_path: Path) -> None:
    with pytest.raises(NotTrusted, match="not encrypted"):
        open_site(
            ConnectionArguments(hostname="http://vc.example.com", username="u", password="p"),
            environ={"HOME": str(tmp_path)},
        )


MODULE: dict[str, dict[str, Any]] = {
    "power": {"type": "str", "choices": ["refuse", "cycle", "off", "on"]},
    "driver_branch": {"type": "str"},
    "averaging": {"type": "int"},
    "gpu": {"type": "list", "elements": "str"},
    "all": {"type": "bool"},
    "vms": {"type": "list", "elements": "dict", "options": {"keep_free": {"type": "list"}, "all": {"type": "str"}}},
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("--power cycle restarts it, --power off leaves it", "power: cycle restarts it, power: off leaves it"),
        ("say --power=cycle.", "say power: cycle."),
        ("--power says what may be done", "power says what may be done"),
        ("leave --driver-branch out", "leave driver_branch out"),
        ("--driver-branch R550 states it", "driver_branch: R550 states it"),
        ("--driver-branch: 'new' is none", "driver_branch: 'new' is none"),
        ("--driver-branch 5x: not one", "driver_branch: 5x: not one"),
        ("--averaging 33 or --averaging alone", "averaging: 33 or averaging alone"),
        ("attach it whole: --gpu", "attach it whole: gpu"),
        ("--gpu 0000:18:00.0", 'gpu: "0000:18:00.0"'),
        ("--gpu '0000:18:00.0'", "gpu: '0000:18:00.0'"),
        ("--gpu 0000:18:00.0 --gpu 0000:3b:00.0 alone", 'gpu: ["0000:18:00.0", "0000:3b:00.0"] alone'),
        ("--gpu --all", "gpu all: true"),
        ("--all takes every device", "all: true takes every device"),
        ("--keep-free a40-8q=4 keeps them", "keep_free: a40-8q=4 keeps them"),
        ("--reboot rolling and --powers, -power and x--power stay", None),
        ("gpuops attach --power cycle, or --power off", "gpuops attach --power cycle, or power: off"),
        ("gpuops help attach: --power off", "gpuops help attach: power: off"),
        ("of gpuops: --power off; start one: gpuops x --gpu 1", "of gpuops: power: off; start one: gpuops x --gpu 1"),
    ],
)
def test_only_what_the_module_has_is_an_argument(text: str, expected: str | None) -> None:
    assert in_words_of(MODULE, text) == (text if expected is None else expected)


def test_the_examples_of_its_docstring_are_true() -> None:
    assert doctest.testmod(perform) == (0, 5)


def test_each_vm_of_a_result_has_its_reasons_in_these_words() -> None:
    result = {"changed": False, "vms": [{"reasons": ["--power on"], "vm": {"name": "--power on"}}], "because": []}
    answer = result_in_words_of(MODULE, result)
    assert answer == {
        "changed": False,
        "vms": [{"reasons": ["power: on"], "vm": {"name": "--power on"}}],
        "because": [],
    }


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
    assert re.match(
        "gpuops does not know where the vGPUs are placed on their GPUs: .*home/other_hosts does not exist", warning
    )
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
