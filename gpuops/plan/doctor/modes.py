"""Findings of what only a host's own nvidia-smi tells: MIG and ECC. Where it was not asked there are none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from gpuops.model.host import Host
from gpuops.model.host_settings import HostSettings
from gpuops.plan.doctor import fixes
from gpuops.plan.doctor.finding import Finding, Severity


def of_modes(host: Host) -> Iterator[Finding]:
    """Modes that wait for a reset of the GPU or for a reboot."""
    for state in (host.settings or HostSettings()).mig or ():
        subject = f"{host.name} {state.address}"
        for what, now, then in (("MIG mode", state.current, state.pending), ("ECC", state.ecc, state.ecc_pending)):
            if now is not None and then is not None and now is not then:
                fix = fixes.mig(host.name, state.address, on=then) if what == "MIG mode" else fixes.BY_HAND
                will = "on" if then else "off"
                yield Finding(Severity.WARNING, subject, f"{what} is {will} from the next reset or reboot on", fix)


def unlike_ecc(cluster: str, hosts: Sequence[Host]) -> Iterator[Finding]:
    """A VM with a vGPU moves only between GPUs of one model and the same ECC state (NVIDIA AI Enterprise docs)."""
    found: defaultdict[str, dict[bool, set[str]]] = defaultdict(lambda: defaultdict(set))
    for host in hosts:
        for state in (host.settings or HostSettings()).mig or ():
            gpu = host.gpu(state.address)
            if gpu is not None and state.ecc is not None:
                found[gpu.name][state.ecc].add(host.name)
    for model, by_state in sorted(found.items()):
        if len(by_state) > 1:
            fewer = min(by_state.items(), key=lambda item: (len(item[1]), item[0]))
            word = "on" if fewer[0] else "off"
            reason = f"ECC of {model} is {word} on {', '.join(sorted(fewer[1]))} alone: no vGPU moves between them"
            yield Finding(Severity.WARNING, cluster, reason, "set it alike: nvidia-smi -e on the hosts, and a reboot")
