"""Fluent files (.ftl), by the spans of fluent.syntax. The format cannot mark translations that need a review."""

import re

from keras_tfm.common import extras
from keras_tfm.documents.document import Document, Unit, escape_except

LEFT_ALONE = re.compile(r".*accesskey.*|(?:command)?key(?:code)?|style", re.IGNORECASE)  # attributes that are not text

SELECTOR = re.compile(r"\{[^{}\"]*->")


class Fluent(Document):
    """A Fluent file: a unit for each value, attribute and variant. Terms, such as -brand-name, and attributes such as
    .accesskey are left alone."""

    def parse(self):
        resource = extras.load("fluent.syntax").FluentParser(with_spans=True).parse(self.text.removeprefix("\ufeff"))
        self.ast, self.shift = extras.load("fluent.syntax.ast"), self.text.startswith("\ufeff")
        for entry in resource.body:
            if isinstance(entry, self.ast.Junk):
                reason = entry.annotations[0] if entry.annotations else None
                place = (reason.span.start if reason and reason.span else entry.span.start) + self.shift
                raise self.error("a Fluent file must be well-formed", reason and reason.message, place)
            if isinstance(entry, self.ast.Message):
                comment = entry.comment.content if entry.comment else ""
                yield from self._units(entry.value, entry.id.name, comment)
                attributes = [each for each in entry.attributes if not LEFT_ALONE.fullmatch(each.id.name)]
                for attribute in attributes:
                    yield from self._units(attribute.value, f"{entry.id.name}.{attribute.id.name}", comment)

    def _units(self, pattern, context, comment):
        if pattern is None:
            return
        expressions = [getattr(element, "expression", None) for element in pattern.elements]
        if len(expressions) == 1 and isinstance(expressions[0], self.ast.SelectExpression):
            for variant in expressions[0].variants:
                key = getattr(variant.key, "name", None) or variant.key.value
                yield from self._units(variant.value, f"{context}[{key}]", comment)
            return
        kept = [self._raw(element) for element in pattern.elements if isinstance(element, self.ast.Placeable)]
        parts = [getattr(element, "value", None) or self._raw(element) for element in pattern.elements]
        span = pattern.span.start + self.shift, pattern.span.end + self.shift
        text = "".join(parts)
        markup = re.compile("|".join(map(re.escape, kept))) if kept else None
        options = {"language": self.language, "markup": markup, "span": span, "place": kept}
        if text.strip():
            yield Unit((text,), context=context, comments=comment, **options)

    def problem(self, unit, texts):
        selectors = [part for part in unit.place if SELECTOR.match(part)]
        rule = "a translation must have the variants inside a sentence written by hand"
        return str(self.error(rule, selectors[0][:40])) if selectors else super().problem(unit, texts)

    def _raw(self, element):
        return self.text[element.span.start + self.shift : element.span.end + self.shift]

    def edits(self, unit, texts):
        start, end = unit.span
        raw = self.text[start:end]
        block = re.match(r"[ \r\n]*", raw)[0]  # the value begins on a line of its own
        indent = re.search(r"\n( +)(?=\S)", f"\n{raw}" if block else raw)
        line = self.text.rfind("\n", 0, start) + 1
        indent = indent[1] if indent else re.compile(" *").match(self.text, line)[0] + "    "
        kept = {part.replace("\r\n", "\n"): part for part in unit.place}
        lines = escape_except(texts[0].replace("\r\n", "\n"), kept, _escape_braces)
        for part in kept:  # lines inside a placeable are not lines of the text
            lines = lines.replace(part, part.replace("\n", "\r"))
        first, *rest = lines.split("\n")
        below = [first, *rest] if block else rest
        indented = all(line.startswith(" ") for line in below if line)  # Fluent would take it for indentation
        below = [_escape_start(line, indented) for line in below]
        lines = below if block else [first, *below]
        joined = f"\n{indent}".join(lines).replace("\r", "\n").replace("\n", self.newline)
        yield start, end, block + joined


def _escape_braces(text):
    return re.sub("[{}]", r'{"\g<0>"}', text)


def _escape_start(line, indented):
    """A line that Fluent reads as text, also where it begins with white space or with a sign of its own."""
    line = re.sub(r"\A ", '{" "}', line) if indented else line
    return re.sub(r"\A( *)([\[*.])", r'\1{"\2"}', line)
