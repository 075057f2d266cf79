"""Calls guest operations as the user of GPUOPS_GUEST_USERNAME, and stops after refused logins.

Each refusal counts towards a lockout of the account, and in a domain all guests share one account. gpuops therefore
does not try again in a guest that refused the login. It tries other guests only after a guest that accepted the login
before has accepted it again: then the password is right, the problem is in that one guest, and the directory has reset
its counter. After half an hour gpuops tries once more. By then a lockout policy has forgotten a single refusal (after
30 minutes by default in Active Directory, 15 in pam_faillock; both from memory), and an admin who corrected the account
need not restart gpuops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gpuops import clock
from gpuops.errors import GpuopsError, ProtocolError, Refused

if TYPE_CHECKING:
    from gpuops.vsphere.session import Session

Answer = TypeVar("Answer")

AGAIN_S: Final = 1800.0
"""Seconds after the last refusal until all refusals are forgotten."""
ALONE_S: Final = 10.0
"""The longest time in seconds that other threads wait for the first login in a guest."""
NO_LOGIN_HINT: Final = "set GPUOPS_GUEST_USERNAME and GPUOPS_GUEST_PASSWORD_FILE"
REFUSED_HINT: Final = "check GPUOPS_GUEST_USERNAME and its password; further refused logins could lock the account"


@dataclass(slots=True)
class GuestLogins:
    """Which guests (managed object ids of their VMs) have accepted the login, and which have refused it."""

    _accepted: set[str] = field(default_factory=set)
    _refused_at_s: dict[str, float] = field(default_factory=dict)
    _refused_in_a_row: list[str] = field(default_factory=list)
    """Names of the guests that have refused the login since another one accepted it."""
    _changing: Lock = field(default_factory=Lock, repr=False)
    """Protects the fields above."""
    _first_login: Lock = field(default_factory=Lock, repr=False)
    """Held by the thread that logs in while it is not known whether the login is right."""

    @contextmanager
    def one_at_a_time(self) -> Iterator[None]:
        """Let one thread at a time log in until a guest has accepted the login. Others wait at most `ALONE_S`."""
        with self._changing:
            is_login_known = bool(self._accepted) and not self._refused_in_a_row
        has_lock = not is_login_known and self._first_login.acquire(timeout=ALONE_S)
        try:
            yield
        finally:
            if has_lock:
                self._first_login.release()

    def objection(self, vm: str, name: str, refusals: int, now_s: float) -> str | None:
        """Return the reason not to log in to this guest, or None.

        `refusals` is the limit of refusals in a row, by any guests. All refusals are forgotten `AGAIN_S` seconds after
        the last one.
        """
        with self._changing:
            refused_at_s = max(self._refused_at_s.values(), default=None)
            if refused_at_s is not None and now_s - refused_at_s >= AGAIN_S:
                self._refused_at_s.clear()
                self._refused_in_a_row.clear()
            if vm in self._refused_at_s:
                return f"{name}: its guest has refused the login of GPUOPS_GUEST_USERNAME, so gpuops does not try again"
            if vm in self._accepted or len(self._refused_in_a_row) < refusals:
                return None
            refusing_vm = self._refused_in_a_row[-1]
            return f"{name}: no login tried: the guest of {refusing_vm} has refused the login of GPUOPS_GUEST_USERNAME"

    def note_accepted(self, vm: str) -> None:
        with self._changing:
            self._accepted.add(vm)
            self._refused_in_a_row.clear()

    def note_refused(self, vm: str, name: str, now_s: float) -> None:
        """Record a refusal. If the guest accepted the login before, the password may have changed for all guests."""
        with self._changing:
            if vm in self._accepted:
                self._accepted.clear()
            self._refused_at_s[vm] = now_s
            self._refused_in_a_row.append(name)


class GuestOperations:
    """The guest operations of one session, called as the user of GPUOPS_GUEST_USERNAME."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._logins = GuestLogins()

    @cached_property
    def processes(self) -> Any:
        """The GuestProcessManager. Raises ProtocolError if vCenter offers no guest operations."""
        return self._manager("processManager")

    @cached_property
    def files(self) -> Any:
        """The GuestFileManager. Raises ProtocolError if vCenter offers no guest operations."""
        return self._manager("fileManager")

    def _manager(self, name: str) -> Any:
        operations = self._session.content.guestOperationsManager
        manager = self._session.read(lambda: getattr(operations, name)) if operations is not None else None
        if manager is None:
            raise ProtocolError(
                "this vCenter offers no guest operations", hint="check that the address is that of a vCenter"
            )
        return manager

    def read(self, call: Callable[..., Answer], vm: str, name: str, *arguments: Any) -> Answer:
        """Return the answer of a guest operation that changes nothing. `vm` is a moid, `name` its name in errors.

        Raises Refused if there is no login for guests or it was refused before; otherwise the errors of `Session.read`.
        """
        session = self._session
        return self._log_in(vm, name, 1, lambda auth: session.read(
            call, session.vm(vm), auth, *arguments, subject=name
        ))  # fmt: skip

    def change(
        self, call: Callable[..., Answer], vm: str, name: str, *arguments: Any, op_id: str, refusals: int = 1
    ) -> Answer:
        """Return the answer of a guest operation that changes something; it is sent once.

        After `refusals` refusals in a row, the login is not tried in further guests. Raises Refused as `read` does;
        otherwise the errors of `Session.change`.
        """
        session = self._session
        return self._log_in(vm, name, refusals, lambda auth: session.change(
            call, session.vm(vm), auth, *arguments, subject=name, op_id=op_id
        ))  # fmt: skip

    def _log_in(self, vm: str, name: str, refusals: int, call: Callable[[Any], Answer]) -> Answer:
        """Return the answer of `call`, which gets the user and password, and record whether the guest accepted them."""
        from pyVmomi import vim

        guest, logins = self._session.target.guest, self._logins
        if guest is None:
            raise Refused(f"{name}: gpuops has no login for programs in guests", hint=NO_LOGIN_HINT)
        auth = vim.vm.guest.NamePasswordAuthentication(
            username=guest.username, password=guest.password.reveal(), interactiveSession=False
        )
        # one at a time: parallel logins could all be refused, and lock the account, before gpuops notices
        with logins.one_at_a_time():
            if (objection := logins.objection(vm, name, refusals, clock.passed_s())) is not None:
                raise Refused(objection, hint=REFUSED_HINT)
            try:
                answer = call(auth)
            except GpuopsError as error:
                if isinstance(error.__cause__, vim.fault.InvalidGuestLogin):
                    logins.note_refused(vm, name, clock.passed_s())
                raise
            logins.note_accepted(vm)
            return answer
