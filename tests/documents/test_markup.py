"""XLIFF, TMX, Fluent, JSON, Markdown and HTML: what is particular to each."""

import pytest
import samples
from conftest import once
from shouting import Shouting

from keras_tfm.common.arguments import UserError
from keras_tfm.documents import FORMATS, translate_document

pytestmark = once


def rendered(suffix, text, number, translation, language="de"):
    document = FORMATS[suffix](text.encode(), f"app{suffix}", language)
    return document.render({document.units[number]: translation}).decode()


def test_xliff_marks_what_needs_a_review():
    new = rendered(".xlf", samples.XLIFF1, 0, '<g id="1">Datei</g> & <b>Ende</b>')
    assert '</source>\n      <target state="needs-review-translation"><g id="1">Datei</g> &amp; &lt;b&gt;Ende' in new
    assert 'approved="no"' in new and 'datatype="plaintext" target-language="de">' in new
    new = rendered(".xlf", samples.XLIFF1, 1, "Leer<x id='2' />")
    assert """<target state="needs-review-translation">Leer<x id='2' /></target></trans-unit>""" in new
    assert [unit.fuzzy for unit in FORMATS[".xlf"](new.encode()).units] == [False, True, False, False]
    new = rendered(".xliff", samples.XLIFF2, 0, 'Hallo <pc id="1">Welt</pc>')
    assert '<segment state="translated"><source>' in new and 'srcLang="en" trgLang="de">' in new
    assert [unit.fuzzy for unit in FORMATS[".xliff"](new.encode()).units] == [True, False]


@pytest.mark.parametrize(
    "version, unit, segment", [("1.2", "trans-unit", 'target state="{}"'), ("2.0", 'segment state="{}"', "target")]
)
def test_a_copy_of_the_source_is_no_translation_if_its_state_says_so(version, unit, segment):
    end = "</trans-unit>" if version == "1.2" else "</segment>"
    for state, count in (("new", 1), ("needs-translation", 1), ("initial", 1), ("translated", 0), ("final", 0)):
        start = f'<xliff version="{version}"><{unit}><source>Open</source><{segment}>'.replace("{}", state)
        document = FORMATS[".xlf"](f"{start}Open</target>{end}</xliff>".encode(), language="de")
        assert len(document.untranslated) == count
        assert translate_document(Shouting(), document).content.count(b">OPEN</target>") == count
        assert FORMATS[".xlf"](f"{start}Auf</target>{end}</xliff>".encode(), language="de").untranslated == []


def test_xliff_refuses_tags_that_are_lost_or_misplaced():
    with pytest.raises(
        UserError, match='app.xlf: a translation must have the tags of its source. Received: <g id="1">'
    ):
        rendered(".xlf", samples.XLIFF1, 0, '<g id="1">Datei')
    document = FORMATS[".xlf"](samples.XLIFF1.encode(), "app.xlf")
    reason = document.problem(document.units[0], '</g>Datei<g id="1">')
    assert reason == 'app.xlf: a translation must nest its tags. Received: </g>Datei<g id="1">, line 6'
    assert document.problem(document.units[0], '<g id="1">Datei</g>') == document.problem(document.units[2], "") == ""


def test_a_latin_1_file_holds_other_characters_as_references():
    text = samples.XLIFF1.replace("UTF-8", "iso-8859-1")
    document = FORMATS[".xlf"](text.encode("latin-1"))
    assert b">\xe4 &#26085;<" in document.render({document.units[2]: "ä 日"})


ENTITIES = "".join(f'<!ENTITY e{n + 1} "{f"&e{n};" * 10}">' for n in range(9))


@pytest.mark.parametrize(
    "doctype, text",
    [
        (f'<!DOCTYPE xliff [<!ENTITY e0 "ha">{ENTITIES}]>', "&e9;"),
        ('<!DOCTYPE xliff [<!ENTITY x SYSTEM "file:///etc/passwd">]>', "&x;"),
        ('<!DOCTYPE xliff [<!ENTITY % x SYSTEM "file:///etc/passwd"> %x;]>', "x"),
        ('<!DOCTYPE xliff SYSTEM "x.dtd">', "&x;"),
    ],
)
def test_entities_are_refused(doctype, text):
    raw = samples.XLIFF2.replace("Bye", text).replace("<xliff", f"{doctype}<xliff", 1).encode()
    with pytest.raises(
        UserError, match="^app.xliff: an XML file must not declare or use entities. Received: an entity"
    ):
        FORMATS[".xliff"](raw, "app.xliff")


@pytest.mark.parametrize("suffix, root", [(".xlf", "an XLIFF"), (".tmx", "a TMX")])
def test_other_xml_is_refused(suffix, root):
    with pytest.raises(UserError, match=f"^app{suffix}: {root} file must have a root .*Received: map"):
        FORMATS[suffix](b"<map version='1.0'/>", f"app{suffix}")
    with pytest.raises(
        UserError, match=f"^app{suffix}: an XML file must be well-formed. Received: mismatched tag, line 2"
    ):
        FORMATS[suffix](b"<a>\n</b>", f"app{suffix}")


