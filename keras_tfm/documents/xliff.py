"""XLIFF 1.2 and 2.0. What is filled in has the state needs-review-translation, or in 2.0 translated (not reviewed)."""

import re

from keras_tfm.documents.document import Unit
from keras_tfm.documents.xml import XMLDocument

PAIRS = {"1": "trans-unit", "2": "segment"}  # the element with source and target, by version
LANGUAGES = {"1": ("file", "target-language"), "2": ("xliff", "trgLang")}  # where the target language is declared
# Inline elements whose text stays.
NOT_TRANSLATED = re.compile(
    r"""<(?P<mrk>(?:\w+:)?mrk)\s[^<>]*(?:translate\s*=\s*["']no|mtype\s*=\s*["']protected)["'][^<>]*>.*?</(?P=mrk)\s*>""",
    re.DOTALL,
)
OPEN = {"", "initial", "translated"}  # states of XLIFF 2.0 before a review
UNTRANSLATED = {"new", "needs-translation", "initial"}  # states in which a target may be a copy of the source


class XLIFF(XMLDocument):
    """An XLIFF file; inline elements are part of the texts, as tags."""

    bilingual = marks_drafts = accelerators = True

    def parse(self):
        root = self.elements[0]
        self.version = root.attributes.get("version", "")[:1]
        if root.name != "xliff" or self.version not in PAIRS:
            raise self.error("an XLIFF file must have a root xliff of version 1 or 2", root.name)
        declared = {element.attributes.get(LANGUAGES[self.version][1], "") for element in self.elements} - {""}
        self.language = self.language or ("" if len(declared) > 1 else "".join(declared))
        for element in self.elements:
            source = element.child("source")
            if element.name == PAIRS[self.version] and source and element.inherited("translate") != "no":
                yield self._unit(element, source, element.child("target"))

    def _unit(self, element, source, target):
        owner = element if self.version == "1" else element.parent
        notes = owner.child("notes") or owner
        state = (target.attributes if target else {}) if self.version == "1" else element.attributes
        state, original, text = state.get("state", ""), self.content(source), self.content(target)
        text = "" if text == original and state in UNTRANSLATED else text
        return Unit(
            (original,),
            (text,),
            context=owner.attributes.get("resname") or owner.attributes.get("id", ""),
            comments="\n".join(self.content(note) for note in notes.children if note.name == "note"),
            markup=NOT_TRANSLATED,
            fuzzy=bool(text) and (state.startswith("needs-") or self.version == "2" and state in OPEN),
            language=element.inherited(LANGUAGES[self.version][1]) or self.language,
            span=(element.start, element.end),
            place=(element, source, target),
        )

    def edits(self, unit, texts):
        element, source, target = unit.place
        text, state = self.encoded(source, texts[0]), "needs-review-translation"
        if target is None:
            last = element.child("seg-source") or source
            name = f"{self.prefix(source)}target"
            tag = f'<{name} state="{state}">' if self.version == "1" else f"<{name}>"
            yield last.end, last.end, f"{self.indentation(source)}{tag}{text}</{name}>"
        else:
            tag = self.text[target.start : target.inner]
            tag = self.with_attribute(target, "state", state) if self.version == "1" else tag
            name = f"{self.prefix(target)}target"
            yield target.start, target.end, f"{tag.removesuffix('>').rstrip('/ ')}>{text}</{name}>"
        if self.version == "2":
            yield element.start, element.inner, self.with_attribute(element, "state", "translated")
        elif element.attributes.get("approved") == "yes":
            yield element.start, element.inner, self.with_attribute(element, "approved", "no")

    def shared_edits(self, chosen):
        owner, name = LANGUAGES[self.version]
        for element in self.elements if self.language else ():
            if element.name == owner and not element.attributes.get(name):
                yield element.start, element.inner, self.with_attribute(element, name, self.language)
