"""Plain text, line by line, and TSV: a text and its translation, with a tab between them."""

import re

from keras_tfm.documents.document import Document, Unit, stripped_span

LINE = re.compile(r"[^\r\n]+")


class Lines(Document):
    """Plain text; each line that is not blank is a unit."""

    def parse(self):
        for match in LINE.finditer(self.text, self.text.startswith("\ufeff")):
            if source := match[0].strip():
                yield Unit((source,), language=self.language, span=stripped_span(self.text, *match.span()))

    def edits(self, unit, texts):
        yield *unit.span, " ".join(texts[0].split("\n"))


class TSV(Document):
    """Source and translation in the first two columns; a second column is added if there is none."""

    bilingual = accelerators = True

    def parse(self):
        for match in LINE.finditer(self.text, self.text.startswith("\ufeff")):
            source, *rest = match[0].split("\t")
            if source.strip():
                start = match.start() + len(source)
                span = start, start + len(rest[0]) + 1 if rest else start
                yield Unit((source,), (rest[0] if rest else "",), language=self.language, span=span)

    def edits(self, unit, texts):
        yield *unit.span, "\t" + re.sub(r"[\t\n]", " ", texts[0])
