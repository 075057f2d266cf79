"""Moves, copies and removes VMs, turns them into templates and back, and reports which hosts would take a VM.

vMotion of a vGPU VM needs the vCenter setting `vgpu.hotmigrate.enabled` and a profile the host says can migrate
(VMware vSphere 7.0 docs); DirectPath devices exclude it. A VM that is off or suspended moves cold; whether it can run
on its new host is checked when it is powered on.

The checks (vSphere API, VirtualMachineProvisioningChecker and ClusterComputeResource.PlaceVm) report for each host why
it would refuse the VM, and change nothing. From memory: CheckMigrate_Task and CheckRelocate_Task check free GPU slots
too; QueryVMotionCompatibilityEx_Task ignores what runs on the host; PlaceVm prefers the host with the fewest VMs.
gpuops calls none of these checks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import VmomiSupport, vim, vmodl

from gpuops.sim.inventory import faults
from gpuops.sim.inventory.managed_entity import enter_new, leave, new_moid, new_uuid
from gpuops.sim.operations import permissions
from gpuops.sim.operations.host_admission import (
    Admission,
    admission,
    load_of,
    rdma_missing,
    refuse_against_rules,
    refuse_failover_host,
)
from gpuops.sim.operations.recording import facts, recorded
from gpuops.sim.operations.vms.hardware_change import as_a_clone
from gpuops.sim.operations.vms.power import power_on
from gpuops.sim.operations.vms.reconfigure import changed_state
from gpuops.sim.render import host_graphics
from gpuops.sim.render.defaults import default
from gpuops.sim.state.vm_state import PVRDMA, Power, VgpuBacking, merged_options

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import ComputeEntity, DatastoreEntity, FolderEntity, HostEntity, VmEntity

COLD_MOVE_S: Final = 5.0
VMOTION_GIB_PER_S: Final = 1.0
"""Memory and frame buffer over one 10 Gbit/s link."""
DISK_GIB_PER_S: Final = 0.5
DESTROY_S: Final = 2.0
HOT_MIGRATE: Final = "vgpu.hotmigrate.enabled"
NO_VMOTION: Final = ("enable_uvm", "enable_debugging", "enable_profiling")
"""Plugin parameters that rule out vMotion of a vGPU (NVIDIA AI Enterprise docs)."""


def relocate(vm: VmEntity, call: Call, spec: Any) -> Any:
    """RelocateVM_Task: move a VM to another host, resource pool, datastore or folder."""
    store = vm.world.get(spec.datastore) if spec.datastore else None
    folder = vm.world.get(spec.folder) if spec.folder else None
    return _move(vm, call, "RelocateVM_Task", *target_of(vm, spec.host, spec.pool), store, folder)


def migrate(vm: VmEntity, call: Call, pool: Any, host: Any, state: Any) -> Any:
    """MigrateVM_Task: move a VM to another host or resource pool; `state`, if given, must be the VM's power state."""
    if state is not None and str(state) != vm.state.power.value:
        raise faults.wrong_power_state(vm.state.power, Power(str(state)))
    if vm.state.power is not Power.ON:
        vm.world.authority.require(call, vm, "Resource.ColdMigrate")
    return _move(vm, call, "MigrateVM_Task", *target_of(vm, host, pool), None, None)


def target_of(vm: VmEntity, host: Any, pool: Any) -> tuple[HostEntity, str | None]:
    """Return the target (host, pool moid or None) of a move to `host` and `pool`.

    Without a host, the VM stays on its host or gets the first usable host of the pool's cluster. Raises
    InvalidArgument if host and pool are in different clusters, NoCompatibleHost if the cluster has no usable host.
    """
    requested_pool = vm.world.get(pool) if pool else None
    if host is not None:
        requested_host = vm.world.get(host)
    elif requested_pool is not None and requested_pool.owner() is not vm.host().compute_resource():
        requested_host = next(
            (candidate for candidate in requested_pool.owner().hosts() if candidate.state.usable), None
        )
    else:
        requested_host = vm.host()
    if requested_host is None:
        raise faults.no_compatible_host([])
    own_pool = vm.world.get(vm.state.pool) if vm.state.pool else None
    effective_pool = requested_pool or own_pool
    if effective_pool is not None and effective_pool.owner() is not requested_host.compute_resource():
        raise faults.wrong_argument("spec.pool")
    return requested_host, requested_pool.moid if requested_pool else None


