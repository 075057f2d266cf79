"""What lies in a journal file, record by record: for tests that judge a run by what it wrote."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from gpuops.execute.journal.record import Kind, Record
from gpuops.execute.journal.stores import look_into_store


def records(state_dir: Path, vcenter: str) -> Sequence[Record]:
    """All of them, from the first."""
    store = look_into_store(state_dir, "", vcenter)
    assert store is not None, "there is no journal"
    with closing(store):
        return store.read(0)


def op_ids(state_dir: Path, vcenter: str) -> set[str]:
    """The effects that were ever intended."""
    return {record.body["op"] for record in records(state_dir, vcenter) if record.kind is Kind.INTENT}


def left_open(state_dir: Path, vcenter: str) -> list[str]:
    """Kinds of the runs that did not end, and kinds of the effects without a recorded end."""
    runs: dict[str, str] = {}
    steps: dict[str, str] = {}
    for record in records(state_dir, vcenter):
        match record.kind:
            case Kind.BEGUN:
                runs[record.run] = record.body["kind"]
            case Kind.ENDED:
                del runs[record.run]
            case Kind.INTENT:
                steps[record.body["op"]] = next(iter(record.body["step"]))
            case Kind.SETTLED if record.body["state"] in ("done", "failed"):
                del steps[record.body["op"]]
            case _:
                pass
    return [*runs.values(), *steps.values()]
