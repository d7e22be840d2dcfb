"""The corpus of software texts, made of tiny packages that are built here."""

import collections
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import zipfile

import pytest
from conftest import once

FOLDER = pathlib.Path(__file__).parent.parent / "examples/software"
sys.path.insert(0, str(FOLDER))
try:
    import cleaning
    import packages
    import readers
finally:
    sys.path.pop(0)

pytestmark = once
DEBIAN = pytest.mark.skipif(not (shutil.which("dpkg-deb") and shutil.which("apt-cache")), reason="needs Debian's tools")
LICENCE = "Format: x\n\nFiles: *\nCopyright: x\nLicense: {}\n\nFiles: debian/*\nLicense: GPL-3+\n"
LIBREOFFICE = {"~Save": "~Speichern", "Close _all": "_Alle schließen", "Edit": "Bearbeiten"}
LIBREOFFICE |= {f"Open the {name} file": f"Die {name}-Datei öffnen" for name in ("red", "blue", "green", "old", "new")}
LIBREOFFICE |= {f"Close the {name} file": f"Die {name}-Datei schließen" for name in ("red", "blue", "green", "old")}
KATE = {"&Edit": "&Bearbeiten", "Run script": "Skript starten", "Open the 2 new files": "Die 2 neuen Dateien öffnen"}
KATE |= {"Open the new file %1": "Neue Datei %1 öffnen"}


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def po(texts):
    header = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n'
    return header + "".join(f'\nmsgid "{source}"\nmsgstr "{target}"\n' for source, target in texts.items())


def archive(path, contents):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as opened:
        for name, content in contents.items():
            opened.writestr(name, content)


def build_deb(cache, name, contents, licence="MPL-2.0"):
    """A Debian package in the cache's folder of downloads."""
    root = cache / "build" / name
    write(
        root / "DEBIAN/control",
        f"Package: {name}\nVersion: 1:2.3-4\nArchitecture: all\nMaintainer: x\nDescription: x\n",
    )
    write(root / f"usr/share/doc/{name}/copyright", LICENCE.format(licence))
    write(root / "usr/bin/program", b"not kept")
    for path, content in contents.items():
        write(root / path, content)
    (cache / "debs").mkdir(exist_ok=True)
    command = ["dpkg-deb", "--root-owner-group", "--build", root, cache / f"debs/{name}_1%3a2.3-4_all.deb"]
    subprocess.run(command, check=True, capture_output=True)


def run(cache, *flags):
    command = [sys.executable, FOLDER / "corpus.py", cache / "out", "--cache", cache, "--languages", "de", *flags]
    return subprocess.run(command, capture_output=True, text=True)


