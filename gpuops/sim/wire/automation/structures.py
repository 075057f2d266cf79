"""Makes structures of the vSphere Automation API from SOAP objects, by the table `structures.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from gpuops.files.yaml_file import parse_yaml, read_text
from gpuops.sim.vcenter.vapi_values import OptionalValue, Struct

VCENTER: Final = "com.vmware.vcenter"


def structure_of(name: str, source: Any, /, **own_fields: Any) -> Struct:
    """The structure of this name below com.vmware.vcenter, with the fields of `fields_of`."""
    return Struct(f"{VCENTER}.{name}", fields_of(name, source, **own_fields))


def fields_of(name: str, source: Any, /, **own_fields: Any) -> dict[str, Any]:
    """Its fields: those that the table takes from `source`, and those that only the caller knows."""
    return {field: _value(path, source, own_fields, field) for field, path in _table()[name].items()}


def _value(path: str | None, source: Any, own_fields: Mapping[str, Any], field: str) -> Any:
    if path is None:
        return own_fields[field]
    if path == "?":
        return OptionalValue(own_fields.get(field))
    if path.startswith("="):
        return path[1:]
    setting = attrgetter(path.rstrip("?!^"))(source)
    match path[-1]:
        case "?":
            return OptionalValue(setting)
        case "!":
            return bool(setting)
        case "^":
            return str(setting).upper()
        case _:
            return setting


@cache
def _table() -> Mapping[str, Mapping[str, str | None]]:
    path = Path(__file__).with_name("structures.yaml")
    table: Any = parse_yaml(read_text(path), path.name)
    return dict(table)