def _move(
    vm: VmEntity,
    call: Call,
    task_name: str,
    host: HostEntity,
    pool: str | None,
    store: DatastoreEntity | None,
    folder: Any,
) -> Any:
    """Return the task of a move. The move is a vMotion if the VM runs when the task begins and changes its host."""
    permissions.require_to_move(vm, call, pool, store, folder)
    is_vmotion = False

    def estimate_duration_s() -> float:
        gib = (vm.state.memory_mib + sum(seat.type.framebuffer_mib for seat in vm.state.seats)) / 1024
        move_s = gib / VMOTION_GIB_PER_S if _moves_with_vmotion(vm, host) else COLD_MOVE_S
        return move_s + (vm.state.hardware.gib / DISK_GIB_PER_S if store not in (None, vm.datastore()) else 0.0)

    def begin() -> None:
        nonlocal is_vmotion
        is_vmotion = _moves_with_vmotion(vm, host)
        vm.refuse_while_question_pending()
        if folder is not None:
            require_vm_folder(folder)
        refuse_move(vm, host, store)
        kind = "VmBeingHotMigratedEvent" if is_vmotion else "VmBeingRelocatedEvent"
        vm.post(call, kind, destHost=host_argument(host))

    def finish() -> None:
        admitted = admission(vm, host) if is_vmotion else Admission(vm.state.seats, vm.state.held)
        source = vm.host()
        with recorded(vm, call):
            vm.state.seats, vm.state.held = admitted.seats, admitted.held
            if folder is not None:
                vm.move_to_folder(folder)
            if store is not None:
                vm.move_files(store)
            vm.register_on(host.moid, pool)
            vm.power_changed()
        vm.post(call, "VmMigratedEvent" if is_vmotion else "VmRelocatedEvent", sourceHost=host_argument(source))

    return vm.world.tasks.start(call, task_name, vm, estimate_duration_s, begin=begin, finish=finish)


def refuse_move(vm: VmEntity, host: HostEntity, store: DatastoreEntity | None = None) -> None:
    """Raises the fault with which a move to the host is refused at its start; a running VM would move with vMotion."""
    is_vmotion = _moves_with_vmotion(vm, host)
    if host.state.connection != "connected" or (host.state.in_maintenance and is_vmotion):
        raise faults.wrong_state(f"The host {host.name} is disconnected or in maintenance mode.")
    _require_visible_files(vm, host, store)
    if is_vmotion:
        require_migratable(vm, host)


def _moves_with_vmotion(vm: VmEntity, host: HostEntity) -> bool:
    """Whether a move to the host is vMotion: the VM runs on another host."""
    return vm.state.power is Power.ON and host is not vm.host()


def require_vm_folder(folder: FolderEntity) -> None:
    """Raises NotSupported for a folder of another kind, as CreateVM_Task and MoveIntoFolder_Task do (vSphere API)."""
    if folder.kind != "vm":
        raise faults.not_supported(f"The folder {folder.name} cannot hold virtual machines.")


def host_argument(host: HostEntity) -> Any:
    """Return the argument with which events name a host."""
    return vim.event.HostEventArgument(name=host.name, host=host.ref)


def _require_visible_files(vm: VmEntity, host: HostEntity, store: DatastoreEntity | None) -> None:
    target_store = store or vm.datastore()
    if target_store.moid not in host.state.datastores:
        raise faults.wrong_argument("spec.datastore", f"Host {host.name} does not see datastore {target_store.name}.")


def require_migratable(vm: VmEntity, target: HostEntity) -> None:
    """Raises a MigrationFault if a running VM cannot be moved to `target` with vMotion (the type: from memory).

    Mandatory rules and hosts that HA keeps empty refuse a move as they refuse a power-on. From memory: the stun limit
    of DRS also applies to moves that a client requests.
    """
    refuse_against_rules(vm, target)
    refuse_failover_host(vm, target)
    state = vm.state
    _require_rdma(vm, target)
    if state.has_fixed_devices:
        raise migration_refusal("A passthrough device cannot be migrated.")
    if not state.vgpus:
        return
    if not vm.world.options[HOT_MIGRATE]:
        raise migration_refusal(f"vMotion of virtual machines with a vGPU is off: {HOT_MIGRATE} is not true.")
    types_without_vmotion = vm.host().state.no_suspend | target.state.no_suspend
    refused_types = [vgpu.type_name for vgpu in state.vgpus if vgpu.type_name in types_without_vmotion]
    if refused_types:
        raise migration_refusal(f"vGPU profile {refused_types[0]} does not support vMotion.")
    stun_s = sum(host_graphics.stun_s(seat.type) or 0 for seat in state.seats)
    if "vmotion-stun" in vm.world.deviations:  # assumption: vmotion-stun
        stun_s *= 10
    tolerated_s = vm.host().compute_resource().stun_tolerated_s
    if stun_s > tolerated_s:
        raise migration_refusal(f"The estimated stun time of {stun_s} s exceeds the limit of {tolerated_s} s.")
    for device in state.devices:
        # "0" and a missing option both mean off
        for name in NO_VMOTION if isinstance(device.backing, VgpuBacking) else ():
            if (state.option(f"{device.vmx_name}.cfg.{name}") or "0") != "0":
                raise migration_refusal(f"A vGPU with {name} cannot be migrated.")


