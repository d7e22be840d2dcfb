"""HTML, by the places of the standard library's lenient parser: html5lib and selectolax do not give places."""

import html
import itertools
import re
from html.parser import HTMLParser

from keras_tfm.documents.document import Document, Unit, escape_around, stripped

INLINE = """a abbr acronym b bdi bdo big br cite code data del dfn em font i img ins kbd label mark q rp rt ruby s samp
    small span strike strong sub sup time tt u var wbr"""
OPAQUE = "code kbd math pre samp script style svg template textarea tt var"  # nothing to translate in them
VOID = "area base br col embed hr img input link meta source track wbr"
INLINE, OPAQUE, VOID = (frozenset(names.split()) for names in (INLINE, OPAQUE, VOID))
SYNTAX = re.compile(r"&(?:lt|gt|amp|#0*(?:38|60|62)|#[xX]0*(?:26|3[cCeE]));")  # stays an entity in texts


class Places(HTMLParser):
    """Collects [start, kind, name, whether its content is left alone] of everything in a page."""

    def __init__(self, text):
        super().__init__(convert_charrefs=False)
        self.lines = [0, *(match.end() for match in re.finditer("\n", text))]
        self.found = []
        self.feed(text)
        self.close()

    def add(self, kind, name="", opaque=False):
        line, column = self.getpos()
        self.found.append((self.lines[line - 1] + column, kind, name, opaque))

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        left_alone = attributes.get("translate") == "no" or "notranslate" in (attributes.get("class") or "").split()
        self.add("void" if tag in VOID else "start", tag, left_alone or tag in OPAQUE)

    def handle_startendtag(self, tag, attrs):
        self.add("void", tag)

    def handle_endtag(self, tag):
        self.add("end", tag)

    def handle_data(self, data):
        self.add("text")

    def handle_entityref(self, name):
        self.add("text")

    handle_charref = handle_entityref

    def handle_comment(self, data):
        self.add("other")

    handle_decl = handle_pi = unknown_decl = handle_comment


class HTML(Document):
    """A page: a unit for each text between tags of blocks; tags of words stay in it. Attributes are left alone."""

    declaration = re.compile(rb"<meta[^>]*?charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)
    unencodable = "xmlcharrefreplace"

    def parse(self):
        found = [*Places(self.text).found, (len(self.text), "other", "", False)]
        pieces, opaque, depth = [], "", 0  # of the current text; the element that is left alone, and how deep
        for (start, kind, name, alone), (end, *_) in itertools.pairwise(found):
            if opaque:
                depth += {"start": 1, "end": -1}.get(kind, 0) if name == opaque else 0
                kind = "code" if opaque in INLINE else "other"
                opaque = opaque if depth else ""
                if kind == "code":
                    start = pieces.pop()[0]
            elif alone and kind == "start":
                opaque, depth, kind = name, 1, "code" if name in INLINE else "other"
            if kind in ("text", "code") or name in INLINE and kind != "other":
                pieces.append((start, end, kind, name))
            else:
                yield from self._unit(pieces)
                pieces = []
        yield from self._unit(pieces)

    def _unit(self, pieces):
        pieces = self._trimmed(pieces)
        if any(kind == "text" and re.search(r"\w", self.text[start:end]) for start, end, kind, _ in pieces):
            source = "".join(self._source(*piece[:3]) for piece in pieces)
            kept = [self.text[start:end] for start, end, kind, _ in pieces if kind != "text"]
            span = stripped(self.text, pieces[0][0], pieces[-1][1])
            code = [re.escape(self.text[start:end]) for start, end, kind, _ in pieces if kind == "code"]
            markup = re.compile("|".join(code)) if code else None
            yield Unit((source.strip(),), language=self.language, markup=markup, span=span, place=kept)

    def _trimmed(self, pieces):
        """Without white space and images at the ends, and without tags around everything."""
        partners, opened = {}, []
        for place, (_, _, kind, name) in enumerate(pieces):
            if kind == "start":
                opened.append((name, place))
            elif kind == "end" and opened and opened[-1][0] == name:
                partners[opened.pop()[1]] = place
        first, last = 0, len(pieces) - 1
        while first <= last:
            if self._is_empty(pieces[first]):
                first += 1
            elif self._is_empty(pieces[last]):
                last -= 1
            elif partners.get(first) == last:
                first, last = first + 1, last - 1
            else:
                break
        return pieces[first : last + 1]

    def _is_empty(self, piece):
        start, end, kind, _ = piece
        return kind == "void" or kind == "text" and not html.unescape(self.text[start:end]).strip()

    def _source(self, start, end, kind):
        raw = self.text[start:end]
        if kind != "text":
            return raw
        return re.sub(r"[ \t\r\n\f]+", " ", raw if SYNTAX.fullmatch(raw) else html.unescape(raw))

    def edits(self, unit, texts):
        if any(unit.source.count(tag) != texts[0].count(tag) for tag in unit.place):
            raise self.error("a translation must have the tags of its source", texts[0][:80], unit.span[0])
        yield *unit.span, escape_around(texts[0], unit.place, _escaped)


def _escaped(text):
    return re.sub(r"&(?![A-Za-z]+;|#\d+;|#[xX][0-9a-fA-F]+;)", "&amp;", text).replace("<", "&lt;").replace(">", "&gt;")
