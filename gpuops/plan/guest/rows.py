"""The checks of one guest. Each row passes, fails or is unknown, with the numbers and what to do next.

Sources: NVIDIA's driver tables (`catalog/drivers.yaml`); nvidia-smi manual (pending modes take effect at a reboot). The
limit for clocks is ours: licence tokens and the logs of several guests are compared by time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from gpuops.model.guests.guest import (
    DriverTables,
    GuestAnswer,
    GuestGpu,
    GuestMode,
    GuestReply,
    GuestSystem,
    MustHave,
    SmiReport,
    VgpuPairs,
    version_of,
)
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.vm import Vm, is_gpu
from gpuops.plan.hosts.scheduler.scheduler_state import branch_of, driver_of

CLOCK_LIMIT_S: Final = 5.0
PAGE: Final = "gpuops help guest"


class GuestState(StrEnum):
    """The result of a check."""

    PASS = "pass"  # noqa: S105 - a verdict
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class GuestRow:
    """The result of one check; `next_move` is empty if it passes."""

    check: str
    state: GuestState
    says: str
    next_move: str = ""


@dataclass(frozen=True, slots=True)
class GuestNeeds:
    """The requirements of each guest in addition to its driver."""

    frameworks: tuple[Requirement, ...] = ()
    expected: frozenset[MustHave] = frozenset()


def unanswered_row(reply: GuestReply) -> GuestRow:
    """Return the only row of a guest that gave no answer."""
    return GuestRow("guest", GuestState.UNKNOWN, reply.why_not, reply.next_move)


def unreadable_row(why: str) -> GuestRow:
    """Return the only row of a guest whose answer cannot be parsed."""
    says = f"the output of the check cannot be read: {why}"
    return GuestRow("guest", GuestState.UNKNOWN, says, "run the check again; if it stays, look for errors in the guest")


def guest_rows(
    vm: Vm, host: Host | None, answer: GuestAnswer, reply: GuestReply, needs: GuestNeeds, tables: DriverTables
) -> tuple[GuestRow, ...]:
    """Return every verdict on the guest of this VM, which runs on this host."""
    rows = [GuestRow("guest", GuestState.PASS, f"{answer.system} answers"), _driver(vm, host, answer, tables)]
    if answer.smi is not None:
        rows.append(_gpus(vm, answer.smi))
        rows.append(_licence(vm, answer.smi.gpus))
        rows += _cuda(answer.smi, answer, needs, tables)
        rows.append(_mode("ECC", [(gpu.ecc, gpu.ecc_pending) for gpu in answer.smi.gpus]))
        rows.append(_mode("MIG", [(gpu.mig, gpu.mig_pending) for gpu in answer.smi.gpus]))
    rows += (_framework(requirement, answer) for requirement in needs.frameworks)
    if answer.rdma or MustHave.RDMA in needs.expected:
        rows.append(_rdma(answer))
    rows += (_clock(answer, reply), _time_source(answer))
    return tuple(rows)


def host_branch(host: Host | None) -> int | None:
    """Return the branch of the host's vGPU manager; None = unknown."""
    settings = host.settings if host is not None else None
    package = driver_of(settings.packages or ()) if settings is not None else None
    branch = branch_of(package.version) if package is not None else None
    return branch.number if branch is not None else None


def _driver(vm: Vm, host: Host | None, answer: GuestAnswer, tables: DriverTables) -> GuestRow:
    """Check the guest's driver; for vGPUs by NVIDIA's documents on the vGPU manager of the host."""
    branch = host_branch(host) if vm.vgpus else None
    pairs = tables.guests_of(branch) if branch is not None else None
    fitting_drivers = _drivers_text(pairs) or "the one that came with the vGPU manager of its host"
    if answer.smi is None:
        return _no_driver(answer, f"install in it {fitting_drivers}")
    driver = answer.smi.driver
    if not vm.vgpus:
        return GuestRow(
            "driver", GuestState.PASS, f"{driver}; the VM has a passthrough GPU, so no vGPU manager must fit"
        )
    if branch is None:
        text = f"{driver}; the vGPU manager of {host.name if host else 'its host'} is unknown"
        return GuestRow("driver", GuestState.UNKNOWN, text, "read it there: esxcli software vib list")
    guest = tables.branch_of(driver, answer.system)
    if guest is None:
        text = f"{driver}: the branch of this Windows driver is unknown to gpuops"
        return GuestRow("driver", GuestState.UNKNOWN, text, f"compare it with NVIDIA's release notes; {PAGE}")
    text = f"{driver} (R{guest}) on a host with R{branch}"
    if pairs is not None and guest in pairs.guests:
        return GuestRow("driver", GuestState.PASS, text)
    if pairs is not None and pairs.no_others:
        return GuestRow(
            "driver", GuestState.FAIL, f"{text}: they cannot be used together", f"install in it {fitting_drivers}"
        )
    listed = (
        f"its documents list {_branches(pairs)}" if pairs is not None else f"no document on R{branch} is known here"
    )
    move = (
        f"install in it {fitting_drivers}" if pairs is not None else f"compare it with NVIDIA's release notes; {PAGE}"
    )
    return GuestRow("driver", GuestState.UNKNOWN, f"{text}: {listed}", move)


