"""The file of a watch in the state directory, `<vCenter>-watch.json`, for other runs and its own next start.

Another run reads the policy in it, to see whether both select the same VMs. The watch itself reads which ML VMs ended
by themselves: their work is done, and they are not started again. Like the lock of a watch the file belongs to this
machine, and the book of a vCenter may be shared by several.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from gpuops.config.policy import parse_policy
from gpuops.errors import Locked, PolicyError, StateDamaged
from gpuops.execute.site import Site
from gpuops.execute.state.lock import LockedBy, locked, rotating
from gpuops.execute.state.state_dir import prepare_state_dir, refuse_writable
from gpuops.files.file import NOT_PARSED, parse_json, read_bytes
from gpuops.files.private_file import write_private
from gpuops.model.nights.night_record import LockHolder
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.rejection import some_names
from gpuops.plan.rotation.nights.watch_look import shared_vms

_SCHEMA: Final = 1
_KEPT: Final = 1000
"""How many VMs that ended by themselves are remembered; the latest are kept."""
_STOP_IT: Final = "stop it first (systemctl stop gpuops-watch), or leave these VMs to one of the two policies"


@dataclass(frozen=True, slots=True)
class WatchState:
    """The saved state of one watch."""

    policy: str
    """The text of its policy."""
    finished: dict[str, str] = field(default_factory=dict)
    """Instance uuid (or ref) of each ML VM that ended by itself -> when that was seen."""


def load(site: Site) -> WatchState | None:
    """Return the saved state of the last watch of this vCenter; None if there is no file that can be trusted."""
    try:
        document = parse_json(
            read_bytes(_path(site.state_dir, site.vcenter.uuid), error=StateDamaged, check=refuse_writable)
        )
        if document["schema_version"] != _SCHEMA:
            return None
        finished = {str(uuid): str(moment) for uuid, moment in document["finished"].items()}
        return WatchState(str(document["policy"]), finished)
    except (*NOT_PARSED, AttributeError, StateDamaged):
        return None


def keep(site: Site, state: WatchState) -> None:
    """Save the state. Raises StateDamaged, and UsageError for a directory that cannot be used."""
    latest = dict(sorted(state.finished.items(), key=lambda uuid_and_moment: uuid_and_moment[1])[-_KEPT:])
    document: dict[str, Any] = {"schema_version": _SCHEMA, "policy": state.policy, "finished": latest}
    prepare_state_dir(site.state_dir)
    write_private(_path(site.state_dir, site.vcenter.uuid), json.dumps(document, indent=2) + "\n")


@contextmanager
def alone(site: Site, now: datetime) -> Iterator[None]:
    """Keep other watches of this machine away from the vCenter inside the block. Raises Locked."""
    try:
        with locked(site.state_dir, _lock_of(site), now, alone=True, doing="rotate watch"):
            yield
    except LockedBy as held:
        raise Locked(
            f"{held.holder} watches this vCenter already",
            hint="a vCenter has one watch: put both policies into one file",
        ) from held


def watching(site: Site) -> LockHolder | None:
    """Return the process that watches this vCenter on this machine, or None. Raises StateDamaged."""
    return rotating(site.state_dir, _lock_of(site))


def refuse_beside_watch(policy: Policy, inventory: Inventory, site: Site) -> None:
    """Raise Locked if a watch of this machine selects VMs of this policy too, or if that is unknown."""
    holder = watching(site)
    if holder is None:
        return
    state = load(site)
    try:
        watched = parse_policy(state.policy, "the watch", accepted_before=True) if state is not None else None
    except PolicyError:
        watched = None
    if watched is None:
        raise Locked(f"{holder} watches this vCenter, and its policy cannot be read", hint=_STOP_IT)
    shared = shared_vms(policy, watched, inventory)
    if shared:
        names = some_names(sorted(vm.name for vm in shared))
        raise Locked(f"{holder} watches {names} under policy {watched.name}", hint=_STOP_IT)


def _lock_of(site: Site) -> str:
    return f"{site.vcenter.uuid}-watch"


def _path(state_dir: Path, vcenter: str) -> Path:
    return state_dir / f"{re.sub(r'[^A-Za-z0-9-]', '_', vcenter)}-watch.json"
