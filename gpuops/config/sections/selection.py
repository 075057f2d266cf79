"""Selection: signs on VMs, and conditions over where they are and what they carry."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from gpuops.config.sections.section import Section, Text, mistake
from gpuops.model.selector import Mark, Selector


def _whole_tag(text: str) -> str:
    category, _, name = text.partition(":")
    if not category or not name:
        raise mistake(f"{text!r} is no tag", "write it as category:name")
    return text


class MarkSection(Section):
    """A custom attribute or a tag."""

    attribute: Text | None = None
    value: Text | None = None
    tag: Annotated[str, AfterValidator(_whole_tag)] | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> MarkSection:
        if (self.attribute is None) == (self.tag is None):
            raise mistake("say either `attribute` or `tag` (category:name)")
        if self.tag is not None and self.value is not None:
            raise mistake("a tag has no `value`", "name the tag whole: `tag: category:name`")
        return self

    def mark(self) -> Mark:
        return Mark(attribute=self.attribute, value=self.value, tag=self.tag)


class SelectSection(Section):
    """Which VMs are meant."""

    folder: Text | None = None
    name: Text | None = None
    profile: Text | None = None
    marks: list[MarkSection] = Field(default_factory=list)

    @model_validator(mode="after")
    def _selects_something(self) -> SelectSection:
        if not (self.folder or self.name or self.profile or self.marks):
            raise mistake("an empty `select` would mean every VM: say folder, name, profile or marks")
        return self

    def selector(self) -> Selector:
        marks = tuple(section.mark() for section in self.marks)
        return Selector(folder=self.folder, name=self.name, profile=self.profile, marks=marks)
