"""A small file of every format, with what is strange about real ones."""

import struct

PO = """# Translators' comment
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\\n"
"Language: pl\\n"
"Plural-Forms: nplurals=3; plural=(n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<12 || n%100>14) ? 1 : 2);\\n"

#. For the menu
#: main.c:12
#, c-format
msgctxt "menu"
msgid "Open %s"
msgstr ""

#: a.c:1 b.c:2
msgid ""
"First line\\n"
"second \\"line\\"\\twith a tab\\\\\\n"
msgstr ""

#, fuzzy
#| msgid "Old"
msgid "New"
msgstr "Nowy"

msgid "one file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""
msgstr[2] ""

msgid   "Translated"
msgstr   "Przetłumaczony"

#, fuzzy
#~ msgid "Obsolete"
#~ msgstr "Stary"
"""
XLIFF1 = """<?xml version='1.0' encoding="UTF-8" ?>
<!-- a comment with <source> -->
<xliff version="1.2" xmlns='urn:oasis:names:tc:xliff:document:1.2'>
  <file source-language="en" original="a" datatype="plaintext"><body>
    <trans-unit id="1" approved='yes'>
      <source>Save <g id="1">the file</g> &amp; &lt;b&gt;exit&lt;/b&gt;</source>
      <note>A note</note>
    </trans-unit >
    <trans-unit id="2"><source>Empty<x id='2' /></source><target state="new"/></trans-unit>
    <trans-unit id="3"><source>Done</source><target>Fertig &#228;</target></trans-unit>
    <trans-unit id="4" translate="no"><source>Name</source></trans-unit>
    <trans-unit id="5"><source><![CDATA[a < b]]></source><target></target></trans-unit>
  </body></file>
</xliff>
"""
XLIFF2 = """<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en">
 <file id="f"><unit id="u"><notes><note>A note</note></notes>
  <segment><source>Hello <pc id="1">world</pc></source></segment>
  <segment state="final"><source>Bye</source><target>Tschüss</target></segment>
 </unit></file>
</xliff>"""
TMX = """<?xml version="1.0"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en-US" datatype="plaintext"/><body>
  <tu tuid="a"><tuv xml:lang="EN-us"><seg>Yes &amp; no</seg></tuv><tuv xml:lang="fr"><seg>Oui</seg></tuv></tu>
  <tu><tuv xml:lang="en-US"><seg>Stop</seg></tuv><tuv xml:lang="pl-PL"><seg>Stój</seg></tuv></tu>
</body></tmx>"""
FLUENT = """### Resource
# About the key
hello = Hello, { $name }!
    .title = A title
-brand = Brand
files =
    { $count ->
        [one] One file
       *[other] { $count } files
    }
long =
    First line
      indented { -brand }
"""
PROPERTIES = "# comment\n! another\nkey=Value\nkey\\ two : two \\\n    lines\\u00e9\n\nempty=\nlast = C:\\\\path"
JSON = '{\n\t"a": "One\\n\\u00e9",  "b": {"c": ["Two", 3, null, "", {"d": "Three \\"x\\""}]}, "@meta": "x",\r\n'
JSON += '"m": {"message": "Four", "description": "none"}}'
MARKDOWN = """---
title: kept
---
# A *heading* #

Some **bold** text with `code` and a [link](http://x.y "t")
that goes on.  
After a break.

> - item [ref]
>   more

| Head | `x` |
|------|-----|
| Cell \\| one | two |

```
code
```
<div>kept</div>

[ref]: http://z
"""  # noqa: W291
HTML = """<!DOCTYPE html>
<html><head><title>A title</title><style>p > a { }</style><script>if (a < b) "x"</script></head>
<body><!-- comment --><p class="a>b">Some <b>bold</b> text
   &amp; more&nbsp;words.<br></p>
<ul><li><a href="x">Link</a><li><code>x &lt; y</code> is code</ul><pre>kept</pre>
<p translate="no">Kept</p><p>Unclosed <i>tag
"""


def mo(text, order="<"):
    """An MO file with the entries {original: translation} as bytes."""
    pairs = sorted(text.items())
    parts = [part for column in zip(*pairs, strict=True) for part in column]
    places, end = [], 28 + 8 * len(parts)
    for part in parts:
        places += [len(part), end]
        end += len(part) + 1
    header = 0x950412DE, 0, len(pairs), 28, 28 + 8 * len(pairs), 0, 0
    return struct.pack(f"{order}{7 + len(places)}I", *header, *places) + b"".join(part + b"\0" for part in parts)


HEADER = b"Content-Type: text/plain; charset=UTF-8\nPlural-Forms: nplurals=2; plural=n != 1;\n"
ENTRIES = {b"": HEADER, b"menu\4Open": "Öffnen".encode(), b"file\0files": b"Datei\0Dateien"}
TEXTS = {".po": PO, ".xlf": XLIFF1, ".xliff": XLIFF2, ".tmx": TMX, ".ftl": FLUENT, ".properties": PROPERTIES}
TEXTS |= {
    ".json": JSON,
    ".md": MARKDOWN,
    ".html": HTML,
    ".txt": "One\n\n  Two \n\u2028x",
    ".tsv": "One\tEins\nTwo\nThree\t\tx\n",
}
SAMPLES = {suffix: text.encode() for suffix, text in TEXTS.items()} | {".mo": mo(ENTRIES)}