def _require_rdma(vm: VmEntity, target: HostEntity) -> None:
    for card in vm.state.hardware.cards:
        missing = rdma_missing(target, card.switch) if card.kind == PVRDMA else None
        if missing is not None:
            raise migration_refusal(f"A PVRDMA network adapter cannot be migrated there. {missing}")


def migration_refusal(reason: str) -> Exception:
    """Return DisallowedMigrationDeviceAttached, the fault of a running VM that cannot be moved."""
    fault: Exception = vim.fault.DisallowedMigrationDeviceAttached(
        msg=reason, fault=vim.fault.MigrationFault(msg=reason)
    )
    return fault


def clone(vm: VmEntity, call: Call, folder: Any, name: str, spec: Any) -> Any:
    """Return CloneVM_Task, whose result is the new VM or template. A VM with passthrough devices must be off."""
    target_folder = vm.world.get(folder)
    location = spec.location
    host, pool = target_of(vm, location.host, location.pool) if location.pool or location.host else (vm.host(), None)
    permissions.require_to_clone(vm, call, target_folder, pool, spec)

    def begin() -> None:
        require_vm_folder(target_folder)
        target_folder.checked_name(name)
        if vm.state.has_fixed_devices and vm.state.power is not Power.OFF:
            raise faults.wrong_power_state(vm.state.power, Power.OFF)
        if pool is None and vm.state.pool is None and not spec.template:
            raise faults.wrong_argument("spec.location.pool")

    def finish() -> Any:
        stored_name = target_folder.checked_name(name)
        state = copy_state(
            vm, stored_name, target_folder.moid, host, pool or vm.state.pool, template=bool(spec.template)
        )
        if location.datastore:
            store = vm.world.get(location.datastore)
            state.datastore, state.template = store.moid, replace(state.template, datastore=store.name)
        new_vm = enter_new(type(vm)(vm.world, new_moid(vm.world, "vm"), state))
        if spec.config is not None:
            try:
                new_vm.state = changed_state(new_vm, spec.config)
            except Exception:
                leave(new_vm)  # a clone that fails leaves no VM behind
                raise
        vm.world.guests.copy(vm.moid, new_vm.moid)
        vm.world.ledger.record(call, new_vm, before={}, after=facts(new_vm.state))
        new_vm.post(call, "VmClonedEvent", sourceVm=vim.event.VmEventArgument(name=vm.name, vm=vm.ref))
        if spec.powerOn and not spec.template:
            power_on(new_vm, call, None)
        return new_vm

    duration_s = max(COLD_MOVE_S, vm.state.hardware.gib / DISK_GIB_PER_S)
    return vm.world.tasks.start(call, "CloneVM_Task", vm, duration_s, begin=begin, finish=finish)


def copy_state(vm: VmEntity, name: str, folder: str, host: HostEntity, pool: str | None, *, template: bool) -> Any:
    """Return the VmState for a copy of a VM: powered off, with new ids, disks and network addresses."""
    state = copy.copy(vm.state)
    now = vm.world.clock.now()
    state.name, state.folder, state.host, state.pool = name, folder, host.moid, None if template else pool
    state.files = ""
    state.uuid, state.instance_uuid = new_uuid(vm.world), new_uuid(vm.world)
    as_a_clone(vm, state)
    state.power, state.seats, state.held, state.is_template = Power.OFF, (), (), template
    state.boot_time = state.suspend_time = state.question = state.current_snapshot = None
    state.suspend_file_mib, state.snapshots, state.console_connections = 0, (), 0
    state.created_at, state.changed_at, state.change, state.attributes = now, None, 1, {}
    if "clone-attributes" in vm.world.deviations:  # assumption: clone-attributes
        state.attributes = dict(vm.state.attributes)
    removed_prefixes = ["numa.autosize."]
    if "clone-options" in vm.world.deviations:  # assumption: clone-options
        removed_prefixes.append("pcipassthru")
    # an empty text removes an option
    removed_options = {key: "" for key, _ in state.extra_config if key.lower().startswith(tuple(removed_prefixes))}
    state.extra_config = merged_options(state.extra_config, removed_options)
    return state


