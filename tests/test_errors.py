"""The errors of gpuops: programs know each by its code, which never changes."""

from __future__ import annotations

import pytest

from gpuops import errors
from gpuops.console import failure
from gpuops.errors import GpuopsError, UsageError, applied_before, say_applied
from gpuops.execute.state.lock import LockedBy

CODES = {
    "internal-error": 1,
    "out-of-memory": 1,
    "usage-error": 2,
    "policy-error": 2,
    "target-error": 2,
    "profile-unknown": 2,
    "profile-ambiguous": 2,
    "vm-not-found": 2,
    "vm-ambiguous": 2,
    "host-not-found": 2,
    "refused": 3,
    "no-permission": 3,
    "lease-reverted": 3,
    "partly-done": 4,
    "step-failed": 4,
    "no-free-gpu": 4,
    "outcome-unknown": 4,
    "not-connected": 5,
    "vcenter-unreachable": 5,
    "broker-unreachable": 5,
    "not-trusted": 5,
    "login-refused": 5,
    "protocol-error": 5,
    "locked": 6,
    "state-damaged": 7,
    "result-not-written": 141,
}
"""As programs know them. One that is renamed breaks them: a new error is a new line, and no line goes."""


KNOWN = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, GpuopsError)]
OF_THE_ENTRANCE = {
    failure.OUT_OF_MEMORY: (GpuopsError.exit_code, "The machine gives gpuops no more memory."),
    failure.NOT_WRITTEN: (failure.READER_GONE, "stdout did not take the result of a command that is done."),
}


def meaning(code: str) -> str:
    """What the manual says of an error, in one line."""
    if code in OF_THE_ENTRANCE:
        return OF_THE_ENTRANCE[code][1]
    if code == GpuopsError.code:
        return "A bug of gpuops."
    error = next(error_class for error_class in KNOWN if error_class.code == code)
    return " ".join((error.__doc__ or "").split("\n\n")[0].split())


def test_each_error_has_its_own_code_for_ever() -> None:
    code_table = {error_class.code: error_class.exit_code for error_class in KNOWN}
    assert code_table | {code: exit_code for code, (exit_code, _) in OF_THE_ENTRANCE.items()} == CODES
    assert len(code_table) == len(KNOWN)


def test_an_error_made_elsewhere_has_the_code_of_its_kind() -> None:
    assert LockedBy.code == "locked"


@pytest.mark.parametrize("error", [UsageError("no"), ZeroDivisionError("none"), KeyboardInterrupt()])
def test_an_error_says_whether_something_was_changed(error: BaseException) -> None:
    assert applied_before(error) is False
    for applied in (None, True):
        say_applied(error, applied)
        assert applied_before(error) is applied
