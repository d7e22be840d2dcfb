"""PO and POT files of gettext. Translations that are filled in are marked fuzzy.

The tokens are read here, not by polib, since that library gives a line for each entry and not the places of its parts.
"""

import re
from dataclasses import dataclass, field

from keras_tfm.documents.document import Document, Unit
from keras_tfm.documents.plurals import GERMANIC, Plurals, plural_header

TOKEN = re.compile(
    r"""[\s\ufeff]*(?:(?P<comment>\#[^\r\n]*)|(?P<string>"(?:[^"\\\r\n]|\\.)*")
                   |(?P<word>msg(?:ctxt|id_plural|id|str(?:\[\d\])?))|\Z)""",
    re.VERBOSE,
)
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "v": "\v", "f": "\f"}
QUOTED = {code: f"\\{code:03o}" for code in (*range(32), 127)}
QUOTED |= {ord(character): f"\\{letter}" for letter, character in ESCAPES.items()} | {34: '\\"', 92: "\\\\"}


@dataclass
class Entry:
    """Comments and fields of a message: [start of the keyword, start and end of its strings, the strings]."""

    comments: list = field(default_factory=list)
    fields: dict = field(default_factory=dict)

    def value(self, name):
        parts = "".join(string[1:-1] for string in self.fields[name][3]) if name in self.fields else ""
        return re.sub(r"\\(x[0-9a-fA-F]{2}|[0-7]{1,3}|.)", _unescape, parts)

    @property
    def fuzzy(self):
        return any(re.match("#,.*fuzzy", match["comment"]) for match in self.comments)

    @property
    def forms(self):
        return [name for name in self.fields if name.startswith("msgstr")]


