"""Places of XML elements, found by the standard library's expat. Declarations of entities are refused."""

import html
import re
from dataclasses import dataclass, field
from xml.parsers import expat
from xml.sax.saxutils import escape

from keras_tfm.documents.document import Document, escape_except

TAG = r"<(?:[^<>\"']|\"[^\"]*\"|'[^']*')*>"
PIECE = re.compile(rf"<!\[CDATA\[(?P<data>.*?)\]\]>|<!--.*?-->|<\?.*?\?>|(?P<tag>{TAG})|(?P<text>[^<]+)", re.DOTALL)


@dataclass
class Element:
    """An element: its start tag is text[start:inner], its content text[inner:close], all of it text[start:end]."""

    name: str  # without namespace
    attributes: dict
    parent: "Element | None"
    start: int
    inner: int
    close: int = 0
    end: int = 0
    children: list = field(default_factory=list)

    def child(self, name):
        return next((child for child in self.children if child.name == name), None)

    def inherited(self, name, default=""):
        """An attribute of the element or of the nearest one around it that has it."""
        element = self
        while element is not None and name not in element.attributes:
            element = element.parent
        return default if element is None else element.attributes[name]


class XMLDocument(Document):
    """An XML file: `elements` are those of the namespace of the root, in their order."""

    declaration = re.compile(rb"^\s*<\?xml[^>]*?encoding\s*=\s*[\"']([\w.:-]+)")
    unencodable = "xmlcharrefreplace"

    def decode(self):
        text = super().decode()
        self.text, self.elements, self._open = text, [], None
        self._data = text.encode("utf-8")
        self._place = [0, 0]  # the same in bytes and in characters
        self._parser = expat.ParserCreate(namespace_separator=" ")
        self._parser.StartElementHandler, self._parser.EndElementHandler = self._start, self._end
        self._parser.EntityDeclHandler = self._parser.SkippedEntityHandler = self._refuse
        try:
            self._parser.Parse(text.removeprefix("\ufeff"), True)
        except expat.ExpatError as error:
            reason = expat.errors.messages[error.code]
            raise self.error("an XML file must be well-formed", f"{reason}, line {error.lineno}") from error
        del self._data, self._parser
        return text

    def _refuse(self, *_):
        raise self.error("an XML file must not declare or use entities", "an entity", self._character())

    def _character(self):
        """The parser's position in characters; positions only grow."""
        mark = 3 * self.text.startswith("\ufeff")
        place = self._parser.CurrentByteIndex + mark
        self._place = [place, self._place[1] + len(self._data[self._place[0] : place].decode())]
        return self._place[1]

    def _start(self, name, attributes):
        start = self._character()
        namespace, _, name = name.rpartition(" ")
        attributes = {name.rpartition(" ")[2]: value for name, value in attributes.items()}
        inner = re.compile(TAG).match(self.text, start).end()
        self.namespace = namespace if self._open is None else self.namespace
        known = name if namespace == self.namespace else f"{namespace} {name}"
        self._open = Element(known, attributes, self._open, start, inner)
        self.elements.append(self._open)
        if self._open.parent:
            self._open.parent.children.append(self._open)

    def _end(self, name):
        element, self._open = self._open, self._open.parent
        element.close = element.end = element.inner
        if self.text[element.inner - 2] != "/":
            element.close = self._character()
            element.end = self.text.index(">", element.close) + 1

    def content(self, element):
        """The text in an element; tags in it stay as they are."""
        if element is None:
            return ""
        pieces = PIECE.finditer(self.text[element.inner : element.close].replace("\r\n", "\n"))
        return "".join((piece["data"] or piece["tag"] or html.unescape(piece["text"] or "")) for piece in pieces)

    def encoded(self, source, text):
        """The XML of a text, with the same tags as in the element of its source."""
        pieces = PIECE.finditer(self.text[source.inner : source.close].replace("\r\n", "\n"))
        tags, original = {piece["tag"] for piece in pieces} - {None}, self.content(source)
        if any(text.count(tag) != original.count(tag) for tag in tags):
            raise self.error("a translation must have the tags of its source", text[:80], source.start)
        new = escape_except(text, tags, lambda part: escape(part, {"\r": "&#13;"})).replace("\n", self.newline)
        try:
            expat.ParserCreate().Parse(f"<x>{new}</x>", True)
        except expat.ExpatError as error:
            raise self.error("a translation must nest its tags", text[:80], source.start) from error
        return new

    def with_attribute(self, element, name, value):
        """The start tag of an element with another value of an attribute."""
        tag, attribute = self.text[element.start : element.inner], f' {name}="{value}"'
        pattern = re.compile(rf"\s{name}\s*=\s*(?:\"[^\"]*\"|'[^']*')")
        if pattern.search(tag):
            return pattern.sub(attribute, tag, count=1)
        end = re.search(r"\s*/?>$", tag).start()
        return tag[:end] + attribute + tag[end:]

    def indentation(self, element):
        """The white space before an element."""
        return re.search(r"\s*\Z", self.text[max(0, element.start - 200) : element.start])[0]

    def prefix(self, element):
        """The prefix of the namespace of an element, such as "x:"."""
        name = re.match(r"<([^\s/>]+)", self.text[element.start : element.inner])[1]
        return name[: name.rfind(":") + 1]
