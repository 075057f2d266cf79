"""Which VMs a policy means: by folder, name, attributes, tags and the profile of their vGPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated

from gpuops.model.file_keys import Mistaken, Reads, Text
from gpuops.model.vcenter.vm import Vm


def _check_tag(text: str) -> str:
    """Return the same text. Raises Mistaken if it is not `category:name`."""
    category, _, name = text.partition(":")
    if not category or not name:
        raise Mistaken(f"{text!r} is not a tag", "write it as category:name")
    return text


@dataclass(frozen=True, slots=True)
class Mark:
    """A sign that people put on VMs: a custom attribute (with this value, or with any), or a tag `category:name`."""

    attribute: Text | None = None
    value: Text | None = None
    tag: Annotated[str, Reads(_check_tag)] | None = None

    def __post_init__(self) -> None:
        if (self.attribute is None) == (self.tag is None):
            raise Mistaken("set either `attribute` or `tag` (category:name)")
        if self.tag is not None and self.value is not None:
            raise Mistaken("a tag has no `value`", "write the complete tag: `tag: category:name`")

    def on(self, vm: Vm) -> bool | None:
        """Return whether the VM carries the mark; None = this login cannot read it."""
        if self.tag is not None:
            return None if vm.tags is None else self.tag in vm.tags
        attribute_value = vm.attributes.get(self.attribute or "", "")
        return bool(attribute_value) if self.value is None else attribute_value == self.value

    def __str__(self) -> str:
        if self.tag is not None:
            return f"tag {self.tag}"
        return f"attribute {self.attribute}" + ("" if self.value is None else f" = {self.value}")


@dataclass(frozen=True, slots=True)
class Selector:
    """Which VMs are meant: all of the conditions that are given must hold."""

    folder: Text | None = None
    """`/dc/vm/desktops` is a path from the root; `desktops/cad` any folders of these names, one in the other."""
    name: Text | None = None
    """Shell pattern, case-sensitive."""
    marks: tuple[Mark, ...] = ()
    profile: Text | None = None
    """Shell pattern that every vGPU of the VM must fit; a VM without a vGPU never does."""

    def __post_init__(self) -> None:
        if not (self.folder or self.name or self.profile or self.marks):
            raise Mistaken("an empty `select` would mean every VM: set folder, name, profile or marks")

    def selects(self, vm: Vm) -> bool:
        """Return whether the VM is selected; a VM whose marks this login cannot read is not."""
        return (
            (self.folder is None or self.in_folder(vm))
            and (self.name is None or fnmatchcase(vm.name, self.name))
            and all(mark.on(vm) is True for mark in self.marks)
            and (self.profile is None or _all_fit(vm.profiles, self.profile))
        )

    def in_folder(self, vm: Vm) -> bool:
        """Return whether the VM is inside the folder; False if the selector has none."""
        return self.folder is not None and _inside(vm, self.folder)


def _inside(vm: Vm, folder: str) -> bool:
    """Return whether the VM is in the folder or below it; a path without a leading slash may begin anywhere."""
    if vm.folders:  # a name contains a slash, so the path cannot be split: compare the names
        return folder.strip("/") in _paths_in(vm.folders, from_root=folder.startswith("/"))
    parents = vm.folder + "/"
    folder_path = folder.strip("/") + "/"
    return parents.startswith("/" + folder_path) if folder.startswith("/") else "/" + folder_path in parents


def _paths_in(names: Sequence[str], *, from_root: bool) -> Iterator[str]:
    """Yield the paths in a row of names: for `dc`, `vm`, `b/team`, `a` also `b/team/a`, but not `team/a`."""
    for first in range(1 if from_root else len(names)):
        for end in range(first + 1, len(names) + 1):
            yield "/".join(names[first:end])


def _all_fit(profiles: tuple[str, ...], pattern: str) -> bool:
    return bool(profiles) and all(fnmatchcase(profile, pattern) for profile in profiles)
