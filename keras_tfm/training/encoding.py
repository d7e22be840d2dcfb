"""From pairs of texts to token files, with the tokenizers of a run."""

import math

from keras_tfm import artifacts, data, text
from keras_tfm.common import files
from keras_tfm.common.arguments import check
from keras_tfm.data.prepared import has_placeholders
from keras_tfm.text import KINDS, masking

PLACEHOLDERS = 16  # that a model learns to keep, by default, if its training texts have some
# (limit, value): the value of the first limit above the number of pairs.
VOCAB_SIZES = (100_000, 8000), (1_000_000, 16_000), (math.inf, 32_000)


def resolve_placeholders(recipe, pairs, existing):
    """The number of placeholders to keep: of slots in `existing` tokenizers, or what suits the texts."""
    if existing:
        return min(len(tokenizer.slots) for tokenizer in existing)
    if recipe.placeholders is None:
        return PLACEHOLDERS if KINDS[recipe.tokenizer].symbols and has_placeholders(pairs) else 0
    return recipe.placeholders


def prepare_tokenizers(paths, pairs, recipe, existing):
    """The tokenizers of a run, `existing` or new ones, which are written into its folder."""
    tokenizers = existing or make_tokenizers(paths, pairs, recipe)
    unknown = {*pairs.languages} - {*tokenizers[0].languages}
    rule = f"one of {tokenizers[0].languages}, which the tokenizers know"
    check("language", sorted(unknown), not unknown, rule)
    if paths.exists():
        artifacts.check_tokenizers(paths, tokenizers)
    artifacts.write_tokenizers(paths.folder, tokenizers)
    return tokenizers


def make_tokenizers(run, pairs, recipe):
    """The tokenizers of a run; learned from its texts, unless that was done before."""
    size = recipe.vocab_size or first_above(VOCAB_SIZES, len(pairs))
    symbols = masking.slots(pairs.placeholders) + [f">>{language}<<" for language in pairs.languages]
    folders = run.tokenizers(recipe.separate)
    options = {
        "kind": recipe.tokenizer,
        "vocab_size": size,
        "texts": pairs.fingerprint,
        "names": [path.name for path in folders],
    }
    exist = run.tokenizer_options.exists() and all(map(text.saving.is_tokenizer, folders))
    if not exist or files.read_json(run.tokenizer_options) != options:
        for side, folder in enumerate(folders):
            sentences = (line for pair in pairs for line in (pair[side : side + 1] if recipe.separate else pair))
            text.save_tokenizer(text.train_tokenizer(sentences, recipe.tokenizer, size, symbols), folder)
        files.write_json(run.tokenizer_options, options)
    return [text.load_tokenizer(folder) for folder in folders]


def prepare_validation(valid, pairs, existing):
    """Validation pairs with tags and slots like the training pairs, in languages that the model knows; or None."""
    if valid is None:
        return None
    prepared = data.PreparedPairs(valid, pairs.placeholders)
    known = existing[0].languages if existing and pairs.languages else pairs.languages
    unknown = sorted({*(prepared.languages or ["none"])} - {*(known or ["none"])})
    check("valid", unknown, not unknown, f"in the languages of the training texts, {', '.join(known) or 'here none'}")
    return prepared


def encode(run, pairs, valid, tokenizers, recipe):
    """Token files of the training texts, several with subword sampling, and of the validation texts."""
    settings = {"max_length": recipe.max_length - 1, "verbose": recipe.verbose}
    encoded = []
    for n in range(recipe.samples if recipe.sampling else 1):
        sampling = {"sampling": recipe.sampling, "seed": recipe.seed + n}
        encoded.append(data.encode_pairs(pairs, run.train_data(n), *tokenizers, **sampling, **settings))
    return encoded, None if valid is None else data.encode_pairs(valid, run.valid_data, *tokenizers, **settings)


def as_list(tokenizers):
    return [*tokenizers] if isinstance(tokenizers, (list, tuple)) else [tokenizers]


def first_above(rules, number):
    """The value of the first limit that a number is below."""
    return next(value for limit, value in rules if number < limit)
