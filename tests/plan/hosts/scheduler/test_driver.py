"""The NVIDIA driver among a host's software packages."""

from __future__ import annotations

import pytest

from gpuops.model.devices.scheduler import DriverBranch
from gpuops.model.vcenter.host_settings import SoftwarePackage
from gpuops.plan.hosts.scheduler.state import branch_of, driver_of

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
