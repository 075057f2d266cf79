"""What is at fault in cases of unlike fleets: `gpuops diagnose` beside single thresholds and customary models.

All learn from the same made cases (`gpuops/extras/diagnosis/made_cases.py`); judged are the cases of
`diagnosis_fleets.py`, which share no code with those. Right is a component that is among as many most probable ones as
are at fault. Ours is what the command does, rules included.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from time import process_time
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpuops.extras.diagnosis.answer import scores
from gpuops.extras.diagnosis.case import FAULTS, LabelledCase
from gpuops.extras.diagnosis.features import features
from gpuops.extras.diagnosis.learning import (
    START,
    Examples,
    alarms_right,
    as_stored,
    components_right,
    examples,
    false_alarms,
    fit_forest,
    with_confirmed,
    with_hidden,
)
from gpuops.extras.diagnosis.made_cases import made_cases
from gpuops.extras.diagnosis.model import Forest
from tests.bench.advice import diagnosis_thresholds, diagnosis_ways
from tests.bench.advice.diagnosis_fleets import FLEETS, fleet_cases
from tests.bench.verdict import Figure, Result

Floats = NDArray[np.float64]

EACH_FAULT: Final = 100
OF_A_FLEET: Final = 200
MOST_BY_THRESHOLDS: Final = 75.0
CORRECTIONS: Final = 100
WRONG_ONES: Final = 20
NEW_FLEET: Final = "office"


def run() -> Iterator[Result]:
    training_cases = as_stored(made_cases(1, EACH_FAULT))
    fleets = {fleet: list(fleet_cases(fleet, 1, OF_A_FLEET)) for fleet in FLEETS}
    cases = [case for fleet in fleets.values() for case in fleet]
    begun = process_time()
    learned = examples(with_hidden(training_cases))
    model = fit_forest(learned, START, 1)
    took_s = process_time() - begun
    begun = process_time()
    case_scores = scores([case.case for case in cases], model)
    each_ms = 1000 * (process_time() - begun) / len(cases)
    yield Result(
        "diagnosis: unlike fleets",
        (
            Figure("components right, of all, tellable or not", _right(case_scores, cases), "%"),
            Figure("... of cases with one fault or none", _right_of(case_scores, cases, 1), "%"),
            Figure("... of cases with two", _right_of(case_scores, cases, 2), "%"),
            Figure("stricter: right, of what is at fault or named", _strictly(case_scores, cases), "%"),
            Figure("a fault is the most probable where nothing is at fault", _false_alarms(case_scores, cases), "%"),
            Figure("by the rules alone", _right(scores([case.case for case in cases], None), cases), "%"),
            Figure("by single thresholds", _by_thresholds(training_cases, cases), "%", MOST_BY_THRESHOLDS),
            *(
                Figure(f"on the fleet {name}", right(model, cases_of_fleet), "%")
                for name, cases_of_fleet in fleets.items()
            ),
            Figure("training, without the competition", took_s / 60, "min of CPU"),
            Figure("each prediction", each_ms, "ms"),
        ),
    )
    yield from diagnosis_ways.results(model, OF_A_FLEET)
    yield Result("diagnosis: customary models on the same data", tuple(_customary(*learned, cases)))
    yield Result("diagnosis: by how much it learns from", tuple(_curves(training_cases, cases)))
    yield Result("diagnosis: corrections", tuple(_corrections(learned, fleets[NEW_FLEET])))


def right(model: Forest | None, cases: Sequence[LabelledCase]) -> float:
    return _right(scores([case.case for case in cases], model), cases)


def _right(case_scores: Floats, cases: Sequence[LabelledCase]) -> float:
    return 100 * components_right(case_scores, [case.at_fault for case in cases])


def _strictly(case_scores: Floats, cases: Sequence[LabelledCase]) -> float:
    return 100 * alarms_right(case_scores, [case.at_fault for case in cases])


def _false_alarms(case_scores: Floats, cases: Sequence[LabelledCase]) -> float:
    return 100 * false_alarms(case_scores, [case.at_fault for case in cases])


def _right_of(case_scores: Floats, cases: Sequence[LabelledCase], faults: int) -> float:
    indices = [at for at, case in enumerate(cases) if max(1, len(case.at_fault)) == faults]
    return _right(case_scores[indices], [cases[at] for at in indices])


def _by_thresholds(training_cases: Sequence[LabelledCase], cases: Sequence[LabelledCase]) -> float:
    return _right(diagnosis_thresholds.scores(diagnosis_thresholds.thresholds(training_cases), cases), cases)


def _customary(rows: Floats, labels: NDArray[np.int64], cases: Sequence[LabelledCase]) -> Iterator[Figure]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import GaussianNB
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    models: dict[str, Any] = {
        "support vectors": SVC(C=10.0),
        "logistic regression": LogisticRegression(C=0.3, max_iter=300),
        "multi-layer perceptron": MLPClassifier((64,), max_iter=60, random_state=0),
        "naive Bayes": GaussianNB(),
    }
    inputs = features([case.case for case in cases])
    for name, estimator in models.items():
        model = make_pipeline(StandardScaler(), estimator)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it has not converged is no matter here
            model.fit(rows, labels)
        case_scores = (
            model.decision_function(inputs) if hasattr(estimator, "decision_function") else model.predict_proba(inputs)
        )
        yield Figure(name, _right(case_scores, cases), "%")


def _curves(training_cases: Sequence[LabelledCase], cases: Sequence[LabelledCase]) -> Iterator[Figure]:
    order = np.random.default_rng(4).permutation(len(training_cases))
    for share in (0.2, 0.4, 0.6, 0.8, 1.0):
        some = [training_cases[at] for at in order[: int(share * len(training_cases))]]
        yield Figure(f"by {share:.0%} of the training cases", right(_plain(some), cases), "%")
    faulty = [case for case in training_cases if case.at_fault]
    healthy = [case for case in training_cases if not case.at_fault]
    for share in (0.2, 0.5, 0.8):
        count = min(len(faulty), len(healthy)) // 2
        rng = np.random.default_rng(5)
        issues = [faulty[at] for at in rng.permutation(len(faulty))[: int(2 * count * share)]]
        healthy_drawn = [healthy[at] for at in rng.permutation(len(healthy))[: int(2 * count * (1 - share))]]
        yield Figure(
            f"with {share:.0%} issues, of {2 * count} cases", right(_plain([*issues, *healthy_drawn]), cases), "%"
        )


def _plain(cases: Sequence[LabelledCase]) -> Forest:
    return fit_forest(examples(with_hidden(cases)), START, 1)


def _corrections(learned: Examples, fleet: Sequence[LabelledCase]) -> Iterator[Figure]:
    """A hundred cases of a fleet are corrected; judged are others of it. Poisoned: one of them is labelled wrongly."""
    corrected, judged = list(fleet_cases(NEW_FLEET, 2, CORRECTIONS)), fleet
    grown = fit_forest(learned, START, 1)
    yield Figure(f"on the fleet {NEW_FLEET} without corrections", right(grown, judged), "%")
    after = right(with_confirmed(grown, learned, corrected), judged)
    yield Figure(f"after {CORRECTIONS} corrections of it", after, "%")
    lost = [
        after - right(with_confirmed(grown, learned, _mislabel_case(corrected, at)), judged) for at in range(WRONG_ONES)
    ]
    yield Figure("one of them wrong takes off", lost[0], "points", 1.0)
    yield Figure(f"... the mean of {WRONG_ONES}, each alone", sum(lost) / len(lost), "points", 1.0)
    yield Figure("... the worst of these", max(lost), "points", 1.0)


def _mislabel_case(corrected: Sequence[LabelledCase], at: int) -> list[LabelledCase]:
    """With the case at that place labelled wrongly: by one fault more, or by none that is there."""
    case = corrected[at]
    wrong = LabelledCase("wrong", case.case, frozenset(FAULTS[at % len(FAULTS) :][:1]) ^ case.at_fault)
    return [*corrected[:at], wrong, *corrected[at + 1 :]]
