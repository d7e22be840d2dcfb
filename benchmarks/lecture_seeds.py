"""The table of lecture 17 with five seeds: short trainings of systems of about the same size, and ensembles of two.

KERAS_BACKEND=jax python benchmarks/lecture_seeds.py DATA [--systems GNMT ConvS2S …] [--steps 1000] [--at_once 6]

DATA contains `tok/` of Multi30k (tokenized, lower-cased). All seeds of a system are trained together, by a step for
arrays with an axis of seeds (`jax.vmap`), which takes a GPU little longer than a step of one. First weights, dropout
and the order of the batches are those that `keras-tfm train` has with this seed, except that the shape of each batch is
the same for all seeds. Then val and test2016 are translated with a beam of 5 and a fixed length penalty, by each model,
and by the ensembles of seeds 1 and 2, 2 and 3, … and of the last one and 1.

Each system is a process of its own, and its row is added to examples/lectures/lecture_seeds.json when it has ended; the
same command then trains the others. A system stops training after --seconds, and its row says after how many steps.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import datetime
import fcntl
import itertools
import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
from lecture_table import SYSTEMS as LARGE_AND_SMALL
from lecture_table import VOCABULARIES, texts

TABLE = pathlib.Path(__file__).parent.parent / "examples" / "lectures" / "lecture_seeds.json"
EQUAL = [name for name, flags in LARGE_AND_SMALL.items() if "size" not in flags]
WORDS = "words, 12,000"  # lecture 16 compares it with the Transformer, whose vocabulary of BPE is as large
SYSTEMS = {name: LARGE_AND_SMALL[name] for name in EQUAL} | {WORDS: VOCABULARIES[WORDS]}
AVERAGE, EPOCHS = 4, 12  # the mean of the last checkpoints, of which there are so many
BEAMS, LENGTH_PENALTY, WIDTH = 5, 1.0, 64  # one program for single models, and one for ensembles
SPLITS = {"val": "val", "test2016": "test_2016_flickr"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=EQUAL, metavar="NAME")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch_tokens", type=int, default=8192)
    parser.add_argument("--batch_size", type=int, default=512, help="sentences that are translated together")
    parser.add_argument("--sentences", type=int, default=1014, help="of val and of test2016, at most")
    parser.add_argument("--seconds", type=float, default=3600, help="from the start to the end of the trainings")
    parser.add_argument("--at_once", type=int, default=1, help="systems side by side (default: 1)")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/lecture_seeds"))
    parser.add_argument("--table", type=pathlib.Path, default=TABLE)
    parser.add_argument("--started", type=float, default=time.time(), help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        row_file(options, options.systems[0]).write_text(json.dumps(System(options, options.systems[0]).row()))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        for ended in concurrent.futures.as_completed([pool.submit(run, options, name) for name in options.systems]):
            add_row(options, ended.result())


def row_file(options, name):
    return options.out / f"{name.lower().replace(',', '').replace(' ', '-')}.json"


def run(options, name):
    """Trains and evaluates a system in a process of its own, unless that was done before; returns its name."""
    if row_file(options, name).exists():
        return name
    kept = ("data", "seeds", "steps", "batch_tokens", "batch_size", "sentences", "seconds", "out", "started")
    flags = [part for option in kept for part in (f"--{option}", str(getattr(options, option)))][1:]
    command = [sys.executable, __file__, *flags, "--child", "--systems", name]
    if subprocess.run(command).returncode:
        print(f"{name}: failed", flush=True)
    return name


def add_row(options, name):
    path = row_file(options, name)
    if path.exists():
        table = json.loads(options.table.read_text()) if options.table.exists() else {}
        options.table.write_text(json.dumps(table | {name: json.loads(path.read_text())}, indent=1) + "\n")


# ── what the systems share ──


def tokenizer_flags(name):
    return SYSTEMS[name] if "tokenizer" in SYSTEMS[name] else ""


def choices(flags):
    """Flags of `keras-tfm train` as options of a recipe."""
    words = flags.replace("--", "").split()
    return {name: int(value) if value.isdigit() else value for name, value in zip(words[::2], words[1::2], strict=True)}


def recipe_of(options, flags):
    """The recipe small_corpus, shortened, and without R-Drop, which doubles the work of a step."""
    from keras_tfm.training import resolve

    epochs = {"steps": options.steps, "steps_per_epoch": max(1, options.steps // EPOCHS), "average": AVERAGE}
    batches = {"batch_tokens": options.batch_tokens, "num_shapes": 2, "verbose": 0}
    rest = {"r_drop": 0.0, "warmup_steps": max(1, options.steps // 6)}
    return resolve("small_corpus", **epochs, **batches, **rest, **choices(flags))


def prepare(options, flags):
    """Tokenizers and encoded training texts, which are made once for all systems with the same vocabulary."""
    from keras_tfm.artifacts import Run
    from keras_tfm.data import ParallelFiles, PreparedPairs
    from keras_tfm.training import encoding

    recipe = recipe_of(options, flags)
    folder = Run(options.out / f"{recipe.tokenizer}-{recipe.vocab_size}")
    files = ParallelFiles(*texts(options, "train"))
    pairs = PreparedPairs(files, encoding.resolve_placeholders(recipe, files, None))
    with open(options.out / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the first process makes them, the others wait
        tokenizers = encoding.prepare_tokenizers(folder, pairs, recipe, None)
        return tokenizers, encoding.encode(folder, pairs, None, tokenizers, recipe)[0]


def rounds(batches):
    """For each step a batch of each seed, stacked: (inputs, labels); all of the shape that comes next for the first."""
    import keras

    for epoch in itertools.count():
        left = [iter(range(len(each))) for each in batches]
        waiting = [collections.defaultdict(list) for _ in batches]
        for index in left[0]:
            found = [batches[0].batch(epoch, index)]
            shape = found[0][1].shape
            for each, numbers, others in list(zip(batches, left, waiting, strict=True))[1:]:
                while not others[shape]:
                    batch = each.batch(epoch, next(numbers))
                    others[batch[1].shape].append(batch)
                found.append(others[shape].pop(0))
            yield keras.tree.map_structure(lambda *arrays: np.stack(arrays), *found)


def training_step(model):
    """A step of training without side effects: `step(state, batch)` returns the loss and the new state."""
    import jax

    def loss(weights, others, inputs, labels):
        logits, others = model.stateless_call(weights, others, inputs, training=True)
        return model.loss(labels, logits), others

    def step(state, batch):
        weights, others, optimizer = state
        (value, others), slopes = jax.value_and_grad(loss, has_aux=True)(weights, others, *batch)
        weights, optimizer = model.optimizer.stateless_apply(optimizer, slopes, weights)
        return value, (weights, others, optimizer)

    return step


# ── one system ──


class System:
    """Models of all seeds of a system, in a process of its own."""

    def __init__(self, options, name):
        import keras

        from keras_tfm.training import trainer

        self.options, self.name, self.recipe = options, name, recipe_of(options, SYSTEMS[name])
        self.tokenizers, self.encoded = prepare(options, tokenizer_flags(name))
        self.seeds, self.models = range(1, options.seeds + 1), []
        for seed in self.seeds:
            keras.utils.set_random_seed(seed)
            self.models.append(model := trainer.new_model(self.recipe, self.tokenizers))
            for layer in keras.tree.flatten([getattr(side, "layers", []) for side in (model.encoder, model.decoder)]):
                layer.use_cudnn = False  # cuDNN's LSTM cannot be mapped over seeds
        self.say(f"{self.models[0].count_params():,} parameters")

    def say(self, message):
        print(f"{time.time() - self.options.started:4.0f} s  {self.name}: {message}", flush=True)

    def row(self):
        """The row of the table."""
        translators = {count: self.translator(count) for count in (1, 2)}
        with concurrent.futures.ThreadPoolExecutor(2) as pool:  # the programs of the search, while others are compiled
            warm = [pool.submit(each, ["a"] * self.options.batch_size) for each in translators.values()]
            trained = self.train()
            for each in warm:
                each.result()
        row = {"parameters": self.models[0].count_params(), "date": str(datetime.date.today()), **trained}
        row |= {"flags": SYSTEMS[self.name], "batch_tokens": self.options.batch_tokens, "beams": BEAMS}
        count = len(self.seeds)
        members = {"single": [[n] for n in range(count)], "ensemble": [[n, (n + 1) % count] for n in range(count)]}
        for kind, several in members.items():
            row[kind] = {"seeds": [[self.seeds[n] for n in each] for each in several]}
            for split, file in SPLITS.items():
                row[kind][split] = [self.bleu(translators[len(each)], each, file) for each in several]
            self.say(f"{kind} {row[kind]}")
        return row

    def translator(self, count):
        """A translator of the first models, whose weights `bleu` replaces: that compiles nothing."""
        from keras_tfm import Translator

        search = {"num_beams": BEAMS, "length_penalty": LENGTH_PENALTY, "max_length": 2 * WIDTH}
        search["batch_size"] = self.options.batch_size
        translator = Translator(self.models[:count], *self.tokenizers, **search)
        translator.widths = [WIDTH]
        return translator

    def bleu(self, translator, members, file):
        import sacrebleu

        from keras_tfm.data import read_lines

        for model, number in zip(translator.models, members, strict=True):
            for variable, value in zip(model.trainable_variables, self.weights[number], strict=True):
                variable.assign(value)
        source, target = (
            [*itertools.islice(read_lines(path), self.options.sentences)] for path in texts(self.options, file)
        )
        return sacrebleu.BLEU(tokenize="none", force=True).corpus_score(translator(source), [target]).score

    def train(self):
        """Trains all models; sets `weights`, the mean of the last checkpoints of each. Returns facts about it."""
        import jax

        steps, state, batches = self.compile()
        recipe, kept, times = self.recipe, collections.deque(maxlen=AVERAGE), []
        end = self.options.started + self.options.seconds
        for number in range(1, recipe.steps + 1):
            batch = next(batches)
            loss, state = steps[batch[1].shape](state, batch)
            if not number % recipe.steps_per_epoch:
                kept.append([weight.copy() for weight in state[0]])
                losses = np.asarray(loss)
                times.append(time.time())
                self.say(f"{number} of {recipe.steps} steps, losses {losses.round(2)}")
                if times[-1] > end and number < recipe.steps:
                    self.say("out of time")
                    break
        mean = jax.jit(lambda kept: [sum(each) / len(each) for each in zip(*kept, strict=True)])([*kept])
        arrays = [np.asarray(weight) for weight in mean]
        self.weights = [[array[n] for array in arrays] for n in range(len(self.seeds))]
        rate = recipe.steps_per_epoch * (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else None
        return {"steps": number, "of": recipe.steps, "losses": losses.round(3).tolist(), "steps_per_second": rate}

    def compile(self):
        """The step of all seeds, its first state, and the batches."""
        import jax
        from jax import numpy as jnp

        from keras_tfm.ops import runtime
        from keras_tfm.runtimes import machine
        from keras_tfm.training import trainer

        model = self.models[-1]  # the search may be traced with the others at the same time
        trainer.compile_model(model, self.recipe, machine.current())
        model.optimizer.build(model.trainable_variables)
        kinds = (
            [each.trainable_variables for each in self.models],
            [each.non_trainable_variables for each in self.models],
        )
        state = [[jnp.stack([v.value for v in same]) for same in zip(*kind, strict=True)] for kind in kinds]
        state.append([jnp.stack([variable.value] * len(self.seeds)) for variable in model.optimizer.variables])
        in_plain_xla = runtime.using(runtime.DEFAULT._replace(attention=runtime.plain.attention))
        step = jax.jit(jax.vmap(in_plain_xla(training_step(model))), donate_argnums=0)
        seeded = [dataclasses.replace(self.recipe, seed=seed) for seed in self.seeds]
        batches = [trainer.make_batches(self.encoded, recipe) for recipe in seeded]
        self.say(f"{len(batches[0])} batches of {batches[0].shapes}")
        steps = {}
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for batch in rounds(batches):
                if batch[1].shape not in steps:
                    steps[batch[1].shape] = pool.submit(step.lower(tuple(state), batch).compile)
                if len(steps) == len(batches[0].shapes):
                    break
        self.say("compiled")
        return {shape: each.result() for shape, each in steps.items()}, tuple(state), rounds(batches)


if __name__ == "__main__":
    os.environ.setdefault("KERAS_BACKEND", "jax")
    main()
