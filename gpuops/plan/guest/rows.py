"""The verdicts on one guest: each row passes, fails or is unknown, says why with numbers, and what to do next.

Sources: NVIDIA's tables of drivers (`catalog/drivers.yaml`); nvidia-smi manual: pending modes come with a reboot.
The limit of the clock is ours: tokens of a licence server and logs of several guests are compared by time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from gpuops.model.guests.driver import DriverTables, VgpuPairs, version_of
from gpuops.model.guests.guest import GuestAnswer, GuestGpu, GuestMode, GuestReply, GuestSystem, SmiReport
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.vm import Vm, is_gpu
from gpuops.plan.hosts.scheduler.state import branch_of, driver_of

CLOCK_LIMIT_S: Final = 5.0
PAGE: Final = "gpuops help guest"


class GuestState(StrEnum):
    PASS = "pass"  # noqa: S105 - a verdict
    FAIL = "fail"
    UNKNOWN = "unknown"


class MustHave(StrEnum):
    """What a guest must have, and is otherwise only looked at where it is there."""

    TOOLKIT = "toolkit"
    RDMA = "rdma"


@dataclass(frozen=True, slots=True)
class GuestRow:
    """One verdict; `next_move` is empty where it passes."""

    check: str
    state: GuestState
    says: str
    next_move: str = ""


@dataclass(frozen=True, slots=True)
class GuestNeeds:
    """What is asked of each guest beyond its driver."""

    frameworks: tuple[Requirement, ...] = ()
    expected: frozenset[MustHave] = frozenset()


def not_told(reply: GuestReply) -> GuestRow:
    """The only row of a guest that could not be asked."""
    return GuestRow("guest", GuestState.UNKNOWN, reply.why_not, reply.next_move)


def unreadable(why: str) -> GuestRow:
    """The only row of a guest whose answer cannot be read."""
    says = f"what its program printed cannot be read: {why}"
    return GuestRow("guest", GuestState.UNKNOWN, says, "look at the guest: its output is not what gpuops asked for")


def rows_of(
    vm: Vm, host: Host | None, answer: GuestAnswer, reply: GuestReply, wanted: GuestNeeds, tables: DriverTables
) -> tuple[GuestRow, ...]:
    """Every verdict on the guest of this VM, which runs on this host."""
    rows = [GuestRow("guest", GuestState.PASS, f"{answer.system} answers"), _driver(vm, host, answer, tables)]
    if answer.smi is not None:
        rows.append(_gpus(vm, answer.smi))
        rows.append(_licence(vm, answer.smi.gpus))
        rows += _cuda(answer.smi, answer, wanted, tables)
        rows.append(_mode("ECC", [(gpu.ecc, gpu.ecc_pending) for gpu in answer.smi.gpus]))
        rows.append(_mode("MIG", [(gpu.mig, gpu.mig_pending) for gpu in answer.smi.gpus]))
    rows += (_framework(each, answer) for each in wanted.frameworks)
    if answer.rdma or MustHave.RDMA in wanted.expected:
        rows.append(_rdma(answer))
    rows += (_clock(answer, reply), _time_source(answer))
    return tuple(rows)


def host_branch(host: Host | None) -> int | None:
    """The branch of the host's vGPU manager; None = not known."""
    settings = host.settings if host is not None else None
    package = driver_of(settings.packages or ()) if settings is not None else None
    branch = branch_of(package.version) if package is not None else None
    return branch.number if branch is not None else None


def _driver(vm: Vm, host: Host | None, answer: GuestAnswer, tables: DriverTables) -> GuestRow:
    branch = host_branch(host) if vm.vgpus else None
    pairs = tables.guests_of(branch) if branch is not None else None
    fits = _fits(pairs) or "the one that came with the vGPU manager of its host"
    if answer.smi is None:
        return _no_driver(answer, f"install in it {fits}")
    driver = answer.smi.driver
    if not vm.vgpus:
        return GuestRow("driver", GuestState.PASS, f"{driver}; its GPU is given whole, no vGPU manager is between")
    if branch is None:
        said = f"{driver}; which vGPU manager {host.name if host else 'its host'} has is not known"
        return GuestRow("driver", GuestState.UNKNOWN, said, "read it there: esxcli software vib list")
    guest = tables.branch_of(driver, answer.system)
    if guest is None:
        said = f"{driver}: of which branch that Windows driver is, no table here says"
        return GuestRow("driver", GuestState.UNKNOWN, said, f"compare it with NVIDIA's release notes; {PAGE}")
    said = f"{driver} (R{guest}) on a host with R{branch}"
    if pairs is not None and guest in pairs.guests:
        return GuestRow("driver", GuestState.PASS, said)
    if pairs is not None and pairs.no_others:
        return GuestRow("driver", GuestState.FAIL, f"{said}: they cannot be used together", f"install in it {fits}")
    listed = (
        f"its documents list {_branches(pairs)}" if pairs is not None else f"no document on R{branch} is known here"
    )
    move = f"install in it {fits}" if pairs is not None else f"compare it with NVIDIA's release notes; {PAGE}"
    return GuestRow("driver", GuestState.UNKNOWN, f"{said}: {listed}", move)


