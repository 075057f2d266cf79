"""What is wrong with a file that msgspec alone decodes, in our words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import msgspec


def describe_mismatch(error: msgspec.ValidationError, within: str = "") -> str:
    """Return where a file that msgspec checks is wrong, and how. `within` is the place of the checked part in the file.

    >>> describe_mismatch(msgspec.ValidationError("Expected `int` >= 1 - at `$.vms[3].cpus`"))
    'vms.3.cpus: expected int >= 1'
    """
    in_yaml = str(error).replace("`object`", "a mapping").replace("`array`", "a list").replace("`null`", "nothing")
    problem, _, path = in_yaml.replace("`", "").partition(" - at ")
    problem = problem.removeprefix("Object ")
    place = re.sub(r"\[(\d+|\.\.\.)\]", r".\1", within + path.replace("$", "")).strip(".")
    return ": ".join(filter(None, (place, problem[:1].lower() + problem[1:])))
