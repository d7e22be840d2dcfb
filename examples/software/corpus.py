"""A corpus of software texts, from English into ten languages, out of Debian's packages.

python examples/software/corpus.py OUT [--cache CACHE] [--languages de fr] [--limit 5]

Needs Debian 12 or a container of it, the extra `documents`, and `pip install py3langid`. Packages are downloaded with
apt, not installed, and only their translations are kept. A run that was stopped is resumed by the same command.

OUT gets, for each language, source, tab and target of
    train.LANG.tsv               training
    valid.LANG.tsv               the same 1,000 texts in all languages, which training does not have
    test-thunderbird.LANG.tsv    two applications that training does not have, without texts that it has
    test-kate.LANG.tsv
and sources.json: every file with its package, version, licence, and number of pairs. All licences are MPL, LGPL,
Apache, BSD, MIT and the like, according to the packages' copyright files; --with_gpl takes the others as well.
Portuguese is that of Brazil, which has more translations.
"""

import argparse
import collections
import concurrent.futures
import hashlib
import json
import pathlib
import random
import signal
import sys

import cleaning
import packages
import readers

from keras_tfm.common import files
from keras_tfm.common.arguments import UserError
from keras_tfm.common.progress import Progress

VALID = 1000  # texts
PROGRAM = b"".join(pathlib.Path(module.__file__).read_bytes() for module in (cleaning, readers))


class Entry:
    """How often a translation was found, where first, and whether only as a sentence of longer texts."""

    def __init__(self, application, file):
        self.count, self.application, self.file, self.is_sentence = 0, application, file, True


def read(source, language, cache):
    """Reads and cleans the texts of a source, or takes them from the cache.

    Returns:
        List of [file, source, target, whether it is only a sentence of another text], and counts of what was dropped.
    """
    folders = [cache / "files" / name for name in packages.names_of(source, language)]
    folders = [folder for folder in folders if folder.exists()]
    versions = [(folder / "package.json").read_text() for folder in folders]
    state = hashlib.sha256(PROGRAM + json.dumps([source, versions]).encode()).hexdigest()[:12]
    path = cache / "pairs" / f"{source.application.replace(' ', '_')}.{language}.{state}.json"
    if path.exists():
        return json.loads(path.read_text())
    counts = collections.Counter()
    pairs = readers.READERS[source.reader](folders, language)
    pairs = list(cleaning.clean(pairs, language, source.marker, counts))
    if source.limit and len(pairs) > source.limit:
        counts["above the limit of a source"] = len(pairs) - source.limit
        pairs = random.Random(1).sample(pairs, source.limit)
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.atomic_write(path) as new:
        new.write_text(json.dumps([pairs, counts]))
    return pairs, counts


def read_in_processes(sources, languages, cache, processes):
    """Fills the cache. A source is read by one process, since the English texts of all languages are the same."""
    silent = {"initializer": signal.signal, "initargs": (signal.SIGINT, signal.SIG_DFL)}  # on Ctrl-C
    with concurrent.futures.ProcessPoolExecutor(processes, **silent) as pool:
        jobs = [pool.submit(read_languages, source, languages, cache) for source in sources]
        try:
            with Progress(len(sources), "reading", "source") as bar:
                for job in concurrent.futures.as_completed(jobs):
                    job.result()
                    bar.add()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def read_languages(source, languages, cache):
    for language in languages:
        read(source, language, cache)


def merge(sources, language, cache):
    """Returns {split: {text: {translation: Entry}}} of a language, and counts."""
    texts, counts = collections.defaultdict(dict), collections.Counter()
    for source in sources:
        pairs, reasons = read(source, language, cache)
        counts.update(reasons)
        for file, text, translation, is_sentence in pairs:
            translations = texts[source.split].setdefault(text, {})
            entry = translations.setdefault(translation, Entry(source.application, file))
            entry.count += 1
            entry.is_sentence &= is_sentence
    return texts, counts


def is_whole(translations):
    """Whether a text is more than a sentence of others."""
    return not all(entry.is_sentence for entry in translations.values())


