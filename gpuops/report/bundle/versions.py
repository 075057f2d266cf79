"""Which versions of what met."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from gpuops.model.vcenter.inventory import Inventory
from gpuops.report.bundle.harmless import PACKAGE_VERSION, RELEASE


def versions_document(programs: Mapping[str, str], build: str, inventory: Inventory) -> dict[str, Any]:
    """The programs, the build of vCenter, and how many hosts have which release of ESXi and which vGPU manager.

    `programs`: the version of each, as it reports it; one that is no release is left out.
    """
    esxi = Counter(_release(host.version) for host in inventory.hosts.values() if host.gpus)
    packages = Counter(
        package.version
        for host in inventory.hosts.values()
        for package in (host.settings.packages if host.settings is not None else None) or ()
        if "nvidia" in (package.vendor + package.name).lower() and PACKAGE_VERSION.fullmatch(package.version)
    )
    return {
        **{program: _release(version) for program, version in programs.items()},
        "vcenter_build": build if re.fullmatch(r"[0-9]{1,9}", build) else None,
        "hosts_with_gpus": [{"esxi": version, "hosts": hosts} for version, hosts in sorted(esxi.items(), key=str)],
        "packages": [{"package_version": version, "hosts": hosts} for version, hosts in sorted(packages.items())],
    }


def _release(text: str | None) -> str | None:
    return text if text and RELEASE.fullmatch(text) else None
