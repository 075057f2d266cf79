"""Translates faults of vCenter into errors of gpuops by one table, the most specific fault first.

`translate` is the only place where a vim or vmodl fault becomes an error of gpuops; the fault stays its cause.
Fault names and fields: vSphere API reference (Web Services), fault types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from gpuops.errors import (
    GpuopsError,
    LoginRefused,
    NoFreeGpu,
    NoPermission,
    OutcomeUnknown,
    ProtocolError,
    StepFailed,
    Trouble,
)
from gpuops.model.vcenter.inventory import decode_name

_MIB: Final = 1024 * 1024
_FAULT_NAME: Final = re.compile("[A-Za-z]{1,120}")

Wording = Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class Row:
    """One fault (`fault.X` of vim, `vmodl:X` of vmodl), and the words, hint and class of the error it becomes."""

    fault: str
    words: Wording | str
    hint: str = ""
    error: type[GpuopsError] = StepFailed
    trouble: Trouble | None = None
    """Its meaning, if that differs from the default of its error class."""


def _text(fault: Any) -> str:
    return str(getattr(fault, "msg", "") or type(fault).__name__)


def _name(fault: Any) -> str:
    return decode_name(str(fault.name or ""))


def _lack_of_resources(fault: Any) -> str:
    """Return the needed and the unreserved amount: vCenter has memory in bytes, CPU in MHz."""
    requested, unreserved = getattr(fault, "requested", 0) or 0, getattr(fault, "unreserved", 0) or 0
    if "Memory" in type(fault).__name__:
        return f"not enough memory: needs {requested // _MIB} MiB, {unreserved // _MIB} unreserved"
    return f"not enough CPU: needs {requested} MHz, {unreserved} unreserved"


def _no_compatible_host(fault: Any) -> str:
    first_reason = next((_text(error) for error in getattr(fault, "error", None) or ()), "")
    return "no host can run it" + (f": {first_reason}" if first_reason else "")


def _no_permission(fault: Any) -> str:
    by_entity = getattr(fault, "missingPrivileges", None) or ()
    missing = [privilege for entity in by_entity for privilege in entity.privilegeIds]
    names = ", ".join(filter(None, missing or [getattr(fault, "privilegeId", "")]))
    return f"this login lacks the privilege {names or '(vCenter does not report which)'}"


def _power_state(fault: Any) -> str:
    return f"it is {getattr(fault, 'existingState', None) or 'in another power state'} now"


def _question(fault: Any) -> str:
    return f"it asks a question: {getattr(fault, 'text', '') or _text(fault)}"


TABLE: Final[Sequence[Row]] = (
    # no login, or one that has ended; NotAuthenticated is a subclass of NoPermission, so it comes first
    Row("fault.NotAuthenticated", "the session is not logged in any more", "run the command again", error=LoginRefused),
    Row("fault.PasswordExpired", "the password has expired", "change it in vCenter first", error=LoginRefused),
    Row(
        "fault.InvalidLogin",
        "vCenter refuses the user name or the password",
        "check the user name, and the file or variable that the password comes from",
        error=LoginRefused,
    ),
    Row("fault.InvalidLocale", "vCenter refuses the locale of the session", error=LoginRefused),
    Row(
        "fault.NoPermission",
        _no_permission,
        "ask for this privilege, or log in as a user who has it",
        error=NoPermission,
    ),
    Row(
        "fault.RestrictedByAdministrator",
        lambda fault: f"forbidden by an administrator: {fault.details}",
        error=NoPermission,
    ),
    Row("fault.RestrictedVersion", "the licence of the host does not allow it", error=NoPermission),
    # no GPU, no memory, no host
    # assumption: no-gpu-fault
    Row(
        "fault.InsufficientGraphicsResourcesFault",
        "no graphics resources: no free vGPU slot of that profile on the host",
        "gpuops inventory --hosts shows which VMs use the GPUs",
        error=NoFreeGpu,
        trouble=Trouble.CAPACITY,
    ),
    # assumption: no-memory-fault
    Row(
        "fault.InsufficientHostMemoryCapacityFault",
        _lack_of_resources,
        "free memory on the host: a VM with a GPU reserves all its memory",
        trouble=Trouble.CAPACITY,
    ),
    Row("fault.InsufficientHostCpuCapacityFault", _lack_of_resources, trouble=Trouble.CAPACITY),
    Row(
        "fault.InsufficientMemoryResourcesFault",
        _lack_of_resources,
        "free memory: a VM with a GPU reserves all its memory",
        trouble=Trouble.CAPACITY,
    ),
    Row("fault.InsufficientCpuResourcesFault", _lack_of_resources, trouble=Trouble.CAPACITY),
    Row(
        "fault.InsufficientResourcesFault",
        lambda fault: f"not enough resources: {_text(fault)}",
        trouble=Trouble.CAPACITY,
    ),
    Row("fault.NoCompatibleHost", _no_compatible_host, "gpuops attach --explain shows why", trouble=Trouble.CAPACITY),
    Row(
        "fault.NoDiskSpace",
        lambda fault: f"no space left on datastore {fault.datastore}",
        "free some space there",
        trouble=Trouble.CAPACITY,
    ),
    Row(
        "vmodl:NotEnoughLicenses",
        lambda fault: f"no licence is left for it: {_text(fault)}",
        "free or add a licence",
        trouble=Trouble.CAPACITY,
    ),
    Row(
        "fault.LicenseServerUnavailable",
        "its licence server does not answer",
        "check the licence server, then run the command again",
        trouble=Trouble.CAPACITY,
    ),
    # another task or user is changing it
    Row(
        "fault.TaskInProgress",
        "another task is running on it",
        "wait for that task, then run the command again",
        trouble=Trouble.BUSY,
    ),
    Row(
        "fault.ConcurrentAccess",
        "another user or program changed it meanwhile",
        "run the command again",
        trouble=Trouble.BUSY,
    ),
    Row("fault.ResourceInUse", lambda fault: f"{_name(fault) or 'a resource'} is in use", trouble=Trouble.BUSY),
    Row(
        "fault.MethodDisabled",
        "another product, such as a backup, has blocked this change",
        "run the command again later",
    ),
    # its state
    Row("fault.QuestionPending", _question, "answer it in the vSphere Client"),
    Row("fault.InvalidPowerState", _power_state, "run the command again", trouble=Trouble.STATE),
    Row("fault.ToolsUnavailable", "VMware Tools does not run in the guest", "start VMware Tools, or power off the VM"),
    Row("fault.VmPowerOnDisabled", "power-on is disabled for it"),
    Row(
        "fault.InvalidHostState",
        lambda fault: f"not possible in the state of the host: {_text(fault)}",
        trouble=Trouble.STATE,
    ),
    Row(
        "fault.InvalidState",
        lambda fault: f"not possible in its state: {_text(fault)}",
        "run the command again",
        trouble=Trouble.STATE,
    ),
    # its devices and configuration
    Row("fault.DeviceHotPlugNotSupported", "the device cannot be added while the VM runs", "power it off first"),
    Row(
        "fault.DeviceBackingNotSupported",
        lambda fault: f"the host does not offer {fault.device or 'that device'}",
        "gpuops inventory --hosts shows what each host offers",
    ),
    Row("fault.DeviceNotSupported", lambda fault: f"the host does not support {fault.device or 'that device'}"),
    Row("fault.TooManyDevices", "the VM cannot have another device", "remove a device from it first"),
    Row("fault.InvalidDeviceSpec", lambda fault: f"the device change is refused: {_text(fault)}"),
    Row("fault.FeatureRequirementsNotMet", "the host's CPU lacks features the VM was started with"),
    Row("fault.GenericVmConfigFault", lambda fault: fault.reason or _text(fault)),
    Row("fault.SuspendedRelocateNotSupported", "a suspended VM cannot move between these hosts"),
    Row("fault.MigrationFault", lambda fault: f"it cannot be moved: {_text(fault)}"),
    Row("fault.VmConfigFault", lambda fault: f"its configuration is refused: {_text(fault)}"),
    Row("fault.InvalidDatastore", lambda fault: f"its datastore is not usable: {_text(fault)}"),
    Row("fault.HostConfigFault", lambda fault: f"the host refused the setting: {_text(fault)}"),
    Row("fault.FileNotFound", lambda fault: f"there is no file {fault.file or ''}".rstrip()),
    Row("fault.FileFault", lambda fault: f"its file {fault.file or ''} is not usable: {_text(fault)}"),
    # guests
    Row(
        "fault.InvalidGuestLogin",
        "its guest refuses the user or the password of GPUOPS_GUEST_USERNAME",
        "check both in the guest",
    ),
    Row("fault.GuestPermissionDenied", "its guest does not permit this user to do it"),
    Row("fault.GuestOperationsUnavailable", "VMware Tools does not answer in its guest"),
    Row(
        "fault.OperationDisabledByGuest",
        "guest operations are disabled in its guest",
        "enable them in the configuration of VMware Tools",
    ),
    Row("fault.GuestOperationsFault", lambda fault: f"its guest refuses: {_text(fault)}"),
    # names and time
    Row("fault.DuplicateName", lambda fault: f"another object already has the name {_name(fault)!r}"),
    Row("fault.InvalidName", lambda fault: f"vCenter does not accept the name {_name(fault)!r}"),
    Row("fault.AlreadyExists", lambda fault: f"{_name(fault) or 'it'} exists already"),
    Row("fault.NotFound", lambda fault: f"not found: {_text(fault)}"),
    Row("fault.InvalidPrivilege", lambda fault: f"unknown privilege {fault.privilege}"),
    Row("fault.Timedout", "vCenter stopped waiting for its end", "run the command again"),
    # the host or vCenter itself; what happened to a change is then not known
    Row(
        "vmodl:ManagedObjectNotFound",
        "it is gone from vCenter",
        "gpuops inventory --hosts shows the VMs and hosts that exist",
        trouble=Trouble.STATE,
    ),
    Row("vmodl:HostNotConnected", "vCenter lost the connection to its host", error=OutcomeUnknown),
    Row("vmodl:HostNotReachable", "vCenter cannot reach its host", error=OutcomeUnknown),
    Row("vmodl:HostCommunication", "vCenter cannot communicate with its host", error=OutcomeUnknown),
    Row("vmodl:RequestCanceled", "the request was cancelled", error=OutcomeUnknown),
    Row("vmodl:InvalidCollectorVersion", "vCenter has reset its property collector", error=OutcomeUnknown),
    Row(
        "vmodl:MethodNotFound",
        lambda fault: f"this vCenter does not know {fault.method}",
        "gpuops needs vSphere 6.7 or newer",
        error=ProtocolError,
    ),
    Row("vmodl:NotSupported", lambda fault: f"the host or vCenter does not support this: {_text(fault)}"),
    Row("vmodl:InvalidProperty", lambda fault: f"this vCenter has no property {fault.name}", error=ProtocolError),
    Row(
        "vmodl:InvalidArgument",
        lambda fault: f"vCenter refuses the argument {fault.invalidProperty or ''}: {_text(fault)}",
    ),
    Row(
        "vmodl:InvalidRequest",
        lambda fault: f"vCenter cannot read the request of gpuops: {_text(fault)}",
        error=ProtocolError,
    ),
    Row("vmodl:SystemError", lambda fault: f"vCenter reports an internal error: {fault.reason or _text(fault)}"),
    Row("fault.VimFault", _text),
    Row("vmodl:RuntimeFault", _text),
    Row("vmodl:MethodFault", _text),
)


def translate(fault: Any, subject: str = "") -> GpuopsError:
    """Return the error for a fault, for `raise ... from fault`. `subject` is the name of a VM or host."""
    # the first row that fits: TABLE has the most specific faults first
    row = next(row for kind, row in _rows() if isinstance(fault, kind))
    words = row.words if isinstance(row.words, str) else row.words(fault)
    error_class = NoFreeGpu if row.error is StepFailed and _lacks_gpus(fault) else row.error
    error = error_class(f"{subject}: {words}" if subject else words, hint=row.hint)
    error.trouble = row.trouble or error.trouble
    return error


def _lacks_gpus(fault: Any) -> bool:
    """Return whether each host of a NoCompatibleHost fault cannot run the VM because it has no free GPU."""
    reasons = getattr(fault, "error", None) or ()
    return bool(reasons) and all(row_for(type(reason)).error is NoFreeGpu for reason in reasons)


def fault_error(fault: str, message: str) -> GpuopsError:
    """Return the error for a fault of this wire name, with this message; ProtocolError for unknown names."""
    kind = _fault_type(fault)
    if kind is None:
        return ProtocolError(message)
    row = row_for(kind)
    return row.error(message, hint=row.hint)


def _fault_type(name: str) -> type | None:
    """Return the vmomi class of that wire name, or None if vSphere has no fault of that name."""
    from pyVmomi import VmomiSupport, vmodl

    if _FAULT_NAME.fullmatch(name) is None:
        return None
    try:
        fault_class = VmomiSupport.GetWsdlType("urn:vim25", name)
    except (AttributeError, KeyError):  # a server may name anything
        return None
    return fault_class if isinstance(fault_class, type) and issubclass(fault_class, vmodl.MethodFault) else None


def row_for(fault_type: type) -> Row:
    """Return the first row for a fault of this class; the last row is for all faults."""
    return next(row for kind, row in _rows() if issubclass(fault_type, kind))


@cache
def _rows() -> tuple[tuple[type, Row], ...]:
    """Return the rows of the table, each with its pyVmomi class. pyVmomi is imported only when a fault occurs."""
    from pyVmomi import vim, vmodl

    typed_rows = []
    for row in TABLE:
        name = row.fault.removeprefix("vmodl:").removeprefix("fault.")
        # vmodl has its faults in three modules
        modules = (vmodl.fault, vmodl, vmodl.query) if row.fault.startswith("vmodl:") else (vim.fault,)
        kind = next((kind for module in modules if (kind := getattr(module, name, None)) is not None), None)
        assert kind is not None, f"pyVmomi has no {row.fault}"
        typed_rows.append((kind, row))
    return tuple(typed_rows)


def is_gone(error: GpuopsError) -> bool:
    """Return whether vCenter reports that the object does not exist any more."""
    from pyVmomi import vmodl

    return isinstance(error.__cause__, vmodl.fault.ManagedObjectNotFound)
