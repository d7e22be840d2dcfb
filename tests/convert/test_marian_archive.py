import json

import numpy as np
import pytest
from conftest import assert_close, run
from test_marian import SMALL, Reference, write

from keras_tfm import Translator
from keras_tfm.convert import marian
from keras_tfm.convert.marian_archive import CONFIGURATION, theirs

yaml = pytest.importorskip("yaml")
ENTRIES = {"type": "transformer", "dim-emb": SMALL["d_model"], "enc-depth": 2, "dec-depth": 1, "transformer-heads": 2}
ENTRIES |= {"transformer-dim-ffn": 12, "transformer-ffn-activation": "swish", "tied-embeddings-all": True}
ENTRIES |= {"transformer-postprocess": "dan", "transformer-preprocess": ""}


def write_archive(folder, **changes):
    """The folder of `write` in Marian's own format, and its configuration and tensors in that of Hugging Face."""
    config, tensors = write(folder, scale_embedding=True)
    tensors["model.shared.weight"][-1] = tensors["final_logits_bias"][0, -1] = 0  # Marian starts with zeros
    arrays = {}
    for name, array in tensors.items():
        if name in ("model.shared.weight", "final_logits_bias"):
            array = array[:-1] if len(array) > 1 else array[:, :-1]
        else:
            array = array.T if array.ndim == 2 else array[None]
        arrays[theirs(name)] = array
    text = yaml.safe_dump(ENTRIES | changes).encode() + b"\0"
    np.savez(folder / "model.npz", **arrays, **{CONFIGURATION: np.frombuffer(text, "int8")})
    vocabulary = json.loads((folder / "vocab.json").read_text())
    del vocabulary["<pad>"]
    (folder / "opus.vocab.yml").write_text(yaml.safe_dump(vocabulary))
    for name in ("config.json", "generation_config.json", "vocab.json", "target_vocab.json", "model.safetensors"):
        (folder / name).unlink()
    return config, tensors


def test_logits_are_those_of_the_reference(tmp_path):
    config, tensors = write_archive(tmp_path)
    translator = Translator.from_marian(tmp_path)
    start = config["decoder_start_token_id"]
    order = marian.order_of_ids(config, {"<unk>": 1}, config["vocab_size"], tmp_path)
    ours = {int(number): place for place, number in enumerate(order)}
    source, target = [5, 9, 2, 0], [start, 7, 4]
    ids = {"source": [[*map(ours.get, source), 0]], "target": [list(map(ours.get, target))]}
    logits = run(lambda: translator.models[0]({name: np.array(row) for name, row in ids.items()}))
    assert_close(np.array(logits)[0, :, 1:], Reference(config, tensors)(source, target)[:, order[1:]], 1e-4)


@pytest.mark.parametrize(
    "entry, value", [("type", "s2s"), ("transformer-postprocess", "da"), ("transformer-ffn-activation", "gelu")]
)
def test_an_entry_that_is_not_supported_is_named(entry, value, tmp_path):
    write_archive(tmp_path, **{entry: value})
    with pytest.raises(ValueError, match=rf"model.npz: .*`{entry}` must be one of"):
        Translator.from_marian(tmp_path)


def test_declared_sizes_are_checked_against_the_file(tmp_path):
    write_archive(tmp_path)
    names = (tmp_path / "opus.vocab.yml").read_text()
    (tmp_path / "opus.vocab.yml").write_text(f"{names}more: 2000000000\n")
    with pytest.raises(ValueError, match=r"model.npz: damaged.*describes .* which its .* bytes cannot hold"):
        Translator.from_marian(tmp_path)
    (tmp_path / "opus.vocab.yml").write_text(f"{names}more: &a 7\nothers: *a\n")
    with pytest.raises(ValueError, match=r"opus.vocab.yml: damaged.*an alias of YAML is not supported"):
        Translator.from_marian(tmp_path)
    write_archive(tmp_path, **{"enc-depth": 10**9})
    with pytest.raises(ValueError, match=r"model.npz: damaged.*describes 1,000,000,001 layers"):
        Translator.from_marian(tmp_path)


def test_damaged_archives_are_refused(tmp_path):
    write_archive(tmp_path)
    (tmp_path / "opus.vocab.yml").write_text("!!python/object/apply:os.system ['true']")
    with pytest.raises(ValueError, match=r"opus.vocab.yml: damaged"):
        Translator.from_marian(tmp_path)
    (tmp_path / "opus.vocab.yml").unlink()
    with pytest.raises(FileNotFoundError, match=r"vocab.yml: is missing"):
        Translator.from_marian(tmp_path)
    np.savez(tmp_path / "model.npz", **{CONFIGURATION: np.array([{}], object)})
    with pytest.raises(ValueError, match=r"model.npz: damaged"):
        Translator.from_marian(tmp_path)