def lines(path):
    return [tuple(line.split("\t")) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


@DEBIAN
def test_the_corpus_of_two_packages(tmp_path):
    """Training has no marker and no text of validation or test; a second run gives the same files, without debs."""
    pytest.importorskip("py3langid")
    locale = "usr/share/locale/de/LC_MESSAGES"
    build_deb(tmp_path, "libreoffice-l10n-de", {f"{locale}/a.po": po(LIBREOFFICE)})
    build_deb(tmp_path, "kate5-data", {f"{locale}/kate.po": po(KATE)}, "LGPL-2+")
    done = run(tmp_path, "--limit", "2")
    assert done.returncode == 0, done.stderr
    out = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert set(out) == {"train.de.tsv", "valid.de.tsv", "test-kate.de.tsv", "sources.json"}
    train, valid, test = (lines(tmp_path / f"out/{name}.de.tsv") for name in ("train", "valid", "test-kate"))
    assert ("Save", "Speichern") in train + valid and ("Close all", "Alle schließen") in train + valid
    assert len(train) + len(valid) == len(LIBREOFFICE) and len(valid) == 1
    assert sorted(test) == [("Open the 2 new files", "Die 2 neuen Dateien öffnen"), ("Run script", "Skript starten")]
    assert {source for source, _ in test}.isdisjoint(source for source, _ in train)
    sources = json.loads(out["sources.json"])
    assert sources["packages"]["libreoffice-l10n-de"] == {"version": "1:2.3-4", "licences": ["MPL-2.0"]}
    kate, office = sources["files"]
    assert office["packages"] == ["libreoffice-l10n-de"] and office["pairs"] == {"de": len(LIBREOFFICE)}
    assert not list((tmp_path / "debs").iterdir()) and not list((tmp_path / "files").rglob("program"))
    assert run(tmp_path, "--limit", "2").returncode == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == out


@DEBIAN
def test_a_package_with_another_licence_is_left_out(tmp_path):
    pytest.importorskip("py3langid")
    locale = "usr/share/locale/de/LC_MESSAGES"
    build_deb(tmp_path, "libreoffice-l10n-de", {f"{locale}/a.po": po(LIBREOFFICE)})
    build_deb(tmp_path, "kate5-data", {f"{locale}/kate.po": po(KATE)}, "GPL-2+")
    assert run(tmp_path, "--limit", "2").returncode == 0 and not (tmp_path / "out/test-kate.de.tsv").exists()
    assert run(tmp_path, "--limit", "2", "--with_gpl").returncode == 0 and (tmp_path / "out/test-kate.de.tsv").exists()


def test_without_apt_the_error_says_where_it_can_be_run(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(packages.UserError, match="Debian.*no apt-get"):
        packages.fetch(["kate5-data"], tmp_path)


def test_without_language_identification_the_package_to_install_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    cleaning.identifier.cache_clear()
    with pytest.raises(packages.UserError, match="pip install py3langid"):
        cleaning.identifier()


@pytest.mark.parametrize(
    "licence, permitted",
    [
        ("MPL-2.0 or GPL-2 or LGPL-2.1", True),
        ("LGPL-2+ and LGPL-2.1+ and Expat", True),
        ("BSD-3-clause", True),
        ("Apache-2.0-with-GPL2-LGPL2-Exception", True),
        ("GPL-2+", False),
        ("LGPL-2+ and GPL-2+", False),
        ("AGPL-3+", False),
        ("GFDL-1.2+", False),
        ("CC-BY-SA-3.0", False),
    ],
)
def test_licences(licence, permitted):
    assert packages.is_permitted(licence) == permitted


def test_licences_of_all_files_and_of_translations_count():
    text = LICENCE.format("LGPL-2+") + "\nFiles: x.c\nLicense: GPL-1\n\nFiles: po/de.po\n po/a\nLicense: GPL-2\n text\n"
    assert packages.licences_of(text) == ["LGPL-2+", "GPL-2"]
    assert packages.licences_of("Evolution is licensed under something else.", "evolution-common") == []


@pytest.mark.parametrize(
    "source, target, marker, pairs",
    [
        ("_File", "ファイル(_F)", "_", [("File", "ファイル")]),
        ("Save ~As...", "Speichern ~unter...", "~_", [("Save As...", "Speichern unter...")]),
        ("Set file_name", "file_name setzen", "_", [("Set file_name", "file_name setzen")]),
        ("Drag & drop", "Ziehen && ablegen", "&", [("Drag & drop", "Ziehen && ablegen")]),
        ("One.\nTwo.", "Eins.\nZwei.", "", [("One.", "Eins."), ("Two.", "Zwei.")]),
        ("One\nlong line", "Eine\nlange Zeile", "", [("One long line", "Eine lange Zeile")]),
        ("One\n\ntwo", "Eins\n\nzwei", "", [("One", "Eins"), ("two", "zwei")]),
        ("A\tb", "長い\n行", "", [("A b", "長い行")]),
        ("Cannot open\nFile %s", "Datei %s\nnicht geöffnet", "", [("Cannot open File %s", "Datei %s nicht geöffnet")]),
        ("-a, --all NAME   all files", "-a, --all NAME   alle Dateien", "", [("all files", "alle Dateien")]),
    ],
)
def test_pairs_of_a_text(source, target, marker, pairs):
    assert [tuple(pair) for pair in cleaning.pairs_of(source, target, marker)] == pairs


@pytest.mark.parametrize(
    "source, target, language, reason",
    [
        ("Open file", "Datei öffnen", "de", ""),
        ("OK", "Aceptar", "es", ""),
        ("Open", "", "de", "untranslated"),
        ("100 %", "100 %", "de", "no letters"),
        ("Open", "Open", "de", "copy"),
        ("This is the same text.", "this is the same text", "de", "copy"),
        ("Your names", "A. Person", "de", "names of translators"),
        ("VLOOKUP", "SVERWEIS", "de", "not language"),
        ("Ctrl+Shift+A", "Strg+Umschalt+A", "de", "not language"),
        ("*.png;*.jpg", "*.png; *.jpg", "de", "not language"),
        ("%s: %d", "%s – %d Stück", "de", "not language"),
        ("Script|Tamil", "Tamilisch", "de", "not language"),
        ("Delete %s?", "%d löschen?", "de", "placeholders differ"),
        ("Copy $1", "$2 kopieren", "de", "placeholders differ"),
        ("Save &All", "Alles speichern", "de", "accelerators left"),
        ("Scripts", "スクリプト体(S)", "ja", "accelerators left"),
        ("Scripts", "Scripts.", "ja", "other script"),
        ("Скрипт file", "Datei", "de", "other script"),
        ("A text of some length", "Text", "de", "length ratio"),
        ("Long " * 90, "Lang " * 90, "de", "too long"),
    ],
)
def test_why_a_pair_is_dropped(source, target, language, reason):
    assert cleaning.reason_against(source, target, language) == reason


def test_texts_in_another_language_are_dropped():
    pytest.importorskip("py3langid")
    cleaning.identifier.cache_clear()
    english, german = "The file could not be saved on this disk.", "Die Datei konnte hier nicht gespeichert werden."
    assert cleaning.reason_against(english, german, "de") == ""
    assert cleaning.reason_against(english, german, "fr") == "other language"
    assert cleaning.reason_against(german, german[4:], "de") == "source not English"


def test_long_texts_are_kept_as_their_sentences():
    counts = collections.Counter()
    pairs = [("f", " ".join(["Save the file."] * 40), " ".join(["Datei speichern."] * 40))]
    actual = list(cleaning.clean(pairs, "de", "", counts))
    assert set(actual) == {("f", "Save the file.", "Datei speichern.", True)} and counts["too long"] == 1


def test_archives_of_mozilla_are_paired_by_file_and_key(tmp_path):
    """Thunderbird is without the files that Firefox has."""
    fluent = "open = {}\n    .accesskey = O\nn = {{ $n ->\n  [{}] {}\n *[other] {}\n}}\n"
    english = {"localization/en-US/a.ftl": fluent.format("Open", "one", "one file", "files")}
    english |= {"chrome/en-US/locale/en-US/b/c.properties": "x=Yes\ny=No"}
    english |= {"chrome/en-US/locale/en-US/d.dtd": '<!ENTITY e "R&amp;D">'}
    polish = {"localization/pl/a.ftl": fluent.format("Otwórz", "few", "pliki", "pliku")}
    polish |= {"chrome/pl/locale/pl/b/c.properties": "x=Tak", "chrome/pl/locale/pl/d.dtd": '<!ENTITY e "B&amp;R">'}
    archive(tmp_path / "pack/langpack-pl@a.xpi", polish)
    archive(tmp_path / "pack/langpack-de@a.xpi", {"localization/de/a.ftl": "open = Öffnen\n"})
    archive(tmp_path / "app/omni.ja", english)
    archive(tmp_path / "firefox/browser/omni.ja", {"localization/en-US/a.ftl": ""})
    rest = [("b/c.properties", "Yes", "Tak"), ("d.dtd", "R&D", "B&R")]
    first = [("a.ftl", "Open", "Otwórz"), ("a.ftl", "files", "pliki"), ("a.ftl", "files", "pliku")]
    folders = [tmp_path / "pack", tmp_path / "app"]
    assert list(readers.mozilla(folders, "pl")) == first + rest
    assert list(readers.thunderbird([*folders, tmp_path / "firefox"], "pl")) == rest


def test_help_pages_are_paired_by_ids(tmp_path):
    """Texts that one page lacks shift nothing; what is for another system is left out."""
    page = '<div><p id="par_1">{}</p><p>{}</p><h1 id="hd_2">{}</h1></div><div id="SearchFrame"></div><p>x</p>'
    hidden = '<span hidden="true" id="MACx" class="MAC"><span class="emph">Mac</span></span>'
    english = page.format("First", f"{hidden}See <span class='x'>this</span> &amp; that", "Title")
    write(tmp_path / "en/usr/help/en-US/text/a/b.html", english)
    write(tmp_path / "de/usr/help/de/text/a/b.html", page.format("Erstes", "Siehe dies &amp; das", "Titel"))
    actual = [pair[1:] for pair in readers.help_pages([tmp_path / "de", tmp_path / "en"], "de")]
    assert actual == [("First", "Erstes"), ("See this & that", "Siehe dies & das"), ("Title", "Titel")]
    write(tmp_path / "de/usr/help/de/text/a/b.html", page.format("Erstes", "", "Titel"))
    readers._page.cache_clear()
    actual = [pair[1:] for pair in readers.help_pages([tmp_path / "de", tmp_path / "en"], "de")]
    assert actual == [("Title", "Titel")]


def pak(texts):
    """A .pak file of version 5."""
    start, places, parts = 12 + 6 * (len(texts) + 1), b"", b""
    for number, text in texts.items():
        places += struct.pack("<HI", number, start + len(parts))
        parts += text.encode()
    return struct.pack("<IBxxxHH", 5, 1, len(texts), 0) + places + struct.pack("<HI", 0, start + len(parts)) + parts


def test_resources_of_chromium_are_paired_by_number(tmp_path):
    plural = "{N, plural, =1 {one file} other {# files}}"
    write(tmp_path / "locales/en-US.pak", pak({7: "Open", 9: "Close", 11: plural}))
    write(tmp_path / "locales/pt-BR.pak", pak({9: "Fechar", 11: "{N,plural, =1{um arquivo}other{# arquivos}}"}))
    actual = sorted(pair[1:] for pair in readers.pak([tmp_path], "pt"))
    assert actual == [("# files", "# arquivos"), ("Close", "Fechar"), ("one file", "um arquivo")]


def test_settings_of_libreoffice_are_paired_by_name(tmp_path):
    text = """<oor:data xmlns:oor="http://openoffice.org/2001/registry"><node oor:name="a"><prop oor:name="Label">
        <value xml:lang="{}">{}</value></prop></node></oor:data>"""
    write(tmp_path / "main.xcd", text.format("en-US", "~Save"))
    write(tmp_path / "res/registry_de.xcd", text.format("de", "~Speichern"))
    assert list(readers.registry([tmp_path], "de")) == [("registry_de.xcd", "~Save", "~Speichern")]
    assert not list(readers.registry([tmp_path], "fr"))


def test_bundles_of_java_are_paired_by_key(tmp_path):
    archive(tmp_path / "java/a.jar", {"x/M.properties": "a=Can''t open {0}\nb=Yes"})
    german, portuguese = {"x/M_de_DE.properties": "a=Kann {0} nicht ''öffnen''"}, {"x/M_pt_BR.properties": "b=Sim"}
    archive(tmp_path / "java/b.jar", german | portuguese)
    assert list(readers.bundles([tmp_path], "de")) == [
        ("x/M_de_DE.properties", "Can't open {0}", "Kann {0} nicht 'öffnen'")
    ]
    assert list(readers.bundles([tmp_path], "pt")) == [("x/M_pt_BR.properties", "Yes", "Sim")]


def test_catalogues_are_read_once_and_only_of_the_language(tmp_path):
    for name in ("de", "pt", "pt_BR"):
        write(tmp_path / f"locale/{name}/LC_MESSAGES/a.po", po({"Open": f"open in {name}"}))
    assert [pair[2] for pair in readers.gettext([tmp_path], "pt")] == ["open in pt_BR"]
    write(tmp_path / "locale/de/LC_MESSAGES/b.po", b"broken")
    assert [pair[2] for pair in readers.gettext([tmp_path], "de")] == ["open in de"]
