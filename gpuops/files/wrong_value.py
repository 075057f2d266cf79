"""What is wrong with a value of a file that people write, in our words: `should be true or false`.

pydantic checks these files. Its own messages are written for programmers ("Input should be a valid boolean, unable to
interpret input"), and they never repeat the value: it may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import msgspec
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

_ONE_OF: Final = {
    "bool_parsing": "should be true or false",
    "bool_type": "should be true or false",
    "dict_type": "should have keys of its own: name, colon, value",
    "extra_forbidden": "unknown key",
    "int_from_float": "should be a whole number",
    "int_parsing": "should be a whole number",
    "int_type": "should be a whole number",
    "float_parsing": "should be a number",
    "float_type": "should be a number",
    "finite_number": "should be a number",
    "list_type": "should be a list",
    "tuple_type": "should be a list",
    "missing": "is missing",
    "model_type": "should have keys of its own: name, colon, value",
    "model_attributes_type": "should have keys of its own: name, colon, value",
    "path_type": "should be the path of a file",
    "string_type": "should be text; put quotes around it",
}
"""By the type of pydantic's error."""
_WITH_NUMBERS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "enum": lambda told: f"should be {told['expected']}",
    "greater_than": lambda told: f"should be more than {told['gt']}",
    "greater_than_equal": lambda told: f"should be {told['ge']} or more",
    "less_than": lambda told: f"should be less than {told['lt']}",
    "less_than_equal": lambda told: f"should be {told['le']} or less",
    "literal_error": lambda told: f"should be {told['expected']}",
    "string_pattern_mismatch": lambda told: f"does not have the form {told['pattern']}",
    "string_too_long": lambda told: f"should have {told['max_length']} characters or fewer",
    "string_too_short": lambda told: "should not be empty",
    "too_long": lambda told: f"should have {told['max_length']} entries or fewer",
    "too_short": lambda told: (
        "should not be an empty list" if told["field_type"] == "List" else "should have at least one entry"
    ),
    "value_error": lambda told: str(told["error"]),
}


def reason(details: ErrorDetails) -> str:
    """What is wrong, without the key and the value.

    >>> reason({"type": "less_than_equal", "loc": ("port",), "msg": "", "input": 0, "ctx": {"le": 65535}})
    'should be 65535 or less'
    """
    kind = details["type"]
    if kind in _ONE_OF:
        return _ONE_OF[kind]
    words = _WITH_NUMBERS.get(kind)
    return words(details.get("ctx", {})) if words else details["msg"]


def first_wrong(error: ValidationError) -> str:
    """Return the first mistake in a file and the number of further ones: `ports.first: is missing (and 1 more)`."""
    details, further = error.errors()[0], error.error_count() - 1
    key = ".".join(str(part) for part in details["loc"])
    return f"{key}{': ' if key else ''}{reason(details)}{f' (and {further} more)' if further else ''}"


def describe_mismatch(error: msgspec.ValidationError, within: str = "") -> str:
    """Return where a file that msgspec checks is wrong, and how. `within` is the place of the checked part in the file.

    >>> describe_mismatch(msgspec.ValidationError("Expected `int` >= 1 - at `$.vms[3].cpus`"))
    'vms.3.cpus: expected int >= 1'
    """
    in_yaml = str(error).replace("`object`", "a mapping").replace("`array`", "a list").replace("`null`", "nothing")
    said, _, path = in_yaml.replace("`", "").partition(" - at ")
    said = said.removeprefix("Object ")
    place = re.sub(r"\[(\d+|\.\.\.)\]", r".\1", within + path.replace("$", "")).strip(".")
    return ": ".join(filter(None, (place, said[:1].lower() + said[1:])))
