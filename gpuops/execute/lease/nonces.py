"""Keeps in the state directory the nonces by which a machine knows the leases that its own runs left behind."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpuops.errors import StateDamaged
from gpuops.execute.state.state_dir import prepare_state_dir, private_file

_LONGEST: Final = 80
"""Characters of a lock VM's name in that of the file, whose length is limited."""


class Nonces:
    """Of one vCenter. Under the lock of this machine they are of runs that have ended.

    `returning`: a file that cannot be used is as one that is not there, for a morning must go on.
    """

    def __init__(self, state_dir: Path, vcenter: str, *, returning: bool = False, lock_vm: str = "") -> None:
        """`lock_vm`: its name. Each has a file of its own: what a run leaves behind on one is known when another run
        has taken that on another."""
        self._state_dir = state_dir
        self._vcenter = vcenter
        self._returning = returning
        self._tolerated: tuple[type[Exception], ...] = (StateDamaged,) if returning else ()
        self._path = state_dir / f"{_plain(vcenter)}-{_plain(lock_vm)[:_LONGEST]}.lease"

    def on(self, lock_vm: str) -> Nonces:
        """Those of leases on this lock VM."""
        return Nonces(self._state_dir, self._vcenter, returning=self._returning, lock_vm=lock_vm)

    def read(self) -> frozenset[str]:
        """Empty where nothing was kept; then a lease left behind runs out first."""
        with suppress(*self._tolerated):
            if self._path.exists():
                private_file(self._path)
                return frozenset(self._path.read_text(encoding="ascii", errors="replace").split())
        return frozenset()

    def keep(self, nonces: Collection[str]) -> None:
        """Instead of those before. On a full disk they are not kept: a morning must go on."""
        with suppress(OSError, *self._tolerated):
            prepare_state_dir(self._state_dir)
            private_file(self._path)
            new = self._path.with_suffix(".lease-new")
            private_file(new)
            new.write_text("\n".join(sorted(nonces)), encoding="ascii")
            new.replace(self._path)


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]", "_", name)
