import random

import pytest
from conftest import once

from keras_tfm.documents import join_sentences, split_sentences
from keras_tfm.text import compare_protected, find_accelerator, find_protected

pytestmark = once


WORDS = """%s %1$d %-5.2f %% %lld %zu %'d %.*f %<PRIu64> %(name)s %@ %n %-*s %count% %1 %L2 %PRODUCTNAME %Y {name} {0}
    {} {x:>10} {{x}} ${x} %{x} #{x} $object$ $name $(ARG1) __name__ <b> </a> <br/> <x:y-z/> &amp; &#228; &#xE4; &brand;
    %,d %,.2f %1% %0:s %1:5.2f
    %[1]s %[2]-5.1f :attribute $t(a.b) @:a.title @.lower:a [[x]] @@x@@ %<name>s %#@files@ BUTTON_OK
    a.b+c@d-e.org http://a.b/c?d=e&f=%20#g https://a.b/(c) ftp://a www.a.org mailto:a@b.c"""


@pytest.mark.parametrize(
    "text",
    WORDS.split()
    + ["{ $x }", "{n, plural, one {# file} other {{n} files}}", '<a href="x>y" title=\'"\'>', "<code>a <b>c</b></code>"]
    + ["{ NUMBER($x, a: 1) }", "%(long name)d", "<%= a.b %>", "<ph id='1'>%s</ph>", "\x1b[1m", "\a"],
)
def test_what_is_protected_is_found_among_words(text):
    for sentence in (f"Copy {text} now.", text, f"„{text}“", f"日本 {text} です", f"({text})"):
        assert [span.text for span in find_protected(sentence)] == [text]
        (span,) = find_protected(sentence)
        assert sentence[span.start : span.end] == text


@pytest.mark.parametrize(
    "text",
    [
        "50% of it",
        "100 %",
        "100%,die",
        "5 % der",
        "a < b > c",
        "{ open",
        "} {",
        "$5",
        "R&D",
        "a_b",
        "user@",
        "http",
        "a & b;",
        "snake__case",
        "press { to open and } to close",
        "a: b :c",
        "a:bcd x=:bcd",
        "OK_ A_b _A E_XIT",
    ],
)
def test_ordinary_text_is_not_protected(text):
    assert find_protected(text) == []


def test_missing_and_extra_parts_are_reported():
    assert not compare_protected("%s and %s", "%s und %s")
    assert compare_protected("%s and %s", "%s") == (("%s",), ())
    assert compare_protected("<b>%d</b>", "<b>%d %d</i>") == (("</b>",), ("%d", "</i>"))


@pytest.mark.parametrize(
    "part", ["{", "<a ", '<a "', "a@", "a", "&a", "%(", "__a", "$a", "http://(", "<code>", "_", "&"]
)
def test_no_text_takes_long(part):
    find_protected(part * 20_000)
    find_accelerator(part * 20_000)


@pytest.mark.parametrize(
    "text", ["_File", "&File", "~File", "E&xit", "Save ~As", "ファイル(_F)", "&Copy &amp; paste %s"]
)
def test_an_accelerator_is_found(text):
    span = find_accelerator(text)
    assert span.text in ("_F", "&F", "~F", "&x", "~A", "&C") and text[span.start : span.end] == span.text


@pytest.mark.parametrize("text", ["File", "a & b", "R&D", "&amp;", "__x__", "http://a/_b", "_a _b", "&&", "~", "{_x}"])
def test_no_accelerator_is_found(text):
    assert find_accelerator(text) is None


def test_sentences_and_spaces_make_the_text_again():
    generator = random.Random(35)
    parts = [
        "Hello.",
        "Mr. Smith?",
        "\n",
        "\n\n",
        " ",
        "\t",
        "\r\n",
        "¡Hola!",
        "日本。",
        "e.g. a",
        "http://a.b?c",
        "\u00a0",
        "…",
        "",
    ]
    for _ in range(200):
        text = "".join(generator.choices(parts, k=generator.randrange(12)))
        for language in ("en", "ja", "pt-BR", "xx", ""):
            sentences, spaces = split_sentences(text, language)
            assert join_sentences(sentences, spaces) == text
            assert all(sentence == sentence.strip() != "" for sentence in sentences)
            assert all(not space.strip() for space in spaces) and len(spaces) == len(sentences) + 1


def test_sentences_of_other_scripts_are_split():
    assert split_sentences("これは本です。あれは?", "ja")[0] == ["これは本です。", "あれは?"]
    assert split_sentences("See http://a.b/c?d=e now. It is Dr. A.", "en")[0] == [
        "See http://a.b/c?d=e now.",
        "It is Dr. A.",
    ]
