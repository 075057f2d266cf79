"""Which versions of what met, and how this gpuops is set, without what any setting says of a site."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpuops.config.vcenter.origins import NOT_SET, Setting
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.login import BulkReader
from gpuops.report.bundle.harmless import PACKAGE_VERSION, RELEASE
from gpuops.report.bundle.words import KEYS

_OPEN: Final = {"verify": ("true", "false"), "reader": tuple(each.value for each in BulkReader)}
"""Settings whose values are words of gpuops'."""


@dataclass(frozen=True, slots=True)
class Versions:
    """As each says it of itself."""

    gpuops: str
    python: str
    pyvmomi: str
    vcenter: str = ""
    """Its release: `8.0.3`."""
    vcenter_build: str = ""


def versions_document(versions: Versions, inventory: Inventory) -> dict[str, Any]:
    """The programs, the vCenter, and how many hosts have which release of ESXi and which vGPU manager."""
    esxi = Counter(host.version for host in inventory.hosts.values() if host.gpus)
    return {
        "gpuops": _release(versions.gpuops),
        "python": _release(versions.python),
        "pyvmomi": _release(versions.pyvmomi),
        "api_version": _release(inventory.api_version),
        "vcenter": _release(versions.vcenter),
        "vcenter_build": versions.vcenter_build if re.fullmatch(r"[0-9]{1,9}", versions.vcenter_build) else None,
        "hosts_with_gpus": [
            {"esxi": _release(version or ""), "hosts": hosts} for version, hosts in sorted(esxi.items(), key=str)
        ],
        "packages": [
            {"package_version": version, "hosts": hosts} for version, hosts in sorted(_packages(inventory).items())
        ],
    }


def _packages(inventory: Inventory) -> Counter[str]:
    """Versions of NVIDIA's packages, and on how many hosts."""
    return Counter(
        package.version
        for host in inventory.hosts.values()
        for package in (host.settings.packages if host.settings is not None else None) or ()
        if "nvidia" in (package.vendor + package.name).lower() and PACKAGE_VERSION.fullmatch(package.version)
    )


def _release(text: str) -> str | None:
    return text if RELEASE.fullmatch(text) else None


def configuration_document(settings: Iterable[Setting]) -> Mapping[str, Any]:
    """Of each setting whether it is set and by what; its value only where that is a word or a number of gpuops'."""
    return {
        setting.name: {"value": _shown(setting), "from": _origin(setting.origin)}
        for setting in settings
        if setting.name in KEYS
    }


def _shown(setting: Setting) -> str:
    value = setting.value
    return value if value == NOT_SET or value in _OPEN.get(setting.name, ()) else "set"


def _origin(origin: str) -> str:
    """`option`, `environment`, `file` or `default`."""
    if origin.startswith("--"):
        return "option"
    if re.fullmatch(r"[A-Z][A-Z0-9_]*", origin):
        return "environment"
    return "default" if origin == "default" else "file"
