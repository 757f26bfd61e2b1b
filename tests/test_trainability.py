"""Trainability diagrams: their cells are the predictions of single configurations, and their page is self-contained."""

import dataclasses

import pytest

from bornbiased_jax import trainability
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.prediction import predict, predict_gradients, stack_of
from bornbiased_jax.results import page
from bornbiased_jax.results.initialization import Trainability
from bornbiased_jax.theory.softmax_rows import row_entropy

CFG = preset("gpt2-tiny", num_layers=3, d_model=64, d_ff=128, num_heads=2, vocab_size=300, init="normal-0.02")
# A head that depends on the depth.
CFG = CFG.replace(tie_embeddings=False, **{"init.head": "normal:2/(L*sqrt(D))"})


@pytest.fixture(scope="module")
def report():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainability, "SCALES", (0.5, 1.0, 5.0))
        patch.setattr(trainability, "DEPTHS", (1, 3))
        patch.setattr(trainability, "LOGIT_STDS", (0.1, 2.5))
        return trainability.diagram(CFG.replace(num_layers=2), 8, 4)


@pytest.mark.slow
def test_cells_are_the_predictions_of_that_configuration(report):
    plane = report["depth"]
    row, column = plane["y_values"].index(3.0), plane["x_values"].index(1.0)
    cosine = predict(CFG, 8)["inter_cosine_by_layer"][-1]
    # The diagram has the limit of many inputs and seeds, a prediction also their second-order shift.
    assert plane["contraction"][row][column] == pytest.approx(cosine, abs=0.02)
    norms = predict_gradients(CFG, 8, 4)["gradient_norm_by_block"]
    assert plane["gradient_ratio"][row][column] == pytest.approx(norms[0] / norms[-1], rel=1e-9)
    # Of one block the ratio is 1; at five times the scale logits are beyond the theory of gradients.
    assert plane["gradient_ratio"][0] == [pytest.approx(1.0), pytest.approx(1.0), None]


def test_contraction_grows_with_depth_and_entropy_falls_with_logits(report):
    shallow, deep = report["depth"]["contraction"]
    assert all(low < high for low, high in zip(shallow, deep, strict=True))
    for uniform, concentrated in report["attention"]["entropy"]:
        assert concentrated < uniform <= 1.0


def test_cells_without_a_theory_are_empty(report):
    """Logits of standard deviation 2.5 are far from uniform: their gradients have no theory, their cosine has."""
    plane = report["attention"]
    assert all(row[1] is None and row[0] > 0 for row in plane["gradient_ratio"])
    assert all(None not in row for row in plane["contraction"])


def test_scaled_stacks_change_the_named_groups_alone():
    stack = stack_of(CFG)
    assert trainability.scaled(stack, {}) == stack
    doubled = trainability.scaled(stack, {"query": 2.0})
    assert doubled.std("query", 0) == 2 * stack.std("query", 0)
    assert dataclasses.replace(doubled, group_stds=()) == dataclasses.replace(stack, group_stds=())


def test_a_value_gate_is_scaled_with_the_values_that_it_reads():
    """Its std is that of its matrix times that of the values: scaled with all weights it was that of the gate alone."""
    cfg = CFG.replace(output_gate="value", init="gemma-jax")
    doubled = cfg.replace(init="normal-0.02")
    stack = trainability.scaled(stack_of(cfg), dict.fromkeys(dict(stack_of(cfg).group_stds), 2.0))
    assert stack.std("output_gate", 0) == pytest.approx(stack_of(doubled).std("output_gate", 0), rel=1e-12)


@pytest.mark.parametrize("sink_logit", ["zero", "learned"])
def test_rows_that_do_not_sum_to_one_have_no_entropy(sink_logit):
    """What an extra logit takes was left out: the entropy was that of the plain softmax."""
    assert trainability._cell(stack_of(CFG.replace(sink_logit=sink_logit)), 8, lambda _forward: None)[2] is None


def test_entropy_is_that_of_independent_logits():
    stack = trainability.scaled(stack_of(CFG), {"query": 5.0, "key": 5.0})
    _, _, entropy = trainability._cell(dataclasses.replace(stack, num_layers=1), 8, lambda _forward: None)
    # Tokens of an embedding are nearly orthogonal: logits of variance (0.1 · 0.1 · 64)².
    assert entropy == pytest.approx(row_entropy(8, 0.64**2) / row_entropy(8, 0.0), rel=0.01)


@pytest.mark.slow
def test_the_page_has_both_planes_and_no_outside_reference(report):
    diagram = Trainability("gpt2-tiny", report, CFG.to_dict())
    text = page.draw(diagram, "gpt2-tiny", command=["bornbiased", "predict"])
    assert text.count("<svg") == 2
    assert 'src="http' not in text
    assert "std of logits" in text
    assert len(diagram.rows()) == sum(len(plane["x_values"]) * len(plane["y_values"]) for plane in diagram._planes())


def test_long_sequences_are_refused():
    with pytest.raises(InputError, match="at most 512 positions"):
        trainability.diagram(CFG, 600, 4)


@pytest.mark.parametrize("changes", [{"init": "normal-0.02-mirrored"}, {"rope_pattern": "rn"}, {"logit_softcap": 5.0}])
def test_gradients_that_theory_refuses_are_empty_cells(changes, monkeypatch):
    for name, values in (("SCALES", (1.0,)), ("DEPTHS", (2,)), ("LOGIT_STDS", (0.1,))):
        monkeypatch.setattr(trainability, name, values)
    cfg = CFG.replace(num_layers=2, **changes)
    with pytest.raises(InputError, match="theory knows no gradients"):
        predict_gradients(cfg, 8, 4)
    report = trainability.diagram(cfg, 8, 4)
    for plane in (report["depth"], report["attention"]):
        assert plane["gradient_ratio"] == [[None]] and plane["contraction"][0][0] > 0


def test_logits_behind_norms_of_queries_and_keys_are_scaled_themselves(monkeypatch):
    """Larger queries and keys come out of those norms as they were: all columns were the one of logits of std 1."""
    for name, values in (("SCALES", (1.0,)), ("DEPTHS", (1,)), ("LOGIT_STDS", (0.1, 2.0))):
        monkeypatch.setattr(trainability, name, values)
    plane = trainability.diagram(CFG.replace(num_layers=1, qk_norm=True), 8, 4)["attention"]
    expected = [row_entropy(8, std**2) / row_entropy(8, 0.0) for std in (0.1, 2.0)]
    assert plane["entropy"][0] == pytest.approx(expected, rel=0.02) and plane["x"] == "std of logits"
    # Without a norm before attention its input decides too, which no single scale makes even.
    plane = trainability.diagram(CFG.replace(num_layers=1, norm="none"), 8, 4)["attention"]
    assert plane["x"] == "std of logits for inputs of unit variance"


@pytest.mark.parametrize(
    "changes", [{"attention": False}, {"init.query": "zeros"}, {"init.key": "zeros", "qk_norm": True}]
)
def test_logits_that_are_zero_have_one_column(changes, monkeypatch):
    """The columns were those of LOGIT_STDS, all with the same numbers."""
    for name, values in (("SCALES", (1.0,)), ("DEPTHS", (1,))):
        monkeypatch.setattr(trainability, name, values)
    plane = trainability.diagram(CFG.replace(num_layers=1, **changes), 8, 4)["attention"]
    assert plane["x_values"] == [0.0] and len(plane["contraction"][0]) == 1
    assert plane["entropy"] == [[pytest.approx(1.0) if "attention" not in changes else None]]
