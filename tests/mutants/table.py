"""Table: handmade mutants of the engine, each with the invariant that its nights must break or the test that must fail.

A mutant is one thing that an engine could be careless about; where two places take care of it, both are changed.
"""

from __future__ import annotations

import builtins
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from symtable import symtable
from typing import Any, Final

from tests.mutants.pattern import file_of, replace_code

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
NIGHTS_TEST: Final = "tests/mutants/test_mutants.py::test_the_night_in_which_a_mutant_fails_breaks_nothing_without_it"
"""The test that plays the first night of each mutant that is judged by nights."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of the code of one definition, wherever in gpuops that is. `pattern.py` has the notation."""

    definition: str
    pattern: str
    replacement: str

    @property
    def file(self) -> str:
        return file_of(ROOT, self.definition)[0]

    def applied(self, source: str) -> str:
        """Return the mutated source of its file. Raises ValueError unless the pattern matches exactly once."""
        return replace_code(source, file_of(ROOT, self.definition)[1], self.pattern, self.replacement)


@dataclass(frozen=True, slots=True)
class TextEdit:
    """One text of a file that is not Python, and what stands in its place."""

    file: str
    text: str
    replacement: str

    def applied(self, source: str) -> str:
        """Return the mutated text of its file. Raises ValueError unless the text occurs exactly once."""
        if source.count(self.text) != 1:
            raise ValueError(f"{self.file}: the text occurs {source.count(self.text)} times, not once: {self.text!r}")
        return source.replace(self.text, self.replacement)


def edit_of(entry: dict[str, str]) -> Edit | TextEdit:
    """Return the edit of an entry of a table."""
    return TextEdit(**entry) if "text" in entry else Edit(**entry)


def apply(edits: Sequence[Edit | TextEdit], root: Path) -> None:
    """Apply edits to the files below a root. Raises ValueError for one that does not fit, and changes nothing then."""
    texts: dict[str, str] = {}
    for edit in edits:
        texts[edit.file] = edit.applied(texts.get(edit.file) or (root / edit.file).read_text(encoding="utf-8"))
    for file, text in texts.items():
        (root / file).write_text(text, encoding="utf-8")


def check(edits: Sequence[Edit | TextEdit]) -> None:
    """Check that edits change the code as it is now, and use no name that is not there, as after a rename."""
    sources = {edit.file: (ROOT / edit.file).read_text(encoding="utf-8") for edit in edits}
    mutated = dict(sources)
    for edit in edits:
        mutated[edit.file] = edit.applied(mutated[edit.file])
        assert isinstance(edit, Edit) is edit.file.endswith(".py"), edit
    for file in sources:
        if file.endswith(".py"):
            assert _undefined_names(mutated[file]) <= _undefined_names(sources[file]), file


def _undefined_names(source: str) -> set[str]:
    """Return the names that functions of this source use as globals and the module does not define."""
    module = symtable(source, "source", "exec")
    scopes, used = module.get_children(), set[str]()
    for scope in scopes:
        scopes += scope.get_children()
        used |= {symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global()}
    return used - set(module.get_identifiers()) - set(dir(builtins))


@dataclass(frozen=True, slots=True)
class Mutant:
    """What is careless about it, which invariant it breaks, and the seeds of the nights that show it.

    `first` is a seed that is known to show it, in a night that `make test` plays. If it no longer does, the search goes
    on from there in small nights: `python -m tests.mutants` counts more than one night, and `first` is to be changed.
    """

    name: str
    edits: tuple[Edit | TextEdit, ...]
    invariant: str = ""
    first: int = 0
    quiet: bool = False
    """Whether nothing goes wrong in those nights but the engine."""
    gated: bool = False
    """Whether they are gated nights (`tests/nights/gated`)."""
    soap: bool = False
    """Whether they are played by our own client over SOAP, for a mutant of what stands below the engine."""
    situation: str = ""
    """In which of the `situations` they are, instead of the schedule of their seeds."""
    test: str = ""
    """The test that fails under it, in place of an invariant."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """What its nights are apart from their seed."""
        names = [name for name in ("quiet", "gated", "soap") if getattr(self, name)]
        return (*names, self.situation) if self.situation else tuple(names)

    @property
    def night(self) -> str:
        """Its first night, as the id of a case of NIGHTS_TEST."""
        return "-".join([str(self.first), *self.kinds])

    @classmethod
    def of(cls, entry: dict[str, Any]) -> Mutant:
        if ("invariant" in entry) is ("test" in entry):
            raise ValueError(f"{entry['name']} has neither an invariant nor a test, or both")
        return cls(**{**entry, "edits": tuple(map(edit_of, entry["edits"]))})


def mutants(names: Sequence[str] = ()) -> tuple[Mutant, ...]:
    """All of them, or those with these names; the name of a file stands for all of it. Raises KeyError for a name that
    none has."""
    files = {
        file.stem: [Mutant.of(entry) for entry in tomllib.loads(file.read_text(encoding="utf-8"))["mutant"]]
        for file in sorted(HERE.glob("*.toml"))
    }
    every = [mutant for of_file in files.values() for mutant in of_file]
    mutants_by_name = {mutant.name: mutant for mutant in every}
    if len(mutants_by_name) != len(every):
        raise ValueError("two mutants have one name")
    return (
        tuple(mutant for name in names for mutant in files.get(name) or [mutants_by_name[name]])
        if names
        else tuple(every)
    )
