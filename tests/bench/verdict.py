"""What a benchmark says: measured figures beside the budget they may not exceed."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from rich.console import Console
from rich.table import Table

from tests.bench.measure import Rounds


@dataclass(frozen=True, slots=True)
class Figure:
    """One judged number; without a budget it is shown and not judged."""

    what: str
    value: float
    unit: str
    budget: float | None = None

    @property
    def broken(self) -> bool:
        """Whether the value is over its budget."""
        return self.budget is not None and self.value > self.budget

    @property
    def verdict(self) -> str:
        """`ok`, `OVER`, or nothing when there is no budget."""
        if self.budget is None:
            return ""
        return "OVER" if self.broken else "ok"


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one benchmark: its rounds, and the figures drawn from them."""

    title: str
    figures: tuple[Figure, ...]
    rounds: Rounds = field(default_factory=dict)

    @property
    def broken(self) -> bool:
        """Whether any budget is broken."""
        return any(figure.broken for figure in self.figures)


def show(console: Console, result: Result) -> None:
    """Print what the contenders took (medians) and how the figures stand to their budgets."""
    console.rule(result.title)
    if result.rounds:
        console.print(_contenders(result.rounds))
    table = Table("figure", "measured", "budget", "verdict")
    for figure in result.figures:
        budget = "" if figure.budget is None else f"≤ {figure.budget:.3g} {figure.unit}"
        style = "red" if figure.broken else None
        table.add_row(figure.what, f"{figure.value:.3g} {figure.unit}", budget, figure.verdict, style=style)
    console.print(table)


def _contenders(rounds: Rounds) -> Table:
    table = Table("contender", "CPU s", "wall s", "peak MiB", "requests", "objects")
    for name, usages in rounds.items():
        report = usages[-1].said
        table.add_row(
            name,
            f"{median(u.cpu_s for u in usages):.3f}",
            f"{median(u.wall_s for u in usages):.3f}",
            f"{median(u.peak_mib for u in usages):.0f}",
            str(report.get("requests", "")),
            str(report.get("objects", "")),
        )
    return table
