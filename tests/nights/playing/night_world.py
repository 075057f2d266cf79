"""The world of a night beside the engine's processes: what was there in the evening, users and owners of desktops,
what strikes, and the calm in the end."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from pyVmomi import vim

from gpuops.sim.core.object_store import somebody
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.objects.virtual_machine import VirtualMachine
from gpuops.sim.operations.vms import power
from gpuops.sim.outside_events.host_events import CHANGED_SUFFIX
from gpuops.sim.outside_events.vm_events import use_desktop
from gpuops.sim.state.vm_state import Power
from tests.nights.faults.event import PEOPLE, Event
from tests.nights.faults.schedule import schedule_of
from tests.nights.measuring.reach import Reach
from tests.nights.playing.played import Played
from tests.nights.world.worlds import Site, site_of


class NightWorld:
    """The world of a seed's night, and who acts in it beside the processes that rotate."""

    def __init__(self, seed: int, events: Sequence[Event] | None = None, site: Site | None = None) -> None:
        self.site = site or site_of(seed)
        self.world = world = self.site.world(seed)
        vms = list(world.by_type("VirtualMachine"))
        desktops = [vm.name for vm in vms if vm.name.startswith("desktop-")]
        ml = [vm.name for vm in vms if vm.name.startswith("ml-")]
        hosts = [host.name for host in world.by_type("HostSystem")]
        chosen = schedule_of(seed, desktops, ml, hosts) if events is None else tuple(events)
        if random.Random(f"{seed}:clones").randrange(2) and any(event.fault == "V14" for event in chosen):
            world.deviations.add("clone-attributes")
        self.played = Played(
            seed,
            self.site,
            world,
            chosen,
            running=frozenset(vm.moid for vm in vms if vm.state.power is Power.ON and vm.name in set(desktops)),
            names={vm.moid: vm.name for vm in vms},
            uuids={vm.moid: vm.state.instance_uuid for vm in vms},
            takeable=frozenset(vm.moid for vm in vms if vm.name.startswith("desktop-") and self._both_keys(vm)),
            busy=frozenset(vm.moid for vm in vms if vm.state.console_connections or self._works(vm)),
            left_over=frozenset(vm.moid for vm in vms if self._is_marked(vm) and self._is_in_a_pools_folder(vm)),
            strays=frozenset(vm.moid for vm in vms if self._is_marked(vm) and not self._is_in_a_pools_folder(vm)),
        )
        self._seated: dict[str, datetime] = {}
        self._withdrawn: dict[str, datetime] = {}
        self._certificate = 1
        world.change_certificate = self._another_certificate
        self._reach = Reach(world, self.site.policy, chosen, self._fire)
        self._people = [event for event in chosen if event.fault in PEOPLE]
        self._armed: list[tuple[str, Any]] = []

    def _works(self, vm: VirtualMachine) -> bool:
        return vm.state.power is Power.ON and vm.state.cpu_usage_mhz >= self.site.policy.pools[0].idle.cpu_below_mhz

    def _marks(self, vm: VirtualMachine) -> dict[str, str]:
        fields = self.world.custom_fields.fields
        return {fields[key].name: value for key, value in vm.state.attributes.items()}

    def _is_marked(self, vm: VirtualMachine) -> bool:
        return self.site.policy.marker in self._marks(vm)

    def _is_in_a_pools_folder(self, vm: VirtualMachine) -> bool:
        return self.world.get(vm.state.folder).display_name in {pool.select.folder for pool in self.site.pools}

    def _both_keys(self, vm: VirtualMachine) -> bool:
        marks = self._marks(vm)
        owned = self.site.policy.pools[0].owner is None or marks.get("gpuops.owner") == "office"
        return owned and "gpuops.opt-out" not in marks

    def _let_happen(self) -> None:
        for event in self.played.events:
            if event.state:
                continue
            for rule in event.rules:
                before = len(self.world.injector.struck())
                self.world.injector.add(rule)
                self._armed.append((event.fault, before))
            if event.fault.startswith("H"):
                self._user(event)

    def _fire(self, event: Event, vm: VirtualMachine | None) -> None:
        """What was aimed at a stage or at whereabouts strikes now, and this VM if it strikes one."""
        if vm is not None and vm.name.startswith("desktop-"):
            self._strike(event, vm)

    def _user(self, event: Event) -> None:
        vm = next((vm for vm in self.world.by_type("VirtualMachine") if vm.name == event.target), None)
        if vm is not None:
            attempts = 5 if event.fault == "H3" else 1
            for number in range(attempts):
                self.world.clock.schedule(event.at_s + 120 * number, partial(self._strike, event, vm))

    def _sits_down(self, vm: VirtualMachine) -> bool:
        if vm.state.power is not Power.ON or not vm.is_registered:
            return False
        vm.state.console_connections = 1
        vm.touch("runtime", "summary")
        self._seated[vm.moid] = self.world.clock.now()
        return True

    def _works_from_afar(self, vm: VirtualMachine) -> bool:
        """By remote desktop: CPU, and no console."""
        if vm.state.power is not Power.ON or not vm.is_registered:
            return False
        use_desktop(vm, Rule(Effect.HAPPEN, happening="vm.used"))
        self._seated[vm.moid] = self.world.clock.now()
        return True

    def _withdraws(self, vm: VirtualMachine, event: Event) -> bool:
        """The desktop's owner opts out."""
        if not vm.is_registered or (event.fault == "H6" and self.site.policy.pools[0].owner is None):
            return False
        call = somebody(self.world, "SetField")
        name, value = ("gpuops.opt-out", "yes") if event.fault == "H5" else ("gpuops.owner", "")
        key = self.world.custom_fields.define(name)
        self.world.get("CustomFieldsManager").SetField(call, vim.VirtualMachine(vm.moid), key, value)
        self._withdrawn[vm.moid] = self.world.clock.now()
        return True

    def _strike(self, event: Event, vm: VirtualMachine) -> None:
        self._reach.look()
        match event.fault:
            case "H1":
                happened = self._sits_down(vm)
            case "H4":
                happened = self._works_from_afar(vm)
            case "H5" | "H6":
                happened = self._withdraws(vm, event)
            case _:
                happened = wakes(vm)
        if happened:
            self._reach.reached(event.fault, (vm,))
            self.played.struck[event.fault] = self.played.struck.get(event.fault, 0) + 1

    def _cut(self, name: str) -> None:
        vm = next((vm for vm in self.world.by_type("VirtualMachine") if vm.name == name), None)
        if vm is None or self.world.tasks.running(vm) is None:
            return
        for since, sessions in ((self._seated, self.played.cut_sessions), (self._withdrawn, self.played.in_spite)):
            if vm.moid in since:
                sessions.append((vm.moid, since[vm.moid], self.world.clock.now()))

    def _another_certificate(self) -> None:
        self._certificate += 1

    def _wait_until(self, moment: datetime) -> None:
        with self.world.lock:
            if self.world.clock.now() < moment:
                self.world.clock.advance_to(moment)

    def _calm(self) -> None:
        """Nothing goes wrong any more: what is broken is repaired, what is lost stays lost."""
        self._reach.stop()
        self.played.reached = self._reach.pairs
        for fault, index in self._armed:
            count = self.world.injector.struck()[index][1]
            self.played.struck[fault] = self.played.struck.get(fault, 0) + count
        self.world.injector.clear()
        self._certificate = 1
        self.world.down_until, self.world.skew = None, timedelta()
        passwords = self.world.sessions.passwords
        passwords.update({user: password.removesuffix(CHANGED_SUFFIX) for user, password in passwords.items()})
        for host in self.world.by_type("HostSystem"):
            host.state.connection, host.state.in_maintenance = "connected", False
            host.runtime_changed()
        for store in self.world.by_type("Datastore"):
            store.accessible, store.free_mib = True, max(store.free_mib, 1 << 20)
        for vm in self.world.by_type("VirtualMachine"):
            self.world.fragments.thaw(vm.moid)
            vm.connection = vm.state.question = None
            vm.touch("runtime", "summary")
        self.world.clock.advance(2 * 3600)
        hung = self.world.clock.now() - timedelta(hours=1)
        for task in self.world.tasks.unfinished():
            if task.queued_at < hung and not task.ended:  # the one before it may have ended it
                task.cancelable = True
                self.world.tasks.cancel(task)


def wakes(vm: VirtualMachine) -> bool:
    if vm.state.power is not Power.SUSPENDED or not vm.is_registered or vm.world.tasks.running(vm):
        return False
    power.power_on(vm, somebody(vm.world, "PowerOnVM_Task"), None)
    return True
