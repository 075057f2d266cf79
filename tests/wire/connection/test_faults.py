"""Faults over the wire: refused calls and failed tasks, as the errors and exit codes a user meets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuops.errors import GpuopsError, LoginRefused, NoPermission, OutcomeUnknown, StepFailed
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.task import TaskRef
from gpuops.plan.core.steps import PowerOffVm, PowerOnVm, ResumeVm, SetAttribute, Step, SuspendVm
from gpuops.sim.fault_injection.rule import Effect, Phase, Rule
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of

pytestmark = pytest.mark.long


@pytest.fixture
def connection(lab: SimServer) -> Iterator[Connection]:
    with Connection(target_of(lab)) as opened:
        yield opened


@pytest.fixture
def inventory(connection: Connection) -> Inventory:
    return connection.inventory()


def end_of(connection: Connection, step: Step, inventory: Inventory) -> GpuopsError | None:
    task = connection.submit(step, inventory, "op")
    assert isinstance(task, TaskRef)
    [end] = connection.wait([task], 600)
    return end.error


@pytest.mark.parametrize(
    ("fault", "error", "exit_code"),
    [
        ("NoPermission", NoPermission, 3),
        ("RestrictedByAdministrator", NoPermission, 3),
        ("TaskInProgress", StepFailed, 4),
        ("MethodDisabled", StepFailed, 4),
        ("InvalidPowerState", StepFailed, 4),
        ("ManagedObjectNotFound", StepFailed, 4),
        ("SystemError", StepFailed, 4),
        ("HostNotConnected", OutcomeUnknown, 4),
        ("RequestCanceled", OutcomeUnknown, 4),
        ("NotAuthenticated", LoginRefused, 5),
    ],
)
def test_a_refused_call_is_an_error_of_ours_naming_the_vm(
    lab: SimServer, connection: Connection, inventory: Inventory, fault: str, error: type[GpuopsError], exit_code: int
) -> None:
    lab.world.injector.add(Rule(Effect.FAULT, "PowerOnVM_Task", fault=fault))
    with pytest.raises(error) as raised:
        connection.submit(PowerOnVm(inventory.find_vm("ml-01").ref), inventory, "op")
    assert raised.value.message.startswith("ml-01: ")
    assert raised.value.exit_code == exit_code
    assert list(lab.world.ledger) == []


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("InsufficientGraphicsResourcesFault", "no graphics resources"),
        ("InsufficientHostMemoryCapacityFault", "not enough memory: needs 0 MiB"),
        ("NoCompatibleHost", "no host can run it"),
        ("NoDiskSpace", "no space left on datastore"),
        ("ConcurrentAccess", "another user or program changed it"),
        ("GenericVmConfigFault", "as injected"),
        ("FeatureRequirementsNotMet", "lacks features"),
        ("DeviceBackingNotSupported", "does not offer"),
    ],
)
def test_a_failed_task_ends_in_words_and_has_no_effect(
    lab: SimServer, connection: Connection, inventory: Inventory, fault: str, words: str
) -> None:
    lab.world.injector.add(Rule(Effect.TASK, "PowerOnVM_Task", fault=fault))
    error = end_of(connection, PowerOnVm(inventory.find_vm("ml-01").ref), inventory)
    assert isinstance(error, StepFailed)
    assert words in error.message
    assert type(error.__cause__).__name__.endswith(fault)
    assert list(lab.world.ledger) == []


def test_the_simulated_hosts_own_refusals_are_understood(
    lab: SimServer, connection: Connection, inventory: Inventory
) -> None:
    """Not injected: what the simulated vCenter itself refuses."""
    for name, step, words in (
        ("asking", PowerOffVm, "asks a question: There is no more space for virtual disk"),
        ("vdi-06", SuspendVm, "it is poweredOff now"),
        ("vdi-01", PowerOnVm, "it is poweredOn now"),
        ("golden", PowerOnVm, "does not support this: A template"),
    ):
        error = end_of(connection, step(inventory.find_vm(name).ref), inventory)
        assert isinstance(error, StepFailed)
        assert error.message.startswith(f"{name}: ")
        assert words in error.message


def test_a_gpu_that_is_full_refuses_the_next_desktop(
    lab: SimServer, connection: Connection, inventory: Inventory
) -> None:
    host = inventory.find_host("esx-01").ref
    assert end_of(connection, PowerOnVm(inventory.find_vm("vdi-06").ref, host), inventory) is None
    error = end_of(connection, ResumeVm(inventory.find_vm("vdi-11").ref, host), inventory)
    assert isinstance(error, StepFailed)
    assert "no free vGPU slot" in error.message


def test_a_lost_reply_to_an_attribute_is_unknown_too(
    lab: SimServer, connection: Connection, inventory: Inventory
) -> None:
    lab.world.injector.add(Rule(Effect.RESET, "SetField", phase=Phase.AFTER))
    with pytest.raises(OutcomeUnknown, match="vdi-01: the reply was lost"):
        connection.submit(SetAttribute(inventory.find_vm("vdi-01").ref, "gpuops.owner", "finance"), inventory, "op")
    assert [change.method for change in lab.world.ledger] == ["SetField"]
