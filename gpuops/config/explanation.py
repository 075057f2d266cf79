"""Explains one key of a file that people write, from the JSON Schema of the file and its template."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final

from gpuops.errors import UsageError

Schema = dict[str, Any]
_LONGEST_EXAMPLE: Final = 16
_NEAR_KEYS: Final = 5
_LIMITS: Final = {"minimum": "at least", "maximum": "at most", "exclusiveMinimum": "more than", "pattern": "matching"}


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a key of a file means."""

    path: str
    """`policy.pools.idle`."""
    description: str
    type: str
    required: bool
    default: object
    """The default as a file has it; None = no default, or it means that nothing is set."""
    allowed: tuple[object, ...] = ()
    keys: tuple[Explanation, ...] = ()
    """The keys below it."""
    example: str = ""


@dataclass(frozen=True, slots=True)
class _SchemaKey:
    """A key of the JSON Schema of a file, with the words that lead to it."""

    words: tuple[str, ...]
    schema: Schema
    required: bool = False
    names: tuple[str, ...] = ()
    """The words without names that the writer of the file chooses: NAME in targets.NAME.host."""
    defs: Mapping[str, Schema] = field(default_factory=dict)

    def forms(self) -> list[Schema]:
        """Return the possible schemas of the value, or of the entries of a list, without `null`."""
        return list(_forms(self.schema, self.defs))

    def keys(self) -> dict[str, _SchemaKey]:
        """Return the keys below this one, by name."""
        keys = {}
        for form in self.forms():
            for name, schema in form.get("properties", {}).items():
                required = name in form.get("required", ())
                keys[name] = _SchemaKey((*self.words, name), schema, required, (*self.names, name), self.defs)
        return keys

    def below(self, word: str) -> _SchemaKey | None:
        """Return the key of that name; None if it does not exist."""
        if word in (keys := self.keys()):
            return keys[word]
        for form in self.forms():
            if isinstance(named := form.get("additionalProperties"), dict):
                # `targets.host` is understood as `targets.NAME.host`, any other word as a NAME
                named_key = _SchemaKey((*self.words, "NAME"), named, False, self.names, self.defs)
                return named_key.keys().get(word) or _SchemaKey(
                    (*self.words, word), named, False, self.names, self.defs
                )
        return None


def explain(file: str, words: Sequence[str], schema: Schema, template: str) -> Explanation:
    """Return the explanation of the key at the end of `words` in this file. Raises UsageError for an unknown key."""
    schema_key = _SchemaKey((file,), schema, defs=schema.get("$defs", {}))
    for word in words:
        below = schema_key.below(word)
        if below is None:
            raise _unknown_key(schema_key, word)
        schema_key = below
    keys = tuple(_explanation(key, template) for key in _keys_below(schema_key).values())
    return _explanation(schema_key, template, keys)


def _keys_below(place: _SchemaKey) -> dict[str, _SchemaKey]:
    """Return the keys below; where people choose the names, as in targets.NAME, the keys below such a name."""
    named = place.below("NAME") if not place.keys() else None
    return place.keys() if named is None else named.keys()


def _explanation(place: _SchemaKey, template: str, keys: tuple[Explanation, ...] = ()) -> Explanation:
    """Return the explanation of a key, from its schema and the comments of the template."""
    comment, example = _comment_and_example(template, place.names)
    forms = place.forms()
    description_of_form = next((form["description"] for form in forms if "description" in form), "")
    # a description of the key is more specific than one of its type
    description = place.schema.get("title") or place.schema.get("description") or comment or description_of_form
    allowed = tuple(value for form in forms for value in form.get("enum", ()))
    # the default of a section is that of its keys, which are listed
    default = place.schema.get("default") if not keys else None
    return Explanation(
        ".".join(place.words), description, _type_of(place.schema, place.defs), place.required, default,
        allowed, keys, example if len(place.words) > 1 else "",
    )  # fmt: skip


def _alternatives(schema: Schema, defs: Mapping[str, Schema]) -> Iterator[Schema]:
    """Yield the schemas that a value may have, references resolved, without `null`."""
    if "$ref" in schema:
        yield from _alternatives(defs[schema["$ref"].rpartition("/")[2]], defs)
    elif "anyOf" in schema:
        for alternative in schema["anyOf"]:
            yield from _alternatives(alternative, defs)
    elif schema.get("type") != "null":
        yield schema


def _forms(schema: Schema, defs: Mapping[str, Schema]) -> Iterator[Schema]:
    """Yield the schemas of the value; of a list those of its entries."""
    for form in _alternatives(schema, defs):
        if "items" in form:
            yield from _forms(form["items"], defs)
        else:
            yield form


def _type_of(schema: Schema, defs: Mapping[str, Schema]) -> str:
    return " or ".join(dict.fromkeys(_type_of_form(form, defs) for form in _alternatives(schema, defs)))


