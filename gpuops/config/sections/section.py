"""What all sections of a policy file share: no unknown keys, no guessed types, errors with a next move.

With the sections that select VMs, by where they are and by what they carry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from gpuops.model.nights.selector import Mark, Selector

Text = Annotated[str, Field(min_length=1, max_length=200)]

ACCEPTED_BEFORE = "accepted before"
"""Key of the validation context."""


def accepted_before(info: ValidationInfo) -> bool:
    """Whether the text is of a night in the journal: an older gpuops took it for a policy, and its desktops must come
    back, so what is asked of a new one only is not asked of it."""
    return bool((info.context or {}).get(ACCEPTED_BEFORE))


class Section(BaseModel):
    """One mapping of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)
    removed_keys: ClassVar[Mapping[str, str]] = {}
    """Key that earlier versions of gpuops had -> what to write instead."""

    @model_validator(mode="before")
    @classmethod
    def _without_removed_keys(cls, content: Any, info: ValidationInfo) -> Any:
        """Refuse a removed key in a new file. The policy of a past night may have it, and its desktops come back."""
        removed = [key for key in cls.removed_keys if isinstance(content, dict) and key in content]
        if removed and not accepted_before(info):
            raise mistake(f"`{removed[0]}` is no longer supported", cls.removed_keys[removed[0]])
        return {key: content[key] for key in content if key not in removed} if removed else content


def mistake(reason: str, hint: str = "") -> PydanticCustomError:
    """The error of a value that cannot be meant, with the next move where the general one says too little."""
    # passed as values: a brace in them is no placeholder
    return PydanticCustomError("mistake", "{reason}", {"reason": reason, "hint": hint})


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
