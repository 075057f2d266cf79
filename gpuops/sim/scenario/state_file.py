"""The file that keeps the state of a world between two runs of its server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpuops.config.file import NOT_PARSED, parse_json, read_bytes
from gpuops.errors import StateDamaged, UsageError

if TYPE_CHECKING:
    from gpuops.sim.world import World


LARGEST: Final = 512 * 1024 * 1024
"""The state of the largest fleet, and of what was done to it."""


class StateFile:
    """A JSON file: read at once if it is there, written by `save()`."""

    def __init__(self, path: Path, world: World) -> None:
        """Raises UsageError for a world that cannot be saved, StateDamaged for a file that does not fit it."""
        if world.state_hooks is None:
            raise UsageError("this world has no state to save")
        self._path = path
        self._world = world
        self._save, restore = world.state_hooks
        if path.exists():
            with world.lock:
                self._restore(restore)
                world.fragments.clear()

    def save(self) -> None:
        """Write the state in one step: a reader sees the old file or the new one."""
        temporary = self._path.with_name(f".{self._path.name}.new")
        with self._world.lock:
            document = self._save()
        temporary.write_text(json.dumps(document), encoding="utf-8")
        temporary.replace(self._path)

    def _restore(self, restore: Any) -> None:
        raw = read_bytes(self._path, largest=LARGEST, error=StateDamaged)
        try:
            restore(parse_json(raw))
        except (*NOT_PARSED, AttributeError) as error:  # whatever a state that this world did not save holds
            raise StateDamaged(
                f"{self._path} is not the state of this scenario: {type(error).__name__}: {error}",
                hint="remove it to begin afresh",
            ) from error