def _type_of_form(form: Schema, defs: Mapping[str, Schema]) -> str:
    """Return the type of one form in words, such as `list of string`."""
    if "items" in form:
        return f"list of {_type_of(form['items'], defs)}"
    if isinstance(named := form.get("additionalProperties"), dict):
        return f"names, each with {_type_of(named, defs)}"
    if "properties" in form:
        return "keys"
    if "enum" in form:
        return "one of the allowed values"
    limits = ", ".join(f"{word} {form[key]}" for key, word in _LIMITS.items() if key in form)
    json_type = form.get("type", "anything")
    type_name = " or ".join(json_type) if isinstance(json_type, list) else str(json_type)
    return f"{type_name} {limits}" if limits else type_name


def _unknown_key(place: _SchemaKey, word: str) -> UsageError:
    keys, parent = list(_keys_below(place)), ".".join(place.words)
    near = get_close_matches(word, keys, n=_NEAR_KEYS, cutoff=0.5)
    suggestion = f"; did you mean {', '.join(f'{parent}.{key}' for key in near)}?" if near else ""
    if not keys:
        return UsageError(f"{parent} has no keys below it", hint=f"gpuops explain {parent} shows its type and default")
    return UsageError(f"{parent} has no key {word!r}{suggestion}", hint=f"gpuops explain {parent} lists its keys")


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of a template. A comment may be a key that is not set: `# proxy = ...`."""

    text: str

    @property
    def bare(self) -> str:
        """The line without the `#` of a comment."""
        return re.sub(r"^( *)# ?", r"\1", self.text)

    @property
    def indent(self) -> int:
        """The column of the key in this line; `- name: x`, an entry of a list, has 2."""
        return len(self.bare) - len(re.sub(r"^[ -]+", "", self.bare))

    def is_key(self, name: str) -> bool:
        return re.match(rf"[ -]*{re.escape(name)} ?[:=](\s|$)", self.bare) is not None


def _comment_and_example(template: str, names: Sequence[str]) -> tuple[str, str]:
    """Return the comment on the key in the template, and the lines of the key as an example; both may be empty."""
    lines = [_Line(text) for text in template.splitlines()]
    if re.search(r"(?m)^\[", template):  # TOML: the last name is a key of the table with the other names
        if not (lines := list(_table(lines, names[:-1]))):
            return "", ""
        names = names[-1:]
    place_lines, start = lines, -1
    for name in names:
        matches = [number for number, line in enumerate(place_lines) if line.is_key(name)]
        if not matches:
            return "", ""
        # a key below another one may have this name too: the least indented line is meant
        start = min(matches, key=lambda number: place_lines[number].indent)
        if name != names[-1]:
            place_lines = list(_block(place_lines, start))[1:]
    if start < 0:  # no names: the file itself is explained, without an example
        return "", ""
    block = [line.text for line in _block(place_lines, start)]
    example = block[:_LONGEST_EXAMPLE] + (["..."] if len(block) > _LONGEST_EXAMPLE else [])
    margin = min(len(text) - len(text.lstrip()) for text in example if text.strip() and text != "...")
    return _comment(place_lines, start), "\n".join(text[margin:] if text != "..." else text for text in example)


def _table(lines: Sequence[_Line], names: Sequence[str]) -> Iterator[_Line]:
    """Yield the lines of the TOML table of these names; no names = the lines before the first heading."""
    inside = not names
    for line in lines:
        if heading := re.match(r"\[([\w.]+)\]", line.bare):
            # the second word of a heading is a name that people choose: [targets.prod.broker] is targets.broker
            words = heading[1].split(".")
            inside = [*words[:1], *words[2:]] == [*names]
        elif inside:
            yield line


def _block(lines: Sequence[_Line], start: int) -> Iterator[_Line]:
    """Yield the line of a key and the deeper indented lines below it, without blank lines at the end."""
    yield lines[start]
    blank_lines: list[_Line] = []
    for line in lines[start + 1 :]:
        if not line.text.strip():
            blank_lines.append(line)
        elif line.indent <= lines[start].indent:
            return
        else:
            yield from (*blank_lines, line)
            blank_lines.clear()


def _comment(lines: Sequence[_Line], start: int) -> str:
    """Return the comment on the line of a key, else the comment lines above it, else ''."""
    if behind := re.search(r"\s# (.+)", lines[start].bare):
        return behind[1]
    above: list[str] = []
    if lines[0].text.startswith("# ") and all(line.text.startswith("#") for line in lines[:start]):
        return ""  # the heading of the file
    for line in reversed(lines[:start]):
        # a key that is commented out is not a description
        if not line.text.lstrip().startswith("#") or re.match(r"[ -]*[\w.]+ ?[:=](\s|$)", line.bare):
            break
        above.insert(0, line.bare.strip())
    return " ".join(above)
