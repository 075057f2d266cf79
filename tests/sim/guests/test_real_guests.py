"""Guests that run real processes: through pyVmomi over the wire, their files by the URLs that they give."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyVim.connect import Disconnect, SmartConnect
from pyVmomi import vim, vmodl

from gpuops.errors import PolicyError
from gpuops.sim.core.sim_clock import ClockMode
from gpuops.sim.guests.marked_processes import pids_with_mark
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer, start
from tests.sim.guests.guests_of import Guest
from tests.waiting import wait_until

pytestmark = pytest.mark.long

SCENARIO = str(Path(__file__).with_name("real_guests.yaml"))
AUTH = vim.vm.guest.NamePasswordAuthentication(username="ml", password="Kept4now", interactiveSession=False)


@pytest.fixture
def server() -> Iterator[SimServer]:
    with start(SCENARIO, clock="virtual") as running:
        yield running
        assert running.world.bugs == []


@pytest.fixture
def guest(server: SimServer) -> Iterator[Guest]:
    service = SmartConnect(**server.login)
    yield Guest(server, service, "vm-01", AUTH)
    Disconnect(service)


def test_a_program_runs_with_an_environment_of_its_own_and_its_end_is_told(
    guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUOPS_PASSWORD", "of the simulator")
    place = guest.temporary_directory()
    pid = guest.run(f"-c 'env > out; exit 3' > {place}/said", directory=place, env=["MINE=a=b"])
    ended = guest.ended(pid)
    assert (ended.exitCode, ended.name, ended.owner, ended.endTime >= ended.startTime) == (3, "sh", "ml", True)
    environment = dict(line.split("=", 1) for line in guest.read(f"{place}/out").decode().splitlines())
    assert (environment["GPUOPS_GUEST_NAME"], environment["MINE"]) == ("vm-01", "a=b")
    assert environment["GPUOPS_GUEST_GPUS"] == "esx-01/0000:3b:00.0/nvidia_a40-8q"
    assert environment["GPUOPS_GUEST_ADDRESS"] == guest.vm.guest.ipAddress
    assert environment["GPUOPS_GUEST_ADDRESS"].startswith("127.")
    assert "GPUOPS_PASSWORD" not in environment
    assert f"HOME={environment['HOME']}" in guest.processes.ReadEnvironmentVariableInGuest(guest.vm, AUTH, [])
    assert guest.processes.ReadEnvironmentVariableInGuest(guest.vm, AUTH, ["GPUOPS_GUEST_NAME", "NONE"]) == [
        "GPUOPS_GUEST_NAME=vm-01"
    ]


def test_two_guests_listen_on_one_port(guest: Guest, server: SimServer) -> None:
    second_guest = guest.of("vm-02")
    listen = (
        "-c 'import os, socket\n"
        's = socket.create_server((os.environ["GPUOPS_GUEST_ADDRESS"], int(os.environ["PORT"])))\n'
        'open("ready", "w").write(str(s.getsockname()[1]))\n'
        "s.accept()'"
    )
    place = guest.temporary_directory()
    first = guest.run(listen, directory=place, env=["PORT=0"], program="/usr/bin/env python3")
    assert first
    port = _until(lambda: guest.read(f"{place}/ready"))
    elsewhere = second_guest.temporary_directory()
    second_guest.run(listen, directory=elsewhere, env=[f"PORT={port.decode()}"], program="/usr/bin/env python3")
    assert _until(lambda: second_guest.read(f"{elsewhere}/ready")) == port


def test_a_suspend_stops_what_runs_a_resume_continues_it_and_power_off_ends_it_with_all_it_started(
    guest: Guest, server: SimServer
) -> None:
    pid = guest.run("-c 'setsid sleep 600 & sleep 600'")
    _until(lambda: len(guest.marked()) >= 3 or None)
    guest.wait(guest.vm.SuspendVM_Task())
    assert {_state(vm) for vm in guest.marked()} == {"T"}
    with pytest.raises(vim.fault.InvalidPowerState):
        guest.processes.ListProcessesInGuest(guest.vm, AUTH, [pid])
    guest.wait(guest.vm.PowerOnVM_Task())
    assert guest.ended(pid, wait=False).endTime is None
    assert "T" not in {_state(vm) for vm in guest.marked()}
    guest.wait(guest.vm.ResetVM_Task())
    assert guest.marked() == []
    assert guest.processes.ListProcessesInGuest(guest.vm, AUTH, [pid]) == []
    guest.run("-c 'setsid sleep 600'")
    guest.wait(guest.vm.PowerOffVM_Task())
    assert guest.marked() == []
    root = server.world.guests.guest(guest.vm._moId).root
    guest.wait(guest.vm.Destroy_Task())
    assert not root.exists()


def test_a_process_is_terminated_with_what_it_started(guest: Guest) -> None:
    pid = guest.run("-c 'setsid sleep 600 & sleep 600'")
    long_process = guest.run("-c 'sleep 600'")
    guest.processes.TerminateProcessInGuest(guest.vm, AUTH, pid)
    assert guest.ended(pid).exitCode == 137
    assert guest.ended(long_process, wait=False).endTime is None
    with pytest.raises(vim.fault.GuestProcessNotFound) as none:
        guest.processes.TerminateProcessInGuest(guest.vm, AUTH, pid)
    assert none.value.pid == pid


def test_nothing_is_left_when_the_simulator_ends(server: SimServer, guest: Guest) -> None:
    guest.run("-c 'setsid sleep 600 & sleep 600'")
    guest.of("vm-02").run("-c 'sleep 600'")
    token, root = guest.mark.partition("/")[0], server.world.guests.guest(guest.vm._moId).root
    assert list(pids_with_mark(token))
    server.world.guests.close()
    assert list(pids_with_mark(token)) == []
    assert not root.parent.exists()


def test_nothing_is_left_of_a_simulator_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import os, sys, threading\n"
        "from datetime import UTC, datetime\n"
        "from pathlib import Path\n"
        "from gpuops.sim.guests.real_guests import RealGuests\n"
        "guests = RealGuests(lambda: datetime.now(UTC), threading.Condition())\n"
        "root = guests.guest('vm-1').root\n"
        "shell = Path('/bin/sh')\n"
        "guests.start('vm-1', None, 'ml', ('/bin/sh', shell, \"-c 'setsid sleep 600 & sleep 600'\"), root, {})\n"
        "print(guests.guest('vm-1').mark, root, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    mark, root = completed.stdout.split()
    assert completed.returncode == -9
    _until(lambda: not list(pids_with_mark(mark)) and not Path(root).exists())


def test_files_are_made_listed_moved_changed_and_removed(guest: Guest) -> None:
    files, vm = guest.files, guest.vm
    files.MakeDirectoryInGuest(vm, AUTH, "/opt/a/b", createParentDirectories=True)
    with pytest.raises(vim.fault.FileAlreadyExists):
        files.MakeDirectoryInGuest(vm, AUTH, "/opt/a", createParentDirectories=False)
    with pytest.raises(vim.fault.FileNotFound):
        files.MakeDirectoryInGuest(vm, AUTH, "/x/y", createParentDirectories=False)
    guest.write("/opt/a/tool", b"#!/bin/sh\nexit 7\n", permissions=0o700)
    assert guest.read("/opt/a/tool") == b"#!/bin/sh\nexit 7\n"
    assert guest.ended(guest.run("", program="/opt/a/tool")).exitCode == 7
    with pytest.raises(vim.fault.FileAlreadyExists):
        guest.write("/opt/a/tool", b"")
    files.ChangeFileAttributesInGuest(
        vm, AUTH, "/opt/a/tool", vim.vm.guest.FileManager.PosixFileAttributes(permissions=0o600)
    )
    with pytest.raises(vim.fault.GuestPermissionDenied):
        guest.run("", program="/opt/a/tool")
    listed = files.ListFilesInGuest(vm, AUTH, "/opt/a")
    assert [(file.path, file.type) for file in listed.files] == [
        (".", "directory"),
        ("..", "directory"),
        ("b", "directory"),
        ("tool", "file"),
    ]
    assert (listed.files[3].size, listed.files[3].attributes.permissions, listed.remaining) == (17, 0o600, 0)
    part = files.ListFilesInGuest(vm, AUTH, "/opt/a", index=1, maxResults=1)
    assert ([file.path for file in part.files], part.remaining) == ([".."], 2)
    assert [file.path for file in files.ListFilesInGuest(vm, AUTH, "/opt/a", matchPattern="^t").files] == ["tool"]
    with pytest.raises(vmodl.fault.InvalidArgument):
        files.ListFilesInGuest(vm, AUTH, "/opt/a", matchPattern="(")
    files.MoveFileInGuest(vm, AUTH, "/opt/a/tool", "/opt/a/moved", overwrite=False)
    with pytest.raises(vim.fault.DirectoryNotEmpty):
        files.DeleteDirectoryInGuest(vm, AUTH, "/opt/a", recursive=False)
    with pytest.raises(vim.fault.NotAFile):
        guest.read("/opt/a/b")
    with pytest.raises(vim.fault.NotAFile):
        files.DeleteFileInGuest(vm, AUTH, "/opt/a/b")
    files.DeleteFileInGuest(vm, AUTH, "/opt/a/moved")
    with pytest.raises(vim.fault.FileNotFound):
        files.DeleteFileInGuest(vm, AUTH, "/opt/a/moved")
    files.DeleteDirectoryInGuest(vm, AUTH, "/opt/a", recursive=True)
    with pytest.raises(vim.fault.FileNotFound):
        guest.read("/opt/a/moved")


@pytest.mark.parametrize("path", ["/../../etc/passwd", "/link/passwd", "/link"])
def test_no_path_leads_out_of_a_guest(guest: Guest, server: SimServer, path: str) -> None:
    (server.world.guests.guest(guest.vm._moId).root / "link").symlink_to("/etc")
    with pytest.raises((vim.fault.GuestPermissionDenied, vim.fault.FileNotFound)):
        guest.read(path)
    if path.endswith("passwd"):
        with pytest.raises((vim.fault.GuestPermissionDenied, vim.fault.FileNotFound)):
            guest.write(path, b"")


def test_a_transfer_is_carried_out_once_in_its_direction_and_of_its_size(guest: Guest) -> None:
    url = guest.files.InitiateFileTransferToGuest(
        guest.vm, AUTH, "/tmp/a", vim.vm.guest.FileManager.FileAttributes(), fileSize=3, overwrite=True
    )
    assert guest.status("GET", url) == 404
    assert guest.status("PUT", url, b"four") == 400
    assert guest.status("PUT", url, b"abc") == 404
    assert guest.status("PUT", url.replace("token=", "token=x"), b"abc") == 404


def test_who_may_not_enter_is_told_why(guest: Guest, server: SimServer) -> None:
    wrong = vim.vm.guest.NamePasswordAuthentication(username="ml", password="wrong", interactiveSession=False)
    with pytest.raises(vim.fault.InvalidGuestLogin):
        guest.files.ListFilesInGuest(guest.vm, wrong, "/")
    with pytest.raises(vim.fault.FileNotFound):
        guest.run("", program="/none")
    with pytest.raises(vim.fault.FileNotFound):
        guest.run("", directory="/none")
    with server.world.lock:
        server.world.get(guest.vm._moId).state.guest_boots = True
    with pytest.raises(vim.fault.GuestOperationsUnavailable):
        guest.files.ListFilesInGuest(guest.vm, AUTH, "/")


def test_a_clone_has_the_files_of_its_template(guest: Guest, server: SimServer) -> None:
    golden = next(vm for vm in server.world.by_type("VirtualMachine") if vm.name == "golden")
    with server.world.lock:
        (server.world.guests.guest(golden.moid).root / "opt" / "mark").write_text("kept", encoding="utf-8")
    template = vim.VirtualMachine(golden.moid, guest.service._stub)
    pool = guest.vm.resourcePool
    spec = vim.vm.CloneSpec(location=vim.vm.RelocateSpec(pool=pool), powerOn=False, template=False)
    clone = guest.of(guest.wait(template.CloneVM_Task(template.parent, "made", spec)).name)
    guest.wait(clone.vm.PowerOnVM_Task())
    assert clone.read("/opt/mark") == b"kept"


def test_time_is_not_jumped_over_while_a_process_runs(guest: Guest, server: SimServer) -> None:
    guest.run("-c 'sleep 600'")
    before = server.world.clock.now()
    guest.wait_for_updates(0.3)
    passed_s = (server.world.clock.now() - before).total_seconds()
    assert 0.2 < passed_s < 60


def test_real_processes_are_of_a_scenario_that_says_so_and_of_time_that_passes(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="real processes, which take real time"):
        build(SCENARIO)
    text = Path(SCENARIO).read_text(encoding="utf-8")
    windows = tmp_path / "windows.yaml"
    windows.write_text(text.replace("processes: real", "processes: real, linux: false"), encoding="utf-8")
    with pytest.raises(PolicyError, match="only a Linux guest can run real processes"):
        build(str(windows), clock=ClockMode.VIRTUAL)
    with start("lab", clock="virtual") as lab:
        assert not any(vm.state.template.real_processes for vm in lab.world.by_type("VirtualMachine"))


def _until(ask: Callable[[], Any]) -> Any:
    """Return the first answer that is not empty; a file that does not exist yet counts as empty."""

    def look() -> Any:
        try:
            return ask()
        except vim.fault.FileNotFound:
            return None

    return wait_until(look)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
