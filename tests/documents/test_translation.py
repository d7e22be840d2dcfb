import collections
import json
import re
import shutil
import subprocess

import pytest
import samples
from conftest import once, refused
from samples import SAMPLES
from shouting import Shouting

from keras_tfm.common.arguments import UserError
from keras_tfm.documents import FORMATS, read_document, translate_document, translate_file
from keras_tfm.documents.translation import resolve_target_language
from keras_tfm.text import find_protected

pytestmark = once


def translated(suffix, text, language="de", **options):
    raw = text if isinstance(text, bytes) else text.encode()
    return translate_document(Shouting(), FORMATS[suffix](raw, f"app{suffix}", language), **options)


@pytest.mark.parametrize("suffix", SAMPLES)
def test_every_format_is_translated_by_one_call_and_again_changes_nothing(suffix):
    document, translator = FORMATS[suffix](SAMPLES[suffix], f"app{suffix}", "pl"), Shouting()
    result = translate_document(translator, document)
    assert translator.calls == bool(document.untranslated) and not result.problems
    assert (result.translated, result.kept) == (len(document.untranslated), len(document.units) - result.translated)
    again = FORMATS[suffix](result.content, f"app{suffix}", "pl")
    if document.bilingual:
        assert not again.untranslated and translate_document(Shouting(), again).content == result.content
        for old, new in zip(document.units, again.units, strict=True):
            assert new.targets == old.targets if old.translated else not re.search("[a-z]{3}", new.target)
    else:
        plain = [re.sub(r"<.*?>|\{.*?\}|`.*?`|\(.*?\)|\[ref\]|&\w+;", "", unit.source) for unit in again.units]
        assert not any(re.search("[a-z]{2}", text) for text in plain)


@pytest.mark.parametrize("suffix", SAMPLES)
def test_everything_is_translated_on_request(suffix):
    document = FORMATS[suffix](SAMPLES[suffix], f"app{suffix}", "pl")
    result = translate_document(Shouting(), document, everything=True)
    assert result.translated == len(document.units) and not result.kept
    if document.bilingual:
        again = FORMATS[suffix](result.content, language="pl").units
        assert all(unit.fuzzy == document.marks_drafts for unit in again)
        assert not any(re.search("[a-z]{3}", re.sub("<.*?>", "", text)) for unit in again for text in unit.targets)


def test_a_file_that_is_complete_stays_as_it_is():
    text = samples.PO.replace('msgstr ""\n\n', 'msgstr "x"\n\n').replace('] ""', '] "x"')
    result = translated(".po", text)
    assert result.content == text.encode() and result.translated == 0 and result.kept == 5


def test_sentences_are_translated_together_and_each_once():
    text = "First one. Second one!\n\n  A third\ttabbed one. First one. 7.5 %"
    document, translator = FORMATS[".json"](json.dumps({"a": text, "b": "First one."}).encode()), Shouting()
    content = translate_document(translator, document).content.decode()
    assert translator.calls == 1
    assert translator.texts == ["First one.", "Second one!", "A third", "tabbed one."]
    assert content == json.dumps({"a": text.upper(), "b": "FIRST ONE."})


def test_what_is_protected_is_not_split_or_changed():
    text = 'Run `a. B` or [see. This](http://a.b/c "T. T"). Use **bold. Text** now.\n'
    result = translated(".md", text)
    assert result.content.decode() == 'RUN `a. B` OR [SEE. THIS](http://a.b/c "T. T"). USE **BOLD. TEXT** NOW.\n'


def test_credits_of_translators_stay():
    result = translated(".po", 'msgid "translator-credits"\nmsgstr ""\n')
    assert result.content == result.document.raw and not result.problems and not result.translated
    assert result.report() == ["translated 0 of 1 texts, 1 for translators' names"]


def test_tags_may_go_over_several_lines():
    assert (
        translated(".html", '<p>See <a\n href="x">this\npage</a> now.').content
        == b'<p>SEE <a\n href="x">THIS PAGE</a> NOW.'
    )


def test_characters_that_an_encoding_lacks_are_escaped_where_a_format_can():
    class Czech(Shouting):
        def _shout(self, text):
            return "Očekáváno"

    for suffix, raw in ((".properties", b"a=Expected \xe4\n"), (".html", b'<meta charset="latin-1"><p>Expected')):
        result = translate_document(Czech(), FORMATS[suffix](raw))
        assert not result.problems and (b"O\\u010dek\xe1v\xe1no" in result.content or b"O&#269;ek" in result.content)


