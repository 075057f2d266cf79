"""Guests asked by VMware Tools over real SOAP and HTTP: the scenario `stacks`, and guests that answer badly."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gpuops import clock
from gpuops.api import Site, guest_check, offline
from gpuops.clock import wall_clock
from gpuops.errors import Refused
from gpuops.model.guests.guest import GuestSystem
from gpuops.model.vcenter.target import GuestLogin, Secret
from gpuops.model.vcenter.task import TaskRef
from gpuops.plan.guest.check_output import MOST_BYTES
from gpuops.plan.guest.guest_check import GuestQuestion, GuestVerdict, parse_frameworks
from gpuops.plan.guest.rows import GuestNeeds, GuestState
from gpuops.sim.server import SimServer
from gpuops.sim.services.guest_managers import GuestFileManager, GuestProcessManager
from gpuops.vsphere.connection import Connection
from gpuops.vsphere.guests import guest_answers, guest_commands
from tests.wire.conftest import target_of

pytestmark = pytest.mark.long

LOGIN = GuestLogin("checker", Secret("Look-inside-1"))
ALL = GuestQuestion("gpu-*", wanted=GuestNeeds(parse_frameworks(["torch>=2.3"])))
SH = "/bin/sh"


@dataclass
class Stacks:
    """The scenario, and what was said of files that stay in guests."""

    server: SimServer
    said: list[str] = field(default_factory=list)

    @contextmanager
    def site(self, login: GuestLogin | None = LOGIN) -> Iterator[Site]:
        with Connection(replace(target_of(self.server), guest=login)) as connection:
            site = Site(connection, Path("/nonexistent"), wall_clock)
            site.say = self.said.append
            yield site

    def check(self, question: GuestQuestion = ALL, login: GuestLogin | None = LOGIN) -> dict[str, GuestVerdict]:
        with self.site(login) as site:
            checked = guest_check(question, site.vcenter.inventory(), site)
        return {guest.vm.name: guest for guest in checked.guests}

    def vm(self, name: str) -> Any:
        return next(vm for vm in self.server.world.by_type("VirtualMachine") if vm.name == name)

    def change(self, name: str, **fields: Any) -> None:
        """What the program of a guest does."""
        state = self.vm(name).state
        programs = [
            replace(program, **fields) if program.path == SH else program for program in state.template.programs
        ]
        state.template = replace(state.template, programs=tuple(programs))

    @property
    def left_over(self) -> list[str]:
        """Files that lie in guests."""
        files: GuestFileManager = self.server.world.get("guestOperationsFileManager")
        return [path for vm in self.server.world.by_type("VirtualMachine") for path in files.paths(vm)]


@pytest.fixture
def stacks(serve: Callable[[str], SimServer]) -> Stacks:
    return Stacks(serve("stacks"))


def states(verdict: GuestVerdict) -> dict[str, str]:
    """Of the rows that do not pass."""
    return {row.check: row.state.value for row in verdict.rows if row.state is not GuestState.PASS}


def only_row(verdict: GuestVerdict) -> str:
    [row] = verdict.rows
    assert (row.check, row.state) == ("guest", GuestState.UNKNOWN)
    assert row.next_move
    return row.says


@pytest.mark.long
def test_each_guest_is_as_its_scenario_says_and_nothing_stays_behind(stacks: Stacks) -> None:
    verdicts = stacks.check()
    assert {name: states(verdict) for name, verdict in verdicts.items()} == {
        "gpu-bare": {"driver": "fail", "torch": "fail"},
        "gpu-hostile": {"driver": "unknown", "torch": "unknown"},
        "gpu-no-tools": {"guest": "unknown"},
        "gpu-off": {"guest": "unknown"},
        "gpu-old": {"CUDA runtime": "fail", "CUDA toolkit": "fail", "ECC": "fail", "RDMA": "fail", "torch": "fail"},
        "gpu-ready": {},
        "gpu-too-new": {"driver": "fail"},
        "gpu-unlicensed": {"licence": "fail", "clock": "fail", "time service": "fail"},
        "gpu-windows": {},
    }
    assert (stacks.left_over, stacks.said) == ([], [])
    assert {change.method for change in stacks.server.world.ledger} == {"StartProgramInGuest"}
    assert len(stacks.server.world.ledger) == 2 * 7, "one program that tells, and one that removes its answer"


def test_without_a_login_for_guests_or_a_vcenter_nothing_is_asked(stacks: Stacks) -> None:
    with pytest.raises(Refused, match="no login for guests"):
        stacks.check(login=None)
    with stacks.site() as site:
        inventory = site.vcenter.inventory()
    with pytest.raises(Refused, match="a saved inventory"):
        guest_check(ALL, inventory, offline(inventory))
    assert list(stacks.server.world.ledger) == []


def test_a_login_that_one_guest_refuses_is_tried_in_no_other(stacks: Stacks, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    started = GuestProcessManager.StartProgramInGuest

    def note_start(self: GuestProcessManager, call: object, vm: object, auth: object, spec: object) -> object:
        tried.append(self.world.get(vm).name)
        return started(self, call, vm, auth, spec)

    monkeypatch.setattr(GuestProcessManager, "StartProgramInGuest", note_start)
    verdicts = stacks.check(login=GuestLogin("checker", Secret("wrong-Secret-9")))
    assert tried == ["gpu-bare"]
    messages = {name: only_row(verdict) for name, verdict in verdicts.items()}
    assert messages["gpu-ready"] == "another guest has refused the login of GPUOPS_GUEST_USERNAME"
    assert "wrong-Secret-9" not in repr(verdicts)


@pytest.mark.long
def test_so_many_are_asked_at_a_time(stacks: Stacks, monkeypatch: pytest.MonkeyPatch) -> None:
    together: list[int] = []
    wait = guest_commands.wait

    def note_wait(connection: Connection, running: Sequence[TaskRef], timeout_s: float) -> Any:
        together.append(len(running))
        return wait(connection, running, timeout_s)

    monkeypatch.setattr(guest_answers, "AT_ONCE", 2)
    monkeypatch.setattr(guest_commands, "wait", note_wait)
    assert sum(verdict.ready for verdict in stacks.check().values()) == 2
    assert max(together) == 2


@pytest.mark.long
def test_a_program_that_does_not_end_is_given_up_and_holds_up_no_other(stacks: Stacks) -> None:
    stacks.change("gpu-bare", takes_s=None)
    verdicts = stacks.check()
    assert only_row(verdicts["gpu-bare"]) == "its program had not ended after 120 s"
    assert verdicts["gpu-ready"].ready
    [message] = stacks.said
    assert message.startswith("gpu-bare: /tmp/gpuops-")
    assert message.endswith("stays in its guest, because its program still runs")


@pytest.mark.long
def test_a_program_that_ends_while_other_answers_are_fetched_is_not_given_up(
    stacks: Stacks, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched, passed_s, read = list[str](), clock.passed_s, guest_commands.read_guest_file

    def slowly(connection: Connection, vm: str, name: str, path: str) -> bytes:
        fetched.append(name)
        return read(connection, vm, name, path)

    monkeypatch.setattr(guest_answers, "read_guest_file", slowly)
    monkeypatch.setattr(clock, "passed_s", lambda: passed_s() + 60.0 * len(fetched))
    stacks.change("gpu-ready", takes_s=20.0)
    assert stacks.check()["gpu-ready"].ready
    assert len(fetched) == 7


@pytest.mark.long
def test_a_host_that_cannot_be_reached_is_waited_for_once(stacks: Stacks, monkeypatch: pytest.MonkeyPatch) -> None:
    contacted_hosts: list[str] = []

    def silent(connection: Any, *request: Any, **limits: Any) -> Any:
        contacted_hosts.append(connection.host)
        raise TimeoutError("timed out")

    monkeypatch.setattr(guest_commands, "exchange", silent)
    verdicts = stacks.check()
    hosts = {verdicts[name].vm.host for name in verdicts if "cannot be fetched" in verdicts[name].rows[0].says}
    assert len(contacted_hosts) == len(hosts) < 7
    assert sum("cannot be fetched" in verdict.rows[0].says for verdict in verdicts.values()) == 7
    assert stacks.left_over == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"exit_code": 3}, "its program ended with exit code 3"),
        ({"prints": None}, "the output of its check cannot be fetched: gpu-ready: there is no file /tmp/gpuops-"),
        (
            {"prints": "x" * (MOST_BYTES + 1)},
            "the output of its check cannot be fetched: gpu-ready: /tmp/gpuops-",
        ),
        (
            {"prints": "hello"},
            "the output of the check cannot be read: it does not begin like the output of gpuops' check",
        ),
        ({"prints": "\x1b]0;x\x07"}, "the output of the check cannot be read: it does not begin"),
        ({"path": "/bin/other"}, "gpu-ready: there is no file /bin/sh"),
    ],
    ids=["fails", "writes-nothing", "too-long", "another-answer", "escape", "no-shell"],
)
def test_a_guest_that_answers_badly_is_unknown(stacks: Stacks, fields: dict[str, Any], says: str) -> None:
    stacks.change("gpu-ready", **fields)
    [verdict] = stacks.check(GuestQuestion("gpu-ready")).values()
    assert only_row(verdict).startswith(says)
    assert stacks.left_over == []


@pytest.mark.long
def test_an_answer_that_cannot_be_removed_is_named(stacks: Stacks) -> None:
    state = stacks.vm("gpu-ready").state
    programs = tuple(program for program in state.template.programs if program.path == SH)
    state.template = replace(state.template, programs=programs)
    [verdict] = stacks.check(GuestQuestion("gpu-ready")).values()
    assert verdict.ready
    [path] = stacks.left_over
    assert stacks.said == [
        f"gpu-ready: {path} stays in its guest, because it could not be removed: gpu-ready: there is no file /bin/rm"
    ]


def url_of(stacks: Stacks, monkeypatch: pytest.MonkeyPatch, begins: str) -> None:
    """Has vCenter name URLs that begin so."""
    transfer = GuestFileManager.InitiateFileTransferFromGuest

    def name_url(self: GuestFileManager, call: Any, vm: Any, auth: Any, guestFilePath: str) -> Any:  # noqa: N803 - its name on the wire
        info = transfer(self, call, vm, auth, guestFilePath)
        info.url = info.url.replace(f"https://*:{stacks.server.port}", begins)
        return info

    monkeypatch.setattr(GuestFileManager, "InitiateFileTransferFromGuest", name_url)


@pytest.mark.long
def test_a_host_that_is_named_must_show_the_certificate_that_vcenter_tells_of_it(
    stacks: Stacks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host is the simulator itself, by another name than that in its certificate."""
    url_of(stacks, monkeypatch, f"https://localhost:{stacks.server.port}")
    pem = ssl.get_server_certificate(("127.0.0.1", stacks.server.port))
    pins = {"right": guest_commands._sha256([byte - 256 * (byte > 127) for byte in pem.encode()]), "wrong": "0" * 64}
    assert pins["right"] == hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
    for name, pin in pins.items():
        monkeypatch.setattr(guest_commands, "_pin", lambda connection, vm, pin=pin: pin)
        [verdict] = stacks.check(GuestQuestion("gpu-ready")).values()
        assert verdict.ready is (name == "right")
    assert "is not the pinned one" in only_row(verdict)


