"""Pattern: replace code that is named by its definition and by the shape of its syntax tree, not by its text.

A pattern is Python code. `$name` stands for one expression or identifier, the same one wherever it occurs; `$$name`
stands for any number of statements, arguments or elements. A replacement may use both.

    pattern = "if $plan.of(state) != $plan: $$body"    matches    if seen.of(state) != seen: raise Changed(seen)

If the pattern and the replacement are both expressions, the pattern may match anywhere. Otherwise it matches
consecutive statements, `case` blocks or `except` blocks.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent, indent
from typing import Any, Final, TypeAlias

Bindings: TypeAlias = Mapping[str, Any]
"""What each metavariable stands for: a node, an identifier, or a list of nodes."""
Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_MARKS: Final = {"$$": "MANY__", "$": "ONE__"}
_ONE, _MANY = _MARKS["$"], _MARKS["$$"]
_NOT_COMPARED: Final = {"ctx", "kind", "type_comment"}


def replace_code(source: str, name: str, pattern: str, replacement: str) -> str:
    """Return the source with the replacement in place of the code in definition `name` that matches the pattern.

    The statement around it is written anew, without its comments. An empty `name` stands for the whole module. Raises
    ValueError unless the pattern matches exactly once and the replacement differs.
    """
    tree, old, new = ast.parse(source), _parse_code(pattern), _parse_code(replacement)
    if all(len(code) == 1 and isinstance(code[0], ast.Expr) for code in (old, new)):
        old, new = [old[0].value], [new[0].value]
    lines = source.splitlines(keepends=True)
    places = [place for definition in definitions(tree, name) for place in _places(definition, old, lines)]
    if len(places) != 1:
        raise ValueError(f"{name}: the pattern matches {len(places)} times, not once: {pattern.strip()}")
    [(slot, start, bindings)] = places
    matched = slot.nodes[start : start + len(old)]
    filled = _fill(new, bindings)
    if not filled and len(slot.nodes) == len(old):
        filled = [ast.Pass()]
    if [ast.dump(node) for node in matched] == [ast.dump(node) for node in filled]:
        raise ValueError(f"{name}: the replacement changes nothing: {replacement.strip()}")
    slot.put(start, len(old), filled)
    if isinstance(matched[0], ast.stmt) and not _is_elif(matched[0], lines):
        return _splice(lines, matched, filled)
    return _splice(lines, [slot.statement], [slot.statement])


@cache
def file_of(root: Path, name: str) -> tuple[str, str]:
    """Return the file of a definition, relative to the root, and its qualified name in there.

    `name` is a qualified name that only one module of gpuops has, or has the end of a module's name before it:
    `settle:find_task`. Nothing after the colon stands for the module. Raises ValueError if there is not exactly one.
    """
    module, _, qualified = name.rpartition(":")
    outer = qualified.partition(".")[0]
    ending = "/" + module.replace(".", "/") + ".py" if module else ".py"
    has_outer = re.compile(rf"^(?:(?:async )?def |class )?{outer}\b" if outer else "", re.MULTILINE)
    files = [
        file
        for file, text in _sources(root).items()
        if file.endswith(ending)
        and outer in text
        and has_outer.search(text)
        and definitions(ast.parse(text), qualified)
    ]
    if len(files) != 1:
        raise ValueError(f"{name} is defined in {len(files)} files, not in one: {', '.join(files)}")
    return files[0], qualified


def definitions(tree: ast.Module, name: str) -> list[ast.AST]:
    """Return the functions, classes or assignments with this qualified name, or the module for an empty name."""
    nodes: list[ast.AST] = [tree]
    for part in name.split(".") if name else ():
        nodes = [child for node in nodes for child_name, child in _defined_in(node) if child_name == part]
    return nodes


def _defined_in(node: ast.AST) -> Iterator[tuple[str, ast.stmt]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield child.name, child
        elif isinstance(child, ast.Assign | ast.AnnAssign):
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            yield from ((target.id, child) for target in targets if isinstance(target, ast.Name))
        else:
            yield from _defined_in(child)


@cache
def _sources(root: Path) -> dict[str, str]:
    return {str(file.relative_to(root)): file.read_text(encoding="utf-8") for file in root.glob("gpuops/**/*.py")}


def _parse_code(code: str) -> list[Any]:
    """Return the statements, `case` blocks or `except` blocks of a pattern or a replacement."""
    text = re.sub(r"(\$\$?)(?=[a-z_])", lambda mark: _MARKS[mark[1]], dedent(code).strip())
    if text.startswith("case "):
        tree = ast.parse("match _:\n" + indent(text, "    "))
    else:
        tree = ast.parse("try:\n    pass\n" + text if text.startswith("except") else text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):  # a shell's $name is no metavariable
            node.value = node.value.replace(_MANY, "$$").replace(_ONE, "$")
    first = tree.body[0] if tree.body else None
    if isinstance(first, ast.Match) and text.startswith("case "):
        return first.cases
    return first.handlers if isinstance(first, ast.Try) and text.startswith("except") else tree.body


@dataclass(frozen=True, slots=True)
class _Slot:
    """A field of a node, and the innermost statement around it that can be written anew."""

    parent: ast.AST
    field: str
    statement: ast.stmt

    @property
    def nodes(self) -> list[Any]:
        value = getattr(self.parent, self.field)
        return value if isinstance(value, list) else [value]

    def put(self, start: int, count: int, nodes: Sequence[Any]) -> None:
        value = getattr(self.parent, self.field)
        if isinstance(value, list):
            setattr(self.parent, self.field, [*value[:start], *nodes, *value[start + count :]])
        else:
            setattr(self.parent, self.field, nodes[0])


def _places(definition: ast.AST, pattern: list[Any], lines: Sequence[str]) -> Iterator[tuple[_Slot, int, Bindings]]:
    top = definition if isinstance(definition, ast.Module) else ast.Module([definition], [])  # type: ignore[list-item]
    for slot in _slots(top, top.body[0], lines):
        nodes = slot.nodes
        for start in range(len(nodes) - len(pattern) + 1):
            bindings = _match(pattern, nodes[start : start + len(pattern)], {})
            if bindings is not None:
                yield slot, start, bindings


def _slots(node: ast.AST, statement: ast.stmt, lines: Sequence[str]) -> Iterator[_Slot]:
    for field, value in ast.iter_fields(node):
        yield _Slot(node, field, statement)
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                inner = isinstance(child, ast.stmt) and not _is_elif(child, lines)
                yield from _slots(child, child if inner else statement, lines)  # type: ignore[arg-type]


def _is_elif(node: ast.AST, lines: Sequence[str]) -> bool:
    return isinstance(node, ast.If) and lines[node.lineno - 1].lstrip().startswith("elif")


def _match(pattern: Any, node: Any, bindings: Bindings) -> Bindings | None:
    """Return the bindings under which the pattern matches the node, which include these; None if it does not."""
    name = _metavariable(pattern, _ONE)
    if name:
        if not isinstance(node, ast.expr | str) or (name in bindings and _text(bindings[name]) != _text(node)):
            return None
        return {**bindings, name: node}
    if type(pattern) is not type(node):
        return None
    if isinstance(pattern, list):
        return _matched_lists(pattern, node, bindings)
    if not isinstance(pattern, ast.AST):
        return bindings if pattern == node else None
    bindings_now: Bindings | None = bindings
    for field in pattern._fields:
        if bindings_now is not None and field not in _NOT_COMPARED:
            bindings_now = _match(getattr(pattern, field, None), getattr(node, field, None), bindings_now)
    return bindings_now


def _matched_lists(patterns: list[Any], nodes: list[Any], bindings: Bindings) -> Bindings | None:
    if not patterns:
        return None if nodes else bindings
    name = _metavariable(patterns[0], _MANY)
    if name:
        ends = range(len(nodes) + 1)
        rests = (_matched_lists(patterns[1:], nodes[end:], {**bindings, name: nodes[:end]}) for end in ends)
        return next((bindings_of_rest for bindings_of_rest in rests if bindings_of_rest is not None), None)
    first = _match(patterns[0], nodes[0], bindings) if nodes else None
    return None if first is None else _matched_lists(patterns[1:], nodes[1:], first)


def _metavariable(pattern: Any, mark: str) -> str:
    """Return the marked name of the metavariable that the pattern is; empty for anything else."""
    if mark == _MANY and isinstance(pattern, ast.Expr | ast.keyword):
        pattern = pattern.value
    if mark == _MANY and isinstance(pattern, ast.arg):
        pattern = pattern.arg
    name = pattern.id if isinstance(pattern, ast.Name) else pattern
    return name if isinstance(name, str) and name.startswith(mark) else ""


def _text(bound: Any) -> str:
    return bound if isinstance(bound, str) else ast.unparse(bound)


def _fill(code: Any, bindings: Bindings) -> Any:
    """Return the replacement with what its metavariables stand for. Raises KeyError for one the pattern lacks."""
    if isinstance(code, list):
        parts = ((part, _metavariable(part, _MANY)) for part in code)
        return [filled for part, name in parts for filled in (bindings[name] if name else [_fill(part, bindings)])]
    if name := _metavariable(code, _ONE):
        bound = bindings[name]
        if isinstance(code, str):
            return _text(bound)
        return ast.Name(bound) if isinstance(bound, str) else bound
    if isinstance(code, ast.AST):
        return type(code)(**{field: _fill(value, bindings) for field, value in ast.iter_fields(code)})
    return code


def _splice(lines: Sequence[str], old: Sequence[Any], new: Sequence[Any]) -> str:
    """Return the source with new statements in place of old ones, at their indentation."""
    first = min([old[0].lineno, *(decorator.lineno for decorator in getattr(old[0], "decorator_list", []))])
    depth, block = old[0].col_offset // 4, list(new)
    for _ in range(depth):
        block = [ast.If(ast.Constant(True), block, [])]
    text = ast.unparse(ast.fix_missing_locations(ast.Module(block, []))).split("\n")[depth:] if new else []
    return "".join([*lines[: first - 1], *(f"{line}\n" for line in text), *lines[old[-1].end_lineno :]])
