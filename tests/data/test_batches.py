import _thread
import contextlib
import functools
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

import keras
import numpy as np
import pytest
from conftest import BYTES, encode, once, random_texts, texts_of

from keras_tfm.data import BucketedBatches, PackedBatches, ParallelFiles, TokenPairs
from keras_tfm.data import batches as module
from keras_tfm.data.batches import choose_shapes
from keras_tfm.runtimes import devices
from keras_tfm.text import END, START, train_tokenizer

ROOT = pathlib.Path(__file__).parents[2]
MULTI30K = pathlib.Path(os.environ.get("MULTI30K", ROOT.parent / "shared" / "data" / "multi30k"))


@pytest.fixture(params=[2**20, 64], ids=["one block", "blocks"])
def block(request, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", request.param)
    return request.param


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    encode(random_texts(200), folder)
    return folder


@pytest.fixture
def pairs(block, folder):
    return TokenPairs(folder)


def unpacked(inputs, labels):
    """The pairs of texts in a batch, without end tokens and padding; checks everything else on the way."""
    source, target = inputs["source"], inputs["target"]
    assert source.dtype == target.dtype == labels.dtype == "int32" and target.shape == labels.shape
    segments = {side: inputs.get(f"{side}_segments", np.int32(inputs[side] > 0)) for side in ("source", "target")}
    for row in range(len(source)):
        for number in range(1, segments["source"][row].max() + 1):
            at, target_at = segments["source"][row] == number, segments["target"][row] == number
            ids, label, shifted = source[row][at], labels[row][target_at], target[row][target_at]
            assert ids[-1] == label[-1] == END and shifted[0] == START
            np.testing.assert_array_equal(shifted[1:], label[:-1])
            for name, where in (("source", at), ("target", target_at)):
                assert (np.diff(np.flatnonzero(where)) == 1).all()
                if f"{name}_positions" in inputs:
                    assert inputs[f"{name}_positions"][row][where].tolist() == list(range(where.sum()))
            yield tuple(BYTES.decode([ids[:-1], label[:-1]]))
    for ids, segment in ((source, segments["source"]), (target, segments["target"]), (labels, segments["target"])):
        np.testing.assert_array_equal(ids == 0, segment == 0)


def epoch_of(batches, epoch=0):
    return [batches.batch(epoch, index) for index in range(len(batches))]


def contents(batches, epoch=0):
    return [pair for batch in epoch_of(batches, epoch) for pair in unpacked(*batch)]


def equal(first, second):
    return all(map(np.array_equal, keras.tree.flatten(first), keras.tree.flatten(second)))


KINDS = {
    "one shape": functools.partial(BucketedBatches, num_shapes=1),
    "shapes": functools.partial(BucketedBatches, num_shapes=4),
    "many shapes": functools.partial(BucketedBatches, num_shapes=40),
    "packed": functools.partial(PackedBatches, length=40),
}


def every_kind(test):
    return once(pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)(test))


@pytest.mark.parametrize("shuffle", [False, True])
@every_kind
def test_every_pair_comes_once_in_an_epoch_and_unpacked_as_it_was(make, shuffle, pairs):
    batches = make(pairs, 160, shuffle=shuffle)
    for epoch in (0, 7):
        assert sorted(contents(batches, epoch)) == sorted(texts_of(pairs))


@every_kind
def test_only_shapes_and_rows_that_were_announced_occur(make, pairs):
    batches = make(pairs, 160)
    announced = {(rows, *shape) for rows, shape in zip(batches.rows, batches.shapes, strict=True)}
    seen = {(*inputs["source"].shape, labels.shape[1]) for inputs, labels in epoch_of(batches) + epoch_of(batches, 1)}
    assert seen <= announced and all(rows * max(shape) <= 160 for rows, *shape in announced)
    for inputs, labels in batches:
        assert {x.shape for x in inputs.values()} == {inputs["source"].shape, labels.shape}


