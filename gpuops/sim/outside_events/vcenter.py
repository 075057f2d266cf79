"""What happens to storage, to vCenter itself, and to the permissions of its users."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final
from uuid import NAMESPACE_URL, uuid5

from gpuops.sim.core.object_store import somebody
from gpuops.sim.operations.inventory_change import add_again
from gpuops.sim.vcenter.authority import READ_ONLY

if TYPE_CHECKING:
    from gpuops.sim.fault_injection.rule import Rule
    from gpuops.sim.inventory.entities import DatastoreEntity
    from gpuops.sim.inventory.managed_entity import ManagedEntity
    from gpuops.sim.world import World

RESTART_S: Final = 300.0
"""How long vCenter is away unless the rule says otherwise: five minutes."""
CHANGED: Final = " changed"
"""How a password that was changed ends."""
STALE_S: Final = 90.0
"""How long old values are shown unless the rule has another time."""


def fill_datastore(store: DatastoreEntity, rule: Rule) -> None:
    """Another user fills it completely, for `for_s`."""
    taken_mib = store.free_mib
    store.use(taken_mib)
    if rule.for_s:
        store.world.clock.schedule(rule.for_s, lambda: store.use(-taken_mib), background=True)


def lose_datastore(store: DatastoreEntity, rule: Rule) -> None:
    """All paths to it are down, for `for_s`: its VMs are inaccessible."""
    _reachable(store, reachable=False)
    if rule.for_s:
        store.world.clock.schedule(rule.for_s, lambda: _reachable(store, reachable=True), background=True)


def restart_vcenter(world: World, rule: Rule) -> None:
    """vCenter restarts: no answer for a while, then every session is over and no old task is known.

    The hosts go on meanwhile: what they were doing, they end.
    """
    if "sessions-after-restart" not in world.deviations:  # assumption: sessions-after-restart
        for session in world.sessions:
            world.sessions.close(session)
        for task in world.tasks.readable():
            world.tasks.forget(task)
    world.down_until = world.clock.now() + timedelta(seconds=rule.for_s or RESTART_S)


def rebuild_vcenter(world: World, rule: Rule) -> None:
    """vCenter is installed anew and the hosts are added to it: another instance uuid, no custom attributes, no history.

    Hosts and VMs get other ids. The VMs keep their instance uuids and power states, and somebody files them as before.
    """
    for session in world.sessions:
        world.sessions.close(session)
    world.get("ServiceInstance").instance_uuid = str(uuid5(NAMESPACE_URL, f"gpuops-sim:rebuilt:{world.clock.now()}"))
    call = somebody(world, "AddHost_Task")
    for host in list(world.by_type("HostSystem")):
        add_again(host, call, lambda vm: world.get(vm.state.folder))
    world.custom_fields.load([])
    world.tasks.forget_history()


def lose_vcenter(world: World, rule: Rule) -> None:
    """vCenter is not reached for a while: the network is down. vCenter itself goes on."""
    world.down_until = world.clock.now() + timedelta(seconds=rule.for_s or RESTART_S)


def revoke_permissions(world: World, rule: Rule) -> None:
    """Every login may only read from now on, or for `for_s`."""
    users = list(world.sessions.passwords)
    for user in users:
        world.authority.permit(user, READ_ONLY)

    def given_back() -> None:
        for user in users:
            world.authority.withdraw(user, "group-d1")

    if rule.for_s:
        world.clock.schedule(rule.for_s, given_back, background=True)


def change_passwords(world: World, rule: Rule) -> None:
    """Every login gets another password, and the earlier one again after `for_s`; sessions that are open go on."""
    before = dict(world.sessions.passwords)
    world.sessions.passwords.update({user: f"{password}{CHANGED}" for user, password in before.items()})
    if rule.for_s:
        world.clock.schedule(rule.for_s, lambda: world.sessions.passwords.update(before), background=True)


def freeze_properties(entity: ManagedEntity, rule: Rule) -> None:
    """Its properties are shown for `for_s` as they were last read, whatever changes."""
    world, moid = entity.world, entity.moid
    world.fragments.freeze(moid)
    world.clock.schedule(rule.for_s or STALE_S, lambda: world.fragments.thaw(moid), background=True)


def change_certificate(world: World, rule: Rule) -> None:
    """It shows a certificate of another authority from now on, and every connection ends."""
    if world.change_certificate is not None:
        world.change_certificate()


def skew_clock(world: World, rule: Rule) -> None:
    """Its clock is off by `delay_s` from now on."""
    world.skew = timedelta(seconds=rule.delay_s)


def _reachable(store: DatastoreEntity, *, reachable: bool) -> None:
    store.accessible = reachable
    store.touch("summary", "host")
    for vm in store.vms.values():
        vm.connection = None if reachable else "inaccessible"
        vm.touch("runtime", "summary")
