"""Commands in guests that really run, over the wire: how they end, how long they take, and what they print."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuops.errors import Refused, StepFailed
from gpuops.model.guests.guest import CommandEnd
from gpuops.model.vcenter.target import GuestLogin, Secret
from gpuops.sim.server import SimServer, start
from gpuops.vsphere.connection import Connection
from gpuops.vsphere.guests.guest_commands import OUTPUT_BYTES, read_guest_file, start_command, wait_for_commands
from tests.wire.conftest import target_of

SCENARIO = str(Path(__file__).parents[2] / "sim" / "guests" / "real_guests.yaml")
PASSWORD = "Kept4now"
VMS = ("vm-01", "vm-02")


@pytest.fixture
def server() -> Iterator[SimServer]:
    with start(SCENARIO, clock="virtual") as running:
        yield running
        assert running.world.bugs == []


@pytest.fixture
def connection(server: SimServer) -> Iterator[Connection]:
    with Connection(replace(target_of(server), guest=GuestLogin("ml", Secret(PASSWORD)))) as opened:
        yield opened


def ends(connection: Connection, command: str, *, vms: tuple[str, ...] = VMS[:1], s: float = 30) -> list[CommandEnd]:
    inventory = connection.inventory()
    started = [start_command(connection, inventory.find_vm(name).ref, name, command, "op") for name in vms]
    return sorted(wait_for_commands(connection, started, s), key=lambda end: end.name)


@pytest.mark.long
def test_commands_run_beside_each_other_and_what_they_print_and_take_is_read(
    connection: Connection, server: SimServer
) -> None:
    first, second = ends(connection, "sleep 0.3; echo it is $GPUOPS_GUEST_NAME; echo 'a \"b\"' >&2", vms=VMS)
    assert (first.name, first.exit_code, first.error) == ("vm-01", 0, "")
    assert first.printed == 'it is vm-01\na "b"\n' and second.printed.startswith("it is vm-02")
    assert first.took_s is not None and 0.3 <= first.took_s < 60
    leftovers = [path.name for guest in VMS for path in _root(server, guest).joinpath("tmp").iterdir()]
    assert leftovers == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "code", "error"),
    [
        ("exit 3", 3, "it ended with exit code 3"),
        ("no-such-tool", 127, "it ended with exit code 127"),
        ("exit 4; )", 2, "it ended with exit code 2"),
        ("# nothing", 0, ""),
    ],
)
def test_a_command_that_fails_is_told_with_its_code(
    connection: Connection, command: str, code: int, error: str
) -> None:
    [end] = ends(connection, command)
    assert (end.exit_code, end.error) == (code, error)


@pytest.mark.long
def test_of_much_that_is_printed_the_end_is_read(connection: Connection) -> None:
    [end] = ends(connection, "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo out of memory; exit 3")
    assert len(end.printed) == OUTPUT_BYTES and end.printed.endswith("x\nout of memory\n")
    assert (end.exit_code, end.error) == (3, "it ended with exit code 3")


@pytest.mark.long
def test_a_file_of_a_guest_that_is_too_long_is_not_read(connection: Connection, server: SimServer) -> None:
    vm = next(vm for vm in server.world.by_type("VirtualMachine") if vm.name == "vm-01")
    (_root(server, "vm-01") / "a").write_bytes(bytes(2_000_000))
    with pytest.raises(Refused, match="is larger than 1 MiB, so gpuops did not read it"):
        read_guest_file(connection, vm.moid, "vm-01", "/a")


@pytest.mark.long
def test_a_command_that_does_not_end_is_ended(connection: Connection, server: SimServer) -> None:
    [end] = ends(connection, "sleep 600", s=0.5)
    assert (end.took_s, end.error) == (None, "it still ran after 0 s, and was terminated")
    vm = next(vm for vm in server.world.by_type("VirtualMachine") if vm.name == "vm-01")
    [process] = server.world.guests.processes(vm.moid)
    process.child.wait(timeout=10)


@pytest.mark.long
def test_a_guest_that_goes_away_is_told_of(connection: Connection, server: SimServer) -> None:
    vm = next(vm for vm in server.world.by_type("VirtualMachine") if vm.name == "vm-01")
    started = start_command(connection, vm.moid, "vm-01", "sleep 600", "op")
    connection.read(connection.vm(vm.moid).ResetVM_Task)
    with server.world.lock:
        server.world.clock.advance(10)
    [end] = wait_for_commands(connection, [started], 30)
    assert "vm-01" in end.error and end.took_s is None


def test_without_a_login_and_with_a_wrong_one_nothing_is_run_and_no_password_is_told(server: SimServer) -> None:
    for login, error in ((None, Refused), (GuestLogin("ml", Secret("wrong-Secret7")), StepFailed)):
        with Connection(replace(target_of(server), guest=login)) as connection:
            with pytest.raises(error) as raised:
                ends(connection, "true")
            assert "wrong-Secret7" not in repr(raised.value) + str(raised.value)


@pytest.mark.long
@pytest.mark.parametrize("url", ["http://*:80/guestFile?id=1", "https://*:x/guestFile", "file:///a"])
def test_an_address_that_no_vcenter_names_is_not_asked(
    connection: Connection, server: SimServer, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    vm = next(vm for vm in server.world.by_type("VirtualMachine") if vm.name == "vm-01")
    monkeypatch.setattr(server.world.guests, "transfers", SimpleNamespace(begin=lambda transfer: url))
    (_root(server, "vm-01") / "a").write_text("x", encoding="utf-8")
    with pytest.raises(Refused, match="vCenter returned no usable URL for the file of the guest"):
        read_guest_file(connection, vm.moid, "vm-01", "/a")


def _root(server: SimServer, name: str) -> Path:
    vm = next(vm for vm in server.world.by_type("VirtualMachine") if vm.name == name)
    return server.world.guests.guest(vm.moid).root
