"""Table: mutants of the engine by hand: of rotations with the invariant that must be seen broken, and where; of
rolling changes with the test that must fail.

A mutant is one thing that an engine could be careless about; where two places take care of it, both are changed.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]


@dataclass(frozen=True, slots=True)
class Edit:
    """One text of one file, and what stands in its place."""

    file: str
    text: str
    replacement: str

    def applied(self, root: Path) -> str:
        """The mutated source. Raises ValueError unless the text is there exactly once."""
        source = (root / self.file).read_text(encoding="utf-8")
        found = source.count(self.text)
        if found != 1:
            raise ValueError(f"{self.file}: the text to replace is there {found} times: {self.text!r}")
        return source.replace(self.text, self.replacement)


@lru_cache(maxsize=8)  # edits of a file come one after another
def tree_of(file: str) -> str:
    """The syntax tree of a source as it is, as text."""
    return ast.dump(ast.parse((ROOT / file).read_text(encoding="utf-8")))


@dataclass(frozen=True, slots=True)
class Mutant:
    """What is careless about it, which invariant it breaks, and the seeds of the nights that show it.

    `first` is a seed that is known to show it; should that change, the search goes on from there, in small nights.
    """

    name: str
    edits: tuple[Edit, ...]
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

    @classmethod
    def of(cls, entry: dict[str, Any]) -> Mutant:
        if ("invariant" in entry) is ("test" in entry):
            raise ValueError(f"{entry['name']} has neither an invariant nor a test, or both")
        return cls(**{**entry, "edits": tuple(Edit(**edit) for edit in entry["edits"])})


def mutants(names: Sequence[str] = ()) -> tuple[Mutant, ...]:
    """All of them, or those with these names; the name of a file stands for all of it. Raises KeyError for a name that
    none has."""
    files = {
        file.stem: [Mutant.of(entry) for entry in tomllib.loads(file.read_text(encoding="utf-8"))["mutant"]]
        for file in sorted(HERE.glob("*.toml"))
    }
    every = [mutant for of_file in files.values() for mutant in of_file]
    found = {mutant.name: mutant for mutant in every}
    if len(found) != len(every):
        raise ValueError("two mutants have one name")
    return tuple(each for name in names for each in files.get(name) or [found[name]]) if names else tuple(every)
