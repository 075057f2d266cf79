"""Makes the classes of managers that do nothing by themselves, from the API's type tables and a table of answers.

`of_vcenter` and `of_hosts` hold the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pyVmomi import VmomiSupport

from gpuops.sim.core.managed_object import ManagedObject, method, prop
from gpuops.sim.core.registry import vmomi_type
from gpuops.sim.render.required_fields import plain_value

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call

Answer = Callable[[Any], Any]
"""Gives the value of a property, or what a method returns, of the object that is asked."""


def plain_kind(
    wsdl_name: str, base: type[ManagedObject], properties: Mapping[str, Answer], methods: Mapping[str, Answer]
) -> type[Any]:
    """The class of a manager: these properties and methods, and plain values for the properties that it must have.

    Its other methods are answered with NotSupported, as every method that is not simulated.
    """
    readers = {**_required(wsdl_name), **properties}
    members: dict[str, Any] = {"wsdl_name": wsdl_name, "__doc__": f"{wsdl_name}, which only answers reads."}
    members |= {f"_read_{path}": _reader(path, answer) for path, answer in readers.items()}
    members |= {name: _method(answer) for name, answer in methods.items()}
    return type(wsdl_name, (base,), members)


def _required(wsdl_name: str) -> dict[str, Answer]:
    return {
        info.name: partial(_plain, info.type)
        for info in vmomi_type(wsdl_name)._GetPropertyList()
        if not info.flags & VmomiSupport.F_OPTIONAL
    }


def _plain(kind: Any, manager: ManagedObject) -> Any:
    return plain_value(kind)


def _reader(path: str, answer: Answer) -> Any:
    @prop(path)
    def read(self: Any) -> Any:
        return answer(self)

    return read


def _method(answer: Answer) -> Any:
    @method
    def reply(self: Any, call: Call, **arguments: Any) -> Any:
        return answer(self)

    return reply
