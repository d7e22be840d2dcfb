"""Turns docstrings into Markdown for the API pages: sections become lists, examples code blocks, options a table."""

import dataclasses
import re

import griffe

from keras_tfm.options import GROUPS, Words, description

SECTION = re.compile(r"(Args|Call arguments|Attributes|Returns|Signatures):")
ITEM = re.compile(r"    (\*{0,2}\w+(?:, (?:\*{0,2}\w+|…))*): (.*)")
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


def options():
    """Tables of the options of `Recipe`."""
    for group, options in GROUPS.items():
        yield f"\n\n| {group} | default | |\n| --- | --- | --- |"
        for field in dataclasses.fields(options):
            allowed = field.metadata["allowed"]
            words = f": {', '.join(f'`{word!r}`' for word in allowed)}" if isinstance(allowed, Words) else ""
            yield f"| `{field.name}` | `{field.default!r}` | {description(field)}{words} |"


def described(module):
    """The module, and all modules, classes and functions in it that have a docstring."""
    yield from [module] * bool(module.docstring)
    for member in module.members.values():
        if not member.is_alias:
            yield from described(member)


class Docstrings(griffe.Extension):
    def on_package(self, *, pkg, **_):
        objects = [*described(pkg)]
        paths = {one.name: one.path for one in objects if one.is_class}
        link = '<autoref optional identifier="{}"><code>{}</code></autoref>'  # a link if the class is on a page
        for one in objects:
            text = markdown(one.docstring.value)
            for name in paths.keys() & {*re.findall(r"`([A-Z]\w+)`", text)} - {one.name}:
                text = text.replace(f"`{name}`", link.format(paths[name], name))
            if one.path == "keras_tfm.options.Recipe":
                text += "\n".join(options())
            one.docstring.value = text
