"""Every error a caller of gpuops can meet, as one tree.

    GpuopsError                      exit 1   a bug of ours when it is not one of these
    +- UsageError                    exit 2   the request, a policy, a target or a file cannot be read as meant
    |  +- PolicyError                         a policy or scenario file: unreadable, unknown key, wrong value
    |  +- TargetError                         no vCenter configured, or the named one is not
    |  +- ProfileUnknown, ProfileAmbiguous    a vGPU profile name no host offers, or several hosts' names fit
    |  +- VmNotFound, VmAmbiguous             no such VM, or several VMs of that name
    |  +- HostNotFound
    +- Refused                       exit 3   nothing was changed; every reason is given
    |  +- NoPermission                        the login lacks a privilege
    |  +- LeaseReverted                       the lock VM carries a lower lease number than was seen before
    +- PartlyDone                    exit 4   some effects happened, some did not; resume is possible
    |  +- StepFailed                          one task ended in a fault
    |     +- NoFreeGpu                        no GPU of the host has room for the VM
    |  +- OutcomeUnknown                      the reply to a change was lost: re-read, never resubmit
    +- NotConnected                  exit 5   vCenter not reached, not trusted or login refused
    |  +- VcenterUnreachable, BrokerUnreachable, NotTrusted, LoginRefused, ProtocolError
    +- Locked                        exit 6   another run holds the lock
    +- StateDamaged                  exit 7   the journal or a state file cannot be trusted

An infeasible plan is a value (`plan.rejections`), not an exception; the entrance turns it into exit code 3.
Programs tell errors apart by `code`: `vm-not-found`. A code never changes, whatever its class is called. An error that
is declared in another module has the code of the error that it derives from.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar


class Trouble(StrEnum):
    """What an error of vCenter means for the caller. There are these six and no others."""

    LOST = "lost"
    """The reply was lost or is incomplete: it is not known whether the change happened. Read vCenter before a retry."""
    SESSION = "session"
    """The login has ended: log in and read again."""
    BUSY = "busy"
    """Another task uses the object: wait, and try a few times."""
    STATE = "state"
    """The object is in another state than expected: read it; it may be as requested already."""
    CAPACITY = "capacity"
    """A GPU, memory or another resource is missing: a retry fails until something is freed."""
    DENIED = "denied"
    """vCenter refuses it, and would refuse a retry too. Also for errors that fit none of the others."""


class GpuopsError(Exception):
    """An error of gpuops. `message` says in one line what failed and why; `hint` is the next step."""

    exit_code: ClassVar[int] = 1
    code: ClassVar[str] = "internal-error"
    trouble: Trouble = Trouble.DENIED
    reboot_due: bool = False
    """Whether a host was changed before the error, so that it may need a reboot."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def line(self) -> str:
        """Message and hint as one line, for a journal or a report that keeps one text for both."""
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def after(self, done: str, *, reboot_due: bool) -> None:
        """Add to the message what was done before the error."""
        self.message = f"{self.message}; {done}"
        self.args = (self.message,)
        self.reboot_due = self.reboot_due or reboot_due

    def then_finish(self, command: str) -> None:
        """Add to the hint that this command finishes what was begun."""
        self.hint = f"{self.hint}; then finish what was begun: {command}".removeprefix("; ")


class UsageError(GpuopsError):
    """The request cannot be read as meant."""

    code = "usage-error"
    exit_code = 2


class PolicyError(UsageError):
    """A policy or scenario file is unreadable, has an unknown key or a wrong value."""

    code = "policy-error"


class TargetError(UsageError):
    """No vCenter is configured, or the named target is not, or its user name or password is missing."""

    code = "target-error"


class ProfileUnknown(UsageError):
    """No host offers a vGPU profile of that name."""

    code = "profile-unknown"


class ProfileAmbiguous(UsageError):
    """Several offered vGPU profiles fit that name."""

    code = "profile-ambiguous"


class VmNotFound(UsageError):
    """No VM of that name, path, moid or uuid is visible to this login."""

    code = "vm-not-found"

    def __init__(self, name: str, *, near: Sequence[str] = (), hint: str = "") -> None:
        suggestion = f"; did you mean {', '.join(near)}?" if near else ""
        super().__init__(
            f"no VM {name!r} in this vCenter{suggestion}",
            hint=hint or "gpuops inventory --vms shows the names this login can see",
        )


class VmAmbiguous(UsageError):
    """Several VMs carry that name."""

    code = "vm-ambiguous"

    def __init__(self, name: str, paths: Sequence[str]) -> None:
        super().__init__(
            f"{len(paths)} VMs are named {name!r}: {', '.join(paths)}",
            hint="give the path of one of them instead of the name",
        )


class HostNotFound(UsageError):
    """No host of that name."""

    code = "host-not-found"

    def __init__(self, name: str, *, near: Sequence[str] = ()) -> None:
        suggestion = f"; did you mean {', '.join(near)}?" if near else ""
        super().__init__(
            f"no host {name!r} in this vCenter{suggestion}", hint="gpuops inventory --hosts shows the hosts"
        )


class Refused(GpuopsError):
    """Nothing was changed, for the reasons given."""

    code = "refused"
    exit_code = 3


class NoPermission(Refused):
    """The login lacks a privilege on an object."""

    code = "no-permission"


class LeaseReverted(Refused):
    """The lock VM carries a lower lease number than was seen before: the holder of the lease is unknown."""

    code = "lease-reverted"


class PartlyDone(GpuopsError):
    """Some effects happened, some did not."""

    code = "partly-done"
    exit_code = 4


class StepFailed(PartlyDone):
    """A task in vCenter ended in a fault."""

    code = "step-failed"


class NoFreeGpu(StepFailed):
    """No GPU of the host has room for what the VM needs."""

    code = "no-free-gpu"


class OutcomeUnknown(PartlyDone):
    """The reply to a change was lost; whether it happened must be read from vCenter."""

    code = "outcome-unknown"
    trouble = Trouble.LOST


class NotConnected(GpuopsError):
    """No trusted, logged-in connection to vCenter."""

    code = "not-connected"
    exit_code = 5
    trouble = Trouble.LOST


class VcenterUnreachable(NotConnected):
    """Nothing answers at the address, or it stopped answering."""

    code = "vcenter-unreachable"


class BrokerUnreachable(NotConnected):
    """The connection broker does not answer at its address, or it stopped answering."""

    code = "broker-unreachable"


class NotTrusted(NotConnected):
    """The server's certificate is not trusted."""

    code = "not-trusted"


class LoginRefused(NotConnected):
    """vCenter refused the user name or password."""

    code = "login-refused"
    trouble = Trouble.SESSION


class ProtocolError(NotConnected):
    """The reply is not one a vCenter would send."""

    code = "protocol-error"


class Locked(GpuopsError):
    """Another run holds the lock."""

    code = "locked"
    exit_code = 6


class StateDamaged(GpuopsError):
    """The journal or a state file cannot be trusted."""

    code = "state-damaged"
    exit_code = 7


def say_applied(error: BaseException, applied: bool | None) -> None:
    """Note in an error whether vCenter was changed before it; None = not known. The end of a command reports it."""
    vars(error)["applied"] = applied


def applied_before(error: BaseException) -> bool | None:
    """Return whether vCenter was changed before this error; None = not known."""
    applied: bool | None = vars(error).get("applied", False)
    return applied


def report_exit_code(*, refused: object = False, partly: object = False) -> int:
    """Return the exit code of a report: that of Refused if something was refused, else that of PartlyDone, else 0."""
    return Refused.exit_code if refused else PartlyDone.exit_code if partly else 0