def destroy(vm: VmEntity, call: Call) -> Any:
    """Destroy_Task: remove the VM and its files."""
    vm.world.authority.require(call, vm, "VirtualMachine.Inventory.Delete")
    return vm.world.tasks.start(
        call,
        "Destroy_Task",
        vm,
        DESTROY_S,
        begin=lambda: require_destroyable(vm),
        finish=lambda: remove_vm(vm, call),
        description_id="VirtualMachine.destroy",
    )


def require_destroyable(vm: VmEntity) -> None:
    """Raises InvalidPowerState for a VM that runs."""
    if vm.state.power is Power.ON:
        raise faults.wrong_power_state(Power.ON, Power.OFF)


def remove_vm(vm: VmEntity, call: Call) -> None:
    """Remove a VM and its files."""
    vm.world.ledger.record(call, vm, before=facts(vm.state), after={})
    vm.post(call, "VmRemovedEvent")
    leave(vm)


def mark_as_template(vm: VmEntity, call: Call) -> None:
    """MarkAsTemplate: a VM that is off becomes a template, in no resource pool.

    Raises NotSupported for a template, as vcsim does; the API declares it for "if marking a virtual machine as a
    template is not supported".
    """
    if vm.state.is_template:
        raise faults.not_supported("The virtual machine is a template.")
    if vm.state.power is not Power.OFF:
        raise faults.wrong_power_state(vm.state.power, Power.OFF)
    with recorded(vm, call):
        vm.state.is_template = True
        vm.leave_pool()
    vm.touch("config", "summary")


def mark_as_virtual_machine(vm: VmEntity, call: Call, pool: Any, host: Any) -> None:
    """MarkAsVirtualMachine: a template becomes a VM of that pool."""
    if not vm.state.is_template:
        raise faults.wrong_state("The virtual machine is not a template.")
    target, target_pool = target_of(vm, host, pool)
    with recorded(vm, call):
        vm.state.is_template = False
        vm.register_on(target.moid, target_pool)
    vm.touch("config", "summary", "resourcePool")


TRIAL_S: Final = 1.0
BEST_RATING: Final = 5

Judge = Callable[["VmEntity", "HostEntity"], None]
"""Raises the fault with which the host refuses the VM."""


def check_power_on(vm: VmEntity, call: Call, host: HostEntity | None) -> Any:
    """CheckPowerOn_Task: return a result for `host`, or for each host of the VM's cluster."""
    hosts = [host] if host is not None else vm.host().compute_resource().hosts()
    return _report(call, [(vm, candidate) for candidate in hosts], judge_power_on)


def judge_power_on(vm: VmEntity, host: HostEntity) -> None:
    """Raises the fault in which a power-on on the host would end now."""
    if vm.state.power is Power.ON:
        raise faults.wrong_power_state(Power.ON, Power.OFF)
    refuse_against_rules(vm, host)
    admission(vm, host)


def recommended_hosts(vm: VmEntity) -> list[Any]:
    """RecommendHostsForVm: the hosts that would take it, those with the fewest running VMs rated best."""
    hosts = vm.host().compute_resource().hosts()
    accepting_hosts = sorted((host for host in hosts if _refusal(vm, host, judge_power_on) is None), key=load_of)
    return [
        vim.cluster.HostRecommendation(host=host.ref, rating=max(1, BEST_RATING - rank))
        for rank, host in enumerate(accepting_hosts)
    ]


def check_migrate(vm: VmEntity, call: Call, host: Any, pool: Any, state: Any) -> Any:
    """CheckMigrate_Task: a result for the host, or for each host of the resource pool's cluster or of the VM's."""
    if state is not None and str(state) != vm.state.power.value:
        raise faults.wrong_power_state(vm.state.power, Power(str(state)))
    target, _ = target_of(vm, host, pool)
    hosts = [target] if host is not None else target.compute_resource().hosts()
    return _report(call, [(vm, candidate) for candidate in hosts], judge_move)


