"""What users notice of `rotate watch`: 200 logons in ten minutes, each of which needs a slot; beside last in first out.

Sixteen hosts with four A40 each have 384 slots of 8q. Two hours ago ML VMs of three sizes, in no order, took all but
the 20 that are kept, some with checkpoints and some without; then a desktop is started every 3 s of the simulated
vCenter's time, by somebody else. The watch is the product's, over SOAP: a look 10 s after a change at the earliest, its
starts and stops by the executor, admission by the simulator. Guests shut down within seconds there; a real one may take
its `grace_s`, which comes on top.

The other rule stops whatever was started last, until enough is free.

The second figure is what it costs when nothing changes: a look at 500 hosts and 5,000 VMs every five minutes, and the
waits between.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random
from time import process_time
from typing import Final
from unittest.mock import patch
from urllib.parse import urlsplit

from gpuops.clock import wall_clock
from gpuops.config.policy import parse_policy
from gpuops.execute.rotation.watch import LONGEST_S, SHORTEST_S, SLICE_S, Watch, watch_once
from gpuops.execute.rotation.watch_state import WatchState
from gpuops.execute.site import Site, catalog_of
from gpuops.model.devices.catalog import Catalog
from gpuops.model.nights.rotation import SpareRule
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.target import Secret, Target
from gpuops.plan.core.steps import PowerOnVm, ShutDownGuest
from gpuops.plan.placement.project import project
from gpuops.plan.rotation.nights.spare import GivesWay, GiveWay, kept_states
from gpuops.plan.rotation.returns.restore import running_ml
from gpuops.plan.rotation.taken_vms import TakenVm
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.bench.simulator.simulators import our_simulator
from tests.bench.verdict import Figure, Result
from tests.peers.processes import Endpoint
from tests.wire.conftest import target_of

LOGONS, EVERY_S, KEPT = 200, 3.0, 20
HELD_WITHIN_S: Final = 60.0
HOSTS: Final = 16
RAN_S: Final = 7200.0
FLEET: Final = "fleet:hosts=500,vms=5000"
SCENARIO: Final = f"""
description: Sixteen hosts with four A40, 200 desktops that are off, and ML VMs of three sizes
start: 2026-11-02T08:00:00Z
datacenter: dc
models:
  server: {{vendor: Dell Inc., model: PowerEdge R750xa, cpu: Intel Xeon, cores_per_socket: 32, cpu_mhz: 2000,
            memory_gib: 4096}}
guests:
  ubuntu: {{id: ubuntu64Guest, name: Ubuntu Linux (64-bit)}}
datastores: [{{name: ds-1, capacity_gib: 65536, free_gib: 60000}}]
networks: [VM Network]
clusters:
  - name: cluster
    hosts:
      - name: "esx-{{:02}}.watch"
        count: {HOSTS}
        group: a40
        model: server
        driver: 550.90.05-1OEM.800.1.0.20613240
        policy: consolidation
        gpus:
          - {{board: a40, at: "0000:3b:00.0", node: 0}}
          - {{board: a40, at: "0000:5e:00.0", node: 0}}
          - {{board: a40, at: "0000:af:00.0", node: 1}}
          - {{board: a40, at: "0000:d8:00.0", node: 1}}
vms:
  - &vm
    {{name: "desk-{{:03}}", count: {LOGONS}, folder: vdi, "on": a40, guest: ubuntu, cpus: 1, memory_gib: 4,
      disk_gib: 20, devices: [{{vgpu: nvidia_a40-8q}}], power: "off"}}
  - {{<<: *vm, name: "whole-{{:02}}", count: 20, folder: ml, devices: [{{vgpu: nvidia_a40-48c}}]}}
  - {{<<: *vm, name: "half-{{:02}}", count: 40, folder: ml, devices: [{{vgpu: nvidia_a40-24c}}]}}
  - {{<<: *vm, name: "small-{{:03}}", count: 124, folder: ml, devices: [{{vgpu: nvidia_a40-8q}}]}}
"""


def _queue() -> str:
    """The ML VMs in a drawn order, a third of them without checkpoints."""
    sizes = (("whole", 20, "02"), ("half", 40, "02"), ("small", 124, "03"))
    names = [f"{size}-{number:{width}}" for size, count, width in sizes for number in range(1, count + 1)]
    chance = Random(4)
    chance.shuffle(names)
    checkpoints = ("", ", checkpoint: {every_s: 600}", ", checkpoint: {every_s: 1800}")
    return ", ".join(f"{{vm: {name}{chance.choice(checkpoints)}}}" for name in names)


POLICY: Final = parse_policy(
    f"""
version: 1
name: bench
mode: spare-capacity
spare: {{keep_free: {{a40-8q: {KEPT}}}, calm_s: 30}}
ml:
  queue: [{_queue()}]
  stop: {{grace_s: 30}}
limits: {{in_flight: 32, per_host: 8}}
""",
    "of the bench",
)

QUIET: Final = parse_policy(
    """
version: 1
name: quiet
mode: spare-capacity
spare: {keep_free: {h100-3-40c: 100%}}
ml:
  queue: [{vm: "llm-*"}]
