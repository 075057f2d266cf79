"""What a night without a wire sees is what our client reads over the wire, in every state a night brings about."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.steps import PowerOffVm, PowerOnVm, ResumeVm, SetAttribute, Step, SuspendVm
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.outside_events.fault_file import OUTSIDE_EVENTS
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.nights.world.showing import Showing
from tests.wire.conftest import target_of

pytestmark = pytest.mark.long


def differences(inventory_shown: Inventory, read: Inventory) -> list[str]:
    """What differs, by object and field."""
    problems = [
        f"objects {kind}"
        for kind in ("hosts", "vms", "clusters", "datastores")
        if not _same_keys(inventory_shown, read, kind)
    ]
    for kind in ("hosts", "vms", "clusters", "datastores"):
        for ref, object_read in getattr(read, kind).items():
            object_shown = getattr(inventory_shown, kind)[ref]
            problems += [
                f"{ref}.{field.name}: {getattr(object_shown, field.name)} is not {getattr(object_read, field.name)}"
                for field in fields(object_read)
                if getattr(object_shown, field.name) != getattr(object_read, field.name)
            ]
    return problems


def _same_keys(inventory_shown: Inventory, read: Inventory, kind: str) -> bool:
    return set(getattr(inventory_shown, kind)) == set(getattr(read, kind))


def _without_nics(inventory: Inventory) -> Inventory:
    """NUMA nodes name NICs and bridges too, which no decision looks at: only the GPUs are compared."""
    hosts = {}
    for ref, host in inventory.hosts.items():
        gpus = {gpu.address for gpu in host.gpus}
        nodes = (
            replace(node, devices=tuple(device for device in node.devices if device in gpus))
            for node in host.numa_nodes
        )
        hosts[ref] = replace(host, numa_nodes=tuple(nodes))
    return replace(inventory, hosts=hosts)


def test_a_night_sees_what_our_client_reads() -> None:
    world = build("vdi")
    showing = Showing(world)
    with SimServer(world) as server, Connection(target_of(server)) as vcenter:

        def same() -> None:
            assert differences(showing.inventory(), _without_nics(vcenter.inventory())) == []

        same()
        names = {vm.name: vm.ref for vm in showing.inventory().vms.values()}
        steps: list[Any] = [
            SetAttribute(names["vdi-001"], "gpuops.rotation", "2026-11-02 desktop"),
            SuspendVm(names["vdi-001"]),
            SuspendVm(names["vdi-006"]),
            PowerOnVm(names["ml-06"]),
            PowerOffVm(names["vdi-002"]),
        ]
        for step in steps:
            task = vcenter.submit(step, vcenter.inventory(), "op")
            same()
            if task is not None:
                assert [end.error for end in vcenter.wait([task], 600)] == [None]
            same()
        for power in ("suspended", "running"):
            [vm] = [vm for vm in world.by_type("VirtualMachine") if vm.name == "vdi-006"]
            with world.lock:
                rule = Rule(Effect.HAPPEN, happening=f"vm.reverted_to_{power}")
                OUTSIDE_EVENTS[rule.happening].strike(world, [vm], rule)
            same()
        host = world.get(showing.inventory().vms[names["ml-06"]].host)
        host.state.in_maintenance = True
        host.runtime_changed()
        same()
        refs = [names["vdi-001"], names["ml-06"]]
        inventory_shown = showing.inventory()
        assert (
            differences(
                showing.observed(inventory_shown, refs), _without_nics(vcenter.observe(vcenter.inventory(), refs))
            )
            == []
        )


def test_old_values_are_those_of_the_moment_since_which_they_are_told() -> None:
    """Not those of the last look, which may have been hours before."""
    world = build("vdi")
    showing = Showing(world)
    with SimServer(world) as server, Connection(target_of(server)) as vcenter:

        def power() -> PowerState | None:
            inventory_shown, inventory_read = showing.inventory(), vcenter.inventory()
            assert differences(inventory_shown, _without_nics(inventory_read)) == []
            return inventory_shown.vms[ref].power

        def change(step: Step) -> None:
            task = vcenter.submit(step, vcenter.inventory(), "op")
            assert task is not None
            assert [end.error for end in vcenter.wait([task], 600)] == [None]

        [ref] = [vm.ref for vm in showing.inventory().vms.values() if vm.name == "vdi-001"]
        change(SuspendVm(ref))
        with world.lock:
            world.fragments.freeze(ref)
        assert power() is PowerState.SUSPENDED
        change(ResumeVm(ref))
        assert power() is PowerState.SUSPENDED
        with world.lock:
            world.fragments.thaw(ref)
        assert power() is PowerState.ON
