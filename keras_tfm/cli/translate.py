"""The command `keras-tfm translate`: translates documents, or text line by line as it reads it."""

import errno
import glob
import hashlib
import itertools
import os
import sys

from keras_tfm import documents
from keras_tfm.artifacts import SHIPPED
from keras_tfm.cli import inputs
from keras_tfm.common import extras, files
from keras_tfm.common.arguments import UserError
from keras_tfm.common.progress import Progress
from keras_tfm.data import corpus

CHUNK = 512  # lines that are translated and written together
MAX_UNOPTIMIZED = 64  # up to this many lines, translating is faster if XLA does not optimize the search first
MAX_REPORTED = 10  # texts that need attention, on standard error
DOCUMENT_FLAGS = ("all", "source_language", "report")  # which have no meaning for lines of text

# Structured formats that are not supported: as lines of text, their keys and tags would be translated, too.
UNSUPPORTED = {".xml", ".yml", ".yaml", ".csv", ".strings", ".resx", ".ts", ".rst", ".tex"}
UNSUPPORTED |= {".docx", ".odt", ".ini", ".toml"}


def translate(model, files, text, out, overwrite, target_language, glossary, format, **options):
    """Translates a document, or lines of files or of standard input, see `keras-tfm translate --help`."""
    document_options = {name: options.pop(name) for name in DOCUMENT_FLAGS}
    kind = inputs.check_model(model or SHIPPED, hint="; a text to translate comes after --text, or on standard input")
    format = check_files(files, text, format)
    in_place = out is not None and any(out.exists() and file.samefile(out) for file in files)
    if in_place and not (format and overwrite):  # a document is read before it is replaced
        raise UserError(f"`out` must not be one of the files to translate. Received: {out}")
    if out is not None:
        check_new(out, overwrite)
    check_apart("out", out, glossary)
    check_apart("report", document_options["report"], out, glossary, *files)
    call = {"target_language": target_language, "glossary": glossary and documents.read_glossary(glossary)}
    call = {name: value for name, value in call.items() if value}
    if not format and (wrong := next((name for name in ("all", "report") if document_options[name]), None)):
        raise UserError(f"`{wrong}` needs a document. Received: lines of text")
    if model is None:
        print("no MODEL given: using the package's date translator (3. Mai 2023 → 2023-05-03)", file=sys.stderr)
    if format:
        translate_document(model or SHIPPED, files[0], out, overwrite, format, call, options, **document_options)
    else:
        translate_lines(model or SHIPPED, kind, files, text, out, overwrite, call, options)


def check_files(paths, text, format):
    """Returns the suffix of a document's format, or None for lines of text; raises an error for anything else."""
    for path in paths:
        if not path.is_file():
            what = "a folder" if path.is_dir() else "no such file"
            raise UserError(f"{path}: must be a text file; pass text with --text. Received: {what}")
    if text and paths:
        raise UserError(f"`text` and files must not both be given. Received: {text} and {list(map(str, paths))}")
    if format and not paths:
        raise UserError(f"`format` needs a file. Received: {'texts' if text else 'standard input'}")
    suffixes = {f".{format}"} if format else {path.suffix.lower() for path in paths}
    if unknown := sorted(suffixes & UNSUPPORTED):
        rule = "must be of another format; with --format txt, each of its lines is translated, keys and tags too"
        raise UserError(f"{paths[0]}: {rule}. Received: a {unknown[0]} file")
    suffixes &= {*documents.FORMATS} - {".txt"}
    if suffixes and len(paths) > 1:
        raise UserError(f"a document must be the only file. Received: {', '.join(map(str, paths))}")
    for path in paths:
        inner = path.with_suffix("").suffix.lower()
        if path.suffix == ".gz" and inner in documents.FORMATS and inner != ".txt":
            raise UserError(f"{path}: a document must not be compressed. Received: a .gz file")
    return suffixes.pop() if suffixes else None


def check_apart(name, path, *others):
    """Raises an error if the file to write is one of the others, of which any may be None."""
    if path is not None and os.path.realpath(path) in {os.path.realpath(other) for other in others if other}:
        raise UserError(f"`{name}` must not be another file of the command. Received: {path}")


def check_new(out, overwrite, name="out"):
    """Raises an error if a file must not be written, or holds something that would be lost."""
    if out.exists() and not out.is_file():
        what = "a folder" if out.is_dir() else "which is not a regular one"
        raise UserError(f"`{name}` must be a file. Received: {out}, {what}")
    if not out.parent.is_dir():
        raise UserError(f"`{name}` must be in a folder that exists. Received: {out}")
    if not os.access(out.parent, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(out))
    if not overwrite and out.exists() and out.stat().st_size:
        raise UserError(f"`{name}` must be a new file, unless `overwrite` is given. Received: {out}, which exists")


