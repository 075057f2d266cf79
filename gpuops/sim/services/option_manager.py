"""The OptionManager object: advanced settings of vCenter (VpxSettings) or of a host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyVmomi import vim

from gpuops.sim.core.managed_object import ManagedObject, Properties, method, prop

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuops.sim.core.call import Call
    from gpuops.sim.world import World

VCENTER_MOID: Final = "VpxSettings"

OPEN_PREFIXES: Final = ("config.",)
"""Keys that may be added; any other unknown key is an InvalidName."""


class OptionManager(ManagedObject):
    """Settings by key; values keep their type."""

    wsdl_name = "OptionManager"
    world: World

    property_table: ClassVar[Properties] = {
        "supportedOption": lambda self: [_definition(key, value) for key, value in sorted(self.options.items())]
    }

    def __init__(
        self,
        world: World,
        moid: str,
        options: dict[str, Any],
        *,
        name: str = "",
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`changed` touches what else shows the options."""
        super().__init__(world, moid)
        self.options = options
        self.changed = changed
        self.name = name or moid

    @prop("setting")
    def _setting(self) -> list[Any]:
        return [vim.option.OptionValue(key=key, value=value) for key, value in sorted(self.options.items())]

    @method
    def QueryOptions(self, call: Call, name: str | None) -> list[Any]:
        """One option, or with a name that ends in a dot all below it. Raises InvalidName."""
        options = [option for option in self._setting() if not name or _is_named(option.key, name)]
        if not options:
            raise _invalid(name)
        return options

    @method
    def UpdateOptions(self, call: Call, changedValue: list[Any]) -> None:
        """All or nothing. Raises InvalidName for a key that does not exist."""
        for option in changedValue:
            if option.key not in self.options and not option.key.startswith(OPEN_PREFIXES):
                raise _invalid(option.key)
        before = {option.key: self.options.get(option.key) for option in changedValue}
        after = {option.key: _as_before(option.value, before[option.key]) for option in changedValue}
        self.options |= after
        self.touch("setting", "supportedOption")
        self.changed()
        self.world.ledger.record(call, self, before=before, after=after)


def _is_named(key: str, name: str) -> bool:
    return key == name or (name.endswith(".") and key.startswith(name))


def _as_before(value: Any, before: Any) -> Any:
    """The new value in the old one's type, since clients write booleans and numbers as text too."""
    if isinstance(before, bool) and isinstance(value, str):
        return value.lower() == "true"
    if isinstance(before, int) and isinstance(value, str) and value.lstrip("-").isdigit():
        return int(value)
    return value


def _definition(key: str, value: Any) -> Any:
    if isinstance(value, bool):
        kind = vim.option.BoolOption(valueIsReadonly=False, supported=True, defaultValue=value)
    elif isinstance(value, int):
        kind = vim.option.LongOption(valueIsReadonly=False, min=0, max=2**31, defaultValue=value)
    else:
        kind = vim.option.StringOption(valueIsReadonly=False, defaultValue=str(value))
    return vim.option.OptionDef(key=key, label=key, summary=key, optionType=kind)


def _invalid(name: str | None) -> Exception:
    return vim.fault.InvalidName(msg=f"A specified parameter was not correct: {name}", name=name or "")
