"""Finds what a translation must not change: placeholders, tags, addresses and entities; and accelerators."""

import collections
import re
from typing import NamedTuple

# Each alternative stops at the next "<" or begins at a boundary, so that no text takes quadratic time.
PATTERN = re.compile(
    r"""
    (?P<code><(?P<name>code|kbd|samp|var|tt|bpt|ept|ph|it|ut)\b(?:[^<>]*[^<>/])?>(?:(?!</?(?P=name)\b).)*</(?P=name)\s*>)
  | (?P<tag></?[A-Za-z][\w:.-]*(?:\s(?:"[^"]*"|'[^']*'|[^<>"'])*)?/?>)
  | (?P<url>(?:(?:https?|ftps?|file|irc|ssh|git|wss?)://|www\.|mailto:)
      (?:\([\w.~:/?\#@!$&'*+,;=%{}-]*\)|[\w.~:/?\#\[\]@!$&'(*+,;=%{}-])*(?:(?<=\))|(?<=[\w/~\#=&$%{}-])))
  | (?P<email>(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+)
  | (?P<entity>&(?:[A-Za-z][\w.-]*|\#\d+|\#[xX][0-9a-fA-F]+);)
  | (?P<placeholder>
      # {name} {0} ${x} %{x} {{x}} {n, plural, …}, up to the partner of the brace; not { some words }
      [$%\#]?(?P<brace>\{)(?!\s+[A-Za-z]+(?:\s+[A-Za-z]+)+\s+\})
    | <%(?:[^<>%]|%(?!>))*%>                       # ERB
    | %(?:\([\w. -]+\)|<\w+>)[-+0\#]*\d*(?:\.\d+)?[a-zA-Z]   # %(name)s %<name>s
    | %\#@\w+@ | %\[\d+\][-+0\#]*\d*(?:\.\d+)?[a-zA-Z]   # Apple, Go
    | (?<![!-')-Z\\-~]):[a-z_]{3,}\b               # Laravel; not as in "a:bcd"
    | %[a-z][a-z_]{2,}%(?![\w%])                    # %count% of Symfony; no "%sof%s"
    | %(?:\d+\$)?(?:[+0\#'I]*|-(?=[\d*])|,(?=[.\d]*[df]\b))(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh?|ll?|[Lqjzt]|I64)?
      (?:[diouxXeEfFgGcspn@](?!(?<=\d%.)[a-z])|<PRI\w+>)  # %s %1$d %-5.2f; not as in "50 % der" or "50%und"
    | %% | %[A-Z][A-Z0-9_]+(?:%|\b)                # %PRODUCTNAME
    | %\d{1,2}%(?![\w%])                           # %1% of Boost
    | %L?\d{1,2}(?::[-.\d]*[a-z]\b)? | (?<![\w%])%[A-Za-z](?![a-z])   # %1 of Qt, %0:s of Delphi, %Y of dates
    | [\x01-\x08\x0e-\x1f\x7f](?:\[[\d;]*[A-Za-z])?   # control characters, such as those before colours
    | [\ud800-\udfff]                              # lone surrogates, which no tokenizer reads
    | \$t\([^()]*\) | (?<!\w)@(?:\.\w+)?:(?:\([^()]*\)|\w[\w.-]*\b)  # i18next, Vue
    | \[\[[^\[\]]*\]\] | @@\w+@@                   # [[x]] @@x@@
    | \$\([\w.]+\) | \$[A-Za-z_]\w*\$?             # $(ARG1) $name $object$
    | (?<!\w)__[A-Za-z]\w*?__(?!\w) | (?<!\w)[A-Z][A-Z0-9]+(?:_[A-Z0-9]{2,})+(?!\w)  # CONSTANT_NAME
    )
    """,
    re.VERBOSE | re.ASCII | re.DOTALL,
)
# Without which there is nothing to find.
HINT = re.compile(r"[%$#{<&@_\x01-\x08\x0e-\x1f\x7f\ud800-\udfff]|:[a-z_]|\[\[|://|www\.|mailto:")
MARKERS = "_&~"  # of accelerators: GTK, Qt and Windows, LibreOffice


