"""The two types behind esxcli over SOAP, which vCenter has and pyVmomi does not know.

Not in the vSphere API reference; names and shapes as govmomi calls them (cli/esx, internal/types).
"""

from __future__ import annotations

from typing import Any, Final

from pyVmomi import VmomiSupport

_VERSION: Final = "vim.version.version5"
_EXECUTER: Final = "vmodl.reflect.ManagedMethodExecuter"
_WSDL: Final = "ReflectManagedMethodExecuter"
_TYPES: Final = "vmodl.reflect.DynamicTypeManager"


def _data(name: str, *fields: tuple[str, str, int]) -> None:
    properties = [(field, kind, _VERSION, flags) for field, kind, flags in fields]
    VmomiSupport.CreateDataType(f"{_EXECUTER}.{name}", f"{_WSDL}{name}", "vmodl.DynamicData", _VERSION, properties)


def _register() -> None:
    """Makes pyVmomi know the types; once in a process."""
    optional = VmomiSupport.F_OPTIONAL
    _data("SoapArgument", ("name", "string", 0), ("val", "string", 0))
    _data("SoapFault", ("faultMsg", "string", 0), ("faultDetail", "string", optional))
    _data("SoapResult", ("response", "string", optional), ("fault", f"{_EXECUTER}.SoapFault", optional))
    strings = tuple((name, "string", _VERSION, 0, None) for name in ("moid", "version", "method"))
    arguments = ("argument", f"{_EXECUTER}.SoapArgument[]", _VERSION, optional, None)
    result = f"{_EXECUTER}.SoapResult"
    VmomiSupport.CreateManagedType(_TYPES, "InternalDynamicTypeManager", "vmodl.ManagedObject", _VERSION, None, [])
    VmomiSupport.CreateManagedType(
        _EXECUTER,
        _WSDL,
        "vmodl.ManagedObject",
        _VERSION,
        None,
        [
            _method("RetrieveManagedMethodExecuter", (), (optional, _EXECUTER, _EXECUTER)),
            _method("RetrieveDynamicTypeManager", (), (optional, _TYPES, _TYPES)),
            _method("ExecuteSoap", (*strings, arguments), (optional, result, result)),
        ],
    )


def _method(name: str, parameters: tuple[Any, ...], returns: tuple[int, str, str]) -> tuple[Any, ...]:
    return (name[0].lower() + name[1:], name, _VERSION, parameters, returns, None, None)


_register()


def response(text: str) -> Any:
    """A vmomi SoapResult that holds this XML."""
    return VmomiSupport.GetVmodlType(f"{_EXECUTER}.SoapResult")(response=text)


def fault(message: str) -> Any:
    """A vmomi SoapResult that holds an error of esxcli."""
    soap_fault = VmomiSupport.GetVmodlType(f"{_EXECUTER}.SoapFault")(
        faultMsg="EsxCLI.CLIFault.summary",
        faultDetail=f'<obj xmlns="urn:vim25" versionId="5.0"><errMsg>{message}</errMsg></obj>',
    )
    return VmomiSupport.GetVmodlType(f"{_EXECUTER}.SoapResult")(fault=soap_fault)
