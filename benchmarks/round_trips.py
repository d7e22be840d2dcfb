"""Reads all documents below some folders and writes them again: nothing translated, and every text translated.

python benchmarks/round_trips.py /usr/share [--suffix .po .mo] [--most 500]

For each format: files that could be read; files that come back byte by byte if nothing is translated; files in which
each text, put between quotation marks, is read again as it was written; files that were refused, each with its reason.
"""

import argparse
import collections
import html
import pathlib
import random

from keras_tfm.common.arguments import UserError
from keras_tfm.common.progress import Progress
from keras_tfm.documents import FORMATS, read_document

KINDS = "files", "texts", "identical", "rewritten", "refused"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=pathlib.Path, nargs="+")
    parser.add_argument("--suffix", nargs="+", choices=FORMATS, default=[*FORMATS], metavar="SUFFIX")
    parser.add_argument("--most", type=int, default=500, help="files of each format; more are sampled")
    options = parser.parse_args()
    found = collections.defaultdict(list)
    for path in sorted(path for folder in options.folders for path in folder.rglob("*")):
        if path.suffix.lower() in options.suffix and path.is_file() and not path.is_symlink():
            found[FORMATS[path.suffix.lower()].__name__].append(path)
    found = {name: random.Random(0).sample(paths, min(len(paths), options.most)) for name, paths in found.items()}
    counts, remarks = {name: collections.Counter() for name in found}, []
    with Progress(sum(map(len, found.values())), "round trips", "file", 1) as bar:
        for name, path in ((name, path) for name, paths in found.items() for path in paths):
            try:
                document = read_document(path, language="de")
                counts[name].update(files=1, texts=len(document.units))
                identical, rewritten = document.render({}) == path.read_bytes(), is_rewritten(document)
                counts[name].update(identical=identical, rewritten=rewritten)
                remarks += [f"{path}: changed"] * (not identical) + [f"{path}: a text is read differently"] * (
                    not rewritten
                )
            except UserError as error:
                counts[name]["refused"] += 1
                remarks.append(str(error))
            bar.add(1)
    print(*remarks, sep="\n")
    print(f"\n{'format':12}" + "".join(f"{kind:>11}" for kind in KINDS))
    for name, count in sorted(counts.items()):
        print(f"{name:12}" + "".join(f"{count[kind]:11,}" for kind in KINDS))


def is_rewritten(document):
    """Whether each text, between quotation marks, is read again as it was written."""
    chosen = {unit: [f"„{source.strip()}“" for source in unit.sources] for unit in document.units}
    chosen = {unit: texts for unit, texts in chosen.items() if not document.problem(unit, texts)}
    again = type(document)(document.render(chosen), document.path, document.language)
    pairs = [(chosen.get(old), new) for old, new in zip(document.units, again.units, strict=True)]
    read = [(texts, new.targets if document.bilingual else new.sources) for texts, new in pairs if texts]
    return all(plain(new) == plain(texts) for texts, new in read)


def plain(texts):
    """Texts without entities, which a file may need for what its encoding lacks, nor outer white space."""
    return [html.unescape(text).strip() for text in texts]


if __name__ == "__main__":
    main()
