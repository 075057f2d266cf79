"""A logged-in vCenter: the session with everything that gpuops reads, changes and waits for. `api.connect` makes it.

It implements the `Vcenter` port of `execute`, whose docstrings say what each method does. Each method calls a function
of another module with this session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from gpuops.errors import Refused
from gpuops.model.vcenter.vm import Guest, PowerState
from gpuops.vsphere import authorization
from gpuops.vsphere.guests.guest_login import GuestOperations
from gpuops.vsphere.reading import collect, counters, host_reads, networks, tags
from gpuops.vsphere.session import Session
from gpuops.vsphere.watches import ADDRESS, POWER, RUNNING, TOOLS, ChangeWatch, StateWatch, TaskWatch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from datetime import datetime

    from gpuops.model.guests.guest import CommandEnd, RunningCommand
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.model.vcenter.target import Secret, Target
    from gpuops.model.vcenter.task import TaskEnd, TaskRef
    from gpuops.plan.core.steps import RunInGuest, Step
    from gpuops.vsphere.writing.host_changes import HostConnection

SIMULATED: Final = "simulated by gpuops"
"""The simulated vCenter has this text in AboutInfo.fullName."""


class GuestShell(Protocol):
    """Runs programs in guests over SSH, each for the time that its step gives. `hostshell.guest_ssh` implements it."""

    def no_way_in(self, hook: RunInGuest) -> str | None:
        """Return why that program cannot be run, as far as can be known without trying; None = it can."""
        ...

    def start(self, hook: RunInGuest) -> TaskRef:
        """Start the program and return a task `guest-ssh:VM:NUMBER`. An unreachable guest is an error of its end."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Wait for this time, or until a program ends."""
        ...

    def end(self, task: TaskRef) -> TaskEnd | None:
        """Return how the program ended; None = it runs. Programs of an earlier gpuops process are unknown."""
        ...