@pytest.mark.long
@pytest.mark.parametrize(
    ("begins", "says"),
    [
        ("https://esx-01.stacks", "the certificate of its ESXi host cannot be read, so nothing is fetched from it"),
        ("http://*", "vCenter returned no usable URL for the file of the guest: it is not https"),
        ("file://*", "vCenter returned no usable URL for the file of the guest: it is not https"),
        ("https:///", "vCenter returned no usable URL for the file of the guest: it names no host"),
        ("https://*/no", "HTTP status 404"),
        ("https://*/ \r\nX: y", "vCenter returned no usable URL for the file"),
    ],
)
def test_a_url_that_leads_nowhere(stacks: Stacks, monkeypatch: pytest.MonkeyPatch, begins: str, says: str) -> None:
    url_of(stacks, monkeypatch, begins)
    [verdict] = stacks.check(GuestQuestion("gpu-ready")).values()
    assert says in only_row(verdict)
    assert "token=" not in only_row(verdict)


@pytest.mark.long
@pytest.mark.parametrize("certificate", [[1, 2, 3], "x", None, [], list(b"-----BEGIN CERTIFICATE-----\n!")])
def test_a_certificate_that_is_none_is_refused(certificate: Any) -> None:
    with pytest.raises(Refused, match="no valid certificate"):
        guest_commands._sha256(certificate)


@pytest.mark.long
@pytest.mark.parametrize(
    ("values", "system"),
    [
        ({"guest.guestFamily": "linuxGuest", "config.guestId": "windows9Server64Guest"}, GuestSystem.LINUX),
        ({"guest.guestFamily": "windowsGuest"}, GuestSystem.WINDOWS),
        ({"guest.guestFamily": "otherGuestFamily", "config.guestId": "rhel9_64Guest"}, GuestSystem.LINUX),
        ({"guest.guestFamily": None, "config.guestId": "windows2022srvNext_64Guest"}, GuestSystem.WINDOWS),
        ({"config.guestId": "other5xLinux64Guest"}, GuestSystem.LINUX),
        ({"config.guestId": "freebsd14_64Guest"}, None),
        ({}, None),
    ],
)
def test_which_system_a_guest_has(values: dict[str, Any], system: GuestSystem | None) -> None:
    assert guest_answers._system(values) is system