""",
    "of the quiet fleet",
)
"""All that is free is kept, so that no start follows from a look."""


@dataclass
class Morning:
    """What ten minutes of logons came to."""

    refused: int = 0
    """Logons that found no GPU."""
    short_s: float = 0.0
    """The longest time in which fewer were free than are kept."""
    fewest: int = KEPT
    stopped: int = 0


def run() -> Result:
    """Both rules on the same morning, and what quiet costs."""
    ours, last_in = morning(), _last_in_first_out()
    quiet = quiet_share()
    return Result(
        "spare capacity: 200 logons in ten minutes",
        (
            Figure("logons that found no GPU", ours.refused, "", 0),
            Figure("longest time with fewer than 20 free", ours.short_s, "s", HELD_WITHIN_S),
            Figure("fewest that were free", ours.fewest, ""),
            Figure("ML VMs that gave way", ours.stopped, ""),
            Figure("the same, last in first out", last_in.stopped, ""),
            Figure("given way / last in first out", ours.stopped / max(1, last_in.stopped), "x", 2 / 3),
            Figure("last in first out: logons that found no GPU", last_in.refused, ""),
            Figure("500 hosts, 5,000 VMs, nothing changes: of a core", 100 * quiet, "%", 2.0),
        ),
    )


def morning() -> Morning:
    """Ten minutes of logons against one watch."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "watch.yaml"
        path.write_text(SCENARIO, encoding="utf-8")
        world = build(str(path))
        begins = world.clock.now()

        def passed_s() -> float:
            return (world.clock.now() - begins).total_seconds()

        with (
            SimServer(world) as server,
            Connection(target_of(server)) as connection,
            Connection(target_of(server)) as users,
            Site(connection, Path(folder) / "state", wall_clock, passed_s=passed_s, pause=world.clock.advance) as site,
        ):
            assert POLICY.spare is not None
            watch = Watch(POLICY, POLICY.spare, site, WatchState(POLICY.text))
            for _ in range(4):
                watch.look()
                world.clock.advance(60.0)
            world.clock.advance(RAN_S)
            return _logons(watch, users, begins)


def _logons(watch: Watch, users: Connection, begins: datetime) -> Morning:
    world_clock, found = watch.site.passed_s, Morning()
    now = users.inventory()
    desktops = sorted((vm for vm in now.vms.values() if vm.name.startswith("desk-")), key=lambda vm: vm.name)
    first_s = looked_s = world_clock()
    short_since: float | None = None
    for number, vm in enumerate(desktops):
        watch.site.pause(max(0.0, first_s + number * EVERY_S - world_clock()))
        found.refused += not _logs_on(users, vm.ref)
        if world_clock() - looked_s >= SHORTEST_S:
            looked_s = world_clock()
            told = watch.look()
            found.stopped += sum(isinstance(each.step, ShutDownGuest) for each in told.outcomes)
        [state] = kept_states(watch.rule, now := users.inventory(), catalog_of(now))
        found.fewest = min(found.fewest, state.free)
        short_since = None if not state.missing else world_clock() if short_since is None else short_since
        found.short_s = max(found.short_s, world_clock() - short_since if short_since is not None else 0.0)
    return found


def _logs_on(users: Connection, ref: str) -> bool:
    """Whether the desktop found a GPU, on whichever host has room: its own first."""
    now = users.inventory()
    vm = now.vm(ref)
    hosts = sorted(now.hosts.values(), key=lambda host: (host.ref != vm.host, host.name))
    for host in hosts:
        task = users.submit(PowerOnVm(ref, host.ref), now, "a-user")
        assert task is not None
        if all(end.error is None for end in users.wait([task], 60.0)):
            return True
    return False


def _last_in_first_out() -> Morning:
    def rule(
        rule: SpareRule, taken: Iterable[TakenVm], inventory: Inventory, catalog: Catalog, now: datetime
    ) -> GiveWay:
        """Whoever was started last, until enough is free."""
        running = sorted(running_ml(taken), key=lambda each: (each.original.started_at or now, each.original.name))
        chosen: list[GivesWay] = []
        while running and (missing := [each for each in kept_states(rule, inventory, catalog) if each.missing]):
            last = running.pop()
            inventory = project(ShutDownGuest(last.original.vm), inventory)
            chosen.append(GivesWay(last, None, missing[0].key, missing[0].where))
        return GiveWay(tuple(chosen), tuple(each for each in kept_states(rule, inventory, catalog) if each.missing))

    with patch("gpuops.plan.rotation.nights.watch_look.give_way", rule):
        return morning()


def quiet_share() -> float:
    """The share of a core that a watch takes where nothing changes: one look, and the waits until the next."""
    with (
        our_simulator(FLEET) as served,
        Connection(target_at(served.endpoint)) as connection,
        tempfile.TemporaryDirectory() as folder,
        Site(connection, Path(folder), wall_clock) as site,
    ):
        watch_once(QUIET, site)
        connection.wait_for_change(0.0)
        began = process_time()
        watch_once(QUIET, site)
        looked = process_time()
        connection.wait_for_change(1.0)
        waited = process_time()
    return (looked - began) / LONGEST_S + (waited - looked) / SLICE_S


def target_at(endpoint: Endpoint) -> Target:
    at = urlsplit(endpoint.url)
    password = Secret(endpoint.password)
    return Target(
        at.hostname or "", endpoint.username, password, port=at.port or 443, ca_files=(str(endpoint.ca_file),)
    )