CONTROLS = {
    ".po": r'msgid "\033[1mBold\033[0m text\a\r\nNext\r\n"' + '\nmsgstr ""\n',
    ".json": r'{"a": "\u001b[1mBold\u001b[0m text\u0007\r\nNext\r\n"}',
    ".properties": r"a=\u001b[1mBold\u001b[0m text\u0007\r\nNext\r\n",
}


@pytest.mark.parametrize("suffix", CONTROLS)
def test_control_characters_and_line_ends_inside_a_text_stay(suffix):
    old = FORMATS[suffix](CONTROLS[suffix].encode())
    new = FORMATS[suffix](translate_document(Shouting(), old).content)
    texts = new.units[0].targets if old.bilingual else new.units[0].sources
    assert texts == ("\x1b[1mBOLD\x1b[0m TEXT\a\r\nNEXT\r\n",)
    assert not any(0 < code < 9 or 13 < code < 32 for code in new.raw)  # but as escapes


@pytest.mark.parametrize(
    "suffix, text", [(".json", r'{"a": "Lone \ud800 half"}'), (".properties", r"a=Lone \ud800 half")]
)
def test_lone_surrogates_stay(suffix, text):
    content = translate_document(Shouting(), FORMATS[suffix](text.encode())).content.decode()
    assert content == text.replace("Lone", "LONE").replace("half", "HALF")


def test_texts_without_words_are_copied():
    result = translated(".po", 'msgid "%s: %d"\nmsgstr ""\n\nmsgid "X"\nmsgstr ""\n')
    assert [unit.target for unit in FORMATS[".po"](result.content).units] == ["%s: %d", "X"]
    assert translated(".json", rb'{"a": "\u00e9 %s"}').content == rb'{"a": "\u00e9 %s"}'


def test_accelerators_come_back():
    entries = "\n".join(f'msgid "{text}"\nmsgstr ""\n' for text in ("_File", "E_xit", "file_n", "Save in _file_n"))
    result = translated(".po", entries)
    assert [unit.target for unit in FORMATS[".po"](result.content).units] == [
        "_FILE",
        "E_XIT",
        "FILE_N",
        "SAVE IN _FILE_N",
    ]
    assert translated(".md", "_File and\n").content == b"_FILE AND\n"  # no accelerator there


def test_names_and_paths_stay_unless_they_have_an_accelerator():
    texts = ["Set filter_mode to _on_load", "See /etc/ssh/sshd_config and ~/.config/app.", "_Open", "Guide co_lor:"]
    texts += ["Color", "and/or, 1/2/3", "_Edit", "_View", "_Help", "**run_all** or _fast_mode_"]
    kept = ["SET filter_mode TO _on_load", "SEE /etc/ssh/sshd_config AND ~/.config/app.", "_OPEN", "GUIDE CO_LOR:"]
    kept += ["COLOR", "AND/OR, 1/2/3", "_EDIT", "_VIEW", "_HELP", "**run_all** OR _fast_mode_"]
    for suffix in (".po", ".json"):
        raw = json.dumps(texts) if suffix == ".json" else "".join(f'msgid "{text}"\nmsgstr ""\n' for text in texts)
        result = translated(suffix, raw)
        found = FORMATS[suffix](result.content).units
        assert [unit.target or unit.source for unit in found] == kept and not result.problems
    assert translated(".md", "\n\n".join(texts)).content.decode().split("\n\n")[-1] == kept[-1]


def test_plural_forms_follow_the_language():
    for language, forms in (
        ("ja", ["%d FILES"]),
        ("de", ["%d FILE", "%d FILES"]),
        ("pl", ["%d FILE", "%d FILES", "%d FILES"]),
    ):
        text = (
            'msgid ""\nmsgstr "Language: \\n"\n\nmsgid "%d file"\nmsgid_plural "%d files"\nmsgstr[0] ""\nmsgstr[1] ""\n'
        )
        result = translated(".po", text, language)
        assert [*FORMATS[".po"](result.content).units[0].targets] == forms


PROBLEMS = 'msgid "Open"\nmsgstr ""\n\nmsgid "mislay %s"\nmsgstr ""\n\nmsgid "blank"\nmsgstr ""\n\n'
PROBLEMS += 'msgid "mislay %d"\nmsgstr "x %d"\n'


def test_what_could_not_be_translated_is_marked_and_reported():
    result = translated(".po", PROBLEMS)
    assert [(unit.source, reason) for unit, reason in result.problems] == [
        ("mislay %s", "lacks %s"),
        ("blank", "is blank"),
    ]
    units = FORMATS[".po"](result.content).units
    assert [(unit.target, unit.fuzzy) for unit in units] == [
        ("OPEN", True),
        ("mislay %s", True),
        ("blank", True),
        ("x %d", False),
    ]
    assert result.report() == [
        "translated 1 of 4 texts, 1 had a translation, 2 need attention:",
        "  line 4: 'mislay %s': the translation lacks %s",
        "  line 7: 'blank': the translation is blank",
    ]
    assert result.report(1)[1:] == ["  line 4: 'mislay %s': the translation lacks %s", "  … and 1 more"]
    everything = translated(".po", PROBLEMS, everything=True)  # a translation is never replaced by the source
    assert FORMATS[".po"](everything.content).units[3].target == "x %d" and len(everything.problems) == 3


