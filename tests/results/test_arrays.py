"""Arrays, axes of one's own and comparisons of results."""

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bornbiased_jax import results
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.prediction import predict
from bornbiased_jax.results import page, theory
from bornbiased_jax.results.comparison import compare
from bornbiased_jax.results.initialization import Trainability
from bornbiased_jax.results.run_reports import Evaluation

SEEDS, LAYERS = (3, 5), (1, 2, 3)


def preference(shift=0.0, seq_lens=(8,), **fields):
    records = [
        {"seed": seed, "seq_len": T, "top1_share": 0.1 * seed + T + shift, "top1_id": seed, "ranked_counts": [5, 2, 1]}
        | {"num_inputs": 10, "uniform_top_count": 2, "log10_p": None, "theory": {"inside": seed > 3}}
        for seed in SEEDS
        for T in seq_lens
    ]
    return results.Preference(records, **fields)


def contraction(shift=0.0):
    records = [
        {"seed": seed, "seq_len": 8, "log10_p": -3.0, "inter_cosine_final": 0.5}
        | {f"{kind}_cosine_by_layer": [seed + block / 10 + shift for block in LAYERS] for kind in ("inter", "intra")}
        for seed in SEEDS
    ]
    return results.Contraction(records)


def test_a_measurement_is_inside_between_both_ends_of_the_interval():
    cfg = preset("gpt2-tiny", num_layers=1, d_model=16, num_heads=2, d_ff=32, vocab_size=64)
    told = predict(cfg, 4, num_inputs=50)
    low, high = told["top1_share_p10"], told["top1_share_p90"]
    rows = [
        {"seq_len": 4, "num_inputs": 50, "top1_share": fraction} for fraction in (low - 0.01, low, high, high + 0.01)
    ]
    inside = [row["theory"]["inside"] for row in theory.with_fractions(cfg, rows, tokens=True)]
    assert inside == [False, True, True, False]
    (low,), (high,) = (told[f"inter_cosine_by_layer_{end}"] for end in ("low", "high"))
    rows = [{"seq_len": 4, "num_inputs": 50, "inter_cosine_by_layer": [cosine]} for cosine in (low - 1, low, high + 1)]
    inside = [row["theory"]["inside"] for row in theory.with_cosines(cfg, rows, tokens=True)]
    assert inside == [False, True, False]


def sinks():
    scores = {str(T): [[0.1 * T, 0.2], [0.3, 0.4], [0.5, 0.6]] for T in (1, 2)}
    return results.Sinks({"score_by_layer_head": scores, "epsilon": 0.25, "position": 1})


def intervention(after):
    return results.Intervention({"position": 1, "before": {"by_block": [0.5, 0.25]}, "by_block": after})


def training():
    run = {"seeds": [1, 2], "out": "runs/a"}
    lines = [{"step": step, "loss": [4.0 / step, 5.0 / step]} for step in (1, 2, 3)]
    lines[-1]["validation_loss"] = [1.5, 1.75]
    return results.Training(run, lines)


def test_fractions_are_arrays_by_seed_and_cosines_by_seed_and_block():
    fractions = preference().arrays
    np.testing.assert_array_equal(fractions["seed"], SEEDS)
    np.testing.assert_allclose(fractions["top1_share"], [8.3, 8.5])
    assert fractions["top1_id"].dtype.kind == "i" and fractions["theory.inside"].tolist() == [False, True]
    assert fractions["ranked_counts"].shape == (2, 3) and "log10_p" not in fractions
    cosines = contraction().arrays
    assert cosines["inter_cosine"].shape == (2, 3) and cosines["block"].tolist() == list(LAYERS)
    np.testing.assert_allclose(cosines["inter_cosine"][1], [5.1, 5.2, 5.3])
    theory = {f"inter_cosine_by_layer{end}": [0.1, 0.2, 0.3] for end in ("", "_low", "_high")}
    theory["inside_by_layer"] = [True, True, False]
    predicted = results.Contraction([{**record, "theory": theory} for record in contraction().records]).arrays
    assert predicted["theory.inter_cosine"][0].tolist() == [0.1, 0.2, 0.3] and not predicted["theory.inside"][0, 2]


