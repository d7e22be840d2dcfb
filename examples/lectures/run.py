"""Runs all lectures, or those named, and writes a page with their pictures.

python examples/lectures/run.py [--out runs/lectures] [--again] [--pages] [06_scaling …]

Each lecture is a program of its own: `python examples/lectures/06_scaling.py`. Those whose results are there already
are skipped, so the same command resumes after an interruption. `--pages --out docs/lectures` puts the results into the
pages of the course, and into the table of ideas.
"""

import argparse
import html
import json
import pathlib
import re
import subprocess
import sys
import time

from lecture import fingerprint, title

HERE = pathlib.Path(__file__).parent
TITLE = "The claims of the lecture notes, measured"
BEGIN, END = "<!-- result of the experiment, written by run.py -->", "<!-- end of the result -->"
HTML_PICTURE = '<p><a href="{name}"><img src="{name}" alt="{message}"></a></p>'
MARKDOWN_PICTURE = "[![{message}]({name})]({name})\n\n"  # whose address MkDocs adapts to that of the page
# <span data-result="06_scaling"></span> becomes the verdict and number of seeds of a lecture, and with words,
# <span data-result="06_scaling: gradient">, the first finding that has them.
SPAN = re.compile(r'(<span data-result="(\w+)(?:: ([^"]*))?">).*?(</span>)')
UNKNOWN = "to be measured"
STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:58rem;margin:2rem auto;padding:0 1rem;color:#222}
img{max-width:100%}table{border-collapse:collapse;font-size:.9rem;margin:1rem 0}h2{margin-top:3.5rem}
td,th{padding:.2rem .8rem;text-align:right;border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}
blockquote{border-left:4px solid #4c8;margin:1rem 0;padding:.2rem 1rem;background:#f5fbf7}
code{background:#f4f4f4}.small{color:#666;font-size:.85rem}"""


def main():
    lectures = sorted(HERE.glob("[0-9]*.py"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [file.stem for file in lectures]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(names)}")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/lectures"), metavar="FOLDER")
    parser.add_argument("--again", action="store_true", help="run also those whose results are there already")
    parser.add_argument("--pages", action="store_true", help="fill the pages of a course in --out; no index.html")
    options = parser.parse_args()
    write = write_pages if options.pages else write_html
    if unknown := {*options.names}.difference(names):
        parser.error(f"no lecture has the name {', '.join(sorted(unknown))}; choose from {', '.join(names)}")
    wanted, failed = [file for file in lectures if not options.names or file.stem in options.names], []
    start = time.perf_counter()
    for number, file in enumerate(wanted, 1):
        print(f"\n── {number} of {len(wanted)}, {time.perf_counter() - start:.0f} s: {title(file)}", flush=True)
        if not options.again and read(options.out, file).get("code") == fingerprint(file):
            print("done before")
        elif subprocess.run([sys.executable, file, "--out", options.out]).returncode:
            failed.append(file.stem)
        write(options.out, {file: result for file in lectures if (result := read(options.out, file))})
    print(f"\nwrote the results to {options.out} in {time.perf_counter() - start:.0f} s")
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def read(folder, file):
    """The result of a lecture; {} if there is none, or one without a verdict, as earlier versions wrote it."""
    path = folder / f"{file.stem}.json"
    result = json.loads(path.read_text()) if path.exists() else {}
    return result if "verdict" in result else {}


def write_html(folder, results):
    """Writes index.html with these results."""
    sections = [
        f'<h2 id="{file.stem}">{html.escape(result["title"].rstrip("."))}</h2>\n{body(file, result)}'
        for file, result in results.items()
    ]
    page = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Lectures</title><style>{STYLE}</style>'
    (folder / "index.html").write_text("\n".join([page, f"<h1>{TITLE}</h1>", *sections, "</html>\n"]))


def write_pages(folder, results):
    """Puts each result between two comments of the page of its lecture, such as 06_scaling.md, and into ideas.md."""
    for file, result in results.items():
        page = folder / f"{file.stem}.md"
        block = f"{BEGIN}\n{body(file, result, MARKDOWN_PICTURE)}\n{END}"
        text, count = re.subn(f"{BEGIN}.*{END}", lambda _, block=block: block, page.read_text(), flags=re.DOTALL)
        if count != 1:
            sys.exit(f"{page} needs the lines {BEGIN} and {END} once, not {count} times")
        page.write_text(text)
    named, page = {file.stem: result for file, result in results.items()}, folder / "ideas.md"
    page.write_text(SPAN.sub(lambda span: f"{span[1]}{cell(named.get(span[2]), span[3])}{span[4]}", page.read_text()))


def cell(result, words=None):
    """What the table says of a result: its verdict and seeds, or its first finding that has these words."""
    if not result:
        return UNKNOWN
    if words is None:
        several = f"{result['seeds']} {result['unit']}"
        seeds = {0: "nothing left to chance", 1: "one training each"}.get(result["seeds"], several)
        return f"<b>{result['verdict']}</b>, {seeds}"
    found = [finding for finding in result["found"] if all(word in finding for word in words.split())]
    return html.escape(found[0].rstrip(".")) if found else UNKNOWN


def body(file, result, picture=HTML_PICTURE):
    """Pictures, verdict, finding, limits and table of a lecture as HTML."""
    text = {name: html.escape(result[name]) for name in ("limits", "notes", "source", "verdict")}
    pictures = [picture.format(name=name, message=html.escape(message)) for name, message in result["figures"].items()]
    found = "".join(f"<li>{html.escape(finding)}</li>" for finding in result["found"])
    rows = [[html.escape(cell).replace(" ± ", "&nbsp;±&nbsp;") for cell in row] for row in result["rows"]]
    rows = [f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in result["columns"])
    several = f"{result['seeds']} {result['unit']}, 95 % intervals; "
    seeds = {0: "", 1: "one training each; "}.get(result["seeds"], several)
    return f"""{"".join(pictures)}
<blockquote><p>“{text["notes"]}” ({text["source"]})</p><p><b>Verdict: {text["verdict"]}.</b></p></blockquote>
<ul>{found}</ul>
<p><b>What this does not show.</b> {text["limits"]}</p>
<table><tr>{head}</tr>{"".join(rows)}</table>
<p class="small">{seeds}<code>python examples/lectures/{file.name}</code>, {result["seconds"]:.0f} s</p>"""


if __name__ == "__main__":
    main()
