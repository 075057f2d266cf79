"""Makes the classes of managers that do nothing by themselves, from the API's type tables and a table of answers.

`of_vcenter` and `of_hosts` hold the tables.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from pyVmomi import VmomiSupport

from gpuops.sim.core.managed_object import ManagedObject, Methods, Properties
from gpuops.sim.core.registry import vmomi_type
from gpuops.sim.render.required_fields import plain_value


def plain_kind(wsdl_name: str, base: type[ManagedObject], properties: Properties, methods: Methods) -> type[Any]:
    """The class of a manager: these properties and methods, and plain values for the properties that it must have.

    Its other methods are answered with NotSupported, as every method that is not simulated.
    """
    required = {
        info.name: partial(_plain, info.type)
        for info in vmomi_type(wsdl_name)._GetPropertyList()
        if not info.flags & VmomiSupport.F_OPTIONAL
    }
    members = {"property_table": {**required, **properties}, "method_table": methods}
    return type(
        wsdl_name, (base,), {"wsdl_name": wsdl_name, "__doc__": f"{wsdl_name}, which only answers reads.", **members}
    )


def _plain(kind: Any, manager: ManagedObject) -> Any:
    return plain_value(kind)
