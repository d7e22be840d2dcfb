"""What commands read: a model, checked at once and loaded later, and files of texts."""

import itertools
import sys

from keras_tfm import artifacts, data
from keras_tfm.common import extras, source
from keras_tfm.common.arguments import UserError
from keras_tfm.documents.languages import closest_language


def check_model(model, exports=True, hint=""):
    """Returns the format of an export, or None for a run or a saved translator; raises an error for anything else."""
    if model.is_file():
        raise UserError(f"`model` must be a folder, given before the files. Received: {model}")
    format = artifacts.format_of(model)
    if format == "huggingface":  # which is read as a model
        extras.require("safetensors", "sentencepiece")
        return None
    if format is not None and not exports:
        raise UserError(f"`model` must be a run or a saved translator. Received: {model}, an export ({format})")
    if format is not None:
        extras.require(*artifacts.FORMATS[format].packages)
    elif not model.is_dir():
        raise FileNotFoundError(f"{model}: there is no such folder{hint}")
    elif not artifacts.Run(model).config.exists() and not artifacts.models_of(model):
        raise FileNotFoundError(f"{model}: must contain a run, a {artifacts.MODEL} or an export")
    return format


def load_translator(model, **options):
    """The translator of a run, a saved translator or an export."""
    beam, sample = (source.parameters(f"decoding.samplers.{name}").keys() for name in ("Beam", "Sample"))
    for name, other in itertools.product(options.keys() & (sample - beam), options.keys() & (beam - sample)):
        raise UserError(f"`{name}` must be left out with `{other}`, of beam search. Received: both")
    translator = artifacts.load(model, **options)
    if getattr(translator, "origin", ""):
        print(f"using {translator.origin}", file=sys.stderr)
    return translator


def lines_of(paths):
    """The lines of some files, one after the other; bytes that are not UTF-8 are reported."""
    return itertools.chain.from_iterable(data.read_lines(path, "replace") for path in paths)


def training_pairs(source, target, valid_source, valid_target, target_language):
    """Training pairs and validation pairs; the latter are None without validation files."""
    pairs = data.ParallelFiles(source, target, target_language)
    if not valid_source:
        return pairs, None
    languages = target_language if len(target_language or ()) in (1, len(valid_source)) else None
    try:
        return pairs, data.ParallelFiles(valid_source, valid_target, languages, bool(pairs.languages))
    except UserError as error:
        raise UserError(error.naming({"targets": "`valid_target`", "sources": "`valid_source`"})) from error


def evaluation_texts(pairs, languages):
    """Sources, references, and the options of a call of a translator into `languages`."""
    sources, references, *codes = zip(*pairs, strict=True)
    if not languages and len(pairs.languages) > 1:
        rule = "`target_language` must be given, since the model translates into one language"
        raise UserError(f"{rule}. Received: texts in {', '.join(pairs.languages)}")
    codes = [closest_language(code, languages) or code for code in codes[0]] if codes and languages else None
    return sources, references, {"target_language": codes} if codes else {}
