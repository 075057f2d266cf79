"""The sections of a policy that select VMs, by where they are and by what they carry."""

from __future__ import annotations

from typing import Annotated

from gpuops.config.decoding import Section
from gpuops.model.file_keys import Mistaken, Reads, Text
from gpuops.model.nights.selector import Mark, Selector


def _whole_tag(text: str) -> str:
    category, _, name = text.partition(":")
    if not category or not name:
        raise Mistaken(f"{text!r} is no tag", "write it as category:name")
    return text


class MarkSection(Section):
    """A custom attribute or a tag."""

    attribute: Text | None = None
    value: Text | None = None
    tag: Annotated[str, Reads(_whole_tag)] | None = None

    def __post_init__(self) -> None:
        if (self.attribute is None) == (self.tag is None):
            raise Mistaken("say either `attribute` or `tag` (category:name)")
        if self.tag is not None and self.value is not None:
            raise Mistaken("a tag has no `value`", "name the tag whole: `tag: category:name`")

    def mark(self) -> Mark:
        return Mark(attribute=self.attribute, value=self.value, tag=self.tag)


class SelectSection(Section):
    """Which VMs are meant."""

    folder: Text | None = None
    name: Text | None = None
    profile: Text | None = None
    marks: tuple[MarkSection, ...] = ()

    def __post_init__(self) -> None:
        if not (self.folder or self.name or self.profile or self.marks):
            raise Mistaken("an empty `select` would mean every VM: say folder, name, profile or marks")

    def selector(self) -> Selector:
        marks = tuple(section.mark() for section in self.marks)
        return Selector(folder=self.folder, name=self.name, profile=self.profile, marks=marks)