@pytest.mark.parametrize("batch_tokens", [60, 1000, 100_000])
@every_kind
def test_batches_hold_so_many_tokens_and_not_many_fewer(make, batch_tokens, pairs):
    batches = make(pairs, batch_tokens)
    for rows, shape in zip(batches.rows, batches.shapes, strict=True):
        assert batch_tokens / 2 < rows * max(shape) <= batch_tokens
        assert rows % 8 == 0 or rows < 8
    assert sorted(contents(batches)) == sorted(texts_of(pairs))


@every_kind
def test_batches_are_a_function_of_seed_epoch_and_index(make, pairs, folder):
    batches, again = make(pairs, 160, seed=5), make(TokenPairs(folder), 160, seed=5)
    expected = [epoch_of(batches, epoch) for epoch in range(3)]
    for epoch, index in np.random.default_rng(0).permutation(list(np.ndindex(3, len(batches)))).tolist():
        assert equal(again.batch(epoch, index), expected[epoch][index])
    assert not equal(expected[0], expected[1]) and not equal(expected[1], expected[2])
    assert contents(batches, 0) != contents(make(pairs, 160, seed=6), 0)
    assert all(equal(batches[index], expected[0][index]) for index in range(len(batches)))


@every_kind
def test_without_shuffling_all_epochs_and_seeds_are_the_same(make, pairs):
    batches = make(pairs, 160, shuffle=False)
    assert equal(epoch_of(batches, 0), epoch_of(batches, 3))
    assert equal(epoch_of(batches, 0), epoch_of(make(pairs, 160, shuffle=False, seed=9), 0))


@every_kind
def test_repeating_goes_through_the_epochs_from_any_batch_on(make, pairs):
    batches = make(pairs, 160)
    for first in (0, 1, len(batches) - 1, 2 * len(batches) + 3):
        endless = batches.repeat(first).get_numpy_iterator()
        for index, batch in enumerate(itertools.islice(endless, len(batches) + 1)):
            assert equal(batch, batches.batch(*divmod(first + index, len(batches))))


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("processes, parts", [(3, 3), (4, 4), (2, 8)])
@every_kind
def test_processes_share_the_rows_of_each_whole_batch(make, processes, parts, copies, pairs, monkeypatch):
    batches = make(pairs, 160, copies=copies)

    def share(process, index):
        monkeypatch.setattr(devices, "batch_shard", lambda: devices.BatchShard(process, processes, parts))
        return keras.tree.flatten(batches.batch(0, index))

    for index in range(len(batches)):
        monkeypatch.undo()
        whole = keras.tree.flatten(batches.batch(0, index))
        for expected, *rows in zip(whole, *(share(process, index) for process in range(processes)), strict=True):
            assert len({part.shape for part in rows}) == 1
            together = np.split(np.concatenate(rows), copies)
            assert len(np.concatenate(rows)) % parts == 0
            for ours, theirs in zip(together, np.split(expected, copies), strict=True):
                np.testing.assert_array_equal(ours[: len(theirs)], theirs)
                assert not ours[len(theirs) :].any() and len(ours) - len(theirs) < parts


@every_kind
def test_copies_of_a_batch_are_concatenated(make, pairs):
    single, twice = make(pairs, 160), make(pairs, 160, copies=2)
    assert len(single) == len(twice) and twice.mean_tokens() == 2 * single.mean_tokens()
    for batch, double in zip(epoch_of(single, 1), epoch_of(twice, 1), strict=True):
        for x, copies in zip(*map(keras.tree.flatten, (batch, double)), strict=True):
            np.testing.assert_array_equal(copies, np.concatenate([x, x]))