def _no_driver(answer: GuestAnswer, move: str) -> GuestRow:
    """Return the driver row of a guest without a usable nvidia-smi report."""
    if answer.smi_unreadable:
        text = f"the output of nvidia-smi cannot be read: {answer.smi_says}"
        return GuestRow("driver", GuestState.UNKNOWN, text, "run nvidia-smi -q -x in the guest")
    if answer.smi_missing:
        module = f"; version {answer.installed} of the kernel module is" if answer.installed else ""
        return GuestRow("driver", GuestState.FAIL, f"nvidia-smi is not installed{module}", move)
    version = f"{answer.installed} is installed and " if answer.installed else ""
    text = f"{version}does not work: nvidia-smi prints {answer.smi_says!r}"
    return GuestRow("driver", GuestState.FAIL, text, move)


def _drivers_text(pairs: VgpuPairs | None) -> str:
    """Return the guest drivers of these pairs for a message; empty for None."""
    return f"a guest driver of {_branches(pairs)}" if pairs is not None else ""


def _branches(pairs: VgpuPairs) -> str:
    *first, last = [f"R{branch}" for branch in pairs.guests]
    return f"{', '.join(first)} or {last}" if first else last


def _gpus(vm: Vm, smi: SmiReport) -> GuestRow:
    """Check that the guest sees all GPUs of the VM."""
    names = ", ".join(dict.fromkeys(gpu.name for gpu in smi.gpus))
    if vm.devices is None:
        move = "give this login the right to read the VM"
        return GuestRow("GPUs", GuestState.UNKNOWN, f"{len(smi.gpus)} seen; the devices of the VM cannot be read", move)
    vm_gpus = sum(map(is_gpu, vm.devices))
    if len(smi.gpus) == vm_gpus:
        return GuestRow("GPUs", GuestState.PASS, f"{vm_gpus} of {vm_gpus}: {names}")
    text = f"{len(smi.gpus)} of {vm_gpus}{': ' + names if names else ''}"
    return GuestRow("GPUs", GuestState.FAIL, text, "look at the guest's kernel log for NVRM; check its MMIO settings")


def _licence(vm: Vm, gpus: Sequence[GuestGpu]) -> GuestRow:
    """Check the licences. vGPUs need one; passthrough GPUs of some products too, but nvidia-smi does not say which."""
    licences = [gpu.licence for gpu in gpus]
    unlicensed = (licence for licence in licences if licence is not None and not licence.startswith("Licensed"))
    worst = next(unlicensed, None)
    move = "give it a client token of the licence server, and look at its nvidia-gridd (Windows: NVDisplay.Container)"
    if worst is not None and worst.startswith("Unlicensed"):
        return GuestRow("licence", GuestState.FAIL, worst, move)
    if vm.vgpus and (worst is not None or None in licences or not licences):
        text = worst or "nvidia-smi shows none"
        return GuestRow(
            "licence", GuestState.UNKNOWN, text, "run nvidia-smi -q in the guest, and look at License Status"
        )
    return GuestRow("licence", GuestState.PASS, next(iter(licences), None) or "none is shown: it has a passthrough GPU")


def _cuda(smi: SmiReport, answer: GuestAnswer, needs: GuestNeeds, tables: DriverTables) -> Iterator[GuestRow]:
    """Yield rows for the driver's CUDA version, and for each installed runtime library and toolkit."""
    if smi.cuda is None:
        move = "run nvidia-smi -q in the guest"
        yield GuestRow("CUDA", GuestState.UNKNOWN, "nvidia-smi reports no version", move)
    else:
        yield GuestRow("CUDA", GuestState.PASS, f"the driver runs CUDA up to {smi.cuda}")
    for runtime in answer.runtimes:
        yield _check_cuda("CUDA runtime", runtime, smi, answer.system, tables)
    if answer.toolkit is not None:
        yield _check_cuda("CUDA toolkit", answer.toolkit, smi, answer.system, tables)
    elif MustHave.TOOLKIT in needs.expected:
        move = "install the toolkit that your work needs, or leave out --expect toolkit: containers bring their own"
        yield GuestRow("CUDA toolkit", GuestState.FAIL, "not installed: no nvcc, no /usr/local/cuda", move)


def _check_cuda(check: str, cuda: str, smi: SmiReport, system: GuestSystem, tables: DriverTables) -> GuestRow:
    """Check whether the guest's driver is new enough for this CUDA version."""
    version, driver, newest = version_of(cuda), version_of(smi.driver), version_of(smi.cuda or "")
    minimum = tables.cuda_minimum(version) if version is not None else None
    if version is None or driver is None or minimum is None:
        text = f"{cuda}: the driver that it needs is unknown to gpuops"
        return GuestRow(check, GuestState.UNKNOWN, text, "compare it with the CUDA Toolkit's release notes")
    least = minimum.of(system)
    if driver < least:
        text = f"{cuda} needs driver {'.'.join(map(str, least))} or later, and {smi.driver} is installed"
        return GuestRow(check, GuestState.FAIL, text, "install a newer driver of a branch that its host supports too")
    # CUDA 12.9 runs on a driver for 12.4; a version without a minor number is compared by its major number.
    is_newer = newest is not None and version[:2] > newest[: len(version[:2])]
    return GuestRow(check, GuestState.PASS, f"{cuda}{', by minor version compatibility' if is_newer else ''}")


