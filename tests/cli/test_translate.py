"""Documents: `translate`, `train` and `evaluate`. The shipped translator turns dates in words into numbers."""

import contextlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import pytest
from conftest import BACKEND, eagerly, once

from keras_tfm import documents
from keras_tfm.artifacts import SHIPPED
from keras_tfm.cli import commands
from keras_tfm.documents import read_document
from keras_tfm.translator import Translator

pytestmark = [once, pytest.mark.usefixtures("one_width")]
PO = """msgid ""
msgstr "Language: de\\n"

msgid "May 3, 1998"
msgstr ""

# a comment
msgid "Printed on %s"
msgstr ""

msgid "done"
msgstr "fertig"
"""


def run(*arguments):
    return commands.run([str(argument) for argument in arguments])


@pytest.mark.slow
def test_packages_that_no_translation_needs_are_not_imported():
    command = [sys.executable, "-X", "importtime", "-m", "keras_tfm", "translate", "--text", "3 May 2023"]
    ran = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "KERAS_BACKEND": "jax"})
    assert ran.stdout == "2023-05-03\n" and re.search(r"\| +keras$", ran.stderr, re.MULTILINE)
    assert not re.search(r"\| +(matplotlib.artist|sklearn.base)$", ran.stderr, re.MULTILINE)


def test_a_document_is_written_in_its_format_and_what_needs_attention_is_reported(tmp_path, capsys):
    (tmp_path / "app.po").write_text(PO)
    run("translate", SHIPPED, tmp_path / "app.po", "--out", tmp_path / "new.po")
    old, new = PO.splitlines(), (tmp_path / "new.po").read_text().splitlines()
    assert [line for line in new if line not in old] == [
        "#, fuzzy",
        'msgstr "1998-05-03"',
        "#, fuzzy",
        'msgstr "Printed on %s"',
    ]
    said = capsys.readouterr().err
    first, second, *_ = said[said.index("translated") :].splitlines()
    assert first == "translated 1 of 3 texts, 1 had a translation, 1 needs attention:"
    assert second == "  line 8: 'Printed on %s': the translation lacks %s"
    assert said.endswith(f"wrote {tmp_path / 'new.po'}\n")


@pytest.mark.slow
def test_without_out_a_document_goes_to_standard_output(tmp_path, capsys):
    (tmp_path / "data").write_bytes(b'{"a": "May 3, 1998",\r\n "b": 7}')
    run("translate", SHIPPED, tmp_path / "data", "--format", "json")
    said = capsys.readouterr()
    assert said.out == '{"a": "1998-05-03",\r\n "b": 7}' and "translated 1 of 1 texts\n" in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.slow
def test_everything_is_translated_in_place_if_asked_for(tmp_path, capsys):
    path = tmp_path / "app.po"
    path.write_text(PO.replace("done", "June 4, 1999"))
    with pytest.raises(SystemExit, match="--out must not be one of the files to translate"):
        run("translate", SHIPPED, path, "--out", path)
    run("translate", SHIPPED, path, "--out", path, "--overwrite", "--all", "--report", tmp_path / "report")
    assert [unit.target for unit in read_document(path).units] == ["1998-05-03", "Printed on %s", "1999-06-04"]
    report = (tmp_path / "report").read_text()
    assert (
        report.startswith("translated 2 of 3 texts, 1 needs attention:\n  line 8:")
        and report in capsys.readouterr().err
    )