def _no_driver(answer: GuestAnswer, move: str) -> GuestRow:
    """Of a guest in which nvidia-smi shows nothing."""
    if answer.smi_unreadable:
        said = f"what nvidia-smi prints cannot be read: {answer.smi_says}"
        return GuestRow("driver", GuestState.UNKNOWN, said, "run nvidia-smi -q -x in the guest")
    if answer.smi_missing:
        there = f"; version {answer.installed} of the module is" if answer.installed else ""
        return GuestRow("driver", GuestState.FAIL, f"nvidia-smi is not there{there}", move)
    version = f"{answer.installed} is installed and " if answer.installed else ""
    said = f"{version}does not work: nvidia-smi says {answer.smi_says!r}"
    return GuestRow("driver", GuestState.FAIL, said, move)


def _fits(pairs: VgpuPairs | None) -> str:
    return f"a guest driver of {_branches(pairs)}" if pairs is not None else ""


def _branches(pairs: VgpuPairs) -> str:
    *others, last = [f"R{each}" for each in pairs.guests]
    return f"{', '.join(others)} or {last}" if others else last


def _gpus(vm: Vm, smi: SmiReport) -> GuestRow:
    names = ", ".join(dict.fromkeys(gpu.name for gpu in smi.gpus))
    if vm.devices is None:
        move = "give this login the right to read the VM"
        return GuestRow("GPUs", GuestState.UNKNOWN, f"{len(smi.gpus)} seen; the VM's cannot be read", move)
    given = sum(map(is_gpu, vm.devices))
    if len(smi.gpus) == given:
        return GuestRow("GPUs", GuestState.PASS, f"{given} of {given}: {names}")
    said = f"{len(smi.gpus)} of {given}{': ' + names if names else ''}"
    return GuestRow("GPUs", GuestState.FAIL, said, "look at the guest's kernel log for NVRM; check its MMIO settings")


def _licence(vm: Vm, gpus: Sequence[GuestGpu]) -> GuestRow:
    """vGPUs need one; of a GPU that is given whole some products do, and nvidia-smi does not tell which."""
    told = [gpu.licence for gpu in gpus]
    worst = next((each for each in told if each is not None and not each.startswith("Licensed")), None)
    move = "give it a client token of the licence server, and look at its nvidia-gridd (Windows: NVDisplay.Container)"
    if worst is not None and worst.startswith("Unlicensed"):
        return GuestRow("licence", GuestState.FAIL, worst, move)
    if vm.vgpus and (worst is not None or None in told or not told):
        said = worst or "nvidia-smi shows none"
        return GuestRow("licence", GuestState.UNKNOWN, said, "nvidia-smi -q in the guest: License Status")
    return GuestRow("licence", GuestState.PASS, next(iter(told), None) or "none is shown: its GPU is given whole")


def _cuda(smi: SmiReport, answer: GuestAnswer, wanted: GuestNeeds, tables: DriverTables) -> Iterator[GuestRow]:
    """What the driver runs, then each runtime library and toolkit that is installed."""
    if smi.cuda is None:
        yield GuestRow("CUDA", GuestState.UNKNOWN, "nvidia-smi tells no version", "nvidia-smi -q in the guest")
    else:
        yield GuestRow("CUDA", GuestState.PASS, f"the driver runs CUDA up to {smi.cuda}")
    for runtime in answer.runtimes:
        yield _runs("CUDA runtime", runtime, smi, answer.system, tables)
    if answer.toolkit is not None:
        yield _runs("CUDA toolkit", answer.toolkit, smi, answer.system, tables)
    elif MustHave.TOOLKIT in wanted.expected:
        move = "install the toolkit that your work needs, or leave out --expect toolkit: containers bring their own"
        yield GuestRow("CUDA toolkit", GuestState.FAIL, "there is none: no nvcc, no /usr/local/cuda", move)


