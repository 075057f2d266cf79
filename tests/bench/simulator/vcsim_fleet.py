"""A fleet for vcsim: its own saved hosts and VMs, multiplied, given GPUs, and loaded.

vcsim takes minutes to create 200 hosts and 2,000 VMs by itself, and they would have no GPUs. Its files load in
seconds. One saved host and one saved VM serve as templates; ids, names and every reference to them are made anew.

    python -m tests.bench.simulator.vcsim_fleet DIRECTORY HOSTS VMS
"""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from uuid import NAMESPACE_OID, uuid5

from tests.peers.edit_hosts import edit_config_target, edit_host
from tests.peers.edit_machines import edit_machine
from tests.peers.edit_model import drop_tasks, edit_about
from tests.peers.gpu_model import A40, HostModel, Machine, Slot
from tests.peers.processes import MODEL, Govc, running_vcsim
from tests.peers.saved_objects import Content, SavedObject, saved

GPUS_PER_HOST = 8
FIRST_MOID = 10_000  # above every id vcsim gave out itself

UUID = r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
UUID_LENGTH = 36

# What ESXi writes into every VM by itself: twenty keys, so that a VM weighs what a real one weighs.
EXTRA_CONFIG = {
    "nvram": "vm.nvram",
    "svga.present": "TRUE",
    "hpet0.present": "TRUE",
    "vmware.tools.internalversion": "12389",
    "vmware.tools.requiredversion": "12389",
    "migrate.hostLogState": "none",
    "migrate.migrationId": "0",
    "viv.moid": "c5f1b2a4-5d0e-4b6a-9a55-0f9d6f0c7b11:vm-1000:Uq7nTWKJ4b",
    "numa.autosize.cookie": "80082",
    "numa.autosize.vcpu.maxPerVirtualNode": "8",
    "sched.swap.derivedName": "/vmfs/volumes/6700f0a1-1c2d3e4f/vm/vm-1a2b3c4d.vswp",
    "scsi0.pciSlotNumber": "160",
    "ethernet0.pciSlotNumber": "192",
    "vmci0.pciSlotNumber": "32",
    "monitor.phys_bits_used": "45",
    "cleanShutdown": "TRUE",
    "softPowerOff": "FALSE",
    "svga.vramSize": "4194304",
    "disk.EnableUUID": "TRUE",
    "guestinfo.appInfo": "{}",
}


def save_fleet(directory: Path, hosts: int, machines: int) -> Path:
    """The folder for `vcsim -load` with so many hosts of eight A40 and so many desktops."""
    inventory = directory / f"fleet-{hosts}-{machines}"
    with running_vcsim(directory, *MODEL) as endpoint:
        Govc(endpoint, directory)("object.save", "-d", str(inventory))
    drop_tasks(inventory)
    for service in saved(inventory, "ServiceInstance"):
        edit_about(service)

    slots = tuple(Slot(A40, 0x10 + 8 * gpu, gpu * 2 // GPUS_PER_HOST) for gpu in range(GPUS_PER_HOST))
    host_models = [HostModel(f"fleet-esx-{number:04}", slots) for number in range(hosts)]
    machine_models = [_desktop(number, host_models[number % hosts]) for number in range(machines)]
    host_files = _multiply(inventory, "HostSystem", hosts)
    machine_files = _multiply(inventory, "VirtualMachine", machines)
    moids = {h.name: document.moid for h, document in zip(host_models, host_files, strict=True)}
    moids |= {m.name: document.moid for m, document in zip(machine_models, machine_files, strict=True)}
    registered: dict[str, list[Machine]] = {model.name: [] for model in host_models}
    for machine in machine_models:
        registered[machine.host].append(machine)

    for document, host in zip(host_files, host_models, strict=True):
        edit_host(document, host, registered[host.name], moids)
        document.save()
    for document, machine in zip(machine_files, machine_models, strict=True):
        edit_machine(document, machine, moids)
        document.add("config.extraConfig", [_option(key, value) for key, value in EXTRA_CONFIG.items()])
        document.save()
    _refer(inventory, host_files, machine_files)
    for answer in inventory.glob("EnvironmentBrowser-*/QueryConfigTarget.xml"):
        target = SavedObject(answer)
        edit_config_target(target, host_models[:1])
        target.save()
    return inventory


def _desktop(number: int, host: HostModel) -> Machine:
    gpu = host.slots[number % len(host.slots)].pci_id
    return Machine(f"fleet-vdi-{number:05}", host.name, "poweredOn", 4, 8192, vgpu="nvidia_a40-8q", on_gpu=gpu)


def _option(key: str, value: str) -> Content:
    return {"@xsi": "OptionValue", "key": key, "value": {"@xsi": "xsd:string", "#": value}}


def _multiply(inventory: Path, kind: str, count: int) -> list[SavedObject]:
    """`count` copies of the first saved object of a type, each with ids of its own.

    The ids vcsim gave out are used first, so that nothing that refers to one of them dangles.
    """
    originals = list(saved(inventory, kind))
    template = originals[0]
    text = template.path.read_text(encoding="utf-8")
    identity = re.compile(rf"\b{re.escape(template.moid)}\b|{UUID}")
    prefix = template.moid.split("-")[0]
    moids = [document.moid for document in originals]
    moids += [f"{prefix}-{FIRST_MOID + number}" for number in range(count - len(moids))]
    for original in originals:
        original.path.unlink()
    copies: list[SavedObject] = []
    for moid in moids:
        path = inventory / f"9{len(copies):06}-{kind}-{moid}.xml"
        path.write_text(identity.sub(partial(_new_identity, moid), text), encoding="utf-8")
        copies.append(SavedObject(path))
    return copies


def _new_identity(moid: str, old: re.Match[str]) -> str:
    is_uuid = len(old[0]) == UUID_LENGTH
    return str(uuid5(NAMESPACE_OID, f"{moid} {old[0]}")) if is_uuid else moid


def _refer(inventory: Path, hosts: list[SavedObject], machines: list[SavedObject]) -> None:
    """Name the copies wherever the originals were named: cluster, pool, folder, datastores and networks."""
    host_ids, machine_ids = [h.moid for h in hosts], [m.moid for m in machines]
    for path in sorted(inventory.glob("0*.xml")):
        document = SavedObject(path)
        for name, kind, moids in (("host", "HostSystem", host_ids), ("vm", "VirtualMachine", machine_ids)):
            if document.holds_references(name, kind):
                document.put_references(name, kind, moids)
        if document.holds_references("childEntity", "VirtualMachine"):
            document.put_references("childEntity", "VirtualMachine", machine_ids)
        document.save()


if __name__ == "__main__":
    print(save_fleet(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
