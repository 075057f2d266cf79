"""Who a VM belongs to, as the VM says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpuops.errors import UsageError
from gpuops.model.stored import stored_as
from gpuops.model.vcenter.vm import Vm

NOBODY: Final = ""
"""The owner of VMs that say none, or that are not in vCenter any more."""


@stored_as("NotedOwner", by="by", owner="owner")
@dataclass(frozen=True, slots=True)
class NotedOwner:
    """The owner of a VM as it said when a night took it."""

    by: str
    """An `OwnerKey` as it is written."""
    owner: str


@stored_as("OwnerKey", kind="kind", name="name")
@dataclass(frozen=True, slots=True)
class OwnerKey:
    """By what of a VM its owner is told: the folder that it lies in, a tag's category, or a custom attribute."""

    kind: str = "folder"
    """`folder`, `tag` or `attribute`."""
    name: str = ""
    """The category or the attribute."""

    @property
    def needs_tags(self) -> bool:
        return self.kind == "tag"

    def of(self, vm: Vm) -> str:
        """Its owner; NOBODY where it says none. Of several tags of the category all, for each is an owner's."""
        match self.kind:
            case "folder":
                return _below_root(vm.folder)
            case "tag":
                return ", ".join(sorted(self._tags(vm)))
            case _:
                return vm.attributes.get(self.name, NOBODY).strip()

    def of_several(self, vm: Vm) -> bool:
        """Whether the VM says more than one owner."""
        return self.kind == "tag" and len(self._tags(vm)) > 1

    def _tags(self, vm: Vm) -> list[str]:
        before = f"{self.name}:"
        return [tag.removeprefix(before) for tag in vm.tags or () if tag.startswith(before)]

    @classmethod
    def parse(cls, option: str, text: str) -> OwnerKey:
        """`folder`, `tag:CATEGORY` or `attribute:NAME`. Raises UsageError, which names the option."""
        kind, _, name = text.partition(":")
        if text == "folder" or (kind in ("tag", "attribute") and name.strip()):
            return cls(kind, name.strip())
        hint = "write folder, tag:CATEGORY or attribute:NAME, such as tag:team"
        raise UsageError(f"{option}: {text!r} says no owner of a VM", hint=hint)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else self.kind


def _below_root(folder: str) -> str:
    """`ml/team-a` of `/lab-dc/vm/ml/team-a`: below the data centre's root folder of VMs."""
    parts = folder.strip("/").split("/")
    return "/".join(parts[parts.index("vm") + 1 :] if "vm" in parts else parts)
