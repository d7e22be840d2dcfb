"""Turns docstrings into Markdown for the API pages: sections become lists, examples become code blocks."""

import re

import griffe

SECTION = re.compile(r"(Args|Call arguments|Attributes|Returns|Signatures):")
ITEM = re.compile(r"    ((?:\*{0,2}\w+(?:, )?)+): (.*)")
EXAMPLE = re.compile(r"^(>>> .*?)(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)


def markdown(docstring):
    """The docstring as Markdown."""
    lines, section = [], False
    for line in docstring.splitlines():
        if SECTION.fullmatch(line):
            lines += ["", f"**{line[:-1]}**", ""]
            section = True
        elif section and (item := ITEM.fullmatch(line)):
            names = ", ".join(f"`{name}`" for name in item[1].split(", "))
            lines.append(f"- {names}: {item[2]}")
        elif section and line.startswith("    "):
            lines.append(line.removeprefix("    ") if lines[-1] else line.strip())
        else:
            lines.append(line)
            section = section and not line
    return EXAMPLE.sub(r"```pycon\n\1\n```", "\n".join(lines))


class Docstrings(griffe.Extension):
    def on_object(self, *, obj, **_):
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)