@pytest.mark.parametrize("suffix", [".json", ".tsv", ".properties"])
def test_formats_without_marks_leave_alone_what_could_not_be_translated(suffix):
    text = {".json": '{"a": "mislay %s", "b": "b"}', ".tsv": "mislay %s\n", ".properties": "a=mislay %s\n"}[suffix]
    result = translated(suffix, text)
    assert result.content.decode() == text and [reason for _, reason in result.problems] == ["lacks %s"]


def test_what_a_format_cannot_hold_is_a_problem_of_that_text_alone():
    class Breaking(Shouting):
        def _shout(self, text):
            return {"One": "日本", "Two": "zwei", "- x": "x"}.get(text, text)

    text = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=latin-1\\n"\n\n'
    text += "\n".join(f'msgid "{word}"\nmsgstr ""\n' for word in ("Two", "One", "Three"))
    result = translate_document(Breaking(), FORMATS[".po"](text.encode(), language="de"))
    assert [unit.target for unit in FORMATS[".po"](result.content).units] == ["zwei", "One", "Three"]
    ((unit, reason),) = result.problems
    assert unit.source == "One" and reason == "must be text that latin-1 has"


HTML = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Getting started</title>
<link rel="stylesheet" href="a.css"><script>var a = "<p>no</p>";</script></head>
<body class="doc">
<h1 id="top">Getting <em>started</em></h1>
<p>Read the <a href="faq.html#q1" title="FAQ">frequently asked questions</a> first. Then run <code>make all</code>.<br>
It costs 5 &lt; 6 &euro; &amp; more.</p>
<ul><li>One<li>Two <img src="x.png" alt="picture"></ul>
<table><tr><th>Key</th><td><kbd>Ctrl</kbd>+<kbd>S</kbd> saves</td></tr></table>
<pre>$ keep this</pre><!-- and this -->
</body></html>
"""
MARKDOWN = """# Getting started

