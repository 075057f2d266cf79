"""Returns the VMs with GPU devices and the hosts with GPUs as variables, for the inventory plugin `gpus`."""

from __future__ import annotations

from collections import Counter

from gpuops.advise.idle import idleness
from gpuops.api import catalog_of
from gpuops.model.devices.catalog import Board, Catalog
from gpuops.model.devices.gpu import PhysicalGpu
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DirectPathDevice, DynamicDevice, GpuDevice, VgpuDevice, Vm
from gpuops.plan.rotation.ml_queue.ml_vms import waiting_vms
from gpuops.report.document import Document
from gpuops.report.monitoring.fleet_view import Fleet, HostView, fleet
from gpuops.report.vms.vm_view import vm_state
from gpuops.tasks.task_connection import ConnectionArguments, open_site, policy_of


def machines(connection: ConnectionArguments, *, policy: str | None = None) -> tuple[Document, list[str]]:
    """Return `{"vms": {name: variables}, "hosts": {name: variables}}` and the warnings. Reads the inventory once.

    With a policy, each VM has its role in the policy, and its pool's rule decides whether a desktop is idle. Raises
    GpuopsError.
    """
    rules = policy_of(policy)
    site, warnings = open_site(connection)
    with site:
        inventory = site.vcenter.inventory()
        if rules is not None:
            inventory = site.read_for_policy(inventory, rules)
    catalog = catalog_of(inventory)
    fleet_view = fleet(inventory, catalog)
    roles = _roles_of_vms(rules, inventory)
    nodes = _numa_nodes_of_vms(fleet_view)
    names = Counter([*(vm.name for vm in fleet_view.vms), *(view.host.name for view in fleet_view.hosts)])
    vms = {
        _unique_name(vm.name, vm.ref, names): {
            **_rename_facts(vm_state(vm, inventory)),
            "gpu_vm": f"moid:{vm.ref}",
            "gpu_models": _models(vm, inventory, catalog),
            "gpu_numa_nodes": nodes.get(vm.ref, []),
            "gpu_role": roles.get(vm.ref),
            **_use_variables(vm, rules),
        }
        for vm in fleet_view.vms
    }
    hosts = {
        _unique_name(view.host.name, view.host.ref, names): _host_variables(view, catalog) for view in fleet_view.hosts
    }
    return {"vms": vms, "hosts": hosts}, warnings


def _unique_name(name: str, ref: str, names: Counter[str]) -> str:
    """Return the name, with the managed object id appended if several VMs or hosts have it."""
    return name if names[name] == 1 else f"{name}_{ref}"


def _rename_facts(state: Document) -> Document:
    """Return the state of a VM with `gpu_` before each name.

    `power` becomes `gpu_power_state`, because playbooks set `gpu_power` to say what may be done to a VM.
    """
    return {f"gpu_{'power_state' if name == 'power' else name}": fact for name, fact in state.items()}


def _host_variables(view: HostView, catalog: Catalog) -> Document:
    """Return the variables of a host. `gpu_role` and `gpu_use` are those of VMs, so they are None here."""
    gpus = view.gpus
    boards = [(gpu_view.gpu, _board(gpu_view.gpu, catalog)) for gpu_view in gpus]
    return {
        "gpu_name": view.host.name,
        "gpu_moid": view.host.ref,
        "gpu_cluster": view.cluster,
        "gpu_connected": view.host.connected,
        "gpu_in_maintenance": view.host.in_maintenance,
        "gpu_models": sorted({board.short_name if board else gpu.name for gpu, board in boards}),
        "gpu_role": None,
        "gpu_use": None,
        "gpu_pci_addresses": [str(gpu_view.gpu.address) for gpu_view in gpus],
        "gpu_numa_nodes": [node.node.id for node in view.nodes if node.node is not None],
        "gpu_modes": sorted({gpu_view.mode for gpu_view in gpus}),
        "gpu_offers": None if view.host.profiles is None else [offer.name for offer in view.host.profiles],
        "gpu_free": {name: slots.at_least for name, slots in view.free.items()},
    }


def _models(vm: Vm, inventory: Inventory, catalog: Catalog) -> list[str]:
    names = {_model(device, vm, inventory, catalog) for device in vm.devices or ()}
    return sorted(model for model in names if model is not None)


def _model(device: GpuDevice, vm: Vm, inventory: Inventory, catalog: Catalog) -> str | None:
    """Return the model of the device's GPU; None if it is not a GPU, or the catalogue does not know it."""
    host = inventory.host_of(vm)
    match device:
        case VgpuDevice(profile=profile):
            board = catalog.board_of(profile)
        case DirectPathDevice(address=address, vendor_id=vendor, device_id=identifier):
            gpu = host.gpu(address) if host else None
            board = catalog.board_by_pci(vendor, identifier, gpu.subsystem_id if gpu else None)
        case DynamicDevice(allowed=allowed):
            # vCenter may assign a device of any of these types: the model is known only if there is one
            boards = {catalog.board_by_pci(vendor, identifier) for vendor, identifier in allowed}
            board = boards.pop() if len(boards) == 1 else None
        case _:
            board = None
    return board.short_name if board else None


def _numa_nodes_of_vms(fleet_view: Fleet) -> dict[str, list[int]]:
    """Return by VM (ref) the NUMA nodes of the GPUs that it holds now."""
    nodes: dict[str, set[int]] = {}
    for gpu_view in (gpu_view for host in fleet_view.hosts for gpu_view in host.gpus):
        for vm in gpu_view.holders or ():
            if gpu_view.gpu.numa_node is not None:
                nodes.setdefault(vm.ref, set()).add(gpu_view.gpu.numa_node)
    return {ref: sorted(ids) for ref, ids in nodes.items()}


def _roles_of_vms(policy: Policy | None, inventory: Inventory) -> dict[str, str]:
    if policy is None:
        return {}
    desktops = {vm.ref: "desktop" for vm in inventory.vms.values() if policy.pool_of(vm) is not None}
    return desktops | {waits.vm.ref: "ml" for waits in waiting_vms(policy, inventory) if waits.vm is not None}


def _use_variables(vm: Vm, policy: Policy | None) -> Document:
    """Return whether the VM is in use and why. Only the rule of a pool can show that a VM is idle."""
    pool = policy.pool_of(vm) if policy is not None else None
    verdict = idleness(vm, pool.idle if pool is not None else None)
    return {"gpu_use": str(verdict.use), "gpu_use_because": verdict.reason}


def _board(gpu: PhysicalGpu, catalog: Catalog) -> Board | None:
    return catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
