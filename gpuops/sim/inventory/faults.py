"""The faults that the simulated vCenter answers with, and their texts.

Which fault a real host uses is documented for InsufficientGraphicsResourcesFault (NVIDIA AI Enterprise docs), for a
wrong systemId (govmomi issue 2248) and in the API's declared faults; the others are from memory and marked so.
"""

from __future__ import annotations

from typing import Any

from pyVmomi import vim, vmodl

from gpuops.sim.state.vm_state import Power, Question


def wrong_power_state(existing: Power, requested: Power | None = None) -> Exception:
    """InvalidPowerState with the existing power state and the one that the method needs."""
    state = {"poweredOn": "Powered on", "poweredOff": "Powered off", "suspended": "Suspended"}[existing.value]
    return _fault(
        vim.fault.InvalidPowerState,
        f"The attempted operation cannot be performed in the current state ({state}).",
        existingState=existing.value,
        requestedState=requested.value if requested else None,
    )


def wrong_state(text: str) -> Exception:
    """InvalidState with a reason (a host in maintenance mode, a template that should run)."""
    return _fault(vim.fault.InvalidState, text)


def host_not_connected(host: str) -> Exception:
    return _fault(vmodl.fault.HostNotConnected, f"The host {host} is not connected.")


def question_pending(question: Question) -> Exception:
    return _fault(vim.fault.QuestionPending, "The virtual machine has a pending question.", text=question.text)


def no_graphics(reasons: str) -> Exception:
    """InsufficientGraphicsResourcesFault has no field of its own; the reasons go with it as fault messages."""
    return _fault(
        vim.fault.InsufficientGraphicsResourcesFault,
        "The amount of graphics resource available in the parent resource pool is insufficient for the operation.",
        faultMessage=[vmodl.LocalizableMessage(key="com.vmware.esx.vgpu.admission", message=reasons)],
    )


def no_memory(unreserved_mib: int, requested_mib: int) -> Exception:
    return _fault(
        vim.fault.InsufficientMemoryResourcesFault,
        "The amount of memory resource available in the parent resource pool is insufficient for the operation.",
        unreserved=unreserved_mib << 20,
        requested=requested_mib << 20,
    )


def no_failover_resources(vm: str) -> Exception:
    return _fault(
        vim.fault.InsufficientFailoverResourcesFault,
        f"Insufficient resources to satisfy the configured failover level for vSphere HA: {vm} is not powered on.",
    )


def no_cpu(unreserved_mhz: int, requested_mhz: int) -> Exception:
    return _fault(
        vim.fault.InsufficientCpuResourcesFault,
        "The amount of CPU resource available in the parent resource pool is insufficient for the operation.",
        unreserved=unreserved_mhz,
        requested=requested_mhz,
    )


def will_not_power_on(reason: str) -> Exception:
    """GenericVmConfigFault, as ESXi answers when a device's own power-on fails (from memory)."""
    text = f"{reason} Module 'DevicePowerOn' power on failed."
    return _fault(vim.fault.GenericVmConfigFault, text, reason=text)


def device_not_available(device: str, vm: str, host: str) -> Exception:
    """No free device for Dynamic DirectPath I/O (fault and text from memory)."""
    return _fault(
        vim.fault.InsufficientResourcesFault,
        f"Insufficient resources. One or more devices ({device}) required by VM {vm} are not available on host {host}.",
    )


def no_compatible_host(errors: list[tuple[Any, Any]]) -> Exception:
    return _fault(
        vim.fault.NoCompatibleHost,
        "No host is compatible with the virtual machine.",
        host=[host for host, _ in errors],
        error=[error for _, error in errors],
    )


def no_disk_space(file: str, datastore: str) -> Exception:
    return _fault(
        vim.fault.NoDiskSpace, f"There is not enough space on datastore {datastore}.", file=file, datastore=datastore
    )


def device_fault(kind: Any, index: int, text: str, **fields: Any) -> Exception:
    """InvalidDeviceSpec or one of its kinds; `index` counts in deviceChange."""
    return _fault(kind, text, property=f"virtualDeviceSpec.device[{index}]", deviceIndex=index, **fields)


def wrong_argument(name: str, text: str = "") -> Exception:
    return _fault(
        vmodl.fault.InvalidArgument, text or f"A specified parameter was not correct: {name}", invalidProperty=name
    )


def invalid_name(name: str, entity: Any = None) -> Exception:
    """InvalidName: the text is not a valid name of an entity."""
    return _fault(vim.fault.InvalidName, f"The name '{name}' is invalid.", name=name, entity=entity)


def duplicate_name(name: str, twin: Any) -> Exception:
    """DuplicateName: `twin` has it already."""
    return _fault(vim.fault.DuplicateName, f"The name '{name}' already exists.", name=name, object=twin)


def invalid_datastore_path(path: str) -> Exception:
    """InvalidDatastorePath: it names no datastore that is there, or is not "[datastore] path" (vSphere API)."""
    return _fault(vim.fault.InvalidDatastorePath, f"Invalid datastore path '{path}'.", datastorePath=path)


def invalid_folder(folder: Any, text: str) -> Exception:
    """InvalidFolder: the folder cannot hold what is to be put there."""
    return _fault(vim.fault.InvalidFolder, text, target=folder)


def invalid_type(text: str, entity: Any) -> Exception:
    return _fault(vmodl.fault.InvalidType, text, argument=entity.wsdl_name)


def in_use(entity: Any) -> Exception:
    """ResourceInUse: something is still in it."""
    return resource_in_use(entity.name, f"The resource '{entity.name}' is in use.", type(entity.ref))


def stale_change_version() -> Exception:
    return _fault(vim.fault.ConcurrentAccess, "The object has been modified since it was read (changeVersion).")


def tools_unavailable() -> Exception:
    return _fault(
        vim.fault.ToolsUnavailable,
        "Cannot complete operation because VMware Tools is not running in this virtual machine.",
    )


def not_found(text: str) -> Exception:
    return _fault(vim.fault.NotFound, text)


def already_exists(name: str) -> Exception:
    return _fault(
        vim.fault.AlreadyExists, f"The specified key, name, or identifier '{name}' already exists.", name=name
    )


def resource_in_use(name: str, text: str, kind: type | None = vim.Network) -> Exception:
    return _fault(vim.fault.ResourceInUse, text, type=kind, name=name)


def host_config(text: str) -> Exception:
    return _fault(vim.fault.HostConfigFault, text)


def not_supported(text: str = "The operation is not supported on the object.") -> Exception:
    return _fault(vmodl.fault.NotSupported, text)


def _fault(kind: Any, msg: str, /, **fields: Any) -> Exception:
    return kind(msg=msg, **{name: value for name, value in fields.items() if value is not None})