class Span(NamedTuple):
    """A part of a text: `text[start:end]`, and its kind."""

    start: int
    end: int
    kind: str
    text: str


class Difference(NamedTuple):
    """What a translation lacks and what it has too many of; false if there is no difference."""

    missing: tuple[str, ...]
    extra: tuple[str, ...]

    def __bool__(self):
        return bool(self.missing or self.extra)


def find_protected(text: str, markup: re.Pattern | None = None) -> list[Span]:
    """Finds what a translation must contain exactly as the source does.

    Args:
        text: source or translation.
        markup: pattern of what the format adds to this, such as `Unit.markup`.

    Returns:
        List of `Span`, in order and without overlap. Kinds: placeholder, tag, code, url, email, entity, markup. A
        message of ICU, such as {n, plural, …}, is one placeholder as a whole; documents have its cases translated.

    >>> [span.text for span in find_protected("Copied %d of {total} to <b>%PRODUCTNAME</b>: 100 %")]
    ['%d', '{total}', '<b>', '%PRODUCTNAME', '</b>']
    """
    if not markup and not HINT.search(text):
        return []
    partners, spans, position = brace_partners(text), [], 0
    matches = [(match.start(), match.end(), "markup") for match in markup.finditer(text)] if markup else []
    for match in PATTERN.finditer(text):
        end = partners.get(match.start("brace"), 0) if match["brace"] else match.end()
        matches.append((match.start(), end, str(match.lastgroup)))
    for start, end, kind in sorted(matches, key=lambda span: (span[0], -span[1])):
        if position <= start < end:
            spans.append(Span(start, end, kind, text[start:end]))
            position = end
    return spans


def compare_protected(source: str, translation: str, markup: re.Pattern | None = None) -> Difference:
    """Compares what is protected in a text and in its translation: each must be in both equally often.

    >>> compare_protected("%s of <b>%d</b>", "<b>%d</b> von %s")
    Difference(missing=(), extra=())
    >>> compare_protected("Delete $column$?", "$$ 列$を削除?")
    Difference(missing=('$column$',), extra=())
    """
    counts = [collections.Counter(span.text for span in find_protected(part, markup)) for part in (source, translation)]
    missing, extra = counts[0] - counts[1], counts[1] - counts[0]
    return Difference(tuple(missing.elements()), tuple(extra.elements()))


def find_accelerator(text: str, markers: str = MARKERS) -> Span | None:
    """Finds the key of a menu entry or a button: a marker and the letter after it. It may move in a translation.

    Returns a `Span`, or None if there is not exactly one. A marker inside a word may also be part of a name, such as
    file_name: `markers` says which ones the application uses.

    >>> find_accelerator("Save _As…")
    Span(start=5, end=7, kind='accelerator', text='_A')
    >>> find_accelerator("Drag & drop"), find_accelerator("AT&T"), find_accelerator("%s_%s")
    (None, None, None)
    """
    protected = {place for span in find_protected(text) for place in range(span.start, span.end)}
    pattern = rf"(?<![{re.escape(markers)}])[{re.escape(markers)}](?=[^\W_])"
    places = [match.start() for match in re.finditer(pattern, text)]
    names = {place for place in places if re.match(r"[A-Z]&[A-Z]", text[max(place - 1, 0) : place + 2])}  # AT&T
    places = [place for place in places if place not in protected | names and place + 1 not in protected]
    if len(places) != 1:
        return None
    return Span(places[0], places[0] + 2, "accelerator", text[places[0] : places[0] + 2])


def brace_partners(text):
    """{start of an opening brace: end of the closing one}"""
    opened, partners = [], {}
    for match in re.finditer("[{}]", text):
        if match[0] == "{":
            opened.append(match.start())
        elif opened:
            partners[opened.pop()] = match.end()
    return partners
