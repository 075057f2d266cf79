"""Values of gpuops made from the arguments of a task."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

if TYPE_CHECKING:
    from gpuops.model.nights.rotation import Policy

Request = TypeVar("Request")


def request_of(kind: type[Request], options: Mapping[str, Any]) -> Request:
    """Return the request that these options make: text becomes the word of the field's vocabulary. None = left out."""
    hints = get_type_hints(kind)
    given = {name: value for name, value in options.items() if value is not None}
    return kind(**{name: _field_value(hints[name], value) for name, value in given.items()})


def vm_of(options: dict[str, Any]) -> str | None:
    """Take out the options that name a VM, and return how gpuops names it; None = the task names none."""
    name, moid, uuid = (options.pop(key, None) for key in ("vm", "moid", "uuid"))
    if moid:
        return f"moid:{moid}"
    return f"uuid:{uuid}" if uuid else name


def policy_of(file: str | None) -> Policy | None:
    """Return the rotation policy of a file. Raises PolicyError."""
    from gpuops.config.policy import load_policy

    return load_policy(Path(file).expanduser()) if file else None


def _field_value(hint: Any, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    words = [each for each in (hint, *get_args(hint)) if isinstance(each, type) and issubclass(each, StrEnum)]
    return words[0](value) if words else value
