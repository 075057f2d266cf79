"""A login to the simulated vCenter without a wire, and one call of it: how faults strike, and which calls are repeated.

Faults strike here as they do on the wire: the same rules, asked at the same calls, and what a broken connection or a
fault becomes is what `vsphere` makes of it. `Guests` are the programs that it runs in VMs, as guest operations do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

from pyVmomi import VmomiSupport, vim, vmodl

from gpuops.errors import (
    GpuopsError,
    LoginRefused,
    NotTrusted,
    OutcomeUnknown,
    ProtocolError,
    StepFailed,
    VcenterUnreachable,
)
from gpuops.model.vcenter.target import GuestLogin, Secret
from gpuops.model.vcenter.task import TaskEnd, TaskRef
from gpuops.plan.core.steps import RunInGuest
from gpuops.sim.core.call import Call
from gpuops.sim.core.sessions import ClientSession
from gpuops.sim.core.task_object import Task
from gpuops.sim.fault_injection.rule import Ending
from gpuops.sim.services.guest_managers import GuestProcessManager
from gpuops.sim.state.vm_state import Power
from gpuops.sim.world import World
from gpuops.vsphere.faults import translate
from gpuops.vsphere.session import ChangeRecord

GUEST_USER: Final = "keeper"
GUEST_PASSWORD: Final = "its own"
GUEST_LOGIN: Final = GuestLogin(GUEST_USER, Secret(GUEST_PASSWORD))
PREFIX: Final = "guest-process:"

Asking = Callable[[str, str, Callable[[Call], Any], str], Any]
"""One call to vCenter: method, object, what it does, op id."""


class Guests:
    """The programs of one connection."""

    def __init__(self, world: World, ask: Asking, read: Callable[[Callable[[], Any]], Any]) -> None:
        self._world = world
        self._ask = ask
        self._read = read
        [manager] = world.by_type("GuestProcessManager")
        assert isinstance(manager, GuestProcessManager)
        self._manager = manager

    def start(self, step: RunInGuest, op_id: str) -> TaskRef:
        """The started program. Raises the fault of the API."""
        auth = vim.vm.guest.NamePasswordAuthentication(username=GUEST_USER, password=GUEST_PASSWORD)
        spec = vim.vm.guest.ProcessManager.ProgramSpec(programPath=step.program, arguments=step.arguments)

        def start(call: Call) -> int:
            return self._manager.StartProgramInGuest(call, vim.VirtualMachine(step.vm), auth, spec)

        pid = self._ask("StartProgramInGuest", self._manager.moid, start, op_id)
        return TaskRef(f"{PREFIX}{step.vm}:{pid}")

    def ended(self, ref: str) -> bool:
        """Whether it runs no more, or will never be known to."""
        vm, process = self._find_process(ref)
        if vm is None or process is None or vm.state.power is not Power.ON or vm.state.boot_time != process.boot_time:
            return True
        return process.ends_at is not None and process.ends_at <= self._world.clock.now()

    def end(self, ref: str) -> TaskEnd:
        """How it ended."""
        task = TaskRef(ref)
        try:
            vm, process = self._read(lambda: self._find_process(ref))
        except GpuopsError as error:
            return TaskEnd(task, error)
        now = self._world.clock.now()
        if vm is None or process is None or vm.state.boot_time != process.boot_time:
            return TaskEnd(task, OutcomeUnknown(f"{ref}: vCenter does not list its program any more"))
        if process.ends_at is None or process.ends_at > now:
            return TaskEnd(task, StepFailed(f"{ref}: its guest does not run any more"))
        if process.exit_code:
            return TaskEnd(task, StepFailed(f"its program ended with exit code {process.exit_code}"))
        return TaskEnd(task, None, (process.ends_at - process.started_at).total_seconds())

    def _find_process(self, ref: str) -> tuple[Any, Any]:
        moid, _, pid = ref.removeprefix(PREFIX).rpartition(":")
        process = next(
            (process for process in self._manager.processes if (process.vm, process.pid) == (moid, int(pid))), None
        )
        return self._world.find(moid), process


USER: Final = "VSPHERE.LOCAL\\gpuops"
PASSWORD: Final = "its own"
VERSION: Final = VmomiSupport.newestVersions.Get("vim")
SILENCE_S: Final = 30.0
"""What a call costs that is never answered."""
DOWN_S: Final = 10.0
"""What a try costs to reach a vCenter that is down."""


class Lost(Exception):
    """The reply did not come, or not whole; `broke_off`: a read is asked again at once."""

    def __init__(self, *, broke_off: bool) -> None:
        super().__init__()
        self.broke_off = broke_off


class DirectSession:
    """One process's login; `trusted` tells whether the certificate is still the one that was first seen."""

    def __init__(self, world: World, trusted: Callable[[], bool] | None, user: str = USER) -> None:
        self._world = world
        self._user = user
        world.sessions.passwords.setdefault(user, PASSWORD)
        self._trusted = trusted
        self._session: ClientSession | None = None
        self._changes = ChangeRecord()
        self._stale = False
        """Whether the connection ended behind our back: the next call meets it."""

    def close(self) -> None:
        if self._session is not None:
            self._world.sessions.close(self._session)

    def _read(self, look: Callable[[], Any]) -> Any:
        """What `look` finds, asked again once when session or reply broke off."""
        try:
            return self._ask("RetrievePropertiesEx", "ServiceInstance", lambda call: look())
        except vim.fault.NotAuthenticated:
            self._login()
        except Lost as lost:
            if not lost.broke_off:
                raise VcenterUnreachable("the simulated vCenter did not answer") from lost
        except vmodl.MethodFault as fault:
            raise translate(fault) from fault
        try:
            return self._ask("RetrievePropertiesEx", "ServiceInstance", lambda call: look())
        except Lost as lost:
            raise VcenterUnreachable("the simulated vCenter did not answer") from lost
        except vmodl.MethodFault as fault:
            raise translate(fault) from fault

    def _updates(self, ready: Callable[[], Any], wait_s: float) -> Any:
        """Return what WaitForUpdatesEx reports: a broken session or connection is opened again, and time passes."""
        for _ in range(8):
            try:
                return self._ask("WaitForUpdatesEx", "ServiceInstance", lambda call: self._world.wait(ready, wait_s))
            except vim.fault.NotAuthenticated:
                self._login()
            except Lost:
                self._world.clock.advance(DOWN_S)
            except vmodl.MethodFault as fault:
                if not isinstance(fault, vmodl.fault.RequestCanceled | vmodl.query.InvalidCollectorVersion):
                    raise translate(fault) from fault
        raise VcenterUnreachable("the simulated vCenter broke off each wait")

    def _change(self, method: str, moid: str, act: Callable[[Call], Any], op_id: str) -> Any:
        """The answer of one call that changes something, recorded as a session of `vsphere` does."""
        try:
            answer = self._ask(method, moid, act, op_id)
        except Lost:
            self._changes.note_lost(op_id)
            raise
        self._changes.note_accepted(vim.Task(answer.moid) if isinstance(answer, Task) else answer, op_id)
        return answer

    def _ask(self, method: str, moid: str, act: Callable[[Call], Any], op_id: str = "") -> Any:
        """The answer of one call, with whatever happens to it. Raises Lost and the faults of the API."""
        world = self._world
        self._reach()
        world.clock.take_request()
        session = world.sessions.find(self._session.cookie) if self._session else None
        call = Call(method, VERSION, session, op_id)
        receiver = world.get(moid)
        with world.serving(call):
            self._strike(world.injector.before(call, receiver))
            if call.session is None:
                raise vim.fault.NotAuthenticated(msg="The session is not authenticated.")
            call.session.active_at = world.clock.now()
            privilege = _privilege(method)
            if privilege is not None:
                world.authority.require(call, receiver, privilege)
            answer = act(call)
            self._strike(world.injector.after(call, receiver))
        return answer

    def _reach(self) -> None:
        world = self._world
        if self._stale:
            self._stale = False
            raise Lost(broke_off=True)
        if world.down_until is not None:
            world.clock.advance(DOWN_S)
            if world.clock.now() < world.down_until:
                raise Lost(broke_off=True)
            world.down_until = None

    def _strike(self, interruption: Any) -> None:
        if interruption is None:
            return
        if interruption.fault is not None:
            raise interruption.fault
        if interruption.status:
            raise Lost(broke_off=True)
        match interruption.ending:
            case Ending.WHOLE:
                return
            case Ending.HANG | Ending.DRIP:
                self._world.clock.advance(SILENCE_S)
                raise Lost(broke_off=False)
            case Ending.STALE:
                self._stale = True
            case _:
                raise Lost(broke_off=True)

    def _login(self) -> None:
        """Raises NotConnected in its kinds."""
        world = self._world
        if self._trusted is not None and not self._trusted():
            raise NotTrusted("the certificate of the simulated vCenter is another one")
        try:
            self._reach()
        except Lost as lost:
            raise VcenterUnreachable("the simulated vCenter is down") from lost
        call = Call("Login", VERSION)
        interruption = world.injector.before(call, world.get("SessionManager"))
        try:
            self._strike(interruption)
            if not world.sessions.accepts(self._user, PASSWORD):
                raise vim.fault.InvalidLogin(msg="Cannot complete login due to an incorrect user name or password.")
        except Lost as lost:
            raise VcenterUnreachable("the simulated vCenter did not answer") from lost
        except vmodl.MethodFault as fault:
            error = translate(fault)
            raise (error if isinstance(error, LoginRefused) else ProtocolError(error.message)) from fault
        if self._session is not None:
            world.sessions.close(self._session)
        self._session = world.sessions.open(self._user)


@cache
def _privilege(method: str) -> str | None:
    """What the login needs on the object of a change; reads need nothing that a night takes away."""
    needed = VmomiSupport.GetWsdlMethod("urn:vim25", method).info.privId
    return None if needed in (None, "System.Anonymous", "System.View", "System.Read") else str(needed)
