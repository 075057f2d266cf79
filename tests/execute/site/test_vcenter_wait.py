"""A vCenter that is away is waited for; hosts are asked by their shells, many at once, and where their vGPUs lie."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import cast

import pytest

from gpuops.config.policy import parse_policy
from gpuops.errors import LoginRefused, NotConnected, NotTrusted, VcenterUnreachable
from gpuops.execute.rotation.rotation import rotate
from gpuops.execute.runs import RunKind
from gpuops.execute.site import Site, agreed
from gpuops.execute.site.host_shell import MOST_REQUESTS, HostShell, ask_in_parallel, with_vgpus
from gpuops.execute.site.vcenter_wait import FIRST_PAUSE_S, VcenterWait
from gpuops.model.devices.gpu import PciAddress, VgpuMode
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.host_settings import SmiState, SmiVgpu
from gpuops.model.vcenter.target import Secret, Target
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.capacity.capacity_request import capacity
from gpuops.plan.core.plan import Report
from gpuops.plan.core.steps import ResumeVm, Step, SuspendVm
from gpuops.vsphere.transport.network import UnreadableReply, connection_error
from tests.execute.nights import POLICY, POLICY_TEXT, Night, morning_is_good
from tests.execute.small_vcenter import SmallVcenter
from tests.plan.snapshots import FIRST, catalog, gpu, host, inventory, vm

MORNING = datetime(2026, 11, 21, 5, 30, tzinfo=UTC)
DUE = datetime(2026, 11, 21, 6, 0, tzinfo=UTC)


@dataclass
class Watched:
    """A night whose runs are heard, and in whose world time passes while they wait."""

    night: Night
    said: list[str] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    policy: Policy = POLICY

    def run(self, kind: RunKind) -> Report:
        world = self.night.world
        site = Site(SmallVcenter(world), self.night.state_dir, world.tick, pause=self.pause, say=self.said.append)
        return rotate(kind, self.policy, site, apply=True, consent=agreed)

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.night.world.now += timedelta(seconds=seconds)

    def down_from(self, kind: type[Step], minutes: float) -> None:
        """vCenter goes away with the first step of this kind."""
        world = self.night.world

        def take_down(step: Step) -> None:
            if isinstance(step, kind):
                world.down_until = world.now + timedelta(minutes=minutes)
                world.on_submit = lambda step: None

        world.on_submit = take_down


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(Night(tmp_path / "state"))


def test_it_goes_on_when_vcenter_is_back(watched: Watched) -> None:
    watched.night.run(RunKind.NIGHT)
    watched.night.world.now = MORNING
    watched.down_from(ResumeVm, minutes=25)
    assert watched.run(RunKind.DAY).exit_code == 0
    morning_is_good(watched.night)
    first, *still, last = watched.said
    assert first == "nothing answers: waiting for vCenter until 2026-11-21 07:00 UTC"
    assert still == [first, first]
    assert re.fullmatch(
        "vCenter answers again after 2[56] min: going on", last
    )  # each look at the clock takes a second
    assert watched.pauses[:4] == [10, 20, 40, 60]
    assert max(watched.pauses) == 60


def test_what_somebody_agreed_to_is_not_asked_about_again(watched: Watched) -> None:
    """The lock would wait for the answer, and the user who agreed may have left hours ago."""
    watched.night.run(RunKind.NIGHT)
    watched.night.world.now = MORNING
    watched.down_from(ResumeVm, minutes=25)
    reports: list[Report] = []
    world = watched.night.world
    site = Site(SmallVcenter(world), watched.night.state_dir, world.tick, pause=watched.pause, say=watched.said.append)
    report = rotate(RunKind.DAY, POLICY, site, apply=True, consent=reports.append, asks=True)
    assert (report.exit_code, len(reports)) == (0, 1)
    assert watched.pauses
    morning_is_good(watched.night)


def test_whose_work_had_less_time_is_said_after_an_outage_too(watched: Watched) -> None:
    """The plan after the outage has no ML VM left to stop, and nothing to warn of."""
    watched.policy = parse_policy(
        POLICY_TEXT.replace("{vm: ml-01}", "{vm: ml-01, checkpoint: {grace_s: 3600}}"), "small"
    )
    watched.run(RunKind.NIGHT)
    watched.night.world.now = MORNING
    watched.down_from(ResumeVm, minutes=5)
    report = watched.run(RunKind.DAY)
    [warning] = report.plan.warnings
    assert re.fullmatch(r"ml-01: \d+ s to save its work, not 3600 s: the return is late", warning)
    morning_is_good(watched.night)


def test_it_gives_up_an_hour_after_its_desktops_were_due(watched: Watched) -> None:
    watched.night.run(RunKind.NIGHT)
    watched.night.world.now = MORNING
    watched.down_from(ResumeVm, minutes=24 * 60)
    with pytest.raises(NotConnected):
        watched.run(RunKind.DAY)
    gave_up = watched.night.world.now
    assert timedelta(hours=1) <= gave_up - DUE < timedelta(hours=1, minutes=2)
    with pytest.raises(NotConnected):
        watched.run(RunKind.DAY)
    assert watched.night.world.now - gave_up < timedelta(minutes=1), "by then it waits no more"
    watched.night.world.down_until = None
    assert watched.run(RunKind.DAY).exit_code == 0
    morning_is_good(watched.night)


@pytest.mark.long
def test_a_vcenter_that_comes_and_goes_is_not_asked_more_often_nor_told_of_more_often(watched: Watched) -> None:
    watched.night.run(RunKind.NIGHT)
    world = watched.night.world
    world.now, world.unreachable_for = MORNING, ResumeVm
    with pytest.raises(NotConnected):
        watched.run(RunKind.DAY)
    assert len(watched.pauses) < 100
    assert len(watched.said) <= 2 * 10
    world.unreachable_for = None
    assert watched.run(RunKind.DAY).exit_code == 0
    morning_is_good(watched.night)


def test_a_night_does_not_wait(watched: Watched) -> None:
    watched.down_from(SuspendVm, minutes=5)
    with pytest.raises(NotConnected):
        watched.run(RunKind.NIGHT)
    assert (watched.pauses, watched.said) == ([], [])


@pytest.mark.parametrize("refused", [LoginRefused("the password was changed"), NotTrusted("another certificate")])
def test_what_waiting_does_not_mend_is_not_tried_again(watched: Watched, refused: NotConnected) -> None:
    world, tries = watched.night.world, 0
    vcenter_wait = VcenterWait(None, world.tick, watched.pause, watched.said.append)

    def attempt() -> None:
        nonlocal tries
        tries += 1
        raise VcenterUnreachable("nothing answers") if tries < 3 else refused

    with pytest.raises(type(refused)):
        vcenter_wait.reach_vcenter(attempt)
    assert (tries, watched.pauses) == (3, [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S])


@pytest.mark.parametrize(
    ("error", "waited_for"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), False),  # a typing error
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), True),
        (ConnectionRefusedError(), True),
        (ssl.SSLEOFError(), True),
        (http.client.HTTPException("503 Service Unavailable"), True),
        (http.client.HTTPException("502 Bad Gateway"), True),
        (http.client.HTTPException("404 Not Found"), True),
        (http.client.HTTPException("302 Found"), True),
        (UnreadableReply("a reply that is not XML"), True),
    ],
    ids=repr,
)
def test_what_is_waited_for(watched: Watched, error: Exception, waited_for: bool) -> None:
    target, answers = Target("vc.example.com", "user", Secret("password")), iter([False, True])

    def attempt() -> None:
        if not next(answers):
            raise connection_error(target, error)

    vcenter_wait = VcenterWait(None, watched.night.world.tick, watched.pause, watched.said.append)
    if waited_for:
        vcenter_wait.reach_vcenter(attempt)
    else:
        with pytest.raises(NotConnected):
            vcenter_wait.reach_vcenter(attempt)
    assert watched.pauses == ([FIRST_PAUSE_S] if waited_for else [])


PREFIX = "nvidia_rtx_pro_6000_blackwell_dc-"


class Shell:
    """A host that tells three vGPUs, each in a GPU instance of so many memory slices."""

    def __init__(self, starts: tuple[int, ...], slices: int) -> None:
        self.starts, self.slices = starts, slices

    def mig(self, host: str) -> tuple[SmiState, ...]:
        return ()

    def vgpus(self, host: str) -> tuple[SmiVgpu, ...]:
        at = PciAddress.parse(FIRST)
        return tuple(
            SmiVgpu(at, f"a-{number}", f"{PREFIX}1-3q", start, instance_slices=self.slices)
            for number, start in enumerate(self.starts, 1)
        )


@pytest.mark.parametrize(
    ("starts", "slices", "lying", "free"),
    [
        ((0, 3, 6), 3, [0, 3, 6], (0, 0)),
        ((0, 1, 2), 1, [0, 3, 6], (0, 0)),  # counted in quarters of the GPU
        ((3, 3, 2), 1, [9, 9, 6], (1, 1)),
        ((0, 1, 2), 3, [0, 1, 2], (0, 0)),  # no starts of the catalogue: three instances all the same
    ],
)
def test_starts_are_read_in_the_slices_of_the_catalogue(
    starts: tuple[int, ...], slices: int, lying: list[int], free: tuple[int, int]
) -> None:
    three = [vm(n, f"a-{n}", "1", f"vgpu {PREFIX}1-3q", power=PowerState.ON) for n in (1, 2, 3)]
    shared = gpu(FIRST, "rtx-pro-6000", 0, VgpuMode.MULTI_INSTANCE)
    snapshot = inventory([host("esx-1", replace(shared, vms=tuple(small_vm.ref for small_vm in three)))], three)
    with_starts = with_vgpus(snapshot, cast("HostShell", Shell(starts, slices)), print, catalog())
    [esx] = with_starts.hosts.values()
    assert [vgpu.start for vgpu in esx.gpus[0].vgpus or ()] == lying
    assert with_starts.as_read == with_starts, "what a host tells was read, it is no change"
    [part] = capacity(with_starts, catalog()).now.parts
    slots = part.fits[f"{PREFIX}2-48q"].slots
    assert (slots.at_least, slots.at_most) == free


def test_answers_come_in_the_order_of_the_questions() -> None:
    assert ask_in_parallel(lambda number: number * 2, list(range(3 * MOST_REQUESTS))) == [
        number * 2 for number in range(3 * MOST_REQUESTS)
    ]
    assert ask_in_parallel(str, []) == []


def test_all_are_asked_before_one_has_answered() -> None:
    barrier = Barrier(MOST_REQUESTS)
    ask_in_parallel(lambda _: barrier.wait(30), range(MOST_REQUESTS))
    with pytest.raises(BrokenBarrierError):
        ask_in_parallel(lambda _: Barrier(2).wait(0.01), range(2))


def test_an_error_is_the_askers() -> None:
    def ask(number: int) -> int:
        if number == 1:
            raise NotConnected("vCenter has gone")
        return number

    with pytest.raises(NotConnected, match="vCenter has gone"):
        ask_in_parallel(ask, range(3))