class PO(Document):
    """A PO file."""

    bilingual = renames_language = marks_drafts = accelerators = True
    declaration = re.compile(rb'"Content-Type:(?:[^"]|"\s*")*?charset=([\w.:-]+)', re.IGNORECASE)

    def default_encoding(self, declared):
        return "utf-8" if declared == "CHARSET" else declared

    def parse(self):
        entries = list(self._entries())
        headers = [entry for entry in entries if not entry.value("msgid") and "msgctxt" not in entry.fields]
        self.header = headers[0] if headers else None
        fields = self.header.value("msgstr") if self.header else ""
        self.declared = dict(line.partition(": ")[::2] for line in fields.splitlines())
        self.language = self.language or self.declared.get("Language", "").strip()
        plurals = [entry for entry in entries if "msgid_plural" in entry.fields]
        complete = [entry for entry in plurals if entry.value("msgstr[0]") and not entry.fuzzy]
        self.plurals = self._plurals(bool(plurals), {len(entry.forms) for entry in complete})
        return [self._unit(entry) for entry in entries if entry is not self.header]

    def _entries(self):
        entry, name, position = Entry(), None, 0
        while position < len(self.text):
            match = TOKEN.match(self.text, position)
            if not match or match["string"] and name is None:
                received = repr(self.text[position : position + 20].split("\n")[0])
                raise self.error("a PO file must be comments, keywords and strings in quotes", received, position)
            if (match["comment"] or (match["word"] or "msgstr")[:6] != "msgstr") and entry.forms:
                yield self._complete(entry)
                entry, name = Entry(), None
            name = match["word"] or name
            if match["comment"]:
                entry.comments.append(match)
                if match["comment"].startswith("#~"):  # an obsolete entry, with the comments before it
                    entry.comments.clear()
            elif match["word"] or match["string"]:
                self._add(entry, name, match)
            position = match.end()
        if entry.fields:
            yield self._complete(entry)

    def _add(self, entry, name, match):
        if match["word"]:
            if name in entry.fields:
                raise self.error("an entry must have each keyword once", name, match.start())
            entry.fields[name] = [match.start("word"), match.end(), match.end(), []]
        elif match["string"]:
            _, start, _, strings = entry.fields[name]
            entry.fields[name][1:3] = start if strings else match.start("string"), match.end()
            strings.append(match["string"])

    def _complete(self, entry):
        """Returns the entry if it has all keywords that it needs, and strings after them."""
        plural = "msgid_plural" in entry.fields
        expected = [f"msgstr[{number}]" for number in range(len(entry.forms))] if plural else ["msgstr"]
        if "msgid" not in entry.fields or entry.forms != expected or not all(part[3] for part in entry.fields.values()):
            rule = "an entry must have msgid and msgstr, or msgid, msgid_plural and msgstr[0], msgstr[1], …"
            raise self.error(rule, " ".join(entry.fields), min(part[0] for part in entry.fields.values()))
        return entry

    def _plurals(self, needed, counts):
        """The rule that the file declares; else that of its language, if it fits `counts`; else gettext's default.

        A file whose plurals are not translated yet often has the rule of its English template. Then that of its
        language counts.
        """
        declared = self.declared.get("Plural-Forms", "").strip()
        if declared and "INTEGER" not in declared:
            try:
                plurals = Plurals(declared)
                copied = needed and not counts and plurals.numbers == Plurals(GERMANIC).numbers
                own = Plurals(plural_header(self.language)) if copied and self.language else plurals
                return plurals if own.numbers == plurals.numbers else own
            except (ValueError, RecursionError, OverflowError, ZeroDivisionError) as error:
                if needed:
                    rule = "Plural-Forms must be of the form nplurals=2; plural=n != 1;"
                    raise self.error(rule, declared[:80]) from error
        plurals = Plurals(plural_header(self.language) if self.language else GERMANIC)
        return plurals if counts <= {plurals.count} else Plurals(GERMANIC)

    def _unit(self, entry):
        source, plural = entry.value("msgid"), entry.value("msgid_plural")
        targets = tuple(entry.value(name) for name in entry.forms)
        if "msgid_plural" in entry.fields:
            count = self.plurals.count
            if targets[0] and len(targets) != count and not entry.fuzzy:
                rule = f"plural entries must have {count} forms, as Plural-Forms says"
                raise self.error(rule, f"{len(targets)}", entry.fields["msgstr[0]"][0])
            targets = targets if len(targets) == count else ("",) * count  # a draft from before the rule changed
        comments = [match["comment"] for match in entry.comments]
        return Unit(
            self.plurals.sources(source, plural) if plural else (source,),
            targets,
            plural,
            entry.value("msgctxt"),
            comments="\n".join(comment[2:].strip() for comment in comments if not re.match("#[:,|]", comment)),
            fuzzy=entry.fuzzy,
            language=self.language,
            span=(entry.fields[entry.forms[0]][0], entry.fields[entry.forms[-1]][2]),
            place=entry,
        )

    def line(self, unit):
        return self.text.count("\n", 0, unit.place.fields["msgid"][0]) + 1

    def edits(self, unit, texts):
        names = [f"msgstr[{form}]" if unit.plural else "msgstr" for form in range(len(texts))]
        strings = [f"{name} {self._quoted(text)}" for name, text in zip(names, texts, strict=True)]
        yield *unit.span, self.newline.join(strings)
        if unit.fuzzy:
            return
        flags = next((match for match in unit.place.comments if match["comment"].startswith("#,")), None)
        if flags:
            yield flags.start("comment") + 2, flags.start("comment") + 2, " fuzzy,"
        else:
            previous = [match.start("comment") for match in unit.place.comments if match["comment"].startswith("#|")]
            start = min(previous + [part[0] for part in unit.place.fields.values()])
            yield start, start, f"#, fuzzy{self.newline}"

    def shared_edits(self, chosen):
        """Fills in what a template leaves open, and the language and the plural rule if the file has none."""
        if not self.header:
            return
        _, start, end, _ = self.header.fields["msgstr"]
        old = header = self.text[start:end]
        header = header.replace("charset=CHARSET", "charset=UTF-8")
        if self.language:
            plurals = f'"Plural-Forms: {self.plurals.header}\\n"'
            header = re.sub(r'"Language: *[\w@.-]*\\n"', lambda _: f'"Language: {self.language}\\n"', header)
            header = re.sub(r'"Plural-Forms: nplurals=INTEGER[^"]*"', lambda _: plurals, header)
            if chosen and not any(name.rstrip(":") == "Language" for name in self.declared):
                header += f'{self.newline}"Language: {self.language}\\n"'
            if any(unit.plural for unit in chosen) and "Plural-Forms" not in self.declared:
                header += self.newline + plurals
            elif any(unit.plural for unit in chosen) and self.declared["Plural-Forms"].strip() != self.plurals.header:
                header = re.sub(r'"Plural-Forms:(?:[^"]|"\s*")*?\\n"', lambda _: plurals, header)
        if header != old:
            yield start, end, header

    def _quoted(self, text):
        lines = re.findall(r"[^\n]*\n|[^\n]+", text)
        lines = ["", *lines] if len(lines) > 1 else lines
        return self.newline.join(f'"{line.translate(QUOTED)}"' for line in lines)


def _unescape(match):
    code = match[1]
    if code[0] == "x" and len(code) > 1:
        return chr(int(code[1:], 16))
    return chr(int(code, 8) % 256) if code[0] in "01234567" else ESCAPES.get(code, code)
