"""Faults and versions of the API: each fault we may meet has its error and words, and versions are pyVmomi's own."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
from pyVmomi import VmomiSupport, vim, vmodl

from gpuops.errors import GpuopsError, LoginRefused, NoPermission, OutcomeUnknown, StepFailed, Trouble
from gpuops.plan.core.versions import version_numbers
from gpuops.sim.core.fragments import resolve
from gpuops.vsphere import faults
from gpuops.vsphere.reading.bulk import reader
from gpuops.vsphere.transport.wire import KNOWN

CALLED = {
    vim.VirtualMachine: (
        "ReconfigVM_Task", "PowerOnVM_Task", "PowerOffVM_Task", "SuspendVM_Task", "ShutdownGuest", "RelocateVM_Task",
    ),
    vim.CustomFieldsManager: ("AddCustomFieldDef", "SetField"),
    vim.SessionManager: ("Login", "Logout"),
    vim.EnvironmentBrowser: ("QueryConfigTarget",),
    vim.option.OptionManager: ("QueryOptions",),
    vim.ServiceInstance: ("RetrieveServiceContent", "CurrentTime"),
    vim.view.ViewManager: ("CreateContainerView", "DestroyView"),
    vim.TaskManager: ("CreateCollectorForTasks",),
    vim.vm.guest.ProcessManager: ("StartProgramInGuest", "ListProcessesInGuest"),
    vim.TaskHistoryCollector: ("ReadNextTasks",),
    vim.HistoryCollector: ("DestroyCollector",),
    vmodl.query.PropertyCollector: (
        "RetrievePropertiesEx", "ContinueRetrievePropertiesEx", "CreateFilter", "WaitForUpdatesEx",
        "CreatePropertyCollector", "DestroyPropertyCollector", "DestroyPropertyFilter",
    ),
}  # fmt: skip

CATCH_ALL = ("fault.VimFault", "vmodl:RuntimeFault", "vmodl:MethodFault")


def _declared_faults() -> list[Any]:
    return [
        pytest.param(VmomiSupport.GetVmodlType(fault), id=f"{method}-{fault.rpartition('.')[2]}")
        for kind, methods in CALLED.items()
        for method in methods
        for fault in VmomiSupport.GetWsdlMethod("urn:vim25", method).info.faults or ()
    ]


def test_some_faults_are_declared_at_all() -> None:
    assert len(_declared_faults()) > 20


@pytest.mark.parametrize("declared", _declared_faults())
def test_every_declared_fault_has_a_row_of_its_own_or_of_its_family(declared: type) -> None:
    row = faults.row_for(declared)
    assert row.fault not in CATCH_ALL
    assert row.error is not GpuopsError


def test_no_row_hides_behind_a_more_general_one() -> None:
    kinds = [kind for kind, _ in faults._rows()]
    hidden = [
        later.__name__
        for position, later in enumerate(kinds)
        for earlier in kinds[:position]
        if issubclass(later, earlier)
    ]
    assert hidden == []


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (vim.fault.NotAuthenticated(privilegeId="System.View"), LoginRefused, "not logged in"),
        (
            vim.fault.NoPermission(
                missingPrivileges=[vim.fault.NoPermission.EntityPrivileges(privilegeIds=["VirtualMachine.Interact.PowerOn"])]
            ),
            NoPermission,
            "VirtualMachine.Interact.PowerOn",
        ),
        (
            vim.fault.InsufficientHostMemoryCapacityFault(requested=64 * 2**30, unreserved=32 * 2**30),
            StepFailed,
            "needs 65536 MiB, 32768 unreserved",
        ),
        (vim.fault.InvalidPowerState(existingState="suspended"), StepFailed, "it is suspended now"),
        (vim.fault.GenericVmConfigFault(reason="no room on the PCI bus"), StepFailed, "no room on the PCI bus"),
        (vim.fault.NoCompatibleHost(error=[vim.fault.TooManyDevices(msg="too many")]), StepFailed, "too many"),
        (vim.fault.QuestionPending(text="Retry?"), StepFailed, "Retry?"),
        (vmodl.fault.HostNotConnected(), OutcomeUnknown, "lost the connection"),
        (vmodl.fault.ManagedObjectNotFound(), StepFailed, "gone"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)  # fmt: skip
def test_a_fault_is_said_with_its_own_facts(fault: Exception, error: type[GpuopsError], words: str) -> None:
    translated = faults.translate(fault, "ml-07")
    assert type(translated) is error
    assert translated.message.startswith("ml-07: ")
    assert words in translated.message


@pytest.mark.parametrize(
    ("trouble", "kinds"),
    [
        (Trouble.LOST, [vmodl.fault.HostNotConnected, vmodl.fault.HostCommunication, vmodl.fault.RequestCanceled]),
        (Trouble.SESSION, [vim.fault.NotAuthenticated]),
        (Trouble.BUSY, [vim.fault.TaskInProgress, vim.fault.ConcurrentAccess, vim.fault.ResourceInUse]),
        (Trouble.STATE, [vim.fault.InvalidPowerState, vim.fault.InvalidState, vmodl.fault.ManagedObjectNotFound]),
        (
            Trouble.CAPACITY,
            [
                vim.fault.InsufficientGraphicsResourcesFault,
                vim.fault.InsufficientResourcesFault,
                vim.fault.NoDiskSpace,
                vim.fault.NoCompatibleHost,
                vmodl.fault.NotEnoughLicenses,
                vim.fault.LicenseExpired,
                vim.fault.LicenseServerUnavailable,
            ],
        ),
        (
            Trouble.DENIED,
            [
                vim.fault.NoPermission,
                vim.fault.RestrictedByAdministrator,
                vim.fault.QuestionPending,
                vmodl.fault.NotSupported,
                vim.fault.VimFault,
                vmodl.fault.SystemError,
            ],
        ),
    ],
)
def test_there_are_six_kinds_of_trouble_and_what_fits_none_is_denied(trouble: Trouble, kinds: list[type]) -> None:
    """The engine decides by these alone: whether it looks, logs in anew, waits, plans anew or stops."""
    assert {kind.__name__: faults.translate(kind(), "ml-07").trouble for kind in kinds} == dict.fromkeys(
        (kind.__name__ for kind in kinds), trouble
    )


def test_the_known_versions_are_pyvmomis_newest_first() -> None:
    wires = [key.removeprefix("vim25/") for key in VmomiSupport.versionMap if key.startswith("vim25/")]
    numbered = [wire for wire in wires if re.fullmatch(r"\d+(\.\d+)+", wire) and version_numbers(wire) >= (6, 5)]
    assert list(KNOWN) == sorted(numbered, key=version_numbers, reverse=True)


@pytest.mark.parametrize("version", KNOWN)
def test_a_read_asks_for_no_property_that_the_version_lacks(version: str) -> None:
    paths: dict[str, tuple[str, ...]] = {
        "HostSystem": reader.HOST + reader.HOST_DEVICES,
        "VirtualMachine": reader.VM + reader.VM_DETAIL,
        "ClusterComputeResource": reader.CLUSTER,
        "Datastore": reader.DATASTORE,
        "Task": reader.TASK,
    }
    for kind, property_names in paths.items():
        for path in reader.supported_paths(property_names, version):
            resolve(kind, path, VmomiSupport.versionMap[f"vim25/{version}"])


def test_the_reading_side_is_imported_without_pyvmomi() -> None:
    probe = "import sys, gpuops.vsphere.connection; print('pyVmomi' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", probe], capture_output=True, encoding="utf-8", check=True)
    assert process.stdout.strip() == "False"
