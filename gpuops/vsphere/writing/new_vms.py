"""Makes and removes VMs: a clone of a template for `gpuops clone`, and the bare VM that holds the lock of rotations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuops.errors import Refused
from gpuops.model.vcenter.inventory import decode_name, encode_name
from gpuops.model.vcenter.vm import PowerState
from gpuops.model.workloads.cluster import LatencyLevel, RdmaKind
from gpuops.plan.core.step_checks import NOT_MADE, NOT_OFF
from gpuops.plan.core.steps import PowerOffForRemoval
from gpuops.vsphere.transport.network import UnreadableReply

if TYPE_CHECKING:
    from gpuops.plan.core.steps import CloneVm, CreateVm, NewCard, RemovalStep
    from gpuops.vsphere.session import Session

MEMORY_MIB: Final = 4
"""Memory of the lock VM: the least that a VM may have, because it is never powered on."""
GUEST: Final = "otherGuest"
"""Guest id of the lock VM, which has no guest."""
NEW_KEY: Final = -1
"""The key of a device to add (vSphere API reference, VirtualDevice.key: vCenter assigns another one)."""
ROCE: Final = "rocev2"
"""Protocol of a paravirtual RDMA card (vSphere API reference, VirtualVmxnet3VrdmaVrdmaProtocol)."""
_DEEPEST: Final = 100
"""The limit of nested folders, the same as for reads of inventories."""


def cloning(session: Session, new: CloneVm) -> tuple[Any, ...]:
    """Return the call that clones the VM, powered off, and its arguments.

    A template has no resource pool, so the clone gets the root pool of its host (vSphere API reference,
    VirtualMachineRelocateSpec.pool).
    """
    from pyVmomi import vim

    source, host = session.vm(new.source), session.host(new.host)
    pool = session.read(lambda: host.parent.resourcePool, subject=new.name)
    if new.folder is not None:
        folder = session.managed_object("Folder", new.folder)
    else:
        folder = session.read(lambda: source.parent, subject=new.name)
    location = vim.vm.RelocateSpec(host=host, pool=pool)
    if new.datastore is not None:
        location.datastore = session.managed_object("Datastore", new.datastore)
    spec = vim.vm.CloneSpec(location=location, powerOn=False, template=False, config=_config(new))
    return source.CloneVM_Task, folder, encode_name(new.name), spec


def _config(new: CloneVm) -> Any:
    """Return the settings of the clone that differ from its template (vSphere API, VirtualMachineCloneSpec.config).

    The clone inherits the advanced options of the template (assumption: clone-options).
    """
    from pyVmomi import vim

    config = vim.vm.ConfigSpec(numCPUs=new.vcpus, memoryMB=new.memory_mib, annotation=new.notes)
    config.extraConfig = [vim.option.OptionValue(key=key, value=setting) for key, setting in new.settings.items()]
    if new.memory_locked:
        config.memoryReservationLockedToMax = True
    if new.cpu_reservation_mhz is not None:
        config.cpuAllocation = vim.ResourceAllocationInfo(reservation=new.cpu_reservation_mhz)
    if new.latency is not LatencyLevel.NORMAL:
        config.latencySensitivity = vim.LatencySensitivity(level=new.latency.value)
    if new.card is not None:
        operation = vim.vm.device.VirtualDeviceSpec.Operation.add
        config.deviceChange = [vim.vm.device.VirtualDeviceSpec(operation=operation, device=_card(new.card))]
    return config


def _card(card: NewCard) -> Any:
    """Return the network card on its port group.

    A card on a virtual function gets no `sriovBacking`: vSphere selects the function by the network (vSphere API
    reference, VirtualSriovEthernetCard.sriovBacking).
    """
    from pyVmomi import vim

    port = vim.dvs.PortConnection(switchUuid=card.switch, portgroupKey=card.port_group)
    if card.kind is RdmaKind.SRIOV:
        card_device = vim.vm.device.VirtualSriovEthernetCard(key=NEW_KEY, allowGuestOSMtuChange=False)
    else:
        card_device = vim.vm.device.VirtualVmxnet3Vrdma(key=NEW_KEY, deviceProtocol=ROCE)
    card_device.backing = vim.vm.device.VirtualEthernetCard.DistributedVirtualPortBackingInfo(port=port)
    card_device.connectable = vim.vm.device.VirtualDevice.ConnectInfo(
        startConnected=True, allowGuestControl=True, connected=True
    )
    card_device.addressType = "generated"
    return card_device


def creating(session: Session, new: CreateVm) -> tuple[Any, ...]:
    """Return the call that creates the VM, without disk or network card, and its arguments."""
    from pyVmomi import vim

    host = session.host(new.host)
    pool = session.read(lambda: host.parent.resourcePool, subject=new.name)
    spec = vim.vm.ConfigSpec(
        name=encode_name(new.name),
        annotation=new.notes,
        guestId=GUEST,
        numCPUs=1,
        memoryMB=MEMORY_MIB,
        files=vim.vm.FileInfo(vmPathName=f"[{encode_name(new.datastore)}]"),
    )
    return root_folder(session, new).CreateVM_Task, spec, pool, host


def root_folder(session: Session, new: CreateVm) -> Any:
    """Return the root VM folder of the datacenter of its host. Raises Refused if vCenter names none."""
    from pyVmomi import vim

    host = session.host(new.host)

    def find_vm_folder() -> Any:
        """Return the VM folder of the host's datacenter: every host has one (vSphere API reference, HostSystem)."""
        place = host.parent
        for _ in range(_DEEPEST):
            if isinstance(place, vim.Datacenter):
                return place.vmFolder
            place = place.parent
        raise UnreadableReply(f"more than {_DEEPEST} folders within each other")

    folder = session.read(find_vm_folder, subject=new.name)
    if not isinstance(folder, vim.Folder):
        raise Refused(
            f"{new.name}: vCenter returns no VM folder for the datacenter of {new.host_name}",
            hint="give this login System.View on the datacenter",
        )
    return folder


def removing(session: Session, step: RemovalStep) -> tuple[Any, ...]:
    """Return the call that powers off or removes a VM that gpuops made. Its name, notes and power state are read now.

    Raises Refused for a VM that gpuops did not make, and for the removal of a VM that is not off: vCenter would remove
    a suspended VM with the memory of its guest.
    """
    power = power_of_made(session, step.vm, step.name, step.notes)
    target = session.vm(step.vm)
    if isinstance(step, PowerOffForRemoval):
        return (target.PowerOffVM_Task,)
    if power is not PowerState.OFF:
        raise Refused(f"{step.name} {NOT_OFF}")
    return (target.Destroy_Task,)


def require_made(session: Session, vm: str, name: str, notes: str) -> None:
    """Raise Refused for a VM that has another name, or lacks these notes: gpuops did not make it."""
    try:
        power_of_made(session, vm, name, notes)
    except Refused as error:
        raise Refused(error.message, hint="read its notes in the vSphere Client") from error


def power_of_made(session: Session, vm: str, name: str, notes: str) -> PowerState:
    """Return the power state of a VM that gpuops made. Raises Refused for one of another name or without these notes.

    Raises StepFailed for a VM that does not exist any more.
    """
    target = session.vm(vm)
    present_name, present_notes, power = session.read(
        lambda: (target.name, target.config.annotation, target.runtime.powerState), subject=name
    )
    if decode_name(str(present_name)) != name or notes not in str(present_notes or ""):
        raise Refused(f"{name} {NOT_MADE}")
    return PowerState(str(power))
