"""Section: what all parts of a policy file share: no unknown keys, no guessed types, errors with a next move."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo
from pydantic_core import PydanticCustomError

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


def mistake(reason: str, hint: str = "") -> PydanticCustomError:
    """The error of a value that cannot be meant, with the next move where the general one says too little."""
    # passed as values: a brace in them is no placeholder
    return PydanticCustomError("mistake", "{reason}", {"reason": reason, "hint": hint})
