"""A diagnosis model as data: what its rules are certain of, which model stays, and what people's corrections change."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from gpuops.extras.diagnosis.answer import CERTAIN, Diagnosis, Suspect, certain, ruled_out, scores
from gpuops.extras.diagnosis.case import COMPONENTS, CaseFacts, Component, DiagnosisCase, LabelledCase
from gpuops.extras.diagnosis.channels import CHANNELS
from gpuops.extras.diagnosis.corrections import LocalCorrections, SettledDiagnosis
from gpuops.extras.diagnosis.features import FACTS, NAMES, STATISTICS, SYMPTOMS, UNKNOWN, columns, features, symptoms
from gpuops.extras.diagnosis.learning import (
    _best_settings,
    alarms_right,
    as_stored,
    components_right,
    examples,
    false_alarms,
    fit_forest,
    train,
    with_confirmed,
    with_hidden,
)
from gpuops.extras.diagnosis.made_cases import made_cases
from gpuops.extras.diagnosis.model import Forest, ForestSettings, from_document, to_document
from gpuops.extras.observe.blocks import WHOLE, Block, pack, unpack
from gpuops.model.measurements.measurement import GPU_USE
from gpuops.model.vcenter.vm import VgpuDevice, Vm

CASES = list(made_cases(11, 6))


@pytest.fixture(scope="module")
def model() -> Forest:
    return replace(fit_forest(examples(CASES), ForestSettings(trees=8, trees_of_each=3), 1), right=0.5)


@pytest.mark.long
def test_a_row_has_a_number_for_each_name_and_none_is_missing() -> None:
    rows = features([case.case for case in CASES])
    assert rows.shape == (len(CASES), len(NAMES)) and np.isfinite(rows).all()
    assert np.isfinite(features([DiagnosisCase(300, {})])).all(), "of a case without any series, too"


@pytest.mark.long
def test_a_model_is_data_that_answers_as_before(model: Forest) -> None:
    rows = features([case.case for case in CASES])
    model_read = from_document(json.loads(json.dumps(to_document(model))))
    assert model_read.probabilities(rows) == pytest.approx(model.probabilities(rows), abs=0.01)
    assert 0 <= model.probabilities(rows).min() <= model.probabilities(rows).max() <= 1
    assert (model.probabilities(rows).argmax(axis=1) == examples(CASES)[1]).mean() > 0.95, "these it has seen"


@pytest.mark.long
@pytest.mark.parametrize(
    "edit",
    [
        {"format": 1},
        {"features": ["other"]},
        {"trees": []},
        {"trees": {"feature": [0]}},
        {"settings": {"bogus": 1}},
        {"settings": {"trees": 8, "trees_of_each": 4}},
    ],
)
def test_what_is_no_model_is_refused(model: Forest, edit: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"it |a tree |another version of gpuops wrote it"):
        from_document({**to_document(model), **edit})


@pytest.mark.long
@pytest.mark.parametrize("name", ["feature", "low", "high", "roots", "leaf", "component", "share", "threshold"])
@pytest.mark.parametrize("value", [10**9, -2, None, "x"])
def test_trees_that_go_nowhere_are_refused(model: Forest, name: str, value: object) -> None:
    document = json.loads(json.dumps(to_document(model)))
    if (name, value) in {("threshold", 10**9), ("threshold", -2), ("share", 10**9), ("share", -2), ("feature", -2)}:
        return  # any number is a threshold
    document["trees"][name][0] = value
    with pytest.raises(ValueError, match=r"it |a tree |invalid literal|could not convert"):
        from_document(document)


def test_what_tells_a_component_alone_are_its_own_channels_and_facts() -> None:
    channels = {NAMES[at].partition(":")[0] for at in columns(Component.PCIE_LINK)}
    assert channels == {"link", *FACTS}
    pairs = [NAMES[at] for at in columns(Component.DATASTORE) if " with " in NAMES[at] and ":" not in NAMES[at]]
    assert pairs == ["gpu use with disk latency", "disk latency with disk"]


def test_a_backup_is_a_short_spell_and_a_slow_datastore_a_long_one() -> None:
    of = {name: np.full(20, np.nan) for name in CHANNELS}
    of["disk latency"] = np.log1p(np.where(np.arange(20) % 4 == 0, 60.0, 3.0))
    row = dict(zip(SYMPTOMS, symptoms(of, np.full(20, np.nan)), strict=True))
    assert row["disk latency: share beyond 3.26"] == 0.25
    assert row["disk latency: longest beyond 3.26"] == 0.05
    assert row["ready: share beyond 0.05"] == UNKNOWN


def test_statistics_and_spells_go_over_the_steps_that_are_known() -> None:
    gaps = [np.nan, 9_000.0, 3_000.0, np.nan, 9_000.0, 9_000.0, np.nan]
    by_feature = dict(zip(NAMES, features([case(vm__gpu_utilization_average=gaps)])[0], strict=True))
    statistics = {name: by_feature[f"gpu use: {name}"] for name in STATISTICS}
    assert statistics == pytest.approx(
        {
            "mean": 0.75,
            "lowest": 0.3,
            "tenth": 0.3,
            "median": 0.9,
            "nine tenths": 0.9,
            "highest": 0.9,
            "spread": ((3 * 0.15**2 + 0.45**2) / 4) ** 0.5,
            "change": 0.0,  # one step at each end is a third of four
            "at its top": 0.75,
        }
    )
    assert (by_feature["gpu use: share beyond 0.27"], by_feature["gpu use: longest beyond 0.27"]) == (1.0, 1.0)
    assert by_feature["GPU total: mean"] == UNKNOWN


@pytest.mark.long
def test_a_confirmed_case_counts_in_its_leaves_and_moves_no_node(model: Forest) -> None:
    corrected = replace(CASES[0], at_fault=frozenset({Component.NETWORK}))
    after = with_confirmed(model, examples(CASES), [corrected])
    rows, network = features([CASES[0].case]), COMPONENTS.index(Component.NETWORK)
    assert (after.trees.threshold == model.trees.threshold).all()
    assert after.probabilities(rows)[0, network] > model.probabilities(rows)[0, network] + 0.2
    leaves = after.trees.leaves(features([case.case for case in CASES]))
    apart = [at for at, its in enumerate(leaves) if not (its == leaves[0]).any()]
    other_rows = features([CASES[at].case for at in apart])
    assert len(apart) > len(CASES) / 2, "most cases share no leaf with it"
    assert (after.trees.sum_shares(other_rows) == model.trees.sum_shares(other_rows)).all()


def case(facts: CaseFacts | None = None, **series: list[float]) -> DiagnosisCase:
    named = {name.replace("__", ":").replace("_", "."): np.array(values) for name, values in series.items()}
    return DiagnosisCase(300, named, facts or CaseFacts())


def test_what_is_certain_is_named_with_its_number() -> None:
    certain_components = certain(case(CaseFacts(pcie_width=16), gpu__smi_gpu_pcieWidth_latest=[16, np.nan, 8]))
    assert certain_components == {Component.PCIE_LINK: "8 lanes, it should have 16"}
    errors = certain(case(gpu__smi_gpu_eccUncorrected_latest=[4, 4, np.nan, 7]))
    assert errors == {Component.ECC: "3 new errors that were not corrected"}
    assert certain(case(gpu__smi_gpu_eccUncorrected_latest=[4, 4, 4, 0])) == {}, "a boot is no error"
    assert Component.DRIVER in certain(case(CaseFacts(host_driver=535, guest_driver=550)))


@pytest.mark.parametrize(
    ("looks", "named"),
    [([1, 0, 0, 0, 0, 0], False), ([1, 1, 0, 0, 0, 0], False), ([1, 0, 1, 0, 1, 0], True), ([1] * 3 + [0] * 28, False)],
)
def test_a_gpu_is_certainly_slowed_where_three_looks_and_a_tenth_of_all_say_so(looks: list[float], named: bool) -> None:
    assert (Component.THROTTLING in certain(case(gpu__smi_gpu_slowedByPower_latest=looks))) is named


def test_models_learn_of_hosts_without_nvidia_smi_from_each_case_that_has_it() -> None:
    with_copies = with_hidden(CASES)
    smi = [case for case in CASES if any(":smi." in name for name in case.case.series)]
    hidden = with_copies[len(CASES) :]
    assert with_copies[: len(CASES)] == CASES and 0 < len(smi) < len(CASES)
    assert [(case.name, case.at_fault, case.case.facts) for case in hidden] == [
        (case.name, case.at_fault, case.case.facts) for case in smi
    ]
    assert not any(":smi." in name for case in hidden for name in case.case.series)
    assert with_hidden(hidden) == hidden, "what has no such counter is not there twice"


def test_models_learn_from_numbers_as_the_store_has_them() -> None:
    numbers = [0, 1, 31, 32, 33, 9_700, 9_730, 10_000, 4_194_303]
    cube = np.array([[number, number, WHOLE] for number in numbers], np.int64)
    stored_numbers = unpack(pack(Block(len(numbers), {GPU_USE: cube}))).series[GPU_USE][:, 0]
    original = LabelledCase("a", case(vm__gpu_utilization_average=[*numbers, np.nan]), frozenset())
    [rounded] = as_stored([original])
    samples = rounded.case.series["vm:gpu.utilization.average"]
    assert samples[:-1].tolist() == stored_numbers.tolist() and np.isnan(samples[-1])
    assert replace(rounded, case=original.case) == original


def test_what_is_unknown_is_neither_certain_nor_ruled_out() -> None:
    assert certain(case()) == {} and ruled_out(case()) == frozenset()
    components = ruled_out(case(CaseFacts(sharers=1), vm__smi_vgpu_licensed_latest=[1, 1, 1]))
    assert components == {Component.LICENCE, Component.NOISY_NEIGHBOUR}


@pytest.mark.long
def test_a_rule_goes_over_the_model_and_after_a_fault_none_is_no_answer(model: Forest) -> None:
    slow = case(vm__smi_vgpu_licensed_latest=[0, 0, 0])
    for model_or_none in (model, None):
        row = scores([slow], model_or_none)[0]
        assert row[COMPONENTS.index(Component.LICENCE)] == CERTAIN
        assert row[COMPONENTS.index(Component.NONE)] == 0


def test_right_is_what_is_among_as_many_as_are_at_fault() -> None:
    row = np.zeros((1, len(COMPONENTS)))
    row[0, COMPONENTS.index(Component.ECC)], row[0, COMPONENTS.index(Component.NETWORK)] = 0.6, 0.3
    assert components_right(row, [{Component.ECC, Component.NETWORK}]) == 1.0
    assert components_right(row, [{Component.ECC, Component.DRIVER}]) == 0.5
    assert components_right(row, [set()]) == 0.0


def test_counted_strictly_one_named_too_many_counts() -> None:
    row = np.zeros((2, len(COMPONENTS)))
    row[0, COMPONENTS.index(Component.ECC)], row[0, COMPONENTS.index(Component.NETWORK)] = 0.6, 0.3
    row[1, COMPONENTS.index(Component.NONE)] = 0.9
    assert alarms_right(row, [{Component.ECC}, set()]) == 2 / 3
    assert alarms_right(row, [{Component.ECC, Component.NETWORK}, set()]) == 1.0
    assert false_alarms(row, [set(), set()]) == 0.5
    assert false_alarms(row, [{Component.ECC}, set()]) == 0.0


def test_settings_win_where_chance_does_not_explain_what_they_have_more() -> None:
    start, other_settings = ForestSettings(), ForestSettings(features_tried=0.45)
    assert _best_settings([(start, 0.958), (other_settings, 0.961)], 2600) == start
    assert _best_settings([(start, 0.950), (other_settings, 0.961)], 2600) == other_settings


@pytest.mark.long
def test_a_worse_model_never_replaces_the_one_that_stands() -> None:
    good = train([], None, each_fault=30)
    assert good.replaced and good.before is None and good.model.cases == 30 * 26, "each once"
    worse = train([], good.model, seed=2, each_fault=2)
    assert worse.before is not None and worse.after < worse.before
    assert not worse.replaced and worse.model is good.model
    assert good.model.settings in [settings for settings, _ in worse.tried], "the winner's are where the next begins"


FULL, NONE, NETWORK = Component.FRAME_BUFFER, Component.NONE, Component.NETWORK


def vm(number: int, name: str = "ml", owner: str = "") -> Vm:
    attributes = {"gpuops.owner": owner} if owner else {}
    profile = (VgpuDevice(13000, "nvidia_a40-8q"),)
    named = f"{name}-{number:02}"
    return Vm(f"vm-{name}-{number}", named, path=f"/dc/vm/ml/{named}", attributes=attributes, devices=profile)


def diagnosis_of(*components: Component, by_rule: bool = False) -> Diagnosis:
    return Diagnosis(tuple(Suspect(component, 0.7, (), by_rule) for component in components))


def first(vms: list[Vm], settled: list[SettledDiagnosis], asked_vm: Vm, answer: Diagnosis) -> Component:
    corrections = LocalCorrections.of(settled, {vm.ref: vm for vm in vms})
    return corrections.apply_to(answer, asked_vm).suspects[0].component


def test_the_corrected_vm_at_once_and_others_of_its_image_from_two_on() -> None:
    vms = [vm(number) for number in range(4)]
    one_correction = [SettledDiagnosis(vms[0].ref, FULL, NONE)]
    assert first(vms, one_correction, vms[0], diagnosis_of(FULL)) is NONE
    assert first(vms, one_correction, vms[1], diagnosis_of(FULL)) is FULL, "one wrong correction reaches one VM alone"
    two = [*one_correction, SettledDiagnosis(vms[1].ref, FULL, NONE)]
    assert first(vms, two, vms[3], diagnosis_of(FULL)) is NONE
    assert first(vms, two, vms[3], diagnosis_of(NETWORK)) is NETWORK, "no correction named the network"
    assert first(vms, two, vm(9, "web"), diagnosis_of(FULL)) is FULL, "it was made otherwise"


def test_vms_of_one_owner_and_what_people_do_not_agree_on() -> None:
    vms = [vm(1, "a", "research"), vm(2, "b", "research"), vm(3, "c", "research"), vm(4, "d", "sales")]
    two = [SettledDiagnosis(vms[0].ref, FULL, NETWORK), SettledDiagnosis(vms[1].ref, FULL, NETWORK)]
    assert first(vms, two, vms[2], diagnosis_of(FULL)) is NETWORK
    assert first(vms, two, vms[3], diagnosis_of(FULL)) is FULL
    against = [*two, SettledDiagnosis(vms[2].ref, FULL, FULL), SettledDiagnosis(vms[2].ref, FULL, FULL)]
    assert first(vms, against, vm(5, "e", "research"), diagnosis_of(FULL)) is FULL, "as many confirmed it"
    assert first(vms, against, vms[0], diagnosis_of(FULL)) is NETWORK, "of this VM somebody knows"


def test_ten_corrections_of_a_fleet_leave_no_vm_of_it_accused_anew() -> None:
    vms = [vm(number, owner="research") for number in range(100)]
    ten = [SettledDiagnosis(corrected_vm.ref, FULL, NONE) for corrected_vm in vms[:10]]
    assert all(first(vms, ten, corrected_vm, diagnosis_of(FULL)) is NONE for corrected_vm in vms)


def test_what_a_rule_is_certain_of_stays_and_vms_that_are_gone_teach_nothing() -> None:
    vms = [vm(1)]
    assert first(vms, [SettledDiagnosis(vms[0].ref, FULL, NONE)], vms[0], diagnosis_of(FULL, by_rule=True)) is FULL
    assert first(vms, [SettledDiagnosis("vm-gone", FULL, NONE)] * 3, vms[0], diagnosis_of(FULL)) is FULL
