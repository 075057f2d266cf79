"""How often `gpuops metrics` reads vCenter: where it told of a change, after a failure, and after a while."""

from __future__ import annotations

from contextvars import copy_context
from datetime import timedelta
from pathlib import Path

import pytest
from pytest_mock import MockerFixture

from gpuops.clock import wall_clock
from gpuops.console.opening import begin_site
from gpuops.errors import NotConnected
from gpuops.execute.site import Site
from gpuops.extras.observe.observing import observe
from gpuops.extras.web import metrics_source
from gpuops.extras.web.metrics_source import LONGEST_S, MetricSource
from gpuops.model.measurements.measurement_settings import MeasurementSettings
from gpuops.model.vcenter.inventory import Inventory
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.outside_events.vm_events import power_off
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of

pytestmark = pytest.mark.long


class CountingConnection(Connection):
    """Counts its bulk reads."""

    reads = 0

    def inventory(self) -> Inventory:
        self.reads += 1
        return super().inventory()


@pytest.mark.long
def test_vcenter_is_read_where_it_told_of_a_change(lab: SimServer, tmp_path: Path) -> None:
    now = [0.0]
    with CountingConnection(target_of(lab)) as vcenter:
        site = Site(vcenter, tmp_path, wall_clock, passed_s=lambda: now[0])
        source = MetricSource(site)

        def reads() -> int:
            before = vcenter.reads
            source.values(follow=True)
            return vcenter.reads - before

        assert [reads() for _ in range(4)] == [1, 1, 0, 0], "what was read before the first wait may be old"
        with lab.world.lock:
            [running] = [vm for vm in lab.world.by_type("VirtualMachine") if vm.name == "vdi-01"]
            power_off(running, Rule(Effect.HAPPEN))
        assert [reads(), reads()] == [1, 0]
        now[0] += LONGEST_S
        assert [reads(), reads()] == [1, 0], "it reports only power, hosts and maintenance mode"

        lab.world.down_until = lab.world.clock.now() + timedelta(hours=1)
        for _ in range(2):
            with pytest.raises(NotConnected):
                source.values(follow=True)
        lab.world.down_until = lab.world.clock.now()
        after = [reads() for _ in range(4)]
        assert (after[0], after[-1]) == (1, 0)
        assert source.values().inventory.vms, "unless it is to follow changes, it reads each time"
        assert len(lab.world.ledger) == 1, "a change by another client"


@pytest.mark.long
def test_measurements_are_looked_for_where_the_configuration_keeps_them(lab: SimServer, tmp_path: Path) -> None:
    for folder in ("state", "elsewhere"):
        tmp_path.joinpath(folder).mkdir(mode=0o700)
    with Connection(target_of(lab)) as vcenter:
        site = Site(vcenter, tmp_path / "state", wall_clock)
        site.measured = MeasurementSettings(store_dir=str(tmp_path / "elsewhere"))
        observe(site)
        assert MetricSource(site).values().used is not None


@pytest.mark.parametrize("first", [True, False])
def test_of_several_sites_one_reads_the_journals_of_all(
    lab: SimServer, tmp_path: Path, mocker: MockerFixture, first: bool
) -> None:
    """Forty sites would read forty journals each."""
    read = mocker.spy(metrics_source, "overdue_vcenters")
    with Connection(target_of(lab)) as vcenter:
        source = MetricSource(Site(vcenter, tmp_path, wall_clock))

        def values() -> None:
            begin_site(is_first=first)
            source.values()

        copy_context().run(values)
        assert [call.kwargs["only"] for call in read.call_args_list] == [None if first else vcenter.uuid]