def test_tmx_gives_pairs_of_all_languages_or_of_one():
    pairs = [(unit.source, unit.target, unit.language) for unit in FORMATS[".tmx"](samples.TMX.encode()).units]
    assert pairs == [("Yes & no", "Oui", "fr"), ("Stop", "Stój", "pl-PL")]
    document = FORMATS[".tmx"](samples.TMX.encode(), language="pl")
    assert [unit.target for unit in document.units] == ["", "Stój"]
    assert '</tuv><tuv xml:lang="pl"><seg>Tak &lt; nie</seg></tuv></tu>' in rendered(
        ".tmx", samples.TMX, 0, "Tak < nie", "pl"
    ).replace("> <tuv", "><tuv")


def test_fluent_keeps_placeables_and_escapes_what_is_none():
    assert 'hello = {"{"} { $name }\n    {"["}x\n    .title' in rendered(".ftl", samples.FLUENT, 0, "{ { $name }\n[x")
    assert "[one] Eine" in rendered(".ftl", samples.FLUENT, 2, "Eine")
    page = b'a = Type { "b{" } now\n'
    assert translate_document(Shouting(), FORMATS[".ftl"](page)).content == b'a = TYPE { "b{" } NOW\n'
    with pytest.raises(UserError, match="^app.ftl: a Fluent file must be well-formed. Received: .*, line 2$"):
        FORMATS[".ftl"](b"a = b\nno message\n", "app.ftl")


def test_properties_are_escaped_as_the_file_needs_it():
    assert rendered(".properties", "a = b\n", 0, "é🙂\\") == "a = \\u00e9\\ud83d\\ude42\\\\\n"
    assert rendered(".properties", "# ü\na:b", 0, "é\nx") == "# ü\na:é\\nx"
    document = FORMATS[".properties"]("# ü\na=b".encode("latin-1"))
    assert document.render({document.units[0]: "é日"}) == "# ü\na=é\\u65e5".encode("latin-1")
    with pytest.raises(UserError, match=r"^app.properties: escapes must be .* Received: \\ux, line 2"):
        FORMATS[".properties"](b"a=b\nb=\\ux", "app.properties")


def test_json_keeps_its_escapes_and_reports_paths():
    document = FORMATS[".json"](samples.JSON.encode(), "app.json")
    assert [unit.context for unit in document.units] == ["a", "b.c.0", "b.c.4.d", "m.message"]
    assert b'["Zwei \\u00e9", 3' in document.render({document.units[1]: "Zwei é"})
    large = b'{"a": "Open", "b": ' + b"9" * 5000 + b"}"
    assert translate_document(Shouting(), FORMATS[".json"](large)).content == large.replace(b"Open", b"OPEN")
    with pytest.raises(UserError, match="^app.json: a JSON file must be well-formed. Received: .*line 1"):
        FORMATS[".json"](b'{"a": }', "app.json")


def test_markdown_keeps_its_structure():
    text = "Some **bold** text.\n\n- [x](y)\n\n|a|b|\n|-|-|\n|c|d|\n"
    assert rendered(".md", text, 0, "# 1 *a* **x**").startswith("\\# 1 \\*a\\* **x**\n")
    assert rendered(".md", text, 0, "1. **x**").startswith("1\\. **x**\n")
    assert "- [z](y)\n" in rendered(".md", text, 1, "[z](y)")
    assert "|c\\|e\\\\|d|" in rendered(".md", text, 4, "c|e\\")
    with pytest.raises(
        UserError, match="^app.md: a translation must have the markup of its source. Received: x, line 1$"
    ):
        rendered(".md", text, 0, "x")


def test_html_keeps_its_tags():
    text = "<p>A <b>c</b> &lt;x&gt;\n  y</p>\n<p><i>d</i>&nbsp;<br></p>"
    assert rendered(".html", text, 0, "<b>C</b> < & &lt;x&gt;") == text.replace(
        "A <b>c</b> &lt;x&gt;\n  y", "<b>C</b> &lt; &amp; &lt;x&gt;"
    )
    assert rendered(".html", text, 1, "D") == text.replace("<i>d", "<i>D")
    with pytest.raises(
        UserError, match="^app.html: a translation must have the tags of its source. Received: C<b>, line 1"
    ):
        rendered(".html", text, 0, "C<b>")


def test_apostrophes_are_doubled_where_java_needs_it():
    text = "a=The user''s {0}\nb=It''s {1}\nc=Don't\nd=Delete {0}?\n"
    document = FORMATS[".properties"](text.encode())
    assert [unit.source for unit in document.units] == ["The user's {0}", "It's {1}", "Don't", "Delete {0}?"]
    new = document.render({document.units[3]: "Supprimer l'élément {0} ?", document.units[2]: "N'allez pas"})
    assert new.decode().splitlines()[2:] == ["c=N'allez pas", "d=Supprimer l''\\u00e9l\\u00e9ment {0} ?"]
    assert rendered(".properties", "a=It's {0}\nb={0}\n", 1, "l'un {0}") == "a=It's {0}\nb=l'un {0}\n"
    assert rendered(".properties", "a={0}\n", 0, "l'un {0}") == "a=l''un {0}\n"  # as most files need it
    text = "a=Type '{'0'}' or ''{0}''\n"
    assert FORMATS[".properties"](text.encode()).units[0].source == "Type '{'0'}' or '{0}'"
    assert rendered(".properties", text, 0, "'{'0'}' l'un '{0}'") == "a='{'0'}' l''un ''{0}''\n"