BAD = {
    "broken.xlf": (b"<xliff version='1.2'><file>", "must be well-formed"),
    "bomb.xlf": (
        b'<!DOCTYPE xliff [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><xliff>&b;</xliff>',
        "must not declare or use",
    ),
    "latin.po": ('msgid "a"\nmsgstr ""\n# ä'.encode("latin-1"), "the text must be utf-8"),
    "forms.po": (
        b'msgid ""\nmsgstr "Plural-Forms: nplurals=two;\\n"\nmsgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\n',
        "Plural-Forms must",
    ),
    "binary.po": (b"\x7fELF\x02\x01\x01\x00\x03\x00\xb7", "must be"),
    "binary.mo": (b"\x7fELF" * 20, "an MO file must be one that msgfmt wrote"),
    "empty.po": (b"", "a document must have texts. Received: an empty file"),
    "empty.json": (b"", "must be well-formed"),
    "list.json": (b'{"a": }', "must be well-formed"),
    "junk.ftl": (b"a = {\n", "must be well-formed"),
    "escape.properties": (b"a=\\u00g0", "escapes must"),
    "app.po.gz": (b"", "must not be compressed"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_document_is_one_line_and_nothing_is_written(name, tmp_path):
    content, words = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SystemExit, match=rf"^keras-tfm: error: [^\n]*{name}: [^\n]*{words}[^\n]*$"):
        run("translate", SHIPPED, tmp_path / name, "--out", tmp_path / f"new{os.path.splitext(name)[1]}")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_cannot_be_read_or_written_is_one_line(tmp_path):
    (tmp_path / "folder.po").mkdir()
    (tmp_path / "a.po").write_text(PO)
    (tmp_path / "terms.tsv").write_text("one column\n")
    lines = [
        ([tmp_path / "folder.po"], "folder.po: must be a text file"),
        ([tmp_path / "none.po"], "none.po: must be a text file"),
        ([tmp_path / "a.po", tmp_path / "a.po"], "a document must be the only file"),
        (
            [tmp_path / "a.po", "--glossary", tmp_path / "terms.tsv"],
            "terms.tsv, line 1: must be `term, tab, translation`",
        ),
        ([tmp_path / "a.po", "--glossary", tmp_path / "none"], "none: No such file"),
        ([tmp_path / "a.po", "--target_language", "fr"], "--target_language must be de, which .*a.po declares"),
        ([tmp_path / "a.po", "--out", tmp_path / "no/such.po"], "--out must be in a folder that exists"),
        ([tmp_path / "a.po", "--format", "mo"], "a.po: an MO file must"),
    ]
    for arguments, words in lines:
        with pytest.raises(SystemExit, match=rf"^keras-tfm: error: [^\n]*{words}[^\n]*$"):
            run("translate", SHIPPED, *arguments)


def test_no_file_of_a_command_is_written_over_another(tmp_path):
    paths = {name: tmp_path / name for name in ("a.po", "terms.tsv", "new.po")}
    old = {"a.po": PO, "terms.tsv": "file\tDatei\n"}
    for name, text in old.items():
        paths[name].write_text(text)
    command = ["translate", SHIPPED, paths["a.po"], "--glossary", paths["terms.tsv"], "--overwrite", "--out"]
    for out, report in (("terms.tsv", None), ("new.po", "new.po"), ("new.po", "a.po"), ("new.po", "terms.tsv")):
        wrong = f"--report must .*{report}" if report else f"--out must .*{out}"
        with pytest.raises(SystemExit, match=f"^keras-tfm: error: {wrong}$"):
            run(*command, paths[out], *(["--report", paths[report]] if report else []))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == old


@contextlib.contextmanager
def as_nobody():
    """Root may read every file, so it has the rights of the user `nobody` in this block; others keep theirs."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_file_that_may_not_be_read_is_one_line():
    with tempfile.TemporaryDirectory() as folder:  # of those of pytest, `nobody` could not see the files
        os.chmod(folder, 0o755)
        path = pathlib.Path(folder, "a.po")
        path.touch()
        with pytest.raises(SystemExit, match="a document must have texts"):
            run("translate", SHIPPED, path)  # imports what `nobody` may be unable to read
        path.chmod(0)
        with as_nobody():
            if not os.access(SHIPPED, os.R_OK | os.X_OK, effective_ids=True):
                pytest.skip("others than root may not read this checkout")
            with pytest.raises(SystemExit, match=r"^keras-tfm: error: .*a.po: Permission denied$"):
                run("translate", SHIPPED, path)


def test_an_interruption_leaves_nothing_behind(tmp_path, monkeypatch, capsys):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    (tmp_path / "app.po").write_text(PO)
    monkeypatch.setattr(Translator, "translate_protected", interrupted)
    with pytest.raises(SystemExit) as stop:
        run("translate", SHIPPED, tmp_path / "app.po", "--out", tmp_path / "new.po")
    assert stop.value.code == 130 and "interrupted; nothing was written" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["app.po"]


@pytest.mark.slow
def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path, monkeypatch):
    def while_another_writes(*arguments, **options):
        (tmp_path / "new.po").write_text("of another program\n")
        return translate(*arguments, **options)

    translate = documents.translate_document
    (tmp_path / "app.po").write_text(PO)
    monkeypatch.setattr(documents, "translate_document", while_another_writes)
    with pytest.raises(SystemExit, match="--out must be a new file, unless --overwrite is given"):
        run("translate", SHIPPED, tmp_path / "app.po", "--out", tmp_path / "new.po")
    assert (tmp_path / "new.po").read_text() == "of another program\n"


@pytest.mark.slow
def test_a_document_is_evaluated(tmp_path, capsys):
    (tmp_path / "app.po").write_text(PO.replace('msgstr ""\n\n#', 'msgstr "1998-05-03"\n\n#').replace("fertig", "x"))
    (tmp_path / "en.properties").write_text("a=May 3, 1998\n")
    (tmp_path / "de.properties").write_text("b=x\na=1998-05-03\n")
    assert run("evaluate", SHIPPED, tmp_path / "app.po")["exact"] == 50
    files = "--source", tmp_path / "en.properties", "--reference", tmp_path / "de.properties"
    assert run("evaluate", SHIPPED, *files)["exact"] == 100 and "bleu" in capsys.readouterr().out
    (tmp_path / "pairs.tsv").write_text("May 3, 1998\t3. Mai\tde\nMay 3, 1998\t3 mai\tfr\n")
    with pytest.raises(SystemExit, match="--target_language must be given, .* Received: texts in de, fr"):
        run("evaluate", SHIPPED, tmp_path / "pairs.tsv")
    for wrong in ([], [tmp_path / "app.po", *files], files[2:]):
        with pytest.raises(SystemExit, match="a document, or --source and --reference, must be given"):
            run("evaluate", SHIPPED, *wrong)
    with pytest.raises(SystemExit, match="--reference must be given with --source. Received: .*en.properties alone"):
        run("evaluate", SHIPPED, *files[:2])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on PO files of two languages, and what its command said."""
    folder = tmp_path_factory.mktemp("documents")
    for language, word in (("de", "Datei"), ("fr", "fichier")):
        entries = [f'msgid "Open file {n} of %s"\nmsgstr "{word} {n} von %s"\n' for n in range(40)]
        (folder / f"{language}.po").write_text("\n".join(entries))
    sizes = "--num_layers 1 --model_dim 16 --num_heads 2 --ff_dim 32 --steps 4 --batch_tokens 512 --num_shapes 1"
    sizes += " --vocab_size 320 --max_length 32" + (" --jit_compile" if BACKEND == "jax" else " --no-jit_compile")
    files = ["--source", folder / "de.po", folder / "fr.po", "--valid_source", folder / "fr.po"]
    with eagerly():
        translator = run("train", *files, "--out", folder / "run", *sizes.split())
    return folder, translator


def test_documents_in_several_languages_train_a_multilingual_model(trained, capsys):
    folder, translator = trained
    assert translator.languages == ["de", "fr"] and translator.placeholders == 16
    run("evaluate", folder / "run", folder / "fr.po", "--num_beams", "1", "--max_length", "16")
    assert "perplexity" in capsys.readouterr().out


def test_a_multilingual_model_takes_the_language_from_the_name_of_the_file(trained, tmp_path):
    folder, _ = trained
    (tmp_path / "app.pot").write_text('msgid ""\nmsgstr "Language: \\n"\n\nmsgid "Open %s"\nmsgstr ""\n')
    options = "--num_beams", "1", "--max_length", "16"
    with pytest.raises(
        SystemExit, match=r"--target_language must be one of \['de', 'fr'\], unless .* Received: target_language=None"
    ):
        run("translate", folder / "run", tmp_path / "app.pot", *options)
    with pytest.raises(SystemExit, match=r"--target_language must be one of \['de', 'fr'\]. Received: .*'sv'"):
        run("translate", folder / "run", tmp_path / "app.pot", "--target_language", "sv", *options)
    run("translate", folder / "run", tmp_path / "app.pot", "--out", tmp_path / "app.fr.po", *options)
    document = read_document(tmp_path / "app.fr.po")
    assert document.language == "fr" and document.units[0].target.count("%s") == 1 and document.units[0].fuzzy


def test_lines_are_translated_into_a_language(trained, capsys):
    folder, translator = trained
    run("translate", folder / "run", "--text", "Open file 3", "--target_language", "fr", "--num_beams", "1")
    assert capsys.readouterr().out == translator("Open file 3", target_language="fr", num_beams=1) + "\n"


@pytest.mark.parametrize(
    "name, text, words",
    [
        (
            "sv.po",
            'msgid "a"\nmsgstr "b"\n',
            "--valid_source must be in the languages of the training texts, de, fr",
        ),
        ("app.po", 'msgid "a"\nmsgstr "b"\n', "app.po: must say its language, as app.de.po does, or --target_language"),
    ],
)
def test_validation_texts_must_be_in_languages_of_the_run(name, text, words, tmp_path):
    for other in ("de.po", "fr.po", name):
        (tmp_path / other).write_text(text)
    files = "--source", tmp_path / "de.po", tmp_path / "fr.po", "--valid_source", tmp_path / name
    with pytest.raises(SystemExit, match=words):
        run("train", *files, "--out", tmp_path / "run")


@pytest.mark.slow
def test_many_texts_that_need_attention_are_counted(capsys, tmp_path):
    (tmp_path / "app.po").write_text("\n".join(f'msgid "Printed %s {n}"\nmsgstr ""\n' for n in range(30)))
    run("translate", SHIPPED, tmp_path / "app.po", "--num_beams", "1")
    said = capsys.readouterr().err
    assert re.search(r"30 need attention:\n(  line \d+: .*\n){10}  … and 20 more \(--report FILE lists all\)\n", said)
