"""A logged-in vCenter: the session with all that gpuops reads, changes and waits for by it. `api.connect` makes it.

It is the `Vcenter` port of `execute`. Each method of the port is a function of the module named beside it, whose first
argument is the session or this connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuops.vsphere import authorization
from gpuops.vsphere.reading import collect, config_targets, counters, samples, tags
from gpuops.vsphere.session import Session
from gpuops.vsphere.waiting import states
from gpuops.vsphere.waiting.states import StateWatch
from gpuops.vsphere.waiting.tasks import TaskWatch
from gpuops.vsphere.writing import attributes, guest_programs, lost_replies, new_vms, steps
from gpuops.vsphere.writing.hosts import HostConnection

if TYPE_CHECKING:
    from gpuops.model.target import Target
    from gpuops.vsphere.writing.guest_programs import GuestShell

SIMULATED: Final = "simulated by gpuops"
"""What the simulated vCenter has in AboutInfo.fullName."""


class Connection(Session):
    """A session that reads inventories and sends steps; leaving its `with` block logs out."""

    def __init__(self, target: Target, guest_shell: GuestShell | None = None) -> None:
        """`guest_shell` runs the programs that are to be run in guests over SSH; None = they cannot be run.

        Raises NotConnected in its kinds.
        """
        super().__init__(target)
        self.guest_shell = guest_shell
        self.tasks = TaskWatch(self)
        self.states = StateWatch(self)
        self.attribute_keys: dict[str, int] = {}
        """Keys of the custom attributes by name, as far as they have been read."""

    def close(self) -> None:
        """Log out."""
        self.tasks.close()
        self.states.close()
        super().close()

    @property
    def uuid(self) -> str:
        """The vCenter's instance uuid."""
        return self.about.get("instanceUuid") or ""

    @property
    def simulated(self) -> bool:
        """Whether it is gpuops' own simulator, which says so."""
        return SIMULATED in (self.about.get("fullName") or "")

    @property
    def hosts(self) -> HostConnection:
        """The settings of its hosts, to read and to change."""
        return HostConnection(self)

    inventory = collect.inventory
    observe = collect.observe
    with_drs = collect.with_drs
    with_config_targets = config_targets.with_config_targets
    with_tags = tags.with_tags
    with_counters = counters.with_counters
    samples = samples.samples

    lacking = authorization.lacking
    lacking_on_clusters = authorization.lacking_on_clusters
    granted = authorization.granted
    held_on = authorization.held_on
    roles = authorization.roles
    write_role = authorization.write_role

    submit = steps.submit
    find_task = lost_replies.find_task
    started_by_this_login = lost_replies.started_by_this_login
    started_by_others = lost_replies.started_by_others
    no_way_in = guest_programs.no_way_in
    folder_at = new_vms.folder_at
    create_vm = new_vms.create_vm
    clone_vm = new_vms.clone_vm
    defined_attributes = attributes.defined_attributes
    define_attribute = attributes.define_attribute

    wait = guest_programs.wait
    withdraw = guest_programs.withdraw
    wait_for_power = states.wait_for_power
    wait_for_guest = states.wait_for_guest
