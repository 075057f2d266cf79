"""What vCenter told of single objects, undecoded, without a text of the site.

Names of fields, words of the API, numbers and moments are as they were."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from gpuops.model.vcenter.entity_name import decode_name
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.wire_reply import FreeText, Reference, Told, WireReply
from gpuops.report.bundle.harmless import is_of_gpus
from gpuops.report.bundle.pseudonyms import NameKind, Pseudonyms
from gpuops.report.bundle.world_vms import plain_settings, utc

_TYPE: Final = "_typeName"


class ReplyWriter:
    """Writes replies; the same name is the same pseudonym as in the rest of the bundle."""

    def __init__(self, inventory: Inventory, names: Pseudonyms) -> None:
        self._names = names
        self._kinds = {
            **dict.fromkeys((each.name for each in inventory.datastores.values()), NameKind.DATASTORE),
            **dict.fromkeys((each.name for each in inventory.clusters.values()), NameKind.CLUSTER),
            **dict.fromkeys((each.name for each in inventory.hosts.values()), NameKind.HOST),
            **dict.fromkeys((each.name for each in inventory.vms.values()), NameKind.VM),
        }

    def document(self, replies: Iterable[WireReply]) -> list[dict[str, Any]]:
        """Each object with its properties."""
        return [
            {
                "type": reply.object.type,
                "moid": self._names.ref(reply.object.ref),
                "properties": {path: self._value(told) for path, told in reply.properties.items()},
            }
            for reply in replies
        ]

    def _value(self, told: Told) -> Any:
        match told:
            case FreeText(text):
                return self._text(text)
            case Reference(type_, ref):
                return {_TYPE: type_, "moid": self._names.ref(ref)}
            case datetime():
                return utc(told)
            case Mapping():
                shown = told if told.get(_TYPE) != "OptionValue" else self._option(told)
                return {key: self._value(value) for key, value in shown.items()}
            case str():
                return told
            case Sequence():
                return [self._value(each) for each in told]
            case _:
                return told

    def _text(self, text: str) -> str:
        """A PCI address, a profile or a GPU's name as it is; any other text, and whatever is a name here, hidden."""
        name = decode_name(text)  # replies are as they were on the wire
        if (kind := self._kinds.get(name)) is not None:
            return self._names.of(kind, name)
        return text if not text or is_of_gpus(text) else self._names.of(NameKind.TEXT, text)

    def _option(self, told: Mapping[str, Told]) -> Mapping[str, Told]:
        """A setting that plans go by as it is; `str` passes here for a word of ours."""
        key, value = told.get("key"), told.get("value")
        if isinstance(key, FreeText) and isinstance(value, FreeText):
            for name, plain in plain_settings({key.text: value.text}):
                return {_TYPE: "OptionValue", "key": name, "value": plain}
        return told


def schema_words(replies: Iterable[WireReply]) -> frozenset[str]:
    """The words of the API in these replies: types, fields, property paths and values of enumerations."""
    return frozenset(
        word
        for reply in replies
        for word in (reply.object.type, *reply.properties, *_words(list(reply.properties.values())))
    )


def _words(told: Told) -> Iterator[str]:
    match told:
        case Reference(type_, _):
            yield from (type_, _TYPE)
        case str():
            yield told
        case Mapping():
            yield from told
            for each in told.values():
                yield from _words(each)
        case Sequence():
            for each in told:
                yield from _words(each)
        case _:
            pass