def test_html_keeps_entities_that_are_no_words():
    page = b"<p>10&nbsp;MB &mdash; M&uuml;ller &amp; Co &copy;</p>"
    assert translate_document(Shouting(), FORMATS[".html"](page)).content == (
        "<p>10&nbsp;MB &mdash; MÜLLER &amp; CO &copy;</p>".encode()
    )


def test_html_keeps_the_expressions_of_templates():
    page = b"<p>{% if count < 2 and a > 1 %}One {{ a|add:'<' }} file{% endif %} &lt; 3 > 2</p>"
    assert translate_document(Shouting(), FORMATS[".html"](page)).content == (
        b"<p>{% if count < 2 and a > 1 %}ONE {{ a|add:'<' }} FILE{% endif %} &lt; 3 &gt; 2</p>"
    )


def test_html_keeps_programs():
    page = (
        b"""<?php if ($a > 1): ?><p>Hello <?= $a->name ?>, <% if x < 3 %>dear <%= y > 2 %> friend<% end %> 5 <% 6</p>"""
    )
    shouted = translate_document(Shouting(), FORMATS[".html"](page)).content
    words = ((b"Hello", b"HELLO"), (b"dear", b"DEAR"), (b"friend", b"FRIEND"), (b"5 <% 6", b"5 &lt;% 6"))
    for old, new in words:
        page = page.replace(old, new)
    assert shouted == page


def test_a_page_in_xml_names_its_encoding_there():
    page = b'<?xml version="1.0" encoding="ISO-8859-1"?><html><p>Caf\xe9</p></html>'
    assert translate_document(Shouting(), FORMATS[".xhtml"](page)).content == page.replace(b"af\xe9", b"AF\xc9")


def test_attributes_of_a_heading_stay_behind_it():
    page = b"# A heading  {#anchor .wide}\n\nA paragraph {name}\n"
    assert translate_document(Shouting(), FORMATS[".md"](page)).content == (
        b"# A HEADING  {#anchor .wide}\n\nA PARAGRAPH {name}\n"
    )


MARKDOWN = """+++
title = "kept"
+++

> [!NOTE]
> Mind the gap.

- [x] Close it
- [ ] Sum $a_b + \\text{loss}$

$$
\\text{loss} = 1
$$

[^1]: First note.
[^2]: Second note.

!!! warning "Be careful"
    Do not delete it.

:::tip
Save it.
:::

Term
:   The meaning.
"""


def test_blocks_of_markdown_extensions_stay_apart():
    shouted = translate_document(Shouting(), FORMATS[".md"](MARKDOWN.encode())).content.decode()
    for text in (
        "First note",
        "Second note",
        "Do not delete it",
        "Save it",
        "Term",
        "The meaning",
        "Mind the",
        "gap",
        "Close it",
        "Sum",
    ):
        shouted = shouted.replace(text.upper(), text)
    assert shouted == MARKDOWN


def test_variants_inside_a_sentence_are_reported():
    page = b"a = The { $n ->\n    [one] window\n   *[other] windows\n } closed\nb = Fine\n"
    result = translate_document(Shouting(), FORMATS[".ftl"](page))
    assert [unit.context for unit, _ in result.problems] == ["a"] and result.content == page.replace(b"Fine", b"FINE")


def test_a_file_names_the_language_of_its_texts():
    arb = translate_document(Shouting(), FORMATS[".arb"](b'{"@@locale": "en", "a": "Open"}', language="pt-BR"))
    assert arb.content == b'{"@@locale": "pt_BR", "a": "OPEN"}'
    page = translate_document(Shouting(), FORMATS[".html"](b'<html lang="en"><p>Open</p>', language="de"))
    assert page.content == b'<html lang="de"><p>OPEN</p>'


def test_marked_words_of_xliff_stay():
    source = '<source>See <mrk id="m" translate="no">Brand</mrk></source>'
    text = f'<xliff version="2.0" srcLang="en" trgLang="de"><file id="f"><unit id="u"><segment>{source}</segment>'
    document = FORMATS[".xlf"](f"{text}</unit></file></xliff>".encode())
    assert b'SEE <mrk id="m" translate="no">Brand</mrk>' in translate_document(Shouting(), document).content


def test_a_binary_file_is_refused():
    with pytest.raises(UserError, match="app.properties: the file must be text. Received: a NUL byte in line 2"):
        FORMATS[".properties"](b"a = b\n\0\1", "app.properties")
