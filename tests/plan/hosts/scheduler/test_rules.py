"""Warnings name what may set module options back, once for each profile and cluster, also where that is unknown."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gpuops.model.vcenter.host import Cluster, Host
from gpuops.model.vcenter.host_settings import Custody, HostSettings
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.hosts.scheduler.state import setting_back


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
    return setting_back(hosts, snapshot)


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
