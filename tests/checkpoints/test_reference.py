"""What may be written where a checkpoint is asked for."""

import io
import struct
import zipfile

import pytest

from bornbiased_jax.checkpoints import parse_ref
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import fingerprint, save_fingerprint


@pytest.fixture
def places(tmp_path):
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text('{"model_type": "llama"}')
    for name in ("run", "run@home"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "hub" / "models--a--b" / "snapshots" / "abc").mkdir(parents=True)
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(20))
    (tmp_path / "renamed.dat").write_bytes(b"GGUF" + bytes(20))
    return tmp_path


@pytest.mark.parametrize(
    "text, kind, seed, step",
    [
        ("hf", "huggingface", None, None),
        ("model.gguf", "gguf", None, None),
        ("renamed.dat", "gguf", None, None),
        ("run", "run", None, None),
        ("run@seed=42,step=1000", "run", 42, 1000),
        ("run@step=0", "run", None, 0),
        ("run@home", "run", None, None),
        ("run@home@seed=7", "run", 7, None),
    ],
)
def test_reference_forms_distinguished(places, text, kind, seed, step):
    reference = parse_ref(f"{places}/{text}")
    assert (reference.kind, reference.seed, reference.step) == (kind, seed, step)


def test_untrained_model_has_settings():
    plain = parse_ref("seed:42@llama-nano")
    assert (plain.kind, plain.seed, plain.cfg) == ("birth", 42, preset("llama-nano"))
    changed = parse_ref("seed:0@llama-tiny,d_model=64,tie_embeddings=true,init=normal-0.02")
    assert changed.cfg == preset("llama-tiny", d_model=64, tie_embeddings=True, init="normal-0.02")


@pytest.mark.parametrize(
    "text, words",
    [
        ("nowhere", "nowhere does not exist: name a Hugging Face directory"),
        ("nowhere@seed=1", "does not exist"),
        ("llama-nano", "seed:42@llama-nano"),
        ("empty", "neither a Hugging Face model nor a pretraining run"),
        ("empty@seed=1", "neither a Hugging Face model nor a pretraining run"),
        ("hub", "hub is a cache of the hub: name the folder of a snapshot, as .*snapshots/abc"),
        ("hub/models--a--b", "models--a--b is a cache of the hub"),
        ("hf@seed=1", "no pretraining run"),
        ("model.gguf@step=1", "no pretraining run"),
        ("model.gguf@window=8", "no pretraining run, which alone has seeds and steps: leave out @window=8"),
        ("run@seed=1,stop=2", "not of the form RUN@seed=42,step=1000"),
        ("run@seed=1,seed=2", "not of the form"),
        ("run@seed=-1", "not of the form"),
        ("run@", "not of the form"),
    ],
)
def test_bad_places_are_refused_with_a_remedy(places, text, words):
    with pytest.raises(InputError, match=words):
        parse_ref(f"{places}/{text}")


@pytest.mark.parametrize(
    "text, words",
    [
        ("seed:42", "not of the form seed:42@llama-nano"),
        ("seed:x@llama-nano", "not of the form"),
        ("seed:1@llama-nano,d_model", "not of the form"),
        ("seed:1@lama-nano", "did you mean 'llama-nano'"),
        ("seed:1@llama-nano,d_modell=3", "did you mean 'd_model'"),
        ("seed:1@llama-nano,rope_scaling_factor=8", "rope_scaling_factor=8 changes nothing where rope_scaling=none"),
        ("seed:1@gpt2-tiny,init.head=zeros", "init.head=zeros draws no weights of this model"),
    ],
)
def test_bad_untrained_models_are_refused_with_a_remedy(text, words):
    with pytest.raises(InputError, match=words):
        parse_ref(text)


# 128 and 640 begin like a pickle of protocol 0 and 2.
@pytest.mark.parametrize("width", [64, 128, 640])
def test_llama2c_files_are_refused_with_the_script_that_converts_them(tmp_path, width):
    path = tmp_path / "model.bin"
    path.write_bytes(struct.pack("<7i", width, 172, 5, 8, 4, 512, 512))
    with pytest.raises(InputError, match=f"`python docs/guides/convert_llama2c.py {path} DIR` and name DIR"):
        parse_ref(path)


def test_files_of_other_kinds_are_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("a text")
    (tmp_path / "notes.gguf").write_text("a text")
    (tmp_path / "model.safetensors").write_bytes(bytes(40))
    (tmp_path / "empty").write_bytes(b"")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as stream:
        stream.writestr("archive/data.pkl", b"\x80\x02}.")
    (tmp_path / "torch.bin").write_bytes(archive.getvalue())
    (tmp_path / "old.pt").write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")
    expected = {
        "notes.txt": "no checkpoint of a known kind",
        "notes.gguf": "no GGUF file",
        "model.safetensors": "name the folder",
        "empty": "no checkpoint of a known kind",
        "torch.bin": "is a pickle.*safetensors.torch.save_file as DIR/model.safetensors.*config.json",
        "old.pt": "is a pickle.*safetensors.torch.save_file as DIR/model.safetensors.*config.json",
    }
    for name, words in expected.items():
        with pytest.raises(InputError, match=words):
            parse_ref(tmp_path / name)


def test_a_stored_fingerprint_and_a_folder_of_models_are_named_as_what_they_are(tmp_path):
    save_fingerprint(tmp_path / "a.fingerprint", fingerprint("seed:1@llama-tiny,num_layers=1,vocab_size=64"))
    with pytest.raises(InputError, match="a.fingerprint is a stored fingerprint, without weights: name the checkpoint"):
        parse_ref(tmp_path / "a.fingerprint")
    for name in ("first", "second"):
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "config.json").write_text("{}")
    with pytest.raises(InputError, match="holds models or runs in folders of their own: .* as .*models/first"):
        parse_ref(tmp_path / "models")


def test_a_folder_of_runs_in_place_of_a_run_is_answered_with_one_of_them(tmp_path):
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "run.json").write_text("{}")
    with pytest.raises(InputError, match="holds models or runs in folders of their own: .* as .*runs/a; audit"):
        parse_ref(tmp_path / "runs")