class Connection(Session):
    """A session that reads inventories, sends steps, waits, and works in guests; leaving its `with` block logs out."""

    def __init__(self, target: Target, guest_shell: GuestShell | None = None) -> None:
        """`guest_shell` runs the programs that are to be run in guests over SSH; None = they cannot be run.

        Raises NotConnected and its subclasses.
        """
        super().__init__(target)
        self.guest_shell = guest_shell
        self.tasks = TaskWatch(self)
        self.states = StateWatch(self)
        self.change_watch = ChangeWatch(self)
        self.guests = GuestOperations(self)

    @property
    def uuid(self) -> str:
        """The vCenter's instance uuid."""
        return self.about.get("instanceUuid") or ""

    @property
    def is_simulated(self) -> bool:
        return SIMULATED in (self.about.get("fullName") or "")

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """The passwords that gpuops has for it and its guests."""
        guest = self.target.guest
        return (self.target.password, *([guest.password] if guest is not None else []))

    @property
    def hosts(self) -> HostConnection:
        """The settings of its hosts, to read and to change."""
        from gpuops.vsphere.writing.host_changes import HostConnection

        return HostConnection(self)

    inventory = collect.inventory
    observe = collect.observe
    folder_at = collect.folder_at
    with_drs = collect.with_drs
    with_creation = collect.with_creation
    networks = networks.read_networks
    with_config_targets = host_reads.with_config_targets
    with_tags = tags.with_tags
    with_counters = counters.with_counters
    samples = counters.samples

    lacking = authorization.lacking
    lacking_on_objects = authorization.lacking_on_objects
    granted = authorization.granted
    held_on = authorization.held_on
    roles = authorization.roles
    write_role = authorization.write_role

    def wait_for_power(self, vms: Collection[str], power: PowerState, timeout_s: float) -> frozenset[str]:
        """Return the VMs that have this power state within the time; return early if all have it.

        A VM that does not exist any more is not waited for.
        """
        return self.states.wait(POWER, dict.fromkeys(vms, power.value), timeout_s)[0]

    def wait_for_guest(self, vm: str, timeout_s: float, *, address: bool) -> Guest:
        """Return the guest when VMware Tools run in it (with `address`: when it has an address), or after the time.

        Raises VmNotFound for a VM that does not exist any more.
        """
        guest_vm = self.vm(vm)
        if address:
            self.states.wait(ADDRESS, {vm: True}, timeout_s)
        else:
            self.states.wait(TOOLS, {vm: RUNNING}, timeout_s)
        guest_info = self.read(lambda: guest_vm.guest, subject=vm)
        if guest_info is None or guest_info.toolsRunningStatus is None:
            return Guest(None, None)
        return Guest(guest_info.toolsRunningStatus == RUNNING, guest_info.ipAddress or None)

    def wait_for_change(self, timeout_s: float) -> bool:
        return self.change_watch.wait(timeout_s)

    # Most commands only read. They do not import the modules that change a vCenter or work in guests.

    def submit(self, step: Step, inventory: Inventory, op_id: str) -> TaskRef | None:
        from gpuops.plan.core.steps import CreationStep, GateStep, RunInGuest, SetAttribute, ShutDownGuest
        from gpuops.vsphere.guests import guest_commands
        from gpuops.vsphere.writing import attributes, step_calls

        subject = step.name if isinstance(step, CreationStep) else inventory.vm(step.vm).name
        if isinstance(step, GateStep):
            raise Refused(
                f"{subject}: the gate of a desktop is closed and opened by its connection broker, not by vCenter"
            )
        match step:
            case SetAttribute():
                attributes.set_attribute(self, step.vm, step.name, step.value, subject=subject, op_id=op_id)
                return None
            case ShutDownGuest():
                self.change(self.vm(step.vm).ShutdownGuest, subject=subject, op_id=op_id)
                return None
            case RunInGuest():
                return guest_commands.start_program(self, step, subject, op_id)
            case _:
                call, *arguments = step_calls.call_of(self, step, inventory)
                return self.start_task(call, *arguments, subject=subject, op_id=op_id)

    def find_task(self, step: Step, since: datetime, login: str = "", known: Collection[str] = ()) -> TaskRef | None:
        from gpuops.vsphere.writing import lost_replies

        return lost_replies.find_task(self, step, since, login, known)

    def started_by_this_login(self, vm: str, since: datetime, login: str = "") -> bool:
        from gpuops.vsphere.writing import lost_replies

        return lost_replies.started_by_this_login(self, vm, since, login)

    def started_by_others(self, vm: str, since: datetime) -> bool:
        from gpuops.vsphere.writing import lost_replies

        return lost_replies.started_by_others(self, vm, since)

    def has_power_task_near(self, vm: str, moment: datetime) -> bool | None:
        from gpuops.vsphere.writing import lost_replies

        return lost_replies.has_power_task_near(self, vm, moment)

    def no_way_in(self, hook: RunInGuest) -> str | None:
        from gpuops.vsphere.guests import guest_commands

        return guest_commands.no_way_in(self, hook)

    def require_made(self, vm: str, name: str, notes: str) -> None:
        from gpuops.vsphere.writing import new_vms

        new_vms.require_made(self, vm, name, notes)

    def guest_id(self, vm: str) -> str:
        from gpuops.vsphere.guests import guest_answers

        return guest_answers.guest_id(self, vm)

    def start_command(
        self, vm: str, name: str, command: str, op_id: str, prefix: str = "gpuops-", refusals: int = 1
    ) -> RunningCommand:
        from gpuops.vsphere.guests import guest_commands

        return guest_commands.start_command(self, vm, name, command, op_id, prefix, refusals)

    def wait_for_commands(self, commands: Sequence[RunningCommand], timeout_s: float) -> Iterator[CommandEnd]:
        from gpuops.vsphere.guests import guest_commands

        return guest_commands.wait_for_commands(self, commands, timeout_s)

    def command_end(self, command: RunningCommand) -> CommandEnd | None:
        from gpuops.vsphere.guests import guest_commands

        return guest_commands.command_end(self, command)

    def end_command(self, command: RunningCommand) -> None:
        from gpuops.vsphere.guests import guest_commands

        guest_commands.end_command(self, command)

    def guest_file_if_there(self, vm: str, name: str, path: str) -> bytes | None:
        from gpuops.vsphere.guests import guest_commands

        return guest_commands.guest_file_if_there(self, vm, name, path)

    def put_guest_file(self, vm: str, name: str, path: str, content: Secret) -> None:
        from gpuops.vsphere.guests import guest_commands

        guest_commands.put_guest_file(self, vm, name, path, content)

    def guest_addresses(self, vm: str) -> Mapping[str, tuple[str, ...]]:
        from gpuops.vsphere.guests import guest_answers

        return guest_answers.guest_addresses(self, vm)

    def defined_attributes(self) -> frozenset[str]:
        from gpuops.vsphere.writing import attributes

        return attributes.defined_attributes(self)

    def check_attribute_names(self, names: Collection[str]) -> None:
        from gpuops.vsphere.writing import attributes

        attributes.check_attribute_names(self, names)

    def define_attribute(self, name: str, op_id: str) -> None:
        from gpuops.vsphere.writing import attributes

        attributes.define_attribute(self, name, op_id)

    def wait(self, tasks: Sequence[TaskRef], timeout_s: float) -> Iterator[TaskEnd]:
        from gpuops.vsphere.guests import guest_commands

        return guest_commands.wait(self, tasks, timeout_s)

    def withdraw(self, tasks: Sequence[TaskRef]) -> None:
        from gpuops.vsphere.guests import guest_commands

        guest_commands.withdraw(self, tasks)