def check_relocate(vm: VmEntity, call: Call, spec: Any) -> Any:
    """CheckRelocate_Task: a result for the host that RelocateVM_Task would move the VM to."""
    target, _ = target_of(vm, spec.host, spec.pool)
    store = vm.world.get(spec.datastore) if spec.datastore else None
    return _report(call, [(vm, target)], lambda vm, host: judge_move(vm, host, store))


def check_compatibility(vm: VmEntity, call: Call, host: Any, pool: Any) -> Any:
    """CheckCompatibility_Task: whether the hosts reach the VM's files; not whether it can run there."""
    target, _ = target_of(vm, host, pool)
    hosts = [target] if host is not None else target.compute_resource().hosts()
    return _report(call, [(vm, candidate) for candidate in hosts], refuse_move)


def query_vmotion(vms: Iterable[VmEntity], call: Call, hosts: Iterable[HostEntity]) -> Any:
    """QueryVMotionCompatibilityEx_Task: a result for each VM and host, whatever their state.

    Raises InvalidArgument without a VM or without a host.
    """
    pairs = [(vm, host) for vm in vms for host in hosts]
    if not pairs:
        raise faults.wrong_argument("vm")
    return _report(call, pairs, require_migratable)


def judge_move(vm: VmEntity, host: HostEntity, store: DatastoreEntity | None = None) -> None:
    """Raises the fault in which a move to the host would end now."""
    refuse_move(vm, host, store)
    if vm.state.power is Power.ON and host is not vm.host():
        admission(vm, host)


def place(cluster: ComputeEntity, spec: Any) -> Any:
    """PlaceVm for an existing VM: recommend each host that accepts it, the host with the fewest VMs first.

    If no host accepts it, `drsFault` holds the faults of all hosts.
    """
    if spec.vm is None or spec.placementType not in (None, "relocate", "reconfigure"):
        raise faults.not_supported("The simulated vCenter supports PlaceVm only for existing virtual machines.")
    vm: VmEntity = cluster.world.get(spec.vm)
    hosts = [cluster.world.get(host) for host in spec.hosts] or cluster.hosts()
    refusals = {host.moid: _refusal(vm, host, judge_move) for host in hosts}
    accepting_hosts = sorted((host for host in hosts if refusals[host.moid] is None), key=load_of)
    if not accepting_hosts:
        vm_faults = vim.cluster.DrsFaults.FaultsByVm(vm=vm.ref, fault=list(refusals.values()))
        return vim.cluster.PlacementResult(drsFault=vim.cluster.DrsFaults(reason="placement", faultsByVm=[vm_faults]))
    return vim.cluster.PlacementResult(
        recommendations=[_recommendation(cluster, vm, host, rank) for rank, host in enumerate(accepting_hosts)]
    )


def _recommendation(cluster: ComputeEntity, vm: VmEntity, host: HostEntity, rank: int) -> Any:
    action = vim.cluster.PlacementAction(
        type="PlacementV1",
        target=vm.ref,
        vm=vm.ref,
        targetHost=host.ref,
        relocateSpec=vim.vm.RelocateSpec(host=host.ref),
    )
    return default(
        "ClusterRecommendation",
        key=str(rank),
        time=cluster.world.clock.now(),
        rating=max(1, BEST_RATING - rank),
        action=[action],
        target=host.ref,
    )


def _report(call: Call, pairs: list[tuple[VmEntity, HostEntity]], judge: Judge) -> Any:
    """Start the task whose result is a check.Result of each pair."""
    vm = pairs[0][0]

    def finish() -> Any:
        results = VmomiSupport.GetVmodlType("vim.vm.check.Result[]")
        return results([_result(*pair, judge) for pair in pairs])

    return vm.world.tasks.start(call, call.method, vm, TRIAL_S, finish=finish, exclusive=False)


def _result(vm: VmEntity, host: HostEntity, judge: Judge) -> Any:
    refusal = _refusal(vm, host, judge)
    return vim.vm.check.Result(vm=vm.ref, host=host.ref, error=[] if refusal is None else [refusal])


def _refusal(vm: VmEntity, host: HostEntity, judge: Judge) -> Any:
    try:
        judge(vm, host)
    except vmodl.MethodFault as refusal:
        return refusal
    return None