def test_several_lengths_and_a_sweep_are_further_axes():
    by_length = preference(seq_lens=(8, 16)).arrays
    assert by_length["top1_share"].shape == (2, 2)
    np.testing.assert_allclose(by_length["top1_share"][0], [8.3, 16.3])
    records = [{**record, "d_model": D} for D in (32, 64) for record in preference().records]
    swept = results.Preference(records, swept="d_model").arrays
    assert swept["top1_share"].shape == (2, 2) and swept["d_model"].tolist() == [32, 64]
    assert sinks().arrays["score"].shape == (3, 2, 2)


def test_each_vocabulary_of_a_sweep_has_its_level_of_chance():
    counts = {16: 8, 512: 2}
    records = [
        {**record, "vocab_size": V, "uniform_top_count": count}
        for V, count in counts.items()
        for record in preference().records
    ]
    lines = results.Preference(records, swept="vocab_size").draw().axes[0].get_lines()
    levels = {line.get_label(): line.get_ydata()[0] for line in lines if "equally likely" in line.get_label()}
    name = "the most frequent of equally likely tokens, vocab_size = "
    assert levels == {f"{name}16": 0.8, f"{name}512": 0.2}


def test_what_a_step_lacks_is_nan():
    arrays = training().arrays
    assert arrays["loss"].shape == (3, 2) and arrays["loss"][2, 1] == 5.0 / 3
    np.testing.assert_array_equal(np.isnan(arrays["validation_loss"]), [[True, True], [True, True], [False, False]])


def test_gradients_are_rows_next_to_cosines_and_no_theory_is_called_measured():
    record = {"seq_len": 8, "gradient_norm_by_block": [2.0, 1.0], "gradient_norm_by_group": {"down": [0.5, 0.25]}}
    record |= {f"inter_cosine_by_layer{end}": [0.1, 0.2] for end in ("", "_std", "_low", "_high")}
    record |= {f"top1_share_{end}": 0.1 for end in ("p50", "p10", "p90")} | {"coverage": 0.99, "num_tokens": 8}
    prediction = results.Prediction("a", {}, [{**record, "intra_cosine_by_layer": [0.1, 0.2]}])
    rows = prediction.rows()
    assert [(row["gradient_norm"], row["gradient_norm.down"]) for row in rows] == [(2.0, 0.5), (1.0, 0.25)]
    assert ">measured<" not in page.draw(prediction, "a")


def test_z_is_an_array_by_step_and_component():
    steps = [
        {"step": step, "verdict": "unrelated", "components": [{"component": "mlp", "z": step + 0.5, "log10_p": -1.0}]}
        for step in (10, 20)
    ]
    result = results.Lineage("runs/a", "b", None, steps=steps)
    assert result.arrays["z"].tolist() == [10.5, 20.5] and result.arrays["step"].tolist() == [10, 20]


def test_integers_keep_all_their_digits_and_no_rows_are_no_arrays():
    large = 2**60 + 1
    assert Evaluation({"num_bytes": large}, {}).arrays["num_bytes"].tolist() == [large]
    assert results.Training({"seeds": [1, 2], "out": "runs/a"}).arrays == {}


def test_rows_are_written_to_a_file_that_is_named(tmp_path):
    result, path = preference(), tmp_path / "of a sweep: 1" / "a.csv"
    assert result.to_csv(path) is None and path.read_text() == result.to_csv()
    assert result.to_csv().startswith("seed,seq_len,top1_share,")
    (tmp_path / "file").write_text("")
    for place, sentence in (("", "empty path"), (tmp_path / "file" / "a.csv", "choose another place"), (3, "no path")):
        with pytest.raises(InputError, match=sentence):
            result.to_csv(place)


def test_a_result_without_figures_promises_none():
    compared = compare(preference(), preference())
    with pytest.raises(InputError, match=r"no figure for one pair of axes: .*\.$") as error:
        compared.plot(ax=Figure().subplots())
    assert "figures()" not in str(error.value)


