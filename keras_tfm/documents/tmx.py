"""TMX: translation memories. The format cannot mark translations that need a review."""

from keras_tfm.documents.document import Unit
from keras_tfm.documents.languages import same_language
from keras_tfm.documents.xml import XMLDocument


class TMX(XMLDocument):
    """A TMX file: a unit for each pair of a source and a translation, in the given language or in all."""

    bilingual = needs_language = accelerators = True

    def parse(self):
        if self.elements[0].name != "tmx":
            raise self.error("a TMX file must have a root tmx", self.elements[0].name)
        header = self.elements[0].child("header")
        source_language = (header.attributes if header else {}).get("srclang", "*all*")
        variants = {_language(element) for element in self.elements if element.name == "tuv"}
        others = {code for code in variants if not same_language(code, source_language)}
        self.language = self.language or ("".join(others) if len(others) == 1 and len(variants) > 1 else "")
        for element in self.elements:
            variants = [child for child in element.children if child.name == "tuv" and child.child("seg")]
            if element.name == "tu" and variants:
                yield from self._units(element, variants, element.attributes.get("srclang", source_language))

    def _units(self, element, variants, source_language):
        sources = [variant for variant in variants if same_language(_language(variant), source_language)] or variants
        comments = "\n".join(self.content(note) for note in element.children if note.name == "note")
        others = [variant for variant in variants if variant is not sources[0]]
        targets = (
            [other for other in others if same_language(_language(other), self.language)] if self.language else others
        )
        for target in targets or [None]:
            yield Unit(
                (self.content(sources[0].child("seg")),),
                (self.content(target.child("seg")) if target else "",),
                context=element.attributes.get("tuid", ""),
                comments=comments,
                language=_language(target) if target else self.language,
                span=(element.start, element.end),
                place=(element, sources[0], target),
            )

    def edits(self, unit, texts):
        element, source, target = unit.place
        text = self.encoded(source.child("seg"), texts[0])
        if target:
            segment = target.child("seg")
            tag = self.text[segment.start : segment.inner].removesuffix(">").rstrip("/ ")
            yield segment.start, segment.end, f"{tag}>{text}</seg>"
        elif not self.language:
            raise self.error("`language` must be given to add translations", "none")
        else:
            last = element.children[-1].end
            tags = f'<tuv xml:lang="{self.language}"><seg>{text}</seg></tuv>'
            yield last, last, self.indentation(source) + tags


def _language(variant):
    return variant.attributes.get("lang", "")