def _mode(check: str, modes: Sequence[tuple[GuestMode | None, GuestMode | None]]) -> GuestRow:
    """Check a mode (ECC or MIG) of all GPUs: whether a reboot would change it and, for ECC, whether all are alike."""
    states = dict.fromkeys("not reported" if now is None else now.value for now, _ in modes)
    text = ", ".join(states) or "no GPU is seen"
    if any(pending not in (None, now) for now, pending in modes):
        return GuestRow(check, GuestState.FAIL, f"{text}, and changes at the next reboot", "reboot the guest")
    if check == "ECC" and len({now for now, _ in modes}) > 1:
        fix = "set the same state on all GPUs (nvidia-smi -e), then reboot"
        return GuestRow(check, GuestState.FAIL, f"differs: {text}", fix)
    if not modes or None in (now for now, _ in modes):
        return GuestRow(check, GuestState.UNKNOWN, text, "run nvidia-smi -q in the guest")
    return GuestRow(check, GuestState.PASS, text)


def _framework(requirement: Requirement, answer: GuestAnswer) -> GuestRow:
    """Check whether the system's python3 has the required version of a package."""
    name, required = requirement.name, str(requirement)
    if answer.python_missing:
        move = f"check {required} with the python that your work uses"
        return GuestRow(name, GuestState.UNKNOWN, "the guest has no python3 in its path", move)
    version = answer.frameworks.get(name)
    if version is None:
        move = f"pip install '{required}', or run it in a container: containers are not checked"
        return GuestRow(name, GuestState.FAIL, f"not installed for the system's python3; {required} is required", move)
    try:
        fits = requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        move = f"run python3 -m pip show {name} in the guest"
        return GuestRow(name, GuestState.UNKNOWN, f"its version {version!r} is not valid", move)
    if fits:
        return GuestRow(name, GuestState.PASS, version)
    text = f"{version} is installed; {required} is required"
    return GuestRow(name, GuestState.FAIL, text, f"pip install '{required}'")


def _rdma(answer: GuestAnswer) -> GuestRow:
    """Check that a link of the guest's RDMA devices is active."""
    if answer.rdma is None:
        text = "the guest has no program that shows it (rdma, ibv_devinfo)"
        return GuestRow("RDMA", GuestState.UNKNOWN, text, "install iproute2 or ibverbs-utils in it")
    if not answer.rdma:
        move = "give the VM a PVRDMA, SR-IOV or DirectPath network card, and the guest its driver"
        return GuestRow("RDMA", GuestState.FAIL, "no RDMA device", move)
    text = ", ".join(f"{link.name} {link.state}" for link in answer.rdma)
    if any(link.active for link in answer.rdma):
        return GuestRow("RDMA", GuestState.PASS, text)
    return GuestRow("RDMA", GuestState.FAIL, text, "bring its network interface up; check port and VLAN of the switch")


def _clock(answer: GuestAnswer, reply: GuestReply) -> GuestRow:
    """Compare the guest's clock with vCenter's.

    The guest printed its time at some moment between `before` and `after`. So only the distance to the nearer of the
    two is certain, for example 3 s if it printed 12:00:13 and `after` is 12:00:10.
    """
    if answer.clock_s is None or reply.before is None or reply.after is None:
        return GuestRow("clock", GuestState.UNKNOWN, "its time is unknown", "run date -u in the guest")
    # The guest prints complete seconds: it may be up to 1 s later there.
    behind, ahead = reply.before.timestamp() - answer.clock_s - 1, answer.clock_s - reply.after.timestamp()
    difference_s = max(behind, ahead, 0.0)
    if difference_s <= CLOCK_LIMIT_S:
        return GuestRow("clock", GuestState.PASS, f"within {CLOCK_LIMIT_S:.0f} s of vCenter's")
    direction = "behind" if behind > ahead else "ahead of"
    text = f"at least {difference_s:,.0f} s {direction} vCenter's (limit {CLOCK_LIMIT_S:.0f} s)"
    return GuestRow("clock", GuestState.FAIL, text, "give the guest a time service: chrony, or on Windows w32time")


def _time_source(answer: GuestAnswer) -> GuestRow:
    """Check that a time service synchronizes the guest's clock."""
    if answer.synchronized is None:
        move = "run timedatectl or chronyc tracking in the guest, on Windows w32tm /query /status"
        return GuestRow("time service", GuestState.UNKNOWN, "it is unknown whether one sets its clock", move)
    if answer.synchronized:
        return GuestRow("time service", GuestState.PASS, "sets its clock")
    return GuestRow("time service", GuestState.FAIL, "its clock is not synchronized", "set up chrony, or w32time")
