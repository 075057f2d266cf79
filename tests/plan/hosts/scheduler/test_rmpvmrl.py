"""RmPVMRL by driver branch, both ways, the driver itself, and host profiles that may set module options back."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.model.devices.scheduler import (
    BEST_EFFORT,
    DriverBranch,
    Frequency,
    RoundRobin,
    SchedulerPolicy,
    TimeSlices,
    VgpuScheduler,
)
from gpuops.model.vcenter.host import Cluster, Host
from gpuops.model.vcenter.host_settings import Custody, HostSettings, SoftwarePackage
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.hosts.scheduler.module_options import (
    Unread,
    decode,
    depends_on_branch,
    describe_clamping,
    encode,
    reason_not_encodable,
)
from gpuops.plan.hosts.scheduler.scheduler_state import branch_of, driver_of, warn_of_resets

EQUAL, FIXED = SchedulerPolicy.EQUAL_SHARE, SchedulerPolicy.FIXED_SHARE
PLAIN, ADAPTIVE = RoundRobin.PLAIN, RoundRobin.ADAPTIVE


@pytest.mark.parametrize(
    ("word", "plain", "adaptive"),
    [
        (0x00000000, BEST_EFFORT, BEST_EFFORT),
        (0x00000001, VgpuScheduler(EQUAL), VgpuScheduler(EQUAL)),
        (0x00000011, VgpuScheduler(FIXED), VgpuScheduler(FIXED)),
        (0x00000003, None, VgpuScheduler(EQUAL, TimeSlices())),
        (0x00180013, None, VgpuScheduler(FIXED, TimeSlices(24))),
        (0x00180011, VgpuScheduler(FIXED, TimeSlices(24)), VgpuScheduler(FIXED, Frequency(0x180))),
        (0x00030001, VgpuScheduler(EQUAL, TimeSlices(3)), VgpuScheduler(EQUAL, Frequency(48))),
        (0x211E0001, None, VgpuScheduler(EQUAL, Frequency(480, 33))),
        (0x213C0011, None, VgpuScheduler(FIXED, Frequency(960, 33))),
        (0x00000009, VgpuScheduler(EQUAL, weighted=False), VgpuScheduler(EQUAL, weighted=False)),
    ],
)
def test_published_words_are_read_as_each_branch_reads_them(
    word: int, plain: VgpuScheduler | None, adaptive: VgpuScheduler
) -> None:
    """None = no word of that branch."""
    scheduler = decode(word, PLAIN)
    assert (None if isinstance(scheduler, Unread) else scheduler) == plain
    assert decode(word, ADAPTIVE) == adaptive
    assert (
        encode(adaptive, ADAPTIVE) == word
        if reason_not_encodable(adaptive, ADAPTIVE) is None
        else describe_clamping(adaptive)
    )
    assert plain is None or encode(plain, PLAIN) == word


@pytest.mark.parametrize("word", [0x00, 0x01, 0x11])
def test_words_of_defaults_need_no_branch(word: int) -> None:
    scheduler = decode(word, None)
    assert isinstance(scheduler, VgpuScheduler)
    assert not depends_on_branch(scheduler)
    assert encode(scheduler, None) == word


@pytest.mark.parametrize("word", [0x03, 0x00030001, 0x211E0001, 0x00180013])
def test_a_word_that_branches_read_differently_is_not_guessed_at(word: int) -> None:
    scheduler = decode(word, None)
    assert isinstance(scheduler, Unread)
    assert str(scheduler) == f"0x{word:08x} (driver branches read it differently, and the host's is not known)"


@pytest.mark.parametrize("word", [0x05, 0x21, 0x101, 0x801, 1 << 32 | 1, -1])
def test_bits_that_nobody_documents_are_not_read(word: int) -> None:
    assert isinstance(decode(word, ADAPTIVE), Unread)
    assert isinstance(decode(word, PLAIN), Unread)


@pytest.mark.parametrize(
    ("scheduler", "round_robin", "words"),
    [
        (VgpuScheduler(EQUAL, TimeSlices(31)), ADAPTIVE, "time slice 31 ms is not within 1 to 30 ms"),
        (VgpuScheduler(EQUAL, TimeSlices(0)), PLAIN, "time slice 0 ms is not within 1 to 30 ms"),
        (VgpuScheduler(EQUAL, Frequency(62)), ADAPTIVE, "frequency 62 Hz is not within 63 to 960 Hz"),
        (VgpuScheduler(EQUAL, Frequency(961, 33)), ADAPTIVE, "frequency 961 Hz is not within 63 to 960 Hz"),
        (VgpuScheduler(FIXED, Frequency(480, 61)), ADAPTIVE, "averaging 61 is not within 1 to 60"),
        (VgpuScheduler(EQUAL, Frequency(480)), PLAIN, "before vGPU 15 has no adaptive round robin"),
        (VgpuScheduler(EQUAL, TimeSlices(2)), None, "the host's branch is not known"),
        (VgpuScheduler(SchedulerPolicy.BEST_EFFORT, TimeSlices(2)), ADAPTIVE, "best effort has neither"),
    ],
)
def test_what_has_no_word_is_refused_with_its_rule(
    scheduler: VgpuScheduler, round_robin: RoundRobin | None, words: str
) -> None:
    reason = reason_not_encodable(scheduler, round_robin)
    assert reason is not None
    assert words in reason
    with pytest.raises(ValueError, match=re.escape(reason)):
        encode(scheduler, round_robin)


milliseconds = st.integers(1, 30)
plain = st.none() | st.builds(TimeSlices, milliseconds)

adaptive = (
    st.none()
    | st.builds(TimeSlices, st.none() | milliseconds)
    | st.builds(Frequency, st.integers(63, 960), st.none() | st.integers(1, 60))
)

shares = st.sampled_from([EQUAL, FIXED])


@given(st.one_of(st.just(BEST_EFFORT), st.builds(VgpuScheduler, shares, plain, st.booleans())))
def test_a_plain_branch_reads_back_what_was_written(scheduler: VgpuScheduler) -> None:
    assert decode(encode(scheduler, PLAIN), PLAIN) == scheduler


@given(st.one_of(st.just(BEST_EFFORT), st.builds(VgpuScheduler, shares, adaptive, st.booleans())))
def test_an_adaptive_branch_reads_back_what_was_written(scheduler: VgpuScheduler) -> None:
    assert decode(encode(scheduler, ADAPTIVE), ADAPTIVE) == scheduler


@given(st.integers(0, (1 << 32) - 1), st.sampled_from([None, PLAIN, ADAPTIVE]))
def test_every_word_has_an_answer(word: int, round_robin: RoundRobin | None) -> None:
    scheduler = decode(word, round_robin)
    assert isinstance(scheduler, Unread) or str(scheduler).startswith(scheduler.policy)


@pytest.mark.parametrize(
    ("word", "round_robin", "words"),
    [
        (0x00030001, ADAPTIVE, "the driver uses 63 Hz"),
        (0x003FF001, ADAPTIVE, "the driver uses 960 Hz"),
        (0x00280001, PLAIN, "the driver uses 30 ms"),
        (0x00180013, ADAPTIVE, None),
    ],
)
def test_what_the_driver_makes_of_a_value_out_of_range(word: int, round_robin: RoundRobin, words: str | None) -> None:
    scheduler = decode(word, round_robin)
    assert isinstance(scheduler, VgpuScheduler)
    assert describe_clamping(scheduler) == words


@pytest.mark.parametrize(
    ("number", "round_robin"), [(470, PLAIN), (510, PLAIN), (515, None), (525, ADAPTIVE), (595, ADAPTIVE)]
)
def test_branches_by_their_number(number: int, round_robin: RoundRobin | None) -> None:
    assert DriverBranch(number).round_robin is round_robin


BASE = SoftwarePackage("esx-base", "8.0.3-0.0.24022510", "VMware")
DRIVER = SoftwarePackage("NVD-VGPU-800-Driver", "550.90.05-1OEM.800.1.0.20613240", "NVIDIA")
DAEMON = SoftwarePackage("nvdgpumgmtdaemon", "535.54.06-1OEM.700.1.0.15843807", "NVIDIA")


def test_the_driver_is_told_from_what_comes_with_it() -> None:
    assert driver_of([BASE, DAEMON, DRIVER]) == DRIVER


@pytest.mark.parametrize(
    "packages",
    [[], [BASE], [DAEMON], [DRIVER, SoftwarePackage("NVD-AIE-800-Driver", "470.63-1OEM.702.0.0.17630552", "NVIDIA")]],
)
def test_no_driver_or_two_is_none(packages: list[SoftwarePackage]) -> None:
    assert driver_of(packages) is None


@pytest.mark.parametrize(
    ("version", "branch"),
    [("550.90.05-1OEM.800", DriverBranch(550)), ("470.63", DriverBranch(470)), ("8.0.3", None), ("", None)],
)
def test_the_branch_is_the_first_number(version: str, branch: DriverBranch | None) -> None:
    assert branch_of(version) == branch


def warnings_for(*custody: Custody | None, cluster: str | None = "c") -> tuple[str, ...]:
    """What is said of hosts esx-1... of one cluster."""
    hosts = [
        Host(
            f"h{number}",
            f"esx-{number}",
            cluster,
            settings=None if host_custody is None else HostSettings(custody=host_custody),
        )
        for number, host_custody in enumerate(custody, 1)
    ]
    clusters = {"c": Cluster("c", "desktops")}
    snapshot = Inventory("vc", "8.0.3.0", datetime(2026, 11, 2, tzinfo=UTC), {}, {}, clusters)
    return warn_of_resets(hosts, snapshot)


def test_nobody_else_is_nothing_to_say() -> None:
    assert warnings_for(Custody((), False), Custody((), False)) == ()


def test_hosts_are_named_by_profile_and_many_are_counted() -> None:
    first, second = warnings_for(*[Custody(("golden",), False)] * 6, Custody(("old",), False))
    assert first.startswith("host profile golden is attached to esx-1, esx-2, esx-3, esx-4 and 2 more: remediation")
    assert second.startswith("host profile old is attached to esx-7: remediation")


def test_a_cluster_that_keeps_its_hosts_is_named() -> None:
    [line] = warnings_for(Custody((), True), Custody((), True))
    assert line.startswith("cluster desktops manages the configuration of its hosts (esx-1, esx-2)")
    [alone] = warnings_for(Custody((), True), cluster=None)
    assert alone.startswith("cluster esx-1 manages")


@pytest.mark.parametrize("unknown", [None, Custody(), Custody((), None), Custody(None, False)])
def test_what_cannot_be_read_is_not_nobody(unknown: Custody | None) -> None:
    [line] = warnings_for(unknown, Custody((), False))
    assert line == (
        "this login cannot read whether a host profile or the cluster's configuration resets module options of esx-1"
    )
