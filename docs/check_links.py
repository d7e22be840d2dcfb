"""Checks the built site: every internal link leads somewhere, and nothing is loaded from another host.

python docs/check_links.py site
"""

import html.parser
import pathlib
import sys
import urllib.parse

LOADED = {("script", "src"), ("img", "src"), ("source", "src"), ("iframe", "src"), ("link", "href")}


class Page(html.parser.HTMLParser):
    """The ids of a page, and its links as (address, whether the page loads it)."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links = set(), set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        for name in {"href", "src"} & {*attributes}:
            self.links.add((attributes[name] or "", (tag, name) in LOADED))


def faults(site):
    """A line for each link that leads nowhere, or that loads something from another host."""
    site = pathlib.Path(site).resolve()
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    found = []
    for path, page in sorted(pages.items()):
        for link, loaded in sorted(page.links):
            parts = urllib.parse.urlsplit(link)
            if parts.scheme == "data" or (parts.scheme or parts.netloc) and not loaded:
                continue
            target = path if not parts.path else (path.parent / urllib.parse.unquote(parts.path)).resolve()
            target = target / "index.html" if target.is_dir() else target
            anchor = urllib.parse.unquote(parts.fragment)
            if parts.scheme or parts.netloc:
                reason = "is loaded from another host"
            elif not (target.is_relative_to(site) and target.is_file()):
                reason = "leads nowhere"
            elif anchor and target in pages and anchor not in pages[target].ids:
                reason = "names a part that the page does not have"
            else:
                continue
            found.append(f"{path.relative_to(site)}: {link} {reason}")
    return found


if __name__ == "__main__":
    sys.exit("\n".join(faults(sys.argv[1])) or 0)
