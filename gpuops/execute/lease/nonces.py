"""Stores in the state directory the nonces by which a machine recognises the leases that its own runs left behind.

They are files and no records of the book: a return needs them even if the journal cannot be opened.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpuops.errors import StateDamaged, UsageError
from gpuops.execute.state.state_dir import prepare_state_dir, private_file
from gpuops.files.private_file import write_private

_LONGEST: Final = 80
"""How many characters of a lock VM's name the file name holds: the length of a file name is limited."""


class Nonces:
    """The nonces for one vCenter. Under the lock of this machine, all of them belong to runs that have ended.

    `returning`: a file that cannot be used is ignored, so that the return can continue.
    """

    def __init__(self, state_dir: Path, vcenter: str, *, returning: bool = False, lock_vm: str = "") -> None:
        """`lock_vm`: its name. Each lock VM has its own file: a lease that a run leaves on one is recognised even after
        another run has taken a lease on another."""
        self._state_dir = state_dir
        self._vcenter = vcenter
        self._returning = returning
        self._tolerated: tuple[type[Exception], ...] = (StateDamaged,) if returning else ()
        self._path = state_dir / f"{_plain(vcenter)}-{_plain(lock_vm)[:_LONGEST]}.lease"

    def on(self, lock_vm: str) -> Nonces:
        """Return the nonces of leases on this lock VM."""
        return Nonces(self._state_dir, self._vcenter, returning=self._returning, lock_vm=lock_vm)

    def read(self) -> frozenset[str]:
        """Return the stored nonces. Empty if none are stored; then a lease that was left behind must expire first."""
        with suppress(*self._tolerated):
            if self._path.exists():
                private_file(self._path)
                return frozenset(self._path.read_text(encoding="ascii", errors="replace").split())
        return frozenset()

    def keep(self, nonces: Collection[str]) -> None:
        """Store these nonces in place of the earlier ones. A full disk is ignored, so that the return can continue."""
        with suppress(UsageError, *self._tolerated):
            prepare_state_dir(self._state_dir)
            private_file(self._path)
            write_private(self._path, "\n".join(sorted(nonces)))


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]", "_", name)