@every_kind
def test_samples_are_taken_in_turn(make, block, tmp_path):
    texts = [random_texts(120, seed=seed) for seed in range(3)]
    samples = [encode(sample, tmp_path / str(n)) for n, sample in enumerate(texts)]
    batches = make(samples, 160)
    for epoch in range(4):
        seen, sample = contents(batches, epoch), texts[epoch % 3]
        assert set(seen) <= set(sample) and len(set(seen)) == len(seen) > 80  # longer samples lose a few batches


@every_kind
def test_mean_tokens_is_the_mean_of_the_labels_that_are_not_padding(make, pairs):
    batches = make(pairs, 160)
    assert np.isclose(batches.mean_tokens(), np.mean([(labels > 0).sum() for _, labels in epoch_of(batches)]))


@every_kind
def test_one_pair_is_enough(make, tmp_path):
    batches = make(encode([("ab", "c")], tmp_path), 4096)
    assert len(batches) == 1 and contents(batches, 3) == [("ab", "c")]
    with pytest.raises(IndexError, match="`index` must be at least 0 and less than 1. Received: index=1"):
        batches.batch(0, 1)


@once
def test_each_shape_is_for_pairs_that_need_it(pairs):
    """Except for those left over, each pair is in the smallest shape that holds it."""
    batches = BucketedBatches(pairs, 160, num_shapes=4)
    larger = 0
    for inputs, labels in batches:
        shape = inputs["source"].shape[1], labels.shape[1]
        smaller = [other for other in batches.shapes if sum(other) < sum(shape)]
        for source, target in unpacked(inputs, labels):
            larger += any(len(source.encode()) < s and len(target.encode()) < t for s, t in smaller)
    assert larger <= sum(batches.rows) * len(batches.block_steps[0])


# ── shapes and padding ──


