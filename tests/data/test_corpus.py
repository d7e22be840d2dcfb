import gzip

import pytest
from conftest import once, refused

from keras_tfm.common.arguments import UserError
from keras_tfm.data import ParallelFiles, corpus

pytestmark = once
PO = 'msgid ""\nmsgstr "Language: {}\\n"\n\nmsgid "yes"\nmsgstr "{}"\n\nmsgid "no"\nmsgstr ""\n'


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    return write


def test_one_file_of_one_language_gives_pairs(write):
    pairs = ParallelFiles(write("de.po", PO.format("de", "ja")))
    assert list(pairs) == list(pairs) == [("yes", "ja")] and len(pairs) == 1 and pairs.languages == []
    given = ParallelFiles(write("app.po", PO.format("", "ja")), languages="de")
    assert list(given) == [("yes", "ja", "de")] and given.languages == ["de"]


def test_several_languages_give_triples(write):
    files = [
        write("de.po", PO.format("de_DE", "ja")),
        write("app.fr.tsv.gz", "yes\toui\n"),
        write("x.it.txt", "no\tno"),
    ]
    pairs = ParallelFiles(files)
    assert list(pairs) == [("yes", "ja", "de-DE"), ("yes", "oui", "fr"), ("no", "no", "it")]
    assert pairs.languages == ["de-DE", "fr", "it"] and pairs.fingerprint == corpus.fingerprint(list(pairs))
    assert ParallelFiles(files, languages=["de", "fr", "it"]).languages == ["de", "fr", "it"]
    assert ParallelFiles(files, languages=["de"]).languages == ["de"]


def test_a_third_column_says_the_language(write):
    file = write("pairs.tsv", "yes\tja\tde\nyes\toui\tfr\n")
    assert list(ParallelFiles(file)) == [("yes", "ja", "de"), ("yes", "oui", "fr")]
    assert list(ParallelFiles(write("one.tsv", "yes\tja\tde\n"))) == [("yes", "ja")]
    assert list(ParallelFiles(write("one.tsv", "yes\tja\tde\n"), with_languages=True)) == [("yes", "ja", "de")]


def test_a_multilingual_translation_memory(write):
    tuv = '<tuv xml:lang="{}"><seg>{}</seg></tuv>'
    tu = "<tu>" + "".join(tuv.format(*pair) for pair in (("en", "yes"), ("de", "ja"), ("fr", "oui"))) + "</tu>"
    file = write("all.tmx", f'<tmx version="1.4"><header srclang="en"/><body>{tu}</body></tmx>')
    assert list(ParallelFiles(file)) == [("yes", "ja", "de"), ("yes", "oui", "fr")]
    assert list(ParallelFiles(file, languages="fr")) == [("yes", "oui", "fr")]


def test_two_files_are_pairs_by_line_or_by_key(write):
    plain = write("train.en", "yes\nno\n"), write("train.de", "ja\nnein\n")
    keyed = write("en.json", '{"a": "yes", "b": "no", "c": "perhaps"}'), write("fr.json", '{"b": "non", "a": "oui"}')
    assert list(ParallelFiles(*plain)) == [("yes", "ja"), ("no", "nein")]
    assert corpus.fingerprint(ParallelFiles(*plain)) == corpus.fingerprint([("yes", "ja"), ("no", "nein")])
    assert list(ParallelFiles(*keyed)) == [("yes", "oui"), ("no", "non")]
    both = ParallelFiles([plain[0], keyed[0]], [plain[1], keyed[1]], languages=["de", "fr"])
    assert list(both) == [("yes", "ja", "de"), ("no", "nein", "de"), ("yes", "oui", "fr"), ("no", "non", "fr")]


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("a.po", 'msgid "x"\n"y\n', "a.po: a PO file must"),
        ("a.po", 'msgid "x"\nmsgstr ""\n', "a.po: must have at least one text with a translation"),
        ("a.tsv", "a\tb\nc\n", "a.tsv, line 2: must be `text, tab, text`"),
        ("a.tsv", "a\tb\tde\nc\td\n", "a.tsv, line 2: "),
        ("a.tsv", "", "a.tsv: must have at least one text"),
        ("a.xlf", "<xliff", "a.xlf: an XML file must be well-formed. Received: .*, line 1"),
        ("a.txt", "one text\n", "a.txt, line 1: must be `text, tab, text`, since there is no file of targets"),
    ],
)
def test_errors_name_file_and_line(name, text, words, write):
    with pytest.raises(UserError, match=words):
        ParallelFiles(write(name, text))


def test_a_file_whose_language_is_not_known_is_named(write):
    files = [
        write("de.po", PO.format("", "ja")),
        write("fr.po", PO.format("", "oui")),
        write("app.po", PO.format("", "si")),
    ]
    with pytest.raises(UserError, match="app.po: must say its language"):
        ParallelFiles(files)
    with pytest.raises(UserError, match="x.tsv: must say its language, .* Received: zwei Worte"):
        ParallelFiles(write("x.tsv", "a\tb\tzwei Worte\nc\td\tde\n"))
    with pytest.raises(UserError, match="x.tsv, line 1: "):
        ParallelFiles(write("x.tsv", "a\tb\tde\n"), languages="fr")


def test_numbers_of_files_and_languages_must_agree(write):
    files = [write("a.tsv", "a\tb\n"), write("b.tsv", "a\tb\n"), write("c.tsv", "a\tb\n")]
    with refused("languages"):
        ParallelFiles(files, languages=["de", "fr"])
    with refused("targets"):
        ParallelFiles(files, files[:2])
