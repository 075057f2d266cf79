"""MIG mode by a host's own nvidia-smi: over real SSH, its key checked, against a simulated host."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import asyncssh
import pytest

from gpuops.api import Site, configure, doctor, mig_show
from gpuops.clock import wall_clock
from gpuops.errors import OutcomeUnknown, Refused, UsageError
from gpuops.execute.change import rolling_change
from gpuops.hostshell.nvidia_smi import DETAILS, NvidiaSmi
from gpuops.hostshell.ssh import MOST_BYTES, CommandResult, Ssh
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host_settings import Displacement, Rolling, SmiReadings, SmiState, SmiVgpu
from gpuops.plan.core.plan import Verdict
from gpuops.plan.core.scope import Scope
from gpuops.plan.doctor.host_findings import Severity
from gpuops.plan.hosts.graphics.mig_mode import SetMig
from gpuops.report.hosts.host_settings_view import mig_document
from gpuops.sim.fault_injection.rule import Effect, Phase, Rule
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.state.board import GpuMode
from gpuops.sim.state.host_state import GpuFault
from gpuops.sim.state.vm_state import Power
from gpuops.vsphere.connection import Connection
from tests.hostshell.server import BREAKS_OFF, NEVER_ENDS, Answer, ShellHost, ssh_server
from tests.sim.guests import nvidia_smi
from tests.wire.conftest import target_of

NAME = "esx-01.lab"
FIRST, SECOND = "0000:3b:00.0", "0000:af:00.0"
QUERY = (
    "nvidia-smi --query-gpu=pci.bus_id,mig.mode.current,mig.mode.pending,ecc.mode.current,ecc.mode.pending "
    "--format=csv,noheader"
)
ROWS = """\
00000000:3B:00.0, Enabled, Disabled, Enabled, Disabled
00000000:AF:00.0, Enabled, Enabled, Enabled, Enabled
00000000:D8:00.0, [N/A], [N/A], [N/A], [N/A]
"""


@pytest.fixture
def enter(tmp_path: Path) -> Iterator[Callable[[Answer], ShellHost]]:
    with ExitStack() as stack:
        yield lambda answer: stack.enter_context(ssh_server(tmp_path, NAME, answer))


def test_modes_are_read_as_nvidia_smi_writes_them(enter: Callable[[Answer], ShellHost]) -> None:
    host = enter(lambda command: (ROWS, 0))
    assert NvidiaSmi(host.ssh).mig(NAME) == (
        SmiState(PciAddress.parse(FIRST), True, False, True, False),
        SmiState(PciAddress.parse(SECOND), True, True, True, True),
        SmiState(PciAddress.parse("0000:d8:00.0"), None, None),
    )
    assert host.asked == [QUERY, DETAILS]


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        (
            "NVIDIA-SMI has failed because it couldn't communicate\n",
            9,
            "nvidia-smi failed with exit status 9: NVIDIA-SMI has failed",
        ),
        ("<html>login</html>\n", 0, "gpuops cannot read the output of nvidia-smi"),
        ("nonsense, Enabled, Enabled, Enabled, Enabled\n", 0, "gpuops cannot read the output of nvidia-smi"),
    ],
)
def test_an_answer_that_is_none_is_refused(
    enter: Callable[[Answer], ShellHost], text: str, status: int, message: str
) -> None:
    with pytest.raises(Refused, match=message):
        NvidiaSmi(enter(lambda command: (text, status)).ssh).mig(NAME)


def test_a_host_whose_key_is_not_known_is_not_entered(enter: Callable[[Answer], ShellHost]) -> None:
    host = enter(lambda command: (ROWS, 0))
    other_key = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    for known_hosts in (f"{NAME} {other_key}", f"another {other_key}", ""):
        host.known_hosts.write_text(known_hosts, encoding="ascii")
        with pytest.raises(Refused, match="its SSH key is unknown, or not the one in"):
            NvidiaSmi(host.ssh).mig(NAME)
    assert host.asked == []
    with pytest.raises(Refused, match="no SSH key of a host is known"):
        NvidiaSmi(replace(host.ssh, known_hosts=Path("/nowhere"))).mig(NAME)


def test_who_is_not_let_in_and_who_is_not_there_is_said(enter: Callable[[Answer], ShellHost], tmp_path: Path) -> None:
    host = enter(lambda command: (ROWS, 0))
    strange = tmp_path / "strange"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(strange)
    strange.chmod(0o600)
    with pytest.raises(Refused, match="its SSH server refuses the login of root"):
        NvidiaSmi(replace(host.ssh, key=strange)).mig(NAME)
    with pytest.raises(Refused, match="cannot be reached by SSH"):
        NvidiaSmi(replace(host.ssh, port=1)).mig(NAME)


def test_a_shell_that_breaks_off_leaves_it_unknown(enter: Callable[[Answer], ShellHost]) -> None:
    host = enter(lambda command: ("", BREAKS_OFF))
    with pytest.raises(OutcomeUnknown, match="the SSH connection broke while nvidia-smi ran"):
        NvidiaSmi(host.ssh).set_mig(NAME, [PciAddress.parse(FIRST)], on=True)
    assert host.asked == [f"nvidia-smi -i {FIRST} -mig 1"]


def test_a_host_that_never_ends_its_answer_is_not_read_on(enter: Callable[[Answer], ShellHost]) -> None:
    host = enter(lambda command: ("Enabled, " * 1000, NEVER_ENDS))
    with pytest.raises(OutcomeUnknown, match="nvidia-smi printed more than 1 MiB, and gpuops stopped reading"):
        NvidiaSmi(host.ssh).mig(NAME)


def test_what_fits_into_the_most_is_read_whole(enter: Callable[[Answer], ShellHost]) -> None:
    host = enter(lambda command: ("x" * MOST_BYTES, 0))
    assert host.ssh.run(NAME, QUERY) == CommandResult("x" * MOST_BYTES, "", 0)


class Bench:
    """The lab, and its first host entered over SSH."""

    def __init__(self, server: SimServer, site: Site) -> None:
        self.server, self.site = server, site

    @property
    def host(self) -> Any:
        [host] = [host for host in self.server.world.by_type("HostSystem") if host.display_name == NAME]
        return host

    def set(self, *, on: bool, gpu: tuple[str, ...] = (FIRST,)) -> Any:
        return configure(SetMig(on, gpu, NAME), self.site, apply=True)

    def roll(self, *, on: bool, gpu: tuple[str, ...] = (FIRST,)) -> Any:
        return rolling_change.roll(
            SetMig(on, gpu, NAME),
            "mig set off",
            Rolling(vms=Displacement.SHUT_DOWN),
            self.site,
            apply=True,
            consent=lambda report: None,
            told=lambda line: None,
        )


@pytest.fixture
def bench(tmp_path: Path, enter: Callable[[Answer], ShellHost]) -> Iterator[Bench]:
    with SimServer(build("lab")) as server, Connection(target_of(server)) as vcenter:
        [host] = [host for host in server.world.by_type("HostSystem") if host.display_name == NAME]
        shell = NvidiaSmi(enter(lambda command: nvidia_smi.answer(host, command)).ssh)
        yield Bench(server, Site(vcenter, tmp_path / "state", wall_clock, shell=shell))


def test_the_mode_is_pending_until_the_host_reboots(bench: Bench) -> None:
    report = bench.set(on=False)
    assert (report.exit_code, [outcome.verdict for outcome in report.outcomes]) == (0, [Verdict.DONE])
    assert "takes effect after a reboot of esx-01.lab" in report.plan.afterwards[0]
    [state] = [state for state in mig_of(bench) if str(state.address) == FIRST]
    assert (state.current, state.pending) == (True, False)
    repeated = bench.set(on=False)
    assert (repeated.changed, repeated.plan.because) == (
        False,
        ("esx-01.lab: MIG mode is off already; a reboot is pending",),
    )


@pytest.mark.long
def test_a_rolling_reboot_brings_it_into_force(bench: Bench) -> None:
    for vm in bench.host.vms():
        if vm.state.power is Power.ON:
            vm.state.power, vm.state.seats = Power.OFF, ()
    report = bench.roll(on=False)
    assert (report.exit_code, [outcome.verdict for outcome in report.outcomes]) == (0, [Verdict.DONE]), report.outcomes
    assert [gpu.mode for gpu in bench.host.state.gpus[:2]] == [GpuMode.SAME_SIZE, GpuMode.MULTI_INSTANCE]
    forgets = Rule(Effect.HAPPEN, "RebootHost_Task", happening="host.forgets_mig", phase=Phase.AFTER)
    bench.server.world.injector.add(forgets)
    report = bench.roll(on=True)
    assert (report.exit_code, report.outcomes[0].verdict) == (4, Verdict.FAILED)
    assert f"MIG mode of {FIRST} is not on" in report.outcomes[0].reason


def test_a_gpu_without_mig_and_one_that_is_not_there_are_refused(bench: Bench) -> None:
    assert [str(rejection) for rejection in bench.set(on=True, gpu=("0000:d8:00.0",)).plan.rejections] == [
        "esx-01.lab 0000:d8:00.0: has no MIG mode (NVIDIA MIG User Guide)"
    ]
    assert [str(rejection) for rejection in bench.set(on=True, gpu=("0000:11:00.0",)).plan.rejections] == [
        "esx-01.lab: has no GPU 0000:11:00.0 (nvidia-smi)"
    ]
    assert list(bench.server.world.ledger) == []


def test_a_mode_that_cannot_be_read_is_not_taken_for_none(bench: Bench) -> None:
    sick, *_ = bench.host.state.gpus
    sick.faults = frozenset({GpuFault.REQUIRES_RESET})
    refusal = f"esx-01.lab {FIRST}: its MIG mode cannot be read (GPU requires reset)"
    for gpu in ((FIRST,), ()):
        report = bench.set(on=False, gpu=gpu)
        assert (report.exit_code, [str(rejection) for rejection in report.plan.rejections]) == (3, [refusal])
    assert bench.set(on=False, gpu=(SECOND,)).changed


@pytest.mark.parametrize(
    ("fault", "severity", "reason"),
    [
        (GpuFault.LOST, Severity.ERROR, "has fallen off the bus: no vGPU starts on it"),
        (GpuFault.REQUIRES_RESET, Severity.ERROR, "needs a reset: no vGPU starts on it before that"),
        (
            GpuFault.RECOVERY_RESET,
            Severity.ERROR,
            "needs a reset: no vGPU starts on it before that (recovery action: Reset)",
        ),
        (GpuFault.UNKNOWN_ERROR, Severity.WARNING, "nvidia-smi reports for it: unknown error"),
        (GpuFault.CORRUPT_INFOROM, Severity.WARNING, "its infoROM is corrupted"),
        (
            GpuFault.ROW_REMAP_PENDING,
            Severity.WARNING,
            "works, but will replace a bad memory row at its next reset (row remap pending)",
        ),
    ],
)
def test_doctor_and_mig_show_name_a_sick_gpu_and_read_the_others(
    bench: Bench, fault: GpuFault, severity: Severity, reason: str
) -> None:
    bench.host.state.gpus[1].faults = frozenset({fault})
    findings = doctor(bench.site, Scope(host=NAME)).findings
    assert [(finding.severity, finding.reason) for finding in findings if finding.subject == f"{NAME} {SECOND}"] == [
        (severity, reason)
    ]
    assert [state.current for state in mig_of(bench) if state.address != PciAddress.parse(SECOND)] == [True, None]
    inventory, hosts = mig_show(bench.site, Scope(host=NAME))
    [gpu] = [gpu for gpu in mig_document(inventory, hosts).hosts[0].gpus if gpu.address == SECOND]
    assert gpu.health is not None and len(gpu.health.problems) == 1


def test_doctor_does_not_take_a_silent_nvidia_smi_for_a_privilege(bench: Bench) -> None:
    bench.host.state.driver_version = ""
    [finding] = [
        candidate for candidate in doctor(bench.site, Scope(host=NAME)).findings if "nvidia-smi: " in candidate.reason
    ]
    assert finding.reason.startswith(
        "the state of its GPUs is unknown: nvidia-smi: esx-01.lab: nvidia-smi failed with exit status 9"
    )
    assert finding.fix == "gpuops host mig show --host esx-01.lab --host-shell ssh shows why it does not answer"


def test_without_a_shell_nothing_is_asked_and_nothing_can_be_switched(bench: Bench) -> None:
    bench.site.shell = None
    assert mig_show(bench.site, Scope(host=NAME))[1][0].settings is None
    with pytest.raises(UsageError, match="vCenter has no call for it"):
        bench.set(on=True)


def test_hosts_are_asked_at_the_same_time(bench: Bench) -> None:
    everybody = Barrier(len(bench.site.vcenter.inventory().hosts))

    class Slow:
        """Answers once every host has been asked."""

        def mig(self, host: str) -> tuple[SmiState, ...]:
            everybody.wait(30)
            return ()

        def vgpus(self, host: str) -> tuple[SmiVgpu, ...]:
            raise AssertionError("nobody asks")

        def readings(self, host: str) -> SmiReadings:
            raise AssertionError("nobody asks")

        def set_mig(self, host: str, gpus: Collection[PciAddress], *, on: bool) -> None:
            raise AssertionError("nothing is set")

    bench.site.shell = Slow()
    _, hosts = mig_show(bench.site, Scope())
    assert len(hosts) == everybody.parties > 1
    assert {host.settings.mig for host in hosts if host.settings} == {()}


def test_a_host_that_cannot_be_entered_is_refused_by_name(bench: Bench) -> None:
    bench.site.shell = NvidiaSmi(Ssh(known_hosts=Path("/nowhere")))
    [rejection] = bench.set(on=True).plan.rejections
    assert str(rejection).startswith(
        "esx-01.lab: MIG modes cannot be read: /nowhere does not exist: no SSH key of a host"
    )


def mig_of(bench: Bench) -> tuple[SmiState, ...]:
    [host] = mig_show(bench.site, Scope(host=NAME))[1]
    assert host.settings is not None
    return host.settings.mig or ()


ROW = "00000000:3B:00.0, Enabled, Enabled, Enabled, Enabled"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"00000000:3B:00.0, {'x' * 200_000}, Enabled, Enabled, Enabled\n", "cannot read"),
        ("x" * 900_000 + "\n", "cannot read"),
        (f'"{ROW}\n', "cannot read"),
        ("9" * 5000 + ", Enabled, Enabled, Enabled, Enabled\n", "cannot read"),
        (f"{ROW}\n{ROW.replace('Enabled', 'Disabled')}\n", "nvidia-smi: '00000000:3B:00.0, Enabled"),
    ],
    ids=["a long field", "a long line", "an open quote", "a long address", "a contradiction"],
)
def test_a_strange_answer_is_one_short_line(enter: Callable[[Answer], ShellHost], text: str, message: str) -> None:
    with pytest.raises(Refused, match=message) as refused:
        NvidiaSmi(enter(lambda command: (text, 0)).ssh).mig(NAME)
    assert len(refused.value.message) < 400


def test_a_gpu_named_twice_alike_is_one(enter: Callable[[Answer], ShellHost]) -> None:
    assert len(NvidiaSmi(enter(lambda command: (f"{ROW}\n{ROW}\n", 0)).ssh).mig(NAME)) == 1


def test_a_long_error_is_cut(enter: Callable[[Answer], ShellHost]) -> None:
    host = enter(lambda command: ("no " * 300_000, 9))
    for ask in (lambda smi: smi.mig(NAME), lambda smi: smi.set_mig(NAME, [PciAddress.parse(FIRST)], on=True)):
        with pytest.raises(
            Refused, match=r"exit status 9: no no .*… \(900000 characters\)|exit status 9: no no"
        ) as refused:
            ask(NvidiaSmi(host.ssh))
        assert len(refused.value.message) < 400