@once
@pytest.mark.parametrize("seed, longest", list(enumerate([5, 40, 128, 129, 300])))
def test_more_shapes_never_give_more_padding(seed, longest):
    rng, size = np.random.default_rng(seed), (longest + 1, longest + 1)
    counts = rng.integers(0, 3, size) * (
        rng.random(size) < (0.3 if longest < 100 else 0.02)
    )  # fewer cells: sooner done
    counts[0], counts[:, 0], counts[longest, longest // 2] = 0, 0, 1
    lengths = np.argwhere(counts)

    def tokens(shapes):
        fits = (lengths[:, None] <= np.array(shapes)).all(-1)
        assert fits.any(1).all()
        return (counts[counts > 0] * np.where(fits, np.sum(shapes, axis=1), 10**6).min(1)).sum()

    by_number = {number: choose_shapes(counts, number) for number in (1, 2, 4, 14)}
    assert by_number[1] == [tuple(lengths.max(0))]
    assert all(1 <= len(shapes) <= number and len(set(shapes)) == len(shapes) for number, shapes in by_number.items())
    assert all(tokens(shapes) <= tokens(by_number[1]) for shapes in by_number.values())
    assert tokens(by_number[14]) < tokens(by_number[1])


def padding_share(batches):
    ids = [ids for inputs, labels in epoch_of(batches) for ids in (inputs["source"], labels)]
    return sum((x == 0).sum() for x in ids) / sum(x.size for x in ids)


@once
def test_batches_of_more_shapes_have_less_padding_and_packed_ones_hardly_any(tmp_path):
    pairs = encode(random_texts(800), tmp_path)
    shares = [padding_share(BucketedBatches(pairs, 300, num_shapes=number)) for number in (1, 4)]
    assert 0 < padding_share(PackedBatches(pairs, 300, length=100)) < shares[1] < shares[0]


@functools.cache
def multi30k(folder):
    files = [MULTI30K / "tok" / f"train.lc.norm.tok.{language}.gz" for language in ("en", "de")]
    if not all(file.exists() for file in files):
        pytest.skip(f"there is no Multi30k at {MULTI30K}; the environment variable MULTI30K says where it is")
    pairs = ParallelFiles(*files)
    tokenizer = train_tokenizer((text for pair in pairs for text in pair), vocab_size=8000)
    return encode(pairs, folder, tokenizer)


@pytest.mark.slow
@once
@pytest.mark.parametrize("make", [BucketedBatches, PackedBatches])
def test_little_of_multi30k_is_padding(make, tmp_path_factory):
    pairs = multi30k(tmp_path_factory.getbasetemp() / "multi30k")
    batches = make(pairs)
    assert len(pairs) > 28_000 and padding_share(batches) < 0.1 and len(batches.shapes) <= 14
    assert all(rows * max(shape) <= 4096 for rows, shape in zip(batches.rows, batches.shapes, strict=True))


# ── training ──


def tiny_model():
    source, target = (keras.Input((None,), dtype="int32", name=name) for name in ("source", "target"))
    embed = keras.layers.Embedding(BYTES.vocab_size, 4)
    x = embed(target) + keras.ops.mean(embed(source), axis=1, keepdims=True)
    model = keras.Model({"source": source, "target": target}, keras.layers.Dense(BYTES.vocab_size)(x))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.mark.parametrize("alike", [False, True])
def test_fit_and_evaluate_take_batches_of_all_shapes(alike, tmp_path):
    """Also if the first two batches have the same shape, and in several calls."""
    texts = [("a", "b")] * (48 if alike else 24) + [("aa", "bb")] * 16 + [("aaaaa", "bbb")] * 8
    batches = BucketedBatches(encode(texts, tmp_path), 48, num_shapes=9, shuffle=False)
    shapes = [(inputs["source"].shape[1], labels.shape[1]) for inputs, labels in epoch_of(batches)]
    assert len(set(shapes)) == 3 and (shapes[0] == shapes[1]) == alike
    model, steps = tiny_model(), len(batches)
    before = model.get_weights()
    for _ in range(2):
        model.fit(batches, epochs=2, validation_data=batches, verbose=0)
        model.fit(batches.repeat(first=3), steps_per_epoch=steps, epochs=2, shuffle=False, verbose=0)
    assert any((old != new).any() for old, new in zip(before, model.get_weights(), strict=True))
    assert model.evaluate(batches, verbose=0) == model.evaluate(batches, verbose=0) > 0
    assert all(equal(batches[index], batches.batch(0, index)) for index in range(steps))


def test_samples_of_one_batch_may_have_different_shapes(tmp_path):
    batches = BucketedBatches([encode([("a" * n, "b")], tmp_path / str(n)) for n in (2, 7)], num_shapes=2)
    assert len(batches) == 1 and not equal(batches.batch(0, 0), batches.batch(1, 0))
    tiny_model().fit(batches, epochs=3, verbose=0)


def test_each_epoch_of_fit_has_an_order_of_its_own(tmp_path):
    seen = []

    class Watched(BucketedBatches):
        def batch(self, epoch, index):
            seen.append((epoch, index))
            return super().batch(epoch, index)

    batches = Watched(encode(random_texts(60), tmp_path), 160, num_shapes=2)
    model = tiny_model()
    model.fit(batches, epochs=3, verbose=0)
    everything = set(range(len(batches)))
    assert sum({index for epoch, index in seen if epoch == number} == everything for number in range(9)) >= 3


def test_batches_are_the_same_for_every_reader(tmp_path):
    batches, actual, done = BucketedBatches(encode(random_texts(60), tmp_path), 160), [], threading.Event()

    def get_tf_dataset():
        return [batches[index] for index in range(2)]

    def top_level():  # called by no other function, as in a script
        with contextlib.suppress(Exception):
            actual.append(batches[0])
        done.set()

    assert equal(get_tf_dataset(), [batches.batch(0, index) for index in range(2)])
    _thread.start_new_thread(top_level, ())
    assert done.wait(30) and equal(actual, [batches.batch(0, 0)])


def test_fit_takes_packed_batches(tmp_path):
    batches = PackedBatches(encode(random_texts(40), tmp_path), 80, length=40)
    model = tiny_model()
    names = [f"{side}_{what}" for side in ("source", "target") for what in ("segments", "positions")]
    extra = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
    packed = keras.Model({**model.input, **extra}, model.output)
    packed.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    options = {"validation_data": batches, "shuffle": False, "verbose": 0}
    packed.fit(batches.repeat(), steps_per_epoch=len(batches), epochs=2, **options)


MEMORY = """
import json, sys, tempfile
from keras_tfm import data
from keras_tfm.data import batches, token_files
from keras_tfm.text import ByteTokenizer

batches.BLOCK = token_files.CHUNK = 4_000
peak = 0

def look():  # private memory only, since mapped files can be dropped at any time
    global peak
    (line,) = [line for line in open("/proc/self/status") if line.startswith("RssAnon")]
    peak = max(peak, int(line.split()[1]) / 1024)

def texts(count):
    for number in range(count):
        if number % 1_000 == 0:
            look()
        yield f"source {number}", f"target {number}" + "x" * (number % 7)

peaks = []
small = int(sys.argv[1])
for count in (small, small, 10 * small):
    with tempfile.TemporaryDirectory() as folder:
        pairs = data.encode_pairs(texts(count), folder, ByteTokenizer(), verbose=0)
        for make in (batches.BucketedBatches, batches.PackedBatches):
            served = make(pairs, 8192, seed=1)
            rows = 0
            for index in range(len(served)):
                inputs, labels = served.batch(1, index)
                rows += int((labels == 2).sum())
                if index % 10 == 0:
                    look()
            assert rows == count, rows
    peaks.append(peak)
print(json.dumps(peaks))
"""


@pytest.mark.slow
@once
@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="needs the /proc of Linux")
def test_memory_stays_flat_when_the_corpus_grows_tenfold(small=40_000):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", MEMORY, str(small)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    _, before, after = json.loads(result.stdout.splitlines()[-1])
    corpus = 9 * small * 2 * sys.getsizeof("source 12345") / 2**20  # growth of the corpus in MB, if held as strings
    assert after - before < 0.4 * corpus, (before, after)


