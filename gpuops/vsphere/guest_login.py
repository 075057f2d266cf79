"""Calls guest operations as the user of GPUOPS_GUEST_USERNAME, and not where that login was refused.

Each refusal counts towards a lockout of the account, and in a domain the account of all guests is one. So a guest that
has refused the login is not asked again, and no other guest is until one that has accepted it does so again: where one
does, the password is right and the refusal one guest's own, and a directory counts anew from there. Half an hour later
it is tried once more: by then a lockout policy has forgotten a single refusal (30 minutes by default in Active
Directory, 15 in pam_faillock; both from memory), and whoever has put it right need not start gpuops anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gpuops import clock
from gpuops.errors import GpuopsError, Refused

if TYPE_CHECKING:
    from gpuops.vsphere.connection import Connection

Answer = TypeVar("Answer")

AGAIN_S: Final = 1800.0
ALONE_S: Final = 10.0
"""How long the first try in a guest keeps those of other threads waiting."""
NO_LOGIN_HINT: Final = "set GPUOPS_GUEST_USERNAME and GPUOPS_GUEST_PASSWORD_FILE"
REFUSED_HINT: Final = (
    "check GPUOPS_GUEST_USERNAME and its password; until then further tries would count towards a lockout"
)


@dataclass(slots=True)
class GuestLogins:
    """Which guests (managed object ids of their VMs) have accepted the login, and which have refused it."""

    _accepted: set[str] = field(default_factory=set)
    _refused_at_s: dict[str, float] = field(default_factory=dict)
    _in_a_row: list[str] = field(default_factory=list)
    """Names of the guests that have refused it since one has accepted it last."""
    _changing: Lock = field(default_factory=Lock, repr=False)
    _trying: Lock = field(default_factory=Lock, repr=False)

    @contextmanager
    def one_at_a_time(self) -> Iterator[None]:
        """While nobody knows whether the login is right, one thread tries it. One that hangs keeps nobody for long."""
        with self._changing:
            is_login_known = bool(self._accepted) and not self._in_a_row
        alone = not is_login_known and self._trying.acquire(timeout=ALONE_S)
        try:
            yield
        finally:
            if alone:
                self._trying.release()

    def objection(self, vm: str, name: str, refusals: int, now_s: float) -> str | None:
        """Why the login is not tried in that guest; None = it may be. `refusals`: so many in a row end it."""
        with self._changing:
            return self._objection(vm, name, refusals, now_s)

    def _objection(self, vm: str, name: str, refusals: int, now_s: float) -> str | None:
        refused_at_s = max(self._refused_at_s.values(), default=None)
        if refused_at_s is not None and now_s - refused_at_s >= AGAIN_S:
            self._refused_at_s.clear()
            self._in_a_row.clear()
        if vm in self._refused_at_s:
            return f"{name}: its guest has refused the login of GPUOPS_GUEST_USERNAME: not tried again"
        if vm in self._accepted or len(self._in_a_row) < refusals:
            return None
        return f"{name}: not entered: the guest of {self._in_a_row[-1]} has refused the login of GPUOPS_GUEST_USERNAME"

    def note_accepted(self, vm: str) -> None:
        """That guest has done what was asked as that user."""
        with self._changing:
            self._accepted.add(vm)
            self._in_a_row.clear()

    def note_refused(self, vm: str, name: str, now_s: float) -> None:
        """That guest has refused it. One that had accepted it says that the password was changed: of all guests."""
        with self._changing:
            if vm in self._accepted:
                self._accepted.clear()
            self._refused_at_s[vm] = now_s
            self._in_a_row.append(name)


def guest_read(connection: Connection, call: Callable[..., Answer], vm: str, name: str, *arguments: Any) -> Answer:
    """The answer of a guest operation that changes nothing, in the guest of `vm` (a moid), called `name` in errors.

    Raises Refused where there is no login for guests, or it was refused before; else as `Connection.read` does.
    """
    return _call_as_guest_user(connection, vm, name, 1, lambda auth: connection.read(
        call, connection.vm(vm), auth, *arguments, subject=name
    ))  # fmt: skip


def guest_change(
    connection: Connection,
    call: Callable[..., Answer],
    vm: str,
    name: str,
    *arguments: Any,
    op_id: str,
    refusals: int = 1,
) -> Answer:
    """The answer of one that changes something, sent once. `refusals`: so many guests in a row may refuse the login
    before it is tried in no other.

    Raises Refused as `guest_read` does; else as `Connection.change` does.
    """
    return _call_as_guest_user(connection, vm, name, refusals, lambda auth: connection.change(
        call, connection.vm(vm), auth, *arguments, subject=name, op_id=op_id
    ))  # fmt: skip


def _call_as_guest_user(
    connection: Connection, vm: str, name: str, refusals: int, call: Callable[[Any], Answer]
) -> Answer:
    from pyVmomi import vim

    guest, logins = connection.target.guest, connection.guest_logins
    if guest is None:
        raise Refused(f"{name}: there is no login for programs in guests", hint=NO_LOGIN_HINT)
    auth = vim.vm.guest.NamePasswordAuthentication(
        username=guest.username, password=guest.password.reveal(), interactiveSession=False
    )
    with logins.one_at_a_time():
        objection = logins.objection(vm, name, refusals, clock.passed_s())
        if objection is not None:
            raise Refused(objection, hint=REFUSED_HINT)
        try:
            answer = call(auth)
        except GpuopsError as error:
            if isinstance(error.__cause__, vim.fault.InvalidGuestLogin):
                logins.note_refused(vm, name, clock.passed_s())
            raise
        logins.note_accepted(vm)
        return answer
