"""Makes VMs: a clone of a template for `gpuops clone`, and the bare VM that holds the lock of rotations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuops.errors import OutcomeUnknown, Refused, StepFailed
from gpuops.model.vcenter.entity_name import decode_name, encode_name
from gpuops.model.vcenter.task import TaskRef
from gpuops.model.workloads.cluster import LatencyLevel, RdmaKind
from gpuops.vsphere.faults import is_gone
from gpuops.vsphere.transport.network import UnreadableReply

if TYPE_CHECKING:
    from gpuops.plan.rotation.setup import NewVm
    from gpuops.plan.vm.clone import NewCard, NewClone
    from gpuops.vsphere.session import Session

MEMORY_MIB: Final = 4
"""The least that a VM may have; it is never powered on."""
GUEST: Final = "otherGuest"
NEW_KEY: Final = -1
"""Of a device that is to be added (vSphere API reference, VirtualDevice.key: any, it gets another)."""
ROCE: Final = "rocev2"
"""Protocol of a paravirtual RDMA card (vSphere API reference, VirtualVmxnet3VrdmaVrdmaProtocol)."""
_DEEPEST: Final = 100
"""So many folders within each other; an inventory is read with as many."""


def clone_vm(session: Session, new: NewClone, op_id: str) -> TaskRef:
    """The task that makes the VM, powered off. Raises OutcomeUnknown when the reply was lost, or vCenter's error.

    A template is in no resource pool, so the clone is told one: the whole of its host's (vSphere API reference,
    VirtualMachineRelocateSpec.pool).
    """
    from pyVmomi import vim

    source, host = session.vm(new.source), session.host(new.host)
    pool = session.read(lambda: host.parent.resourcePool, subject=new.name)
    if new.folder is not None:
        folder = session.managed("Folder", new.folder)
    else:
        folder = session.read(lambda: source.parent, subject=new.name)
    location = vim.vm.RelocateSpec(host=host, pool=pool)
    if new.datastore is not None:
        location.datastore = session.managed("Datastore", new.datastore)
    spec = vim.vm.CloneSpec(location=location, powerOn=False, template=False, config=_config(new))
    task = session.change(source.CloneVM_Task, folder, encode_name(new.name), spec, subject=new.name, op_id=op_id)
    if not isinstance(task, vim.Task):
        raise OutcomeUnknown(f"{new.name}: vCenter answered without a task; whether it was made is not known yet")
    return TaskRef(str(task._moId))


def _config(new: NewClone) -> Any:
    """What the clone has otherwise than its template (vSphere API reference, VirtualMachineCloneSpec.config).

    Advanced options are taken over from the template (assumption: clone-options).
    """
    from pyVmomi import vim

    config = vim.vm.ConfigSpec(numCPUs=new.vcpus, memoryMB=new.memory_mib, annotation=new.notes)
    config.extraConfig = [vim.option.OptionValue(key=key, value=value) for key, value in new.settings.items()]
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
    """The network card on its port group.

    Of a virtual function no backing is said: the system finds one by the network (vSphere API reference,
    VirtualSriovEthernetCard.sriovBacking).
    """
    from pyVmomi import vim

    cards = vim.vm.device.VirtualEthernetCard
    port = vim.dvs.PortConnection(switchUuid=card.switch, portgroupKey=card.port_group)
    if card.kind is RdmaKind.SRIOV:
        made = vim.vm.device.VirtualSriovEthernetCard(key=NEW_KEY, allowGuestOSMtuChange=False)
    else:
        made = vim.vm.device.VirtualVmxnet3Vrdma(key=NEW_KEY, deviceProtocol=ROCE)
    made.backing = cards.DistributedVirtualPortBackingInfo(port=port)
    made.connectable = vim.vm.device.VirtualDevice.ConnectInfo(
        startConnected=True, allowGuestControl=True, connected=True
    )
    made.addressType = "generated"
    return made


def create_vm(session: Session, new: NewVm, op_id: str) -> TaskRef:
    """The task that makes a VM without disk or network card, in the topmost folder for VMs of its host's datacenter.

    Raises OutcomeUnknown when the reply was lost, NoPermission, or the error of vCenter's fault.
    """
    from pyVmomi import vim

    host = session.host(new.host)
    pool = session.read(lambda: host.parent.resourcePool, subject=new.name)
    folder = session.read(lambda: _datacenter(host).vmFolder, subject=new.name)
    if not isinstance(folder, vim.Folder):
        raise Refused(f"{new.name}: vCenter names no folder for VMs in the datacenter of {new.host_name}")
    spec = vim.vm.ConfigSpec(
        name=encode_name(new.name),
        annotation=new.annotation,
        guestId=GUEST,
        numCPUs=1,
        memoryMB=MEMORY_MIB,
        files=vim.vm.FileInfo(vmPathName=f"[{encode_name(new.datastore)}]"),
    )
    task = session.change(folder.CreateVM_Task, spec, pool, host, subject=new.name, op_id=op_id)
    if not isinstance(task, vim.Task):
        raise OutcomeUnknown(f"{new.name}: vCenter answered without a task; whether it was made is not known yet")
    return TaskRef(str(task._moId))


def remove_vm(
    session: Session, vm: str, name: str, notes: str, op_id: str, *, only_off: bool = False
) -> TaskRef | None:
    """The task that powers a VM off or, of one that is off, removes it with its files; None = it is there no more.

    Its name and its notes are read first: one of another name, or without these notes, is never touched, with
    `only_off` none that is not off. Raises Refused for such a one, OutcomeUnknown when the reply was lost.
    """
    from pyVmomi import vim

    machine = session.vm(vm)
    try:
        power = _read_of_made(session, machine, name, notes)
    except StepFailed as error:
        if is_gone(error):
            return None
        raise
    running = power != vim.VirtualMachine.PowerState.poweredOff
    if running and only_off:
        raise Refused(f"{name} is not off: it is left as it is")
    call = machine.PowerOffVM_Task if running else machine.Destroy_Task
    task = session.change(call, subject=name, op_id=op_id)
    if not isinstance(task, vim.Task):
        raise OutcomeUnknown(f"{name}: vCenter answered without a task; whether it is removed is not known yet")
    return TaskRef(str(task._moId))


def require_made(session: Session, vm: str, name: str, notes: str) -> None:
    """Raises Refused for a VM of another name, or without these notes: somebody else's, which is left as it is."""
    _read_of_made(session, session.vm(vm), name, notes)


def _read_of_made(session: Session, machine: Any, name: str, notes: str) -> Any:
    """Its power state. Raises Refused for a VM of another name, or without these notes."""
    found, said, power = session.read(
        lambda: (machine.name, machine.config.annotation, machine.runtime.powerState), subject=name
    )
    if decode_name(str(found)) != name or notes not in str(said or ""):
        raise Refused(f"{name} is not the VM that was made: it is left as it is", hint="look at its notes")
    return power


def _datacenter(host: Any) -> Any:
    """The datacenter that a host is in: every host is in one (vSphere API reference, HostSystem)."""
    from pyVmomi import vim

    place = host.parent
    for _ in range(_DEEPEST):
        if isinstance(place, vim.Datacenter):
            return place
        place = place.parent
    raise UnreadableReply(f"more than {_DEEPEST} folders within each other")
