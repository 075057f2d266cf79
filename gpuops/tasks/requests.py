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
    options_given = {name: option for name, option in options.items() if option is not None}
    return kind(**{name: _field_value(hints[name], option) for name, option in options_given.items()})


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


def _field_value(hint: Any, option: Any) -> Any:
    if isinstance(option, list):
        return tuple(option)
    words = [
        type_in_hint
        for type_in_hint in (hint, *get_args(hint))
        if isinstance(type_in_hint, type) and issubclass(type_in_hint, StrEnum)
    ]
    return words[0](option) if words else option
