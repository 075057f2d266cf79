"""Modes and schedulers of GPUs, hosts of the same settings together: a fleet has few of them, and odd ones show."""

from __future__ import annotations

from collections.abc import Iterable

from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.host import Host
from gpuops.plan.hosts.scheduler.rmpvmrl import Reading, Unread
from gpuops.plan.hosts.scheduler.state import GpuScheduler, HostScheduler, scheduler_of
from gpuops.report.document import Document
from gpuops.report.monitoring.fleet import mode, reboot_pending


def host_modes(hosts: Iterable[Host], catalog: Catalog) -> list[Document]:
    """A record for each combination of settings, with the names of the hosts that have GPUs so set; null = unknown."""
    found: dict[tuple[object, ...], list[str]] = {}
    for host in hosts:
        scheduler = scheduler_of(host, catalog)
        for each in scheduler.gpus:
            found.setdefault(_settings(each, scheduler), []).append(host.name)
    return [
        {
            "gpu": gpu,
            "mode": used_as,
            "scheduler": configured,
            "scheduler_in_force": in_force,
            "reboot_pending": pending,
            "assignment_policy": policy,
            "driver": driver,
            "gpus": len(names),
            "hosts": sorted(set(names)),
        }
        for (gpu, used_as, configured, in_force, pending, policy, driver), names in sorted(
            found.items(), key=lambda item: tuple(map(str, item[0]))
        )
    ]


def _settings(found: GpuScheduler, host: HostScheduler) -> tuple[object, ...]:
    gpu = found.gpu
    note = found.note
    return (
        gpu.name,
        mode(gpu),
        note or _words(found.configured),
        note or _words(found.effective),
        reboot_pending(gpu) or found.reboot_pending,
        host.host.assignment_policy,
        host.driver.version if host.driver else None,
    )


def _words(reading: Reading | None) -> str | None:
    return None if reading is None or isinstance(reading, Unread) else str(reading)