# ── documents ──


def translate_document(model, path, out, overwrite, format, call, options, all, source_language, report):
    """Translates a document into `out`, or to standard output, and reports what needs attention."""
    extras.require("sentencex")
    document = documents.read_document(path, format=format)  # before the model is loaded: it may have mistakes
    if report is not None:
        check_new(report, overwrite, "report")
    translator = inputs.load_translator(model, **options)
    language = call.pop("target_language", None)
    call["target_language"], document = documents.resolve_target_language(
        document, translator, language, out, source_language
    )
    call["source_language"] = source_language
    if len(document.untranslated) <= MAX_UNOPTIMIZED:
        translator.jit_compile = False
    try:
        result = documents.translate_document(translator, document, all, **call, verbose=1)
    except KeyboardInterrupt as error:
        error.add_note("; nothing was written")
        raise
    if out is None:
        sys.stdout.buffer.write(result.content)
        sys.stdout.flush()
    else:
        check_new(out, overwrite)  # again, since hours may have passed
        result.write(out)
    if report is not None:
        with files.atomic_write(report) as new:
            new.write_text("".join(f"{line}\n" for line in result.report()))
    shown = result.report(MAX_REPORTED)
    hint = " (--report FILE lists all)" if report is None and len(result.problems) > MAX_REPORTED else ""
    print(*shown[:-1], f"{shown[-1]}{hint}", sep="\n", file=sys.stderr)
    if out is not None:
        print(f"wrote {out}", file=sys.stderr)


# ── lines ──


def translate_lines(model, kind, paths, text, out, overwrite, call, options):
    """Translates texts, or lines of files or of standard input, one by one."""
    translator = inputs.load_translator(model, **options)
    lines = text or (inputs.lines_of(paths) if paths else None)
    lines = lines or corpus.decode_lines(sys.stdin.buffer, "standard input", "replace")
    if out is not None:
        total = sum(1 for _ in inputs.lines_of(paths)) if paths else None
        task = repr([options, *filter(None, [call]), *map(_checksums, [model, *paths])])
        task = hashlib.sha256(task.encode()).hexdigest()[:16]
        write_translations(translator, lines, out, total, task, overwrite, call)
        return
    interactive = not paths and not text and sys.stdin.isatty()
    lines = iter(lines)
    first = [] if interactive else list(itertools.islice(lines, MAX_UNOPTIMIZED + 1))
    if kind is None and len(first) <= MAX_UNOPTIMIZED:
        translator.jit_compile = False
    lines = itertools.chain(first, lines)
    with Progress(None, "translating", "line", verbose=not sys.stdout.isatty() and not interactive) as bar:
        for translation in translator.stream(lines, chunk=1 if interactive else CHUNK, **call):
            print(" ".join(translation.splitlines()), flush=True)
            bar.add()


def write_translations(translator, lines, out, total, task, overwrite, call):
    """Writes translations into a file beside `out`, which becomes `out` when it is complete.

    An interrupted command leaves that file behind. The same `task`, a hash of model, options and input files, resumes
    it, unless `total`, the number of lines, is None. `call` has options of the translator.
    """
    partial = out.with_name(f".{out.name}.{task}.partial")
    for other in out.parent.glob(f".{glob.escape(out.name)}.*.partial"):
        if other != partial or other.is_symlink() or total is None:
            other.unlink()
    try:
        with (
            open(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "rb+") as file,
            Progress(total, "translating", "line") as bar,
        ):
            complete = [len(line) for line in file if line.endswith(b"\n")]
            file.seek(sum(complete))
            file.truncate()
            if complete:
                print(f"resuming after line {len(complete):,}", file=sys.stderr)
            bar.add(len(complete))
            translations = translator.stream(itertools.islice(lines, len(complete), None), CHUNK, **call)
            while chunk := list(itertools.islice(translations, CHUNK)):
                file.write("".join(" ".join(text.splitlines()) + "\n" for text in chunk).encode())
                file.flush()  # an interruption loses none of it
                bar.add(len(chunk))
            os.fsync(file.fileno())
    except KeyboardInterrupt as error:
        error.add_note("; the same command resumes where it stopped" if total is not None else "")
        raise
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(out)) from error
    check_new(out, overwrite)  # again, since hours may have passed
    os.replace(partial, out)
    print(f"wrote {out}", file=sys.stderr)


def _checksums(path):
    """Checksums of a file, or of the files directly in a folder: the model, or a manifest that covers all others."""
    paths = [path] if path.is_file() else sorted(path.glob("[!.]*"))
    return [files.checksum(path) for path in paths if path.is_file()]
