"""Markdown: CommonMark and GitHub's tables. Lines of blocks come from markdown-it-py, places in a line from here."""

import collections
import re

from keras_tfm.common import extras
from keras_tfm.documents.document import Document, Unit, stripped_span

FRONT_MATTER = re.compile(r"\ufeff?(---|\+\+\+)[ \t]*\r?\n(?:.*?\n)?\1[ \t]*(?:\r?\n|\Z)", re.DOTALL)
MARKUP = r"""
      (?P<ticks>(?<!`)`+(?!`)).*?(?<!`)(?P=ticks)(?!`)                      # code
    | \\[!-/:-@\[-`{-~]                                                     # escapes
    | \]\((?:[^()\\]|\\.|\([^()]*\))*\) | \]\[[^\[\]]*\] | !?\[ | \]        # links and images
    | \$\$.+?\$\$ | (?<![\w$])\$(?![\s$])[^$]*?(?<![\s\\])\$(?![\w$])        # mathematics
    | <[A-Za-z/!][^<>]*> | \*+ | ~~+ | (?<!\w)_+ | _+(?!\w) | `+
    """
ATTRIBUTES = re.compile(r"\s*\{:?\s*[#.][^{}\n]*\}\Z")  # behind a heading: {#anchor .class}
# The start of a line of a footnote, a definition or a task, and complete lines of admonitions, containers and alerts.
BLOCK = re.compile(r"\[\^[^\[\]]+\]:\s*|:\s+|\[[ xX]\]\s+|(?:!!!|\?\?\?\+?|:::+|\[!\w+\]).*")
START = re.compile(r"(?=[#>+=-]|<(?![A-Za-z/!][^<>]*>)|\d+[.)](?:\s|$)|[~:|])")  # of a line that is not plain text


class Markdown(Document):
    """A Markdown file: a unit for each paragraph, heading, item and cell. Wrapped lines become one."""

    def parse(self):
        parser = extras.load("markdown_it").MarkdownIt("commonmark").enable(["table", "strikethrough"])
        front = FRONT_MATTER.match(self.text)
        shift = front.end() if front else self.text.startswith("\ufeff")
        lines = [match.span() for match in re.finditer(r"[^\r\n]*(?:\r\n?|\n|\Z)", self.text[shift:])]
        lines = [(start + shift, end + shift) for start, end in lines]
        environment, row, cell = {}, 0, 0
        tokens = parser.parse(self.text[shift:], environment)
        # A reference such as [name] has to keep its text.
        names = "|".join(map(re.escape, environment.get("references", ())))
        names = rf"!?\[(?:{names})\](?:\[\])?(?![\[(]) |" if names else ""
        self.markup = re.compile(names + MARKUP, re.VERBOSE | re.IGNORECASE)
        for token in tokens:
            row, cell = (token.map[0], 0) if token.type == "tr_open" else (row, cell)
            if token.type in ("th_open", "td_open"):
                cell += 1
            elif token.type == "inline" and cell:
                yield from self._cell(lines[row], cell)
            elif token.type == "inline":
                yield from self._paragraph(token, lines)
            cell = 0 if token.type == "tr_close" else cell

    def _cell(self, line, number):
        """The cell of a table's row."""
        text = self.text[line[0] : line[1]].rstrip()
        cells = [match.span() for match in re.finditer(r"(?:[^|\\]|\\.)+|(?<=\|)(?=\|)", text.strip().strip("|"))]
        if number <= len(cells):
            shift = line[0] + len(text) - len(text.lstrip().lstrip("|"))
            start, end = (place + shift for place in cells[number - 1])
            yield from self._unit([(start, end)], in_table=True)

    def _paragraph(self, token, lines):
        """Units of a block: lines up to each hard break."""
        spans = []
        for (start, end), content in zip(lines[token.map[0] : token.map[1]], token.content.split("\n"), strict=False):
            raw, content = self.text[start:end].rstrip(), content.rstrip()
            if marker := BLOCK.match(content):  # of an extension, which begins a block of its own
                yield from self._unit(spans)
                spans, content = [], content[marker.end() :]
                if not content:
                    continue
            place = raw.rfind(content)
            if place < 0:  # such as a tab that is indentation in part
                return
            spans.append((start + place, start + place + len(content)))
            broken = re.search(r"(?:  |\\)\s*\Z", self.text[start:end].rstrip("\r\n"))
            if broken:
                spans[-1] = spans[-1][0], min(spans[-1][1], start + broken.start())
                yield from self._unit(spans)
                spans = []
        yield from self._unit(spans)

    def _unit(self, spans, in_table=False):
        if not spans:
            return
        if attributes := ATTRIBUTES.search(self.text, *spans[-1]):
            spans = [*spans[:-1], (spans[-1][0], attributes.start())]
        text = " ".join(self.text[start:end].strip() for start, end in spans)
        if re.search(r"\w", self.markup.sub("", text)):
            span = stripped_span(self.text, spans[0][0], spans[-1][1])
            yield Unit((text,), language=self.language, markup=self.markup, span=span, place=in_table)

    def edits(self, unit, texts):
        left = collections.Counter(match[0] for match in self.markup.finditer(unit.source))
        parts, position, text = [], 0, " ".join(texts[0].split("\n"))
        for match in self.markup.finditer(text):
            known = left[match[0]] > 0
            left[match[0]] -= 1
            parts += [text[position : match.start()], match[0] if known else re.sub(r"(\W|_)", r"\\\1", match[0])]
            position = match.end()
        if +left:
            raise self.error("a translation must have the markup of its source", text[:80], unit.span[0])
        text = "".join([*parts, text[position:]])
        if START.match(text) and not START.match(unit.source):
            text = re.sub(r"\A(\d*)", r"\1\\", text)
        if unit.place:
            text = re.sub(r"(\\.)|\|", lambda match: match[1] or "\\|", text)
        yield *unit.span, re.sub(r"(?<!\\)((?:\\\\)*)\\\Z", r"\1\\\\", text)
