"""python -m tests.mutants [NAME...]   which checker kills each, in how many nights and seconds; FILE: all of it."""

from __future__ import annotations

import sys

from tests.mutants.kill import kill_all
from tests.mutants.table import mutants

if __name__ == "__main__":
    ends = kill_all(mutants(sys.argv[1:]))
    survived = [end.mutant.name for end in ends if end.said is None]
    print(f"{len(ends) - len(survived)} of {len(ends)} killed", *survived, sep="\n")
    sys.exit(1 if survived else 0)
