"""The owner of a VM, by its folder, a tag or a custom attribute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpuops.errors import UsageError
from gpuops.model.stored import stored_as
from gpuops.model.vcenter.vm import Vm

NOBODY: Final = ""
"""The owner of VMs without one, or that are not in vCenter any more."""


@stored_as("NotedOwner")
@dataclass(frozen=True, slots=True)
class NotedOwner:
    """The owner of a VM when a night took it."""

    by: str
    """The text of an `OwnerKey`."""
    owner: str


@stored_as("OwnerKey")
@dataclass(frozen=True, slots=True)
class OwnerKey:
    """The place of the owner in a VM: its folder, a tag of a category, or a custom attribute."""

    kind: str = "folder"
    """`folder`, `tag` or `attribute`."""
    name: str = ""
    """The category or the attribute."""

    @property
    def needs_tags(self) -> bool:
        return self.kind == "tag"

    def of(self, vm: Vm) -> str:
        """Return the owner of the VM; '' if it has none. Several tags of the category mean several owners."""
        match self.kind:
            case "folder":
                return _below_root(vm.folder)
            case "tag":
                return ", ".join(sorted(self._tags(vm)))
            case _:
                return vm.attributes.get(self.name, NOBODY).strip()

    def of_several(self, vm: Vm) -> bool:
        """Return whether the VM has more than one owner."""
        return self.kind == "tag" and len(self._tags(vm)) > 1

    def _tags(self, vm: Vm) -> list[str]:
        before = f"{self.name}:"
        return [tag.removeprefix(before) for tag in vm.tags or () if tag.startswith(before)]

    @classmethod
    def parse(cls, option: str, text: str) -> OwnerKey:
        """Parse `folder`, `tag:CATEGORY` or `attribute:NAME`. Raises UsageError, which names the option."""
        kind, _, name = text.partition(":")
        if text == "folder" or (kind in ("tag", "attribute") and name.strip()):
            return cls(kind, name.strip())
        hint = "write folder, tag:CATEGORY or attribute:NAME, such as tag:team"
        raise UsageError(f"{option}: {text!r} does not name a source of VM owners", hint=hint)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else self.kind


def _below_root(folder: str) -> str:
    """Return the path below the data centre's root folder of VMs: `ml/team-a` for `/lab-dc/vm/ml/team-a`."""
    parts = folder.strip("/").split("/")
    return "/".join(parts[parts.index("vm") + 1 :] if "vm" in parts else parts)