Read the [FAQ](faq.md#q1) **first**. Then run `make all`:

```bash
make all  # keep this
```

1. One *item*
2. Two ![picture](x.png)

| Key | Meaning |
| --- | --- |
| `S` | saves \\| writes |

> A quote with <kbd>Ctrl</kbd> and https://example.com/a_b.
"""


def test_a_page_keeps_its_tags():
    result = translated(".html", HTML)
    expected = HTML.replace('lang="en"', 'lang="de"')
    old, new = (re.findall(r"<[^>]*>|&\w+;", text) for text in (expected, result.content.decode()))
    assert not result.problems and old == new
    assert "GETTING <em>STARTED</em>" in (text := result.content.decode()) and "THEN RUN <code>make all</code>." in text
    assert "<pre>$ keep this</pre><!-- and this -->" in text and 'var a = "<p>no</p>"' in text
    assert "IT COSTS 5 &lt; 6 &euro; &amp; MORE." in text


def test_a_markdown_file_keeps_its_markup():
    result = translated(".md", MARKDOWN)
    text = result.content.decode()
    signs = r"[#`*|>\[\]()!\\]|https?://\S+|<.*?>|^\d\.|x\.png|faq\.md#q1|make all.*"
    old, new = (collections.Counter(re.findall(signs, each, re.MULTILINE)) for each in (MARKDOWN, text))
    assert not result.problems and old == new
    assert "READ THE [FAQ](faq.md#q1) **FIRST**. THEN RUN `make all`:" in text and "SAVES \\| WRITES" in text


def test_a_glossary_and_a_language_reach_the_translator():
    document = FORMATS[".json"](b'{"a": "A layer of %s"}')
    result = translate_document(Shouting(["de", "fr"]), document, False, "de", {"layer": "Ebene"})
    assert result.content == b'{"a": "DE: A Ebene OF %s"}'


def test_a_file_is_written_in_its_format(tmp_path):
    (tmp_path / "app.pot").write_text(
        'msgid ""\nmsgstr "Language: \\n"\n\nmsgid "%d file"\nmsgid_plural "%d files"\nmsgstr[0] ""\n'
    )
    result = translate_file(Shouting(["de", "pl"]), tmp_path / "app.pot", tmp_path / "app.pl.po")
    document = read_document(tmp_path / "app.pl.po")
    assert document.language == "pl" and document.units[0].targets[2] == "PL: %d FILES" and result.translated == 1
    (tmp_path / "app").write_text("a=One\n")
    translate_file(Shouting(), tmp_path / "app", tmp_path / "new", format=".properties")
    assert (tmp_path / "new").read_text() == "a=ONE\n"


@pytest.mark.parametrize(
    "declared, given, out, default, expected",
    [
        ("", "fr", "app.de.po", "it", "fr"),
        ("de", None, "app.fr.po", "it", "de"),
        ("de_AT", "de", None, None, "de"),
        ("", None, "out/app.fr.po", "it", "fr"),
        ("", None, "new.po", "it", "it"),
        ("", None, "app.sv.po", "it", "it"),
    ],
)
def test_the_language_is_what_was_given_or_the_file_or_the_name_says(declared, given, out, default, expected):
    document = FORMATS[".po"](f'msgid ""\nmsgstr "Language: {declared}\\n"\n\nmsgid "a"\nmsgstr ""\n'.encode())
    code, document = resolve_target_language(document, Shouting(["de", "fr", "it"], default), given, out)
    assert code == expected and document.language == (declared or expected)
    code, document = resolve_target_language(document, Shouting(), given, out)
    assert code is None


@pytest.mark.parametrize(
    "declared, given, out", [("", "sv", None), ("sv", None, "de.po"), ("de", "fr", None), ("", None, "new.po")]
)
def test_another_language_is_refused(declared, given, out):
    document = FORMATS[".po"](f'msgid ""\nmsgstr "Language: {declared}\\n"\n\nmsgid "a"\nmsgstr ""\n'.encode())
    with refused("target_language"):
        resolve_target_language(document, Shouting(["de", "fr"]), given, out)


@pytest.mark.parametrize("given, out", [("fr", None), (None, "app.fr.po")])
def test_a_file_without_translations_that_declares_the_language_of_its_texts_has_no_other(given, out):
    entry = 'msgid ""\nmsgstr "Language: en\\n"\n\nmsgid "a"\nmsgstr "{0}"\n'
    code, document = resolve_target_language(FORMATS[".po"](entry.format("").encode()), Shouting(["fr"]), given, out)
    assert code == document.language == "fr"
    assert b'"Language: fr\\n"' in document.render({document.units[0]: ["b"]})
    with refused("target_language"):
        resolve_target_language(FORMATS[".po"](entry.format("b").encode()), Shouting(["fr"]), given, out)


def test_a_multilingual_translation_memory_needs_a_target_language():
    document = FORMATS[".tmx"](SAMPLES[".tmx"], "app.tmx")
    with pytest.raises(UserError, match="one target language. Received: fr, pl-PL"):
        resolve_target_language(document, Shouting())
    code, document = resolve_target_language(document, Shouting(["fr", "pl"]), "fr")
    assert code == "fr" and [unit.target for unit in document.units] == ["Oui", ""]
    assert (
        b'<tuv xml:lang="fr"><seg>FR: STOP</seg></tuv>'
        in translate_document(Shouting(["fr"]), document, target_language="fr").content
    )


def test_an_empty_file_is_refused():
    with pytest.raises(UserError, match="app.po: a document must have texts. Received: an empty file"):
        resolve_target_language(FORMATS[".po"](b" \n", "app.po"), Shouting())


@pytest.mark.skipif(not shutil.which("msgfmt"), reason="gettext is not installed")
def test_msgfmt_accepts_a_translated_file(tmp_path):
    (tmp_path / "app.po").write_text(samples.PO)
    translate_file(Shouting(), tmp_path / "app.po", tmp_path / "app.pl.po")
    command = ["msgfmt", "--check-format", "--check-domain", "--use-fuzzy", "-o", "/dev/null", tmp_path / "app.pl.po"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_nothing_is_written_if_a_translation_is_interrupted(tmp_path):
    class Interrupted(Shouting):
        def _shout(self, text):
            raise KeyboardInterrupt

    (tmp_path / "app.po").write_text(samples.PO)
    with pytest.raises(KeyboardInterrupt):
        translate_file(Interrupted(), tmp_path / "app.po", tmp_path / "app.pl.po")
    assert [path.name for path in tmp_path.iterdir()] == ["app.po"]


def test_protected_parts_of_any_sample_survive():
    for suffix, raw in SAMPLES.items():
        document = FORMATS[suffix](raw, language="pl")
        for unit, texts in translate_document(Shouting(), document, everything=True).translations.items():
            for source, text in zip(unit.sources, texts, strict=True):
                kept = [
                    collections.Counter(span.text for span in find_protected(each, unit.markup))
                    for each in (source, text)
                ]
                assert kept[0] == kept[1]
