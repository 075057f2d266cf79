"""Makes objects of the API from `defaults.yaml`: the fields that every host, VM or switch has alike when it is new.

The table has an object by the name of its type, and its fields with plain values; the type tables of pyVmomi say what
each value becomes. An object in a field of a more general type names its own type as `_type`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from pyVmomi import VmomiSupport

from gpuops.files.yaml_file import parse_yaml, read_text
from gpuops.sim.core.registry import vmomi_type
from gpuops.sim.render.required_fields import filled


def default(wsdl_name: str, **values: Any) -> Any:
    """A new object of this type with the fields of the table and with `values`, which win.

    Objects in fields of the table are shared by all that is made from it: copy one before you change it.
    """
    return filled(vmomi_type(wsdl_name), **{**default_fields(wsdl_name), **values})


@cache
def default_fields(wsdl_name: str) -> dict[str, Any]:
    """The fields that the table has for this type, as objects of the API."""
    return _fields(vmomi_type(wsdl_name), _table()[wsdl_name])


@cache
def _table() -> dict[str, Any]:
    path = Path(__file__).with_name("defaults.yaml")
    table: Any = parse_yaml(read_text(path), path.name)
    return dict(table)


def _fields(kind: Any, plain: dict[str, Any]) -> dict[str, Any]:
    return {name: _value(kind._GetPropertyInfo(name).type, value) for name, value in plain.items() if name != "_type"}


def _value(kind: Any, plain: Any) -> Any:
    if isinstance(plain, list):
        return kind([_value(kind.Item, item) for item in plain])
    if isinstance(plain, dict):
        value_type = vmomi_type(plain["_type"]) if "_type" in plain else kind
        return filled(value_type, **_fields(value_type, plain))
    return kind(plain) if issubclass(kind, VmomiSupport.Enum) else plain