def choose_valid(trains):
    """Keys of the texts for validation: random ones that all languages have."""
    found = [
        {cleaning.key_of(text) for text, translations in train.items() if is_whole(translations)} for train in trains
    ]
    common = sorted(set.intersection(*found), key=lambda key: hashlib.sha256(key.encode()).digest())
    return set(common[: min(VALID, len(common) // 10)])


def divide(texts, valid_keys, train_keys, counts):
    """Yields (split, text, translation, entry) of a language.

    Training may have two translations of a text, the others have one, and no text that training has.
    """
    for split, found in texts.items():
        for text, translations in found.items():
            most = sorted(translations, key=lambda translation: -translations[translation].count)
            key, to, limit = cleaning.key_of(text), split, 1
            if split == "train" and not cleaning.keys_of(text) & valid_keys:
                limit = 2
            elif split == "train" and key in valid_keys and is_whole(translations):
                to = "valid"
            elif split == "train" or not is_whole(translations):
                counts["part of a text of valid or test"] += 1
                continue
            elif key in train_keys:
                counts["text of a test that training has"] += 1
                continue
            counts["further translations of a text"] += len(most[limit:])
            yield from ((to, text, translation, translations[translation]) for translation in most[:limit])


def write(language, rows, out):
    """Writes the files of a language in random order. Returns counters of pairs: of applications, of files."""
    lines, applications, read_files = collections.defaultdict(list), collections.Counter(), collections.Counter()
    for split, text, translation, entry in rows:
        lines[split].append(f"{text}\t{translation}\n")
        applications[split, entry.application] += 1
        read_files[entry.application, entry.file] += 1
    for split, texts in lines.items():
        random.Random(1).shuffle(texts)
        with files.atomic_write(out / f"{split}.{language}.tsv") as new:
            new.write_text("".join(texts), encoding="utf-8")
    return applications, read_files


def describe(read_files, sources, cache):
    """What sources.json says: the packages, and for each file the number of pairs that were kept in each language."""
    by_name, found = {source.application: source for source in sources}, collections.defaultdict(dict)
    for language, counter in read_files.items():
        for (application, file), count in counter.items():
            found[application, file][language] = count
    entries, names = [], set()
    for (application, file), pairs in sorted(found.items()):
        used = sorted({name for language in pairs for name in packages.names_of(by_name[application], language)})
        entries.append({"application": application, "file": file, "packages": used, "pairs": pairs})
        names.update(used)
    details = {name: packages.details_of(name, cache) for name in sorted(names)}
    return {"packages": {name: found for name, found in details.items() if found}, "files": entries}


def print_table(columns, rows=30):
    """Prints {language: counter} with a row for each of the most frequent names, and one for the others."""
    total = sum(columns.values(), collections.Counter())
    print(f"\n{'':<52}" + "".join(f"{language:>9}" for language in columns))
    for name, _ in total.most_common(rows):
        print(f"{name:<52}" + "".join(f"{counter[name]:>9,}" for counter in columns.values()))
    if others := [name for name, _ in total.most_common()[rows:]]:
        sums = [sum(counter[name] for name in others) for counter in columns.values()]
        print(f"{f'{len(others)} others':<52}" + "".join(f"{count:>9,}" for count in sums))


def _of_split(counter, split):
    found = collections.Counter({application: count for (name, application), count in counter.items() if name == split})
    found["all"] = found.total()
    return found


def build(options):
    """Makes the corpus and prints its tables."""
    sources, languages, cache = packages.SOURCES[: options.limit], options.languages, options.cache
    names = dict.fromkeys(name for source in sources for code in languages for name in packages.names_of(source, code))
    packages.fetch(names, cache)
    sources = [source for source in sources if packages.is_usable(source, languages, cache, options.with_gpl)]
    read_in_processes(sources, languages, cache, options.processes)
    texts, counts, applications, read_files = {}, {}, {}, {}
    for language in languages:
        texts[language], counts[language] = merge(sources, language, cache)
    trains = [texts[language]["train"] for language in languages]
    valid_keys = choose_valid(trains)
    train_keys = {key for train in trains for text in train for key in cleaning.keys_of(text)}
    options.out.mkdir(parents=True, exist_ok=True)
    for language in languages:
        rows = divide(texts[language], valid_keys, train_keys, counts[language])
        applications[language], read_files[language] = write(language, rows, options.out)
    with files.atomic_write(options.out / "sources.json") as new:
        new.write_text(json.dumps(describe(read_files, sources, cache), indent=1))
    for split in sorted({split for counter in applications.values() for split, _ in counter}):
        print(f"\n{split}")
        print_table({language: _of_split(counter, split) for language, counter in applications.items()})
    print("\nreasons for what was dropped")
    print_table(counts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, help="folder of the corpus")
    parser.add_argument(
        "--cache", type=pathlib.Path, default="software-cache", help="folder of downloads (%(default)s)"
    )
    languages = list(readers.LOCALES)
    parser.add_argument("--languages", nargs="+", choices=languages, default=languages, help="by default all")
    parser.add_argument("--limit", type=int, help="only the first sources, for a quick try")
    parser.add_argument("--with_gpl", action="store_true", help="take sources of any licence")
    parser.add_argument("--processes", type=int, help="by default one for each core")
    options = parser.parse_args()
    try:
        cleaning.identifier()  # before the downloads
        build(options)
    except (UserError, OSError) as error:  # also a full disk
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("stopped: the same command resumes")


if __name__ == "__main__":
    main()