def test_a_record_is_one_row():
    arrays = Evaluation({"loss": 2.5, "num_tokens": 100, "checkpoint": "a"}, {}).arrays
    assert arrays["loss"].tolist() == [2.5] and "checkpoint" not in arrays


@pytest.mark.parametrize(
    "result",
    [preference(), contraction(), sinks(), intervention([0.0, 0.0]), training()],
    ids=lambda result: type(result).__name__,
)
def test_results_draw_into_axes_of_ones_own(result):
    figure = Figure()
    ax, other = figure.subplots(1, 2)
    assert result.plot(ax=ax) is ax and (ax.lines or ax.images) and not other.lines
    assert isinstance(ax, Axes) and ax.get_xlabel() and not ax.spines["top"].get_visible()
    with pytest.raises(InputError, match="Matplotlib axes"):
        result.plot(ax=figure)


def test_two_results_are_compared_row_by_row():
    compared = results.compare(preference(), preference(0.25))
    np.testing.assert_allclose(compared.arrays["top1_share.difference"], [0.25, 0.25])
    table = {row[0]: row for row in compared.table().rows}
    assert table["top1_share"][3] == pytest.approx(0.25) and table["top1_share"][4] == pytest.approx(0, abs=1e-12)
    assert table["top1_id"][1:4] == [4, 4, 0] and "top1_share" in compared.summary()[0]
    by_block = compare(intervention([0.5, 0.25]), intervention([0.0, 0.25]))
    assert by_block.rows()[0] == {"block": 1} | {
        "before.a": 0.5, "before.b": 0.5, "before.difference": 0.0,
        "after.a": 0.5, "after.b": 0.0, "after.difference": -0.5,
    }  # fmt: skip
    assert by_block.summary()[0].endswith(": after differs.")
    same = compare(contraction(), contraction())
    assert "all numbers are equal" in same.summary()[0] and same.arrays["inter_cosine.difference"].shape == (2, 3)


def test_cells_of_a_diagram_are_compared_in_their_places():
    values = {"num_layers": None, "x_values": [1.0, 2.0], "y_values": [1.0, 2.0]}
    flat = {"gradient_ratio": [[1.0, 1.0]] * 2, "entropy": [[0.5, 0.5]] * 2}
    planes = {
        name: {"x": f"{name} x", "y": f"{name} y", **values, **flat, "contraction": [[0.125, 0.25], [0.5, 1.0]]}
        for name in ("depth", "attention")
    }
    diagram = Trainability("a", {"seq_len": 8, **planes}, {})
    compared = compare(diagram, diagram)
    assert len(compared.rows()) == 8 and "all numbers are equal" in compared.summary()[0]


def test_rates_that_differ_are_written_apart():
    before = {"sink_rate": 0.1234, "loss": 3.0}
    summary = results.Intervention({"position": 1, "before": before, "sink_rate": 0.1229, "loss": 3.0}).summary()
    assert "are fewer: 12.34% of the heads as it is, 12.29% after" in summary[0]


def test_a_number_that_one_result_lacks_is_no_equality():
    compared = compare(intervention([0.5, 0.25]), intervention([None, 0.25]))
    assert compared.summary()[0].endswith(": all numbers that both have are equal; one of them lacks some of after.")
    assert compared.rows()[0]["after.a"] == 0.5 and compared.rows()[0]["after.b"] is None
    assert [row[0] for row in compared.table().rows] == ["before", "after"]
    nothing, same = (results.Intervention({"before": {"by_block": [None]}, "by_block": [None]}) for _ in range(2))
    assert compare(nothing, same).summary()[0].endswith(": neither has a number to compare.")


@pytest.mark.parametrize(
    ("a", "b", "sentence"),
    [
        (preference(), contraction(), "of one kind"),
        (preference(), {"records": []}, "b is a dict"),
        (preference(seq_lens=(8,)), preference(seq_lens=(16,)), "share no seed and seq_len"),
    ],
)
def test_results_that_cannot_be_compared_are_refused(a, b, sentence):
    with pytest.raises(InputError, match=sentence):
        compare(a, b)