def _runs(check: str, cuda: str, smi: SmiReport, system: GuestSystem, tables: DriverTables) -> GuestRow:
    version, driver, most = version_of(cuda), version_of(smi.driver), version_of(smi.cuda or "")
    need = tables.cuda_minimum(version) if version is not None else None
    if version is None or driver is None or need is None:
        said = f"{cuda}: which driver it needs, no table here says"
        return GuestRow(check, GuestState.UNKNOWN, said, "compare it with the CUDA Toolkit's release notes")
    least = need.of(system)
    if driver < least:
        said = f"{cuda} needs driver {'.'.join(map(str, least))} or later, and {smi.driver} is there"
        return GuestRow(check, GuestState.FAIL, said, "install a newer driver, of a branch that its host takes too")
    newer = most is not None and version[:2] > most[: len(version[:2])]
    return GuestRow(check, GuestState.PASS, f"{cuda}{', by minor version compatibility' if newer else ''}")


def _mode(check: str, modes: Sequence[tuple[GuestMode | None, GuestMode | None]]) -> GuestRow:
    """A mode of all GPUs of the guest, and whether it is another one after the next reboot."""
    said = ", ".join(dict.fromkeys("not told" if now is None else now.value for now, _ in modes)) or "no GPU is seen"
    if any(pending not in (None, now) for now, pending in modes):
        return GuestRow(check, GuestState.FAIL, f"{said}, another after the next reboot", "reboot the guest")
    if check == "ECC" and len({now for now, _ in modes}) > 1:
        return GuestRow(check, GuestState.FAIL, f"differs: {said}", "set it alike: nvidia-smi -e, then reboot")
    if not modes or None in (now for now, _ in modes):
        return GuestRow(check, GuestState.UNKNOWN, said, "nvidia-smi -q in the guest")
    return GuestRow(check, GuestState.PASS, said)


def _framework(wanted: Requirement, answer: GuestAnswer) -> GuestRow:
    name, asked = wanted.name, str(wanted)
    if answer.python_missing:
        return GuestRow(name, GuestState.UNKNOWN, "no python3 is in its path", f"{asked}: ask the guest's own python")
    found = answer.frameworks.get(name)
    if found is None:
        move = f"pip install '{asked}', or run it in a container, into which nobody looks here"
        return GuestRow(name, GuestState.FAIL, f"not installed for the system's python3; wanted {asked}", move)
    try:
        fits = wanted.specifier.contains(Version(found), prereleases=True)
    except InvalidVersion:
        return GuestRow(name, GuestState.UNKNOWN, f"its version {found!r} is none", f"python3 -m pip show {name}")
    if fits:
        return GuestRow(name, GuestState.PASS, found)
    return GuestRow(name, GuestState.FAIL, f"{found} is there; wanted {asked}", f"pip install '{asked}'")


def _rdma(answer: GuestAnswer) -> GuestRow:
    if answer.rdma is None:
        said = "the guest has no program that tells (rdma, ibv_devinfo)"
        return GuestRow("RDMA", GuestState.UNKNOWN, said, "install iproute2 or ibverbs-utils in it")
    if not answer.rdma:
        move = "give the VM a PVRDMA, SR-IOV or DirectPath network card, and the guest its driver"
        return GuestRow("RDMA", GuestState.FAIL, "no RDMA device", move)
    said = ", ".join(f"{link.name} {link.state}" for link in answer.rdma)
    if any(link.active for link in answer.rdma):
        return GuestRow("RDMA", GuestState.PASS, said)
    return GuestRow("RDMA", GuestState.FAIL, said, "bring its network interface up; check port and VLAN of the switch")


def _clock(answer: GuestAnswer, reply: GuestReply) -> GuestRow:
    """Its time was printed between the two moments of vCenter: only what lies outside them is surely off."""
    if answer.clock_s is None or reply.before is None or reply.after is None:
        return GuestRow("clock", GuestState.UNKNOWN, "its time is not told", "date -u in the guest")
    behind, ahead = reply.before.timestamp() - answer.clock_s - 1, answer.clock_s - reply.after.timestamp()
    off = max(behind, ahead, 0.0)
    if off <= CLOCK_LIMIT_S:
        return GuestRow("clock", GuestState.PASS, f"within {CLOCK_LIMIT_S:.0f} s of vCenter's")
    word = "behind" if behind > ahead else "ahead of"
    said = f"at least {off:,.0f} s {word} vCenter's (limit {CLOCK_LIMIT_S:.0f} s)"
    return GuestRow("clock", GuestState.FAIL, said, "give the guest a time service: chrony, or on Windows w32time")


def _time_source(answer: GuestAnswer) -> GuestRow:
    if answer.synchronized is None:
        move = "timedatectl or chronyc tracking in the guest, w32tm /query /status on Windows"
        return GuestRow("time service", GuestState.UNKNOWN, "not told whether one keeps its clock", move)
    if answer.synchronized:
        return GuestRow("time service", GuestState.PASS, "keeps its clock")
    return GuestRow("time service", GuestState.FAIL, "its clock is not synchronized", "set up chrony, or w32time")
