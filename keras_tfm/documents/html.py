"""HTML. Its tokens are read here: html5lib and selectolax give no places, and the standard library's parser takes
minutes for some broken pages of 100 kB and fails on others."""

import html
import re

from keras_tfm.documents.document import Document, Unit, escape_except, stripped_span

INLINE = """a abbr acronym b bdi bdo big br cite code data del dfn em font i img ins kbd label mark q rp rt ruby s samp
    small span strike strong sub sup time tt u var wbr"""
OPAQUE = "code kbd math pre samp svg template tt var"  # nothing to translate in them
VOID = "area base br col embed hr img input link meta source track wbr"
INLINE, OPAQUE, VOID = (frozenset(names.split()) for names in (INLINE, OPAQUE, VOID))
ATTRIBUTES = r"""(?:[^<>"']|"[^"]*"|'[^']*')*"""
# Anything unclosed extends to the end of the page, so that no page takes quadratic time.
TOKEN = re.compile(
    rf"""<(?P<raw>script|style|textarea)\b{ATTRIBUTES}>(?:.*?</(?P=raw)[^<>]*>|.*)
    | <!--(?:.*?-->|.*) | <!\[CDATA\[(?:.*?\]\]>|.*) | <(?:!|\?(?!php\b|=))[^<>]*>
    | (?P<program><\?(?:php\b|=)(?:.*?\?>|.*) | <%(?:[^%<]|%(?!>)|<(?!%))*%>)    # PHP, ERB
    | <(?P<end>/?)(?P<name>[a-z][^\s/<>]*)(?P<attributes>{ATTRIBUTES})>
    | (?P<text>&\#?\w+; | [^<&]+ | [<&])""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
PAGE_LANGUAGE = re.compile(r"""<html\b[^<>]*?\slang\s*=\s*["']?([\w-]+)""", re.IGNORECASE)
LEFT_ALONE = re.compile(r"""\stranslate\s*=\s*["']?no\b|\sclass\s*=\s*["'][^"']*\bnotranslate\b""", re.IGNORECASE)
TEMPLATE = re.compile(r"\{%[^{}]*%\}|\{\{[^{}]*\}\}")  # of Django, Jinja and others, whose signs are not escaped
WORDS = re.compile(r"[^\W\d_]+|['’‘\"“”,.?!-]")  # what entities are decoded to; others stay entities


class HTML(Document):
    """A page: a unit for each text between block tags; inline tags stay in it. Attributes are left alone."""

    declaration = re.compile(rb"<(?:meta[^>]*?charset|\?xml[^>]*?encoding)\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)
    unencodable = "xmlcharrefreplace"

    def parse(self):
        pieces, opaque, depth = [], "", 0  # of the current text; the element that is left alone, and its depth
        for token in TOKEN.finditer(self.text):
            start, kind, name = token.start(), _kind(token), (token["name"] or "").lower()
            if opaque:
                depth += {"start": 1, "end": -1}.get(kind, 0) if name == opaque else 0
                kind = "code" if opaque in INLINE else "other"
                opaque = opaque if depth else ""
                start = pieces.pop()[0] if kind == "code" else start
            elif kind == "start" and (name in OPAQUE or LEFT_ALONE.search(token["attributes"])):
                opaque, depth, kind = name, 1, "code" if name in INLINE else "other"
            if kind in ("text", "code") or name in INLINE and kind != "other":
                pieces.append((start, token.end(), kind, name))
            else:
                yield from self._unit(pieces)
                pieces = []
        yield from self._unit(pieces)

    def shared_edits(self, chosen):
        """The language of the page, if it declares one."""
        if self.language and (declared := PAGE_LANGUAGE.search(self.text)):
            yield *declared.span(1), self.language.replace("_", "-")

    def _unit(self, pieces):
        pieces = self._trimmed(pieces)
        if any(kind == "text" and re.search(r"\w", self.text[start:end]) for start, end, kind, _ in pieces):
            source = "".join(self._source(*piece[:3]) for piece in pieces)
            kept = [self.text[start:end] for start, end, kind, _ in pieces if kind != "text"]
            span = stripped_span(self.text, pieces[0][0], pieces[-1][1])
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
        if raw.startswith("&"):
            character = html.unescape(raw)
            return character if WORDS.fullmatch(character) else raw
        return re.sub(r"[ \t\r\n\f]+", " ", raw)

    def edits(self, unit, texts):
        if any(unit.source.count(tag) != texts[0].count(tag) for tag in unit.place):
            raise self.error("a translation must have the tags of its source", texts[0][:80], unit.span[0])
        yield *unit.span, escape_except(texts[0], unit.place + TEMPLATE.findall(unit.source), _escaped)


def _escaped(text):
    return re.sub(r"&(?![A-Za-z]+;|#\d+;|#[xX][0-9a-fA-F]+;)", "&amp;", text).replace("<", "&lt;").replace(">", "&gt;")


def _kind(token):
    if token["name"]:
        void = token["name"].lower() in VOID or token["attributes"].endswith("/")
        return "end" if token["end"] else "void" if void else "start"
    return "text" if token["text"] else "code" if token["program"] else "other"
