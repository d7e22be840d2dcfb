"""XLIFF, TMX, Fluent, JSON, Markdown and HTML: what is particular to each."""

import pytest
import samples
from conftest import once

from keras_tfm.common.arguments import UserError
from keras_tfm.documents import FORMATS

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
