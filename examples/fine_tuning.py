"""Fine-tuning: the date translator that comes with the package knows ten languages, and learns Finnish from 500 dates.

python examples/fine_tuning.py [--out runs/finnish]      any Keras backend; needs the extra `train`

Three ways to spend the same number of training steps are compared: fine-tuning on Finnish alone, fine-tuning on Finnish
mixed with the old languages, so that those are not forgotten, and training a new model on the mixture. All are tested
on days that occur in no training. The second is saved: `keras-tfm translate runs/finnish` uses it.
"""

import argparse

import keras

from keras_tfm import Translator, evaluation, tasks
from keras_tfm.batches import model_inputs, padded
from keras_tfm.training import SCHEDULES, SmoothedCrossentropy

STEPS, BATCH = 160, 50
SEARCH = {"beams": 1, "max_length": 48}


def fit(translator, pairs):
    """Trains the model of a translator on pairs of texts."""
    (model,), (sources, targets) = translator.models, zip(*pairs, strict=True)
    source = padded(translator.source_tokenizer.encode(sources), width=48)
    labels = padded(translator.target_tokenizer.encode(targets), width=12)
    model.compile(keras.optimizers.Adam(SCHEDULES["cosine"](1e-3, STEPS // 10, STEPS)), SmoothedCrossentropy(0.0))
    model.fit(model_inputs(source, labels), labels, batch_size=BATCH, epochs=STEPS * BATCH // len(pairs), verbose=2)


def report(name, translator, tests):
    """Prints how many dates of each test are translated correctly."""
    right = []
    for language, pairs in tests.items():
        sources, targets = zip(*pairs, strict=True)
        right.append(f"{language} {evaluation.scores(translator(sources), targets)['exact']:.1f} %")
    print(f"{name}: {', '.join(right)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="runs/finnish", metavar="FOLDER")
    options = parser.parse_args()
    keras.utils.set_random_seed(1)
    finnish, old = tasks.dates(500, locales=["fi"]), tasks.dates(500)
    tests = {"Finnish": tasks.dates(300, "test", locales=["fi"]), "old languages": tasks.dates(300, "test")}

    translator = Translator.load(**SEARCH)
    report("as it comes", translator, tests)
    fit(translator, finnish)
    report("fine-tuned on Finnish", translator, tests)

    translator = Translator.load(**SEARCH)
    fit(translator, finnish + old)
    report("fine-tuned on the mixture", translator, tests)
    translator.save(options.out)

    (model,) = translator.models
    model = type(model).from_config(model.get_config())  # with new weights
    translator = Translator(model, translator.source_tokenizer, **SEARCH)
    fit(translator, finnish + old)
    report("a new model on the mixture", translator, tests)


if __name__ == "__main__":
    main()
