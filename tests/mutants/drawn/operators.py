"""Operators: every small change of a source file that a tool can think of, each with a name by which it is found again.

What a change cannot show in a night is left out by rules, not by choice: the text of messages (strings, a `return` of
nothing else, `hint=`), annotations, decorators, docstrings, defaults of arguments, `assert`, what only a type checker
reads, protocols, `__str__`, and a change after which Python compiles the same code (`is_change`). Nor is `<` made `<=`
between moments or lengths of time: which of two neighbours is right at the one instant where both are the same, no
promise says, and no night meets that instant.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import CodeType
from typing import Any, Final

_COMPARED: Final[Mapping[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ORDERS: Final = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_COMPUTED: Final[Mapping[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.Mult: ast.Add,
}  # fmt: skip
_CALLED: Final = {"any": "all", "all": "any", "min": "max", "max": "min"}
_UNREAD: Final = ("annotation", "returns", "decorator_list", "bases", "keywords_of_class")
_SHOWN: Final = ("__repr__", "__str__")

Members = Mapping[str, tuple[str, ...]]
"""Names of the members of each enum of the package."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change. Its words name it: where in the file, by which operator, what stood there and what stands there."""

    file: str
    function: str
    operator: str
    before: str
    after: str
    number: int
    """Which of those that are otherwise named alike in this function, from 0 on."""

    @property
    def name(self) -> str:
        number = f" #{self.number}" if self.number else ""
        return f"{self.file}::{self.function} {self.operator}: {self.before} -> {self.after}{number}"


@dataclass(frozen=True, slots=True)
class _Site:
    """A node in its place: `put` puts another one there."""

    node: ast.AST
    function: str
    put: Callable[[ast.AST], None]


def mutations(file: str, source: str, members: Members) -> tuple[Mutation, ...]:
    """Every change of this file."""
    return tuple(mutation for mutation, _ in _changes(ast.parse(source), file, members))


def is_change(mutation: Mutation, source: str, members: Members) -> bool:
    """Whether Python compiles anything else after it."""
    return _code(mutate(mutation, source, members), mutation.file) != _code(ast.parse(source), mutation.file)


def mutate(mutation: Mutation, source: str, members: Members) -> ast.Module:
    """The file with that change. Raises LookupError where what it changes is not there any more."""
    tree = ast.parse(source)
    for candidate, change in _changes(tree, mutation.file, members):
        if candidate == mutation:
            change()
            return ast.fix_missing_locations(tree)
    raise LookupError(mutation.name)


def enums(source: str) -> dict[str, tuple[str, ...]]:
    """Members of the enums that the file declares."""
    members_by_enum = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and any("Enum" in ast.unparse(base) for base in node.bases):
            named = [assigned.targets[0] for assigned in node.body if isinstance(assigned, ast.Assign)]
            members_by_enum[node.name] = tuple(assigned.id for assigned in named if isinstance(assigned, ast.Name))
    return {name: named for name, named in members_by_enum.items() if len(named) > 1}


def _code(tree: ast.Module, file: str) -> tuple[Any, ...]:
    return _plain(compile(tree, file, "exec"))


def _plain(code: CodeType) -> tuple[Any, ...]:
    """What runs, without where it stands."""
    constants = tuple(
        _plain(constant) if isinstance(constant, CodeType) else repr(constant) for constant in code.co_consts
    )
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars, code.co_exceptiontable


def _changes(tree: ast.Module, file: str, members: Members) -> list[tuple[Mutation, Callable[[], None]]]:
    occurrences: Counter[tuple[str, str, str, str]] = Counter()
    times = _times(tree)
    changes: list[tuple[Mutation, Callable[[], None]]] = []
    for site in _sites(tree):
        for operator, changed in _of(site.node, members, times):
            words = (site.function, operator, _words(site.node), _words(changed))
            mutation = Mutation(file, *words, occurrences[words])
            occurrences[words] += 1
            changes.append((mutation, partial(site.put, changed)))
    return changes


def _words(node: ast.AST) -> str:
    """What names a change; of a branch its condition alone, for what is in it may be edited."""
    return f"if {ast.unparse(node.test)}" if isinstance(node, ast.If) else ast.unparse(node)


def _sites(tree: ast.Module) -> Iterator[_Site]:
    """Yield each place of a function that a night can judge."""
    todo: list[tuple[ast.AST, str]] = [(tree, "")]
    while todo:
        node, function = todo.pop()
        inner: list[tuple[ast.AST, str]] = []
        for name, value in ast.iter_fields(node):
            if name in _UNREAD or (isinstance(node, ast.ClassDef) and name == "keywords"):
                continue
            for child, put in _children(node, name, value):
                named = _function_of(child, function)
                if named is None:
                    continue
                if function and not isinstance(child, ast.FunctionDef | ast.ClassDef):
                    yield _Site(child, function, put)
                inner.append((child, named))
        todo += reversed(inner)


