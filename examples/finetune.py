"""Fine-tuning: the date translator that comes with the package knows ten languages, and learns Finnish from 500 dates.

python examples/finetune.py [--out runs/finnish] [--steps 160]      any Keras backend; needs the extra `train`

Three ways to spend the same number of training steps are compared: fine-tuning on Finnish alone, fine-tuning on Finnish
mixed with the old languages, so that those are not forgotten, and training a new model on the mixture. All are tested
on days that occur in no training. Each is a run in a folder of its own: `keras-tfm translate runs/finnish/mixed` uses
one. A translator that `keras-tfm import` has made of an OPUS-MT model is fine-tuned in the same way.
"""

import argparse
import pathlib

from keras_tfm import Translator, train
from keras_tfm.artifacts import SHIPPED
from keras_tfm.data import tasks
from keras_tfm.training import evaluation

SAME = {"steps_per_epoch": 40, "learning_rate": 0.001, "batch_tokens": 2400, "num_shapes": 1}
SAME |= {"max_length": 48, "label_smoothing": 0.0, "verbose": 2}
NEW = {"tokenizer": "char", "size": "tiny"}


def report(name, translator, tests):
    """Prints how many dates of each test are translated correctly."""
    translator = Translator(translator.models, *translator.tokenizers, num_beams=1, max_length=48)
    right = []
    for language, pairs in tests.items():
        sources, targets = zip(*pairs, strict=True)
        right.append(f"{language} {evaluation.scores(translator(sources), targets)['exact']:.1f} %")
    print(f"{name}: {', '.join(right)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="runs/finnish", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--steps", type=int, default=160, help="training steps of each way")
    parser.add_argument("--tests", type=int, default=300, help="dates to test on, in Finnish and in the old languages")
    options = parser.parse_args()
    out, same = options.out, SAME | {"steps": options.steps}
    finnish, old = tasks.dates(500, locales=["fi"]), tasks.dates(500)
    tests = {"Finnish": tasks.dates(options.tests, "test", locales=["fi"])}
    tests |= {"old languages": tasks.dates(options.tests, "test")}

    report("as it comes", Translator.from_preset("dates"), tests)
    alone = train(finnish, out / "alone", start_from=str(SHIPPED), **same)
    report("fine-tuned on Finnish", alone, tests)
    mixed = train(finnish + old, out / "mixed", start_from=str(SHIPPED), **same)
    report("fine-tuned on the mixture", mixed, tests)
    new = train(finnish + old, out / "new", **same, **NEW)
    report("a new model on the mixture", new, tests)


if __name__ == "__main__":
    main()
