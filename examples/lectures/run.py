"""Runs all lectures, or those named, and writes a page with their pictures.

python examples/lectures/run.py [--out runs/lectures] [--again] [--markdown] [03_scaling …]

Each lecture is a program of its own: `python examples/lectures/03_scaling.py`. Those whose results are there already
are skipped, so the same command resumes after an interruption.
"""

import argparse
import html
import json
import pathlib
import subprocess
import sys
import time

from lecture import fingerprint, title

HERE = pathlib.Path(__file__).parent
TITLE = "The claims of the lecture notes, measured"
INTRODUCTION = (
    "Claims of lecture notes (CS224N, CS 182, NLU, Applied Deep Learning), each checked by one short program: its "
    "picture, what it measured, and the sentence of the notes. Sections 11 and 12 show stored BLEU figures."
)
SITE = f"""---
hide: [navigation]
---

# {TITLE}

{INTRODUCTION}

```
make lectures                                 # all of them; resumes after an interruption
make lectures ARGS="03_scaling --again"       # one of them, again
```
"""
STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:58rem;margin:2rem auto;padding:0 1rem;color:#222}
img{max-width:100%}table{border-collapse:collapse;font-size:.9rem;margin:1rem 0}h2{margin-top:3.5rem}
td,th{padding:.2rem .8rem;text-align:right;border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}
blockquote{border-left:4px solid #4c8;margin:1rem 0;padding:.2rem 1rem;background:#f5fbf7}
blockquote.corrected{border-color:#d84;background:#fdf7f2}code{background:#f4f4f4}.small{color:#666;font-size:.85rem}"""


def main():
    lectures = sorted(HERE.glob("[0-9]*.py"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [file.stem for file in lectures]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(names)}")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/lectures"), metavar="FOLDER")
    parser.add_argument("--again", action="store_true", help="run also those whose results are there already")
    parser.add_argument("--markdown", action="store_true", help="write index.md, for a site, instead of index.html")
    options = parser.parse_args()
    page = write_markdown if options.markdown else write_html
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
        written = page(options.out, {file: result for file in lectures if (result := read(options.out, file))})
    print(f"\nwrote {written} in {time.perf_counter() - start:.0f} s")
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def read(folder, file):
    """The result of a lecture; {} if there is none."""
    path = folder / f"{file.stem}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def write_html(folder, results):
    """Writes index.html with these results, and returns its path."""
    sections = [
        f'<h2 id="{file.stem}">{heading(file, result)}</h2>\n{body(file, result)}' for file, result in results.items()
    ]
    page = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Lectures</title><style>{STYLE}</style>'
    page += "\n".join([f"<h1>{TITLE}</h1>", f"<p>{INTRODUCTION}</p>", *sections])
    return write(folder / "index.html", page + "</html>\n")


def write_markdown(folder, results):
    """Writes index.md with these results, and returns its path."""
    sections = [
        f"## {heading(file, result)} {{#{file.stem}}}\n\n{body(file, result)}" for file, result in results.items()
    ]
    return write(folder / "index.md", "\n\n".join([SITE, *sections]) + "\n")


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def heading(file, result):
    return f"{int(file.stem.split('_')[0])}. {html.escape(result['title'].rstrip('.'))}"


def body(file, result):
    """Picture, finding, notes and table of a lecture as HTML."""
    text = {name: html.escape(result[name]) for name in ("title", "found", "notes", "source")}
    rows = [f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in result["rows"]]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in result["columns"])
    verdicts = {True: "The notes are right", None: "The notes are right in part", False: "The notes need a correction"}
    quote = f"<b>{verdicts[result['agrees']]}</b> ({text['source']}): “{text['notes']}”"
    return f"""<p><a href="{file.stem}.png"><img src="{file.stem}.png" alt="{text["title"]}"></a></p>
<p>{text["found"]}</p>
<blockquote{"" if result["agrees"] else ' class="corrected"'}>{quote}</blockquote>
<table><tr>{head}</tr>{"".join(rows)}</table>
<p class="small"><code>python examples/lectures/{file.name}</code>, {result["seconds"]:.0f} s</p>"""


if __name__ == "__main__":
    main()