def _children(node: ast.AST, name: str, value: Any) -> Iterator[tuple[ast.AST, Callable[[ast.AST], None]]]:
    if isinstance(value, ast.AST):
        yield value, lambda new: setattr(node, name, new)
    elif isinstance(value, list):
        for number, child in enumerate(value):
            if isinstance(child, ast.AST):
                yield child, lambda new, number=number: value.__setitem__(number, new)  # type: ignore[misc]


def _function_of(child: ast.AST, function: str) -> str | None:
    """The function that the child is of; None = it is left out, with all that is in it."""
    match child:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return None if child.name in _SHOWN else f"{function}.{child.name}".lstrip(".")
        case ast.ClassDef():
            protocol = any("Protocol" in ast.unparse(base) for base in child.bases)
            return None if protocol else f"{function}.{child.name}".lstrip(".")
        case ast.Raise():
            return function
        case ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom() | ast.arguments():
            return None
        case ast.keyword(arg="hint") | ast.Call(func=ast.Name(id="assert_never")):
            return None
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Expr(value=ast.Constant()):
            return None
        case _:
            pass
    return function


def _times(tree: ast.AST) -> frozenset[str]:
    """Names that this file says are moments or lengths of time."""
    annotated = (
        (node.arg, node.annotation) if isinstance(node, ast.arg) else (ast.unparse(node.target), node.annotation)
        for node in ast.walk(tree)
        if isinstance(node, ast.arg | ast.AnnAssign)
    )
    return frozenset(
        name
        for name, annotation in annotated
        if annotation is not None and re.search(r"\b(datetime|timedelta)\b", ast.unparse(annotation))
    )


def _is_of_time(node: ast.expr, times: frozenset[str]) -> bool:
    """Whether a name in it is that of a moment or of a length of time; names carry their units (`_s`, `_at`)."""
    names = (
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(node)
        if isinstance(node, ast.Name | ast.Attribute)
    )
    return any(name in times or name.lower().endswith(("_s", "_at")) for name in names)


def _of(node: ast.AST, members: Members, times: frozenset[str]) -> Iterator[tuple[str, ast.AST]]:
    """The changes of one node: the operator's name, and what is put in its place."""
    if isinstance(node, ast.stmt):
        yield from _of_statement(node)
    elif isinstance(node, ast.expr):
        if not (isinstance(node, ast.Compare) and isinstance(node.ops[0], _ORDERS) and _is_of_time(node, times)):
            yield from _of_expression(node, members)
    elif isinstance(node, ast.comprehension):
        for number in range(len(node.ifs)):
            filters_left = [*node.ifs[:number], *node.ifs[number + 1 :]]
            yield "drop a filter", ast.comprehension(node.target, node.iter, filters_left, node.is_async)


def _of_statement(node: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.If(test=test, body=body, orelse=orelse):
            if not isinstance(test, ast.Compare | ast.UnaryOp):
                yield "negate a condition", ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
            yield "skip a branch", ast.If(ast.Constant(False), body, orelse)
        case ast.Expr(value=ast.Call()):
            yield "drop a call", ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign():
            yield "drop an assignment", ast.Pass()
        case ast.Continue() | ast.Break():
            yield "drop a jump", ast.Pass()
        case ast.Raise():
            yield "drop a raise", ast.Pass()
        case ast.Return(value=ast.expr() as value) if not _is_text(value):
            yield "return nothing", ast.Return(ast.Constant(None))


def _of_expression(node: ast.expr, members: Members) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Compare(ops=[operator]):
            yield "swap a comparison", ast.Compare(node.left, [_COMPARED[type(operator)]()], node.comparators)
        case ast.BoolOp(op=operator, values=values):
            swapped = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield "swap and, or", ast.BoolOp(swapped, values)
            for number in range(len(values)):
                operands_left = [*values[:number], *values[number + 1 :]]
                yield (
                    "drop an operand",
                    operands_left[0] if len(operands_left) == 1 else ast.BoolOp(operator, operands_left),
                )
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "drop a not", operand
        case ast.Constant(value=bool() as value):
            yield "change a constant", ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield "change a constant", ast.Constant(value + 1 if abs(value) < 10 else value * 10)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield "swap the branches", ast.IfExp(test, orelse, body)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _COMPUTED:
            yield "swap an operation", ast.BinOp(left, _COMPUTED[type(operator)](), right)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in _CALLED:
            yield "swap a function", ast.Call(ast.Name(_CALLED[name], ast.Load()), args, keywords)
        case ast.Attribute(value=ast.Name(id=name), attr=member) if member in members.get(name, ()):
            named = members[name]
            next_one = named[(named.index(member) + 1) % len(named)]
            yield "swap a member", ast.Attribute(ast.Name(name, ast.Load()), next_one, ast.Load())


def _is_text(value: ast.expr) -> bool:
    """A constant, or the text of a message."""
    if isinstance(value, ast.IfExp):
        return _is_text(value.body) and _is_text(value.orelse)
    return isinstance(value, ast.Constant | ast.JoinedStr)
