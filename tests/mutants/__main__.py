"""python -m tests.mutants [NAME...]   which checker kills each mutant, in how many nights and seconds; FILE: all of it

python -m tests.mutants --quick [NAME...]   whether the test that kills each mutant is one that `make test` runs
"""

from __future__ import annotations

import sys

from tests.mutants.kill import kill_all
from tests.mutants.quick import quick_tests
from tests.mutants.table import mutants


def _quick(names: list[str]) -> int:
    tests = list(quick_tests(mutants(names)))
    for mutant, test, is_quick in tests:
        print(f"{mutant.name:60} {'quick' if is_quick else 'LONG '}  {test}")
    slow = [mutant.name for mutant, _, is_quick in tests if not is_quick]
    print(f"{len(tests) - len(slow)} of {len(tests)} mutants are killed by a test without the mark long")
    return 1 if slow else 0


def _kill(names: list[str]) -> int:
    ends = kill_all(mutants(names))
    survived = [end.mutant.name for end in ends if end.said is None]
    print(f"{len(ends) - len(survived)} of {len(ends)} killed", *survived, sep="\n")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(_quick(sys.argv[2:]) if sys.argv[1:2] == ["--quick"] else _kill(sys.argv[1:]))
