"""MO files of gettext: PO files, compiled. The format cannot mark translations that need a review."""

import re
import struct

from keras_tfm.documents.document import Unit
from keras_tfm.documents.po import PO

ORDERS = {0x950412DE: "<", 0xDE120495: ">"}  # magic number, read as little-endian → byte order


class MO(PO):
    """An MO file. It holds no untranslated entries; changed ones are written into a new table without hashes."""

    renames_language = marks_drafts = False
    declaration = re.compile(rb"Content-Type:[^\n]*?charset=([\w.:-]+)", re.IGNORECASE)

    def decode(self):
        self.entries = self._read()
        declared = self.declaration.search(dict(self.entries).get(b"", b""))
        self.encoding = declared[1].decode("ascii") if declared else "utf-8"
        try:
            return "\n".join(part.decode(self.encoding) for entry in self.entries for part in entry)
        except (LookupError, UnicodeDecodeError) as error:
            raise self.error("the texts must be in the encoding of the header", self.encoding) from error

    def _read(self):
        """List of (original, translation) as bytes."""
        raw, rule = self.raw, "an MO file must be one that msgfmt wrote"
        order = ORDERS.get(int.from_bytes(raw[:4], "little"))
        if not order or len(raw) < 28:
            raise self.error(rule, "another kind of file")
        self.order, (self.revision, count, *tables) = order, struct.unpack_from(f"{order}4I", raw, 4)
        if max(tables) + 8 * count > len(raw):
            raise self.error(rule, f"a table of {count} entries in {len(raw)} bytes")
        columns = [list(struct.iter_unpack(f"{order}2I", raw[start : start + 8 * count])) for start in tables]
        places = columns[0] + columns[1]
        # Texts that overlap could take far more memory than the file.
        if sum(size for size, _ in places) > len(raw) or any(size + start > len(raw) for size, start in places):
            raise self.error(rule, "texts beyond its end")
        texts = [[raw[start : start + size] for size, start in column] for column in columns]
        return list(zip(*texts, strict=True))

    def parse(self):
        self.header = None
        header = dict(self.entries).get(b"", b"").decode(self.encoding)
        self.declared = dict(line.partition(": ")[::2] for line in header.splitlines())
        self.language = self.language or self.declared.get("Language", "").strip()
        counts = {translation.count(b"\0") + 1 for original, translation in self.entries if b"\0" in original}
        self.plurals = self._plurals(bool(counts), counts)
        return [self._unit(entry) for entry in self.entries if entry[0]]

    def _unit(self, entry):
        original, translation = (part.decode(self.encoding) for part in entry)
        context, _, original = original.rpartition("\x04")
        source, _, plural = original.partition("\0")
        targets = tuple(translation.split("\0"))
        if plural and len(targets) != self.plurals.count:
            rule = f"plural entries must have {self.plurals.count} forms, as Plural-Forms says"
            raise self.error(rule, f"{len(targets)} for {source[:40]!r}")
        sources = self.plurals.sources(source, plural) if plural else (source,)
        targets = targets if plural else targets[:1]
        return Unit(sources, targets, plural, context, language=self.language, place=entry[0])

    def line(self, unit):
        return None

    def check_writable(self):
        if self.revision:
            raise self.error("an MO file to be changed must have revision 0", f"{self.revision:#x}")

    def edits(self, unit, texts):
        yield *unit.span, "\0".join(texts)  # all is written anew, by `splice`

    def splice(self, chosen):
        self.check_writable()
        new = {unit.place: self.encode("\0".join(texts)) for unit, texts in chosen.items()}
        columns = zip(*sorted({**dict(self.entries), **new}.items()), strict=True)
        parts = [part for column in columns for part in column]
        size, places, end = 8 * len(parts), [], 28 + 8 * len(parts)
        for part in parts:
            places += [len(part), end]
            end += len(part) + 1
        header = 0x950412DE, 0, len(parts) // 2, 28, 28 + size // 2, 0, 28 + size
        tables = struct.pack(f"{self.order}{7 + len(places)}I", *header, *places)
        return tables + b"".join(part + b"\0" for part in parts)