# ── errors ──


def lopsided():
    """Pairs whose longest text is not in the longest pair."""
    return encode([("a" * 50, "b"), ("a" * 30, "b" * 30), ("a", "b" * 50)], tempfile.mkdtemp())


@once
@pytest.mark.parametrize(
    "make, words",
    [
        (lambda pairs: BucketedBatches(pairs, 0), ["`batch_tokens` must be a positive integer", "batch_tokens=0"]),
        (lambda pairs: BucketedBatches(pairs, 10), ["`batch_tokens` must be at least", "batch_tokens=10"]),
        (
            lambda pairs: BucketedBatches(lopsided(), 40),
            ["`batch_tokens` must be at least", "batch_tokens=40"],
        ),
        (lambda pairs: BucketedBatches(pairs, num_shapes=0), ["`num_shapes` must be a positive", "num_shapes=0"]),
        (lambda pairs: BucketedBatches(pairs, copies=0), ["`copies` must be a positive", "copies=0"]),
        (lambda pairs: BucketedBatches([]), ["`pairs` must be `TokenPairs` or a list", "pairs=[]"]),
        (lambda pairs: PackedBatches(pairs, length=10), ["`length` must be at least", "length=10"]),
        (lambda pairs: PackedBatches(pairs, length=0), ["`length` must be a positive", "length=0"]),
        (
            lambda pairs: PackedBatches(pairs, 100),
            ["`batch_tokens` must be at least `length`, 128", "batch_tokens=100"],
        ),
    ],
)
def test_bad_arguments(make, words, tmp_path):
    with pytest.raises(ValueError) as error:
        make(encode(random_texts(20), tmp_path))
    assert all(word in str(error.value) for word in [*words, "Received: "]), str(error.value)
