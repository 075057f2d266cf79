"""Where gpuops was wrong: the lines of a run's report, and the list of `gpuops doctor --predictions`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Final, Self

from gpuops.model.prediction import Misprediction, PastMisprediction, PastPredictions, Predicted
from gpuops.report.document import SCHEMA_VERSION, Document, DocumentRecord, Moment
from gpuops.report.layout import Shown, Text
from gpuops.report.text import count, visible

SHOWS_ALL: Final = "gpuops doctor --predictions"
_OF: Final = {
    Predicted.ADMISSION: "",
    Predicted.GPU: "GPU ",
    Predicted.MIG_START: "start on GPU ",
    Predicted.DURATION: "",
    Predicted.FREE_AFTER: "",
    Predicted.EFFECT: "",
}
"""What the two values are of, where they do not say it themselves."""


def misprediction_lines(found: Iterable[tuple[str, Misprediction]]) -> Iterator[Text]:
    """`misprediction: start ml-08: predicted GPU 0000:3b:00.0, found GPU 0000:af:00.0`, of (what was done, difference);
    and after the last one the command that shows the facts."""
    lines = [_line(title, each) for title, each in found]
    yield from lines
    if lines:
        yield Text(f"               next: {SHOWS_ALL} shows what they went by", "dim")


def mispredictions_counted(number: int) -> tuple[str, ...]:
    """One line that says how many there were, for a run that says little; nothing for none."""
    return (f"{count(number, 'misprediction')}: {SHOWS_ALL} lists what was predicted and found",) if number else ()


def _line(title: str, wrong: Misprediction) -> Text:
    return Text("misprediction: ", "magenta").append(f"{visible(title)}: {_difference(wrong)}")


def _difference(wrong: Misprediction) -> str:
    of = _OF[wrong.what]
    return f"predicted {of}{visible(wrong.predicted)}, found {of}{visible(wrong.found)}"


class MispredictionRecord(DocumentRecord, frozen=True):
    """A difference between what was predicted of a step and what vCenter did."""

    what: Predicted
    predicted: str
    found: str
    facts: Annotated[dict[str, str], "what the prediction went by"]


def predictions_text(past: PastPredictions) -> Shown:
    """Each misprediction with its facts, oldest first, and how many predictions were right, or could not be judged."""
    parts = [line for each in past.wrong for line in _with_facts(each)]
    unsure = [Text(f"cannot say: {number} x {visible(why)}", "dim") for why, number in _most_first(past.cannot_say)]
    closing = [Text(_summary(past), "bold")]
    if past.wrong:
        closing.append(Text("next: gpuops help predictions says what each of them means", "dim"))
    return (*parts, *unsure, *closing)


def _with_facts(each: PastMisprediction) -> Iterator[Text]:
    of = f"{each.run_kind}, night {each.night}" if each.night is not None else each.run_kind
    head = Text(f"{each.found.what:<10} ", "magenta")
    yield head.append(f"{each.at:%Y-%m-%d %H:%M} {visible(of)}: {each.step} {visible(each.name)}")
    yield Text(f"           {_difference(each.found)}")
    width = max((len(name) for name in each.found.facts), default=0)
    for name, value in each.found.facts.items():
        yield Text(f"           {visible(name):<{width}}  {visible(value)}", "dim")


def _most_first(numbers: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(numbers.items(), key=lambda each: (-each[1], each[0]))


def _summary(past: PastPredictions) -> str:
    unsure = sum(past.cannot_say.values())
    if not (past.wrong or past.right or unsure):
        return "no step was predicted yet: each of a change, a night or a return is"
    wrong = count(len(past.wrong), "misprediction")
    return f"{wrong}; {count(past.right, 'step')} as predicted, {unsure} of which it cannot be said"


def predictions_document(past: PastPredictions) -> Document:
    """The same for programs."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "predictions",
        "journal": past.journal,
        "right": past.right,
        "cannot_say": [{"because": why, "steps": number} for why, number in _most_first(past.cannot_say)],
        "mispredictions": list(map(PastMispredictionRecord.made_of, past.wrong)),
    }


class PastMispredictionRecord(DocumentRecord, frozen=True):
    """A misprediction as the journal keeps it."""

    at: Annotated[Moment, "when the outcome of the step was noted"]
    vcenter: Annotated[str, "its instance uuid"]
    run: Annotated[str, "the id of the run"]
    command: Annotated[str, "as it is typed after `gpuops`"]
    night: Annotated[str | None, "null = its run was none of a night"]
    operation: Annotated[str, "the id of the request in vCenter"]
    step: Annotated[str, "such as start, resume, suspend, move, change, setting or reboot"]
    ref: Annotated[str, "managed object id of the VM or host that it is of"]
    name: str
    host: Annotated[str | None, "managed object id of the host; null = not known"]
    what: Predicted
    predicted: str
    found: str
    facts: Annotated[dict[str, str], "what the prediction went by"]

    @classmethod
    def made_of(cls, past: PastMisprediction) -> Self:
        return cls.from_attributes(
            past, past.found, command=past.run_kind, operation=past.op_id, found=past.found.found
        )
