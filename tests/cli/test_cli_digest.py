"""The digest of weights as a commitment: the same in every format, another for every relabeling."""

import json

import pytest
from scipy.optimize import linear_sum_assignment

from bornbiased_jax.checkpoints import export_hugging_face, open_checkpoint
from bornbiased_jax.cli.main import run
from bornbiased_jax.derive.symmetries import permute_units
from bornbiased_jax.lineage import Settings, fingerprint
from bornbiased_jax.lineage.commitment import WORD
from bornbiased_jax.lineage.pairing import neuron_units
from bornbiased_jax.lineage.scores import neuron_scores

INITIAL = "seed:3@llama-tiny,num_layers=1,num_heads=2,d_model=16,d_ff=32,vocab_size=32"


@pytest.mark.slow
def test_a_base_committed_to_beforehand(tmp_path, capsys):
    def seedprint(*arguments):
        code = run(["seedprint", *arguments, "--quiet", "--json", str(tmp_path / "verdict.json")])
        return json.loads((tmp_path / "verdict.json").read_text()) if code == 0 else code

    published = open_checkpoint(INITIAL).digest()
    suspect = INITIAL.replace("seed:3", "seed:4")
    word = seedprint(INITIAL, suspect)
    assert (word["base_digest"], word["committed"]) == (published, False)
    assert word["suspect_digest"] == open_checkpoint(suspect).digest()
    assert WORD in word["notes"] and "rests on the word of" in capsys.readouterr().out
    committed = seedprint(INITIAL, suspect, "--base-digest", published.upper())
    assert (committed["base_digest"], committed["committed"]) == (published, True)
    assert WORD not in committed["notes"]
    assert any("published before the suspect was seen" in note for note in committed["notes"])
    # Stored fingerprints and tests of outputs know their digest too.
    sizes = ["--num-inputs", "40", "--seq-len", "4", "--quiet"]
    assert run(["fingerprint", "--outputs", INITIAL, "--out", str(tmp_path / "base"), *sizes]) == 0
    stored = seedprint(str(tmp_path / "base"), suspect, "--base-digest", published)
    assert (stored["test"], stored["base_digest"], stored["committed"]) == ("permutation", published, True)
    assert WORD in seedprint(INITIAL, suspect, "--test", "iclr", *sizes)["notes"]
    # Another base is refused, and so is what is no digest.
    capsys.readouterr()
    assert seedprint(suspect, INITIAL, "--base-digest", published) == 2
    assert f"not {published}: name the model whose digest was published" in capsys.readouterr().err
    assert seedprint(INITIAL, suspect, "--base-digest", published[:12]) == 2
    assert "64 hexadecimal digits" in capsys.readouterr().err


def test_an_accuser_who_permutes_their_own_model_is_stopped_by_the_commitment(tmp_path, refused):
    """Hidden units matched to an unrelated suspect's: a p of nothing, from a model that was never published."""
    base, suspect = open_checkpoint(INITIAL), INITIAL.replace("seed:3", "seed:4")
    sketches = [fingerprint(ref, Settings(sign_key=b"key")).components["language"] for ref in (INITIAL, suspect)]
    units = [neuron_units(component.neurons[0], "token") for component in sketches]
    cosines_FF = neuron_scores(*units, sketches[0].shape).combined
    order = linear_sum_assignment(cosines_FF.T, maximize=True)[1]
    cfg, params = permute_units(base.cfg, base.params(), order[None])
    export_hugging_face(cfg, params, tmp_path / "accuser")
    call = ["seedprint", str(tmp_path / "accuser"), suspect, "--test", "weights", "--labels", "units", "--quiet"]
    call += ["--sign-key", b"key".hex()]
    assert run([*call, "--json", str(tmp_path / "verdict.json")]) == 0
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    assert verdict["verdict"] == "same-lineage" and not verdict["committed"] and WORD in verdict["notes"]
    assert "name the model whose digest was published" in refused([*call, "--base-digest", base.digest()])


def test_a_fingerprint_that_is_stored_in_no_file_has_no_size(capsys):
    assert run(["fingerprint", INITIAL, "--out", "/dev/null", "--quiet"]) == 0
    assert f"/dev/null holds sketches, digests and statistics of 12 tensors of {INITIAL}" in capsys.readouterr().out
