"""Debian's packages with translations: which they are, their licences, and how to get their files."""

import json
import re
import shutil
import subprocess
import tarfile
from typing import NamedTuple

from readers import LOCALES

from keras_tfm.common.arguments import UserError
from keras_tfm.common.progress import Progress

BATCH = 10  # packages that are downloaded at a time
# Files that are kept of a package.
KEPT = re.compile(
    r""".*/LC_MESSAGES/[^/]+\.[mp]o | .*/locale/\w+/\w+\.po | .*/help/[^/]+/text/.*\.html | .*\.(?:xpi|ja|xcd)
      | .*/locales/(?:[a-z]{2}|[a-z]{2}-[A-Z]{2})\.pak | .*/java/[^/]+\.jar | .*/doc/[^/]+/copyright""",
    re.VERBOSE,
)
# Names of languages in those of packages, where they differ.
CODES = {"libreoffice": {"pt": "pt-br"}, "mozilla": {"pt": "pt-br", "es": "es-es", "sv": "sv-se"}}
PERMITTED = re.compile(
    r"""MPL|LGPL|Apache|BSD|MIT\b|Expat|ISC\b|zlib|CC0|PostgreSQL|wxWindows|X11|ZPL
      | public.domain|-PD\b|permissive|FSFULLR|lcs-telegraphic""",
    re.VERBOSE | re.IGNORECASE,
)
NOT_PERMITTED = re.compile(r"(?<!L)GPL(?!2-LGPL2-Exception)|GFDL")  # CUPS' exception permits more
# Files whose licence counts: all, or translations into our languages; not those of manuals.
TRANSLATIONS = re.compile(
    rf"\*|(?!debian/|.*/docs/)(?:.*/)?(?:po|poqm|locale|i18n|translations)(?:/\*)?(?:/(?:{'|'.join(LOCALES)}|pt_BR)(?:/.*|\.po))?"
)


class Source(NamedTuple):
    """Where texts of an application come from.

    Attributes:
        application: its name.
        packages: their names, with {libreoffice} or {mozilla} for the language.
        reader: one of `READERS`.
        marker: characters before the key of a menu entry: ~ in LibreOffice, _ in GTK, & in KDE and Qt.
        split: "train", or the test that it is held out for.
        limit: maximum pairs for each language.
    """

    application: str
    packages: str
    reader: str = "gettext"
    marker: str = ""
    split: str = "train"
    limit: int | None = None


SOURCES = [
    Source("LibreOffice", "libreoffice-l10n-{libreoffice}", marker="~_"),
    Source("Kate", "kate5-data", marker="&", split="test-kate"),
    Source("Firefox", "firefox-esr-l10n-{mozilla} firefox-esr", "mozilla"),
    Source("Thunderbird", "thunderbird-l10n-{mozilla} thunderbird firefox-esr", "thunderbird", "", "test-thunderbird"),
    Source("LibreOffice help", "libreoffice-help-{libreoffice} libreoffice-help-en-us", "help"),
    Source("LibreOffice commands", "libreoffice-l10n-{libreoffice} libreoffice-common", "registry", "~"),
    Source("Chromium", "chromium-l10n chromium-common", "pak", "&"),
    Source("Derby", "libderby-java", "bundles"),
    Source("Tomcat", "libtomcat10-java", "bundles"),
    Source("iso-codes", "iso-codes", limit=1500),  # names of languages and regions
    Source("KUnitConversion", "libkf5unitconversion-data", limit=500),
]
GTK = """
    accerciser alacarte audacious audacious-plugins-data evolution-common evolution-data-server-common evolution-ews
    fontforge-common gconf2-common gcr geary gftp-common gmtp gnome-bluetooth-3-common gnome-bluetooth-common
    gnome-boxes gnome-sound-recorder gobby gummi ibus-data ibus-table icewm-common libadwaita-1-0 libamtk-5-common
    libepc-common libgda-5.0-common libgladeui-common libgoa-1.0-common libgranite-7-common libgranite-common
    libgspell-1-common libgtk-3-common libgtk-4-common libgtksourceview-4-common libpanel-common libshumate-common
    libsugarext-data libtepl-common libwebkitgtk-6.0-4 libwnck-3-common libxfce4ui-common lybniz malcontent orca
    package-update-indicator pitivi policykit-1-gnome shotwell-common thunar-archive-plugin tilix-common uget zathura
"""
KDE = """
    accountwizard aegisub-l10n akonadi-contacts-data akonadi-mime-data alkimia-data boinc-manager classified-ads elisa
    fcitx5-chinese-addons-data heaptrack-gui k4dirstat kde-config-cddb kde-style-oxygen-qt5 kde-telepathy-auth-handler
    kde-telepathy-contact-list kde-telepathy-integration-module kdepim-runtime kexi-data kf5-messagelib-data
    khotkeys-data kio kmix kolourpaint kpartloader ktexteditor-data kuiviewer kwin-decoration-oxygen libfcitx5-qt-data
    libkf5akonadi-data libkf5akonadicalendar-data libkf5cddb5 libkf5configwidgets-data libkf5i18n-data
    libkf5identitymanagement5 libkf5incidenceeditor-data libkf5kdelibs4support-data libkf5khtml-data
    libkf5kontactinterface5 libkf5ksieve-data libkf5ldap-data libkf5mailtransport-data libkf5notifyconfig-data
    libkf5parts-data libkf5pimtextedit-data libkf5textwidgets-data libkf5wallet-data libkf5xmlgui-data libokteta-l10n
    marble-data markdownpart milou okteta plasma-integration plasma-nm poedit-common qtcurve-l10n spyder-common sweeper
    wx3.2-i18n
"""
OTHERS = """
    aravis-tools aspell at-spi2-common baloo-kf5 boinc-client bpython brltty calcurse caribou cinnamon-desktop-data
    csound-data cups-common debconf-kde-data dos2unix elogind ephoto exif fcitx-m17n fcitx5-chewing fcitx5-data
    fcitx5-hangul fcitx5-m17n fcitx5-mozc fcitx5-rime flatpak folks-common fwupd gcab glib-networking-common
    gnome-desktop3-data gnome-shell-extension-flypie gnome-shell-extension-gamemode goaccess gphoto2 grilo-plugins-0.3
    gsettings-desktop-schemas gstreamer1.0-plugins-good gvfs-common itinerary jwm kalendar kcolorchooser
    kde-config-mobile-networking kde-config-plymouth kde-config-telepathy-accounts kde-spectacle kde-telepathy-approver
    kde-telepathy-call-ui kde-telepathy-data kde-telepathy-desktop-applets kde-telepathy-filetransfer-handler
    kde-telepathy-send-file kdebugsettings kinit kio-extras-data kio-ldap kirigami-addons-data krb5-locales kross
    libarccommon3v5 libbytesize-common libclutter-1.0-common libcogl-common libcpluff0 libcrack2 libcriterion3
    libdnf2-common libeina1a libendless-0-common libexif-gtk3-5 libexif-gtk5 libexif12 libexplain51 libgdata-common
    libgdk-pixbuf2.0-common libgegl-common libgirara-gtk3-3 libglib2.0-data libgnome-games-support-common
    libgnomekbd-common libgoocanvas-2.0-common libgovirt-common libgpaste-2-common libgpg-error-l10n libgphoto2-l10n
    libgphoto2-port12 libgpod-common libgrilo-0.3-0 libgsf-1-common libgstreamer-plugins-base1.0-0 libgstreamer1.0-0
    libgwenhywfar-data libhandy-1-0 libjson-glib-1.0-common libkdecorations2-5v5 libkf5akonadi-dev-bin
    libkf5akonadisearch-bin libkf5baloowidgets5 libkf5calendarutils5 libkf5contacts-data libkf5declarative-data
    libkf5filemetadata-data libkf5grantleetheme5 libkf5gravatar-data libkf5iconthemes-data libkf5imap-data
    libkf5jsembed-data libkf5kcmutils-data libkf5libkdepim-data libkf5mime-data libkf5newstuff-data libkf5package-data
    libkf5people-data libkf5purpose-bin libkf5sane-data libkf5service-data libkf5su-data libkf5sysguard-data libkf5tnef5
    libkopeninghours1 libkosmindoormap1 libkpimitinerary-data libkpimsmtp-data libksanecore1 libmatekbd-common
    libmypaint-common libnewt0.52 libosinfo-l10n liboxygenstyleconfig5-5 libpam-p11 libpam-pkcs11 libphodav-3.0-common
    libpipewire-0.3-common libpopt0 libquicktime2 libsecret-common libsoup-3.0-common libsoup2.4-common libsylph1
    libuser libvips42 libvirt-l10n libvisual-0.4-0 lifelines login mkdocs msitools music123 neovim-runtime newsboat
    openconnect p11-kit peruse-common php-horde php-horde-alarm php-horde-argv php-horde-auth php-horde-browser
    php-horde-cli php-horde-compress php-horde-core php-horde-crypt php-horde-data php-horde-date php-horde-form
    php-horde-idna php-horde-image php-horde-imap-client php-horde-ingo php-horde-itip php-horde-kolab-storage
    php-horde-listheaders php-horde-logintasks php-horde-mime php-horde-mime-viewer php-horde-mnemo php-horde-nls
    php-horde-perms php-horde-prefs php-horde-rpc php-horde-service-weather php-horde-timeobjects php-horde-token
    php-horde-trean php-horde-turba php-horde-vfs php-horde-whups plasma-framework plasma-pa plasma-pass
    plasma-runner-telepathy-contact polkitd postgresql-15 postgresql-client-15 procps pulseaudio python3-ase
    python3-ceilometer python3-django python3-django-adminsortable python3-django-allauth python3-django-captcha
    python3-django-celery-beat python3-django-constance python3-django-contact-form python3-django-contrib-comments
    python3-django-crispy-forms-foundation python3-django-debug-toolbar python3-django-extensions python3-django-filters
    python3-django-formtools python3-django-fsm-admin python3-django-horizon python3-django-import-export
    python3-django-markupfield python3-django-model-utils python3-django-mptt python3-django-q python3-django-recurrence
    python3-django-registration python3-django-reversion python3-django-simple-history python3-django-sitetree
    python3-django-taggit python3-django-treebeard python3-djangorestframework python3-djoser python3-formencode
    python3-freezer-web-ui python3-heat python3-heat-dashboard python3-keystone python3-magnum-ui python3-manila-ui
    python3-murano-dashboard python3-neutron python3-neutron-vpnaas-dashboard python3-nova python3-octavia-dashboard
    python3-plumbum python3-sahara python3-senlin python3-senlin-dashboard python3-sphinx-book-theme
    python3-sphinx-rtd-theme python3-sphinxcontrib.applehelp python3-sphinxcontrib.htmlhelp python3-spyder-unittest
    python3-swift python3-translationstring python3-wtforms r-cran-pkgdown realmd rygel shaarli simplesamlphp
    sphinx-common spice-client-gtk subversion sudo sugar-jukebox-activity swirc syncevolution-common
    system-tools-backends systemd terminology-data tin usermetricsservice xapps-common xdg-desktop-portal
    xdg-desktop-portal-kde xkb-data
"""
SOURCES += [Source(name, name, marker="_") for name in GTK.split()]
SOURCES += [Source(name, name, marker="&") for name in KDE.split()]
SOURCES += [Source(name, name) for name in OTHERS.split()]
# Packages whose copyright file is free text: the licence, and the sentence in it that says so.
FREE_TEXT = {
    "evolution-common": ("LGPL-2 or LGPL-3", "Evolution is licensed under the LGPLv2 or LGPLv3 license"),
    "evolution-data-server-common": ("LGPL-2+", "License can be found in /usr/share/common-licenses/LGPL-2."),
    "evolution-ews": ("LGPL-2.1", "Public License can be found in `/usr/share/common-licenses/LGPL-2.1'"),
    "krb5-locales": (
        "BSD-2-clause (MIT Kerberos)",
        "Redistribution and use in source and binary forms, with or without",
    ),
    "tin": ("BSD-3-clause", "Redistribution and use in source and binary forms, with or without"),
    "lifelines": ("MIT", "Permission is hereby granted, free of charge, to any person obtaining"),
    "brltty": ("LGPL-2.1+", "Public License can be found in `/usr/share/common-licenses/LGPL-2.1'"),
    "icewm-common": ("LGPL-2", "This software is released under the GNU Lesser General Public Licence"),
    "pitivi": ("LGPL-2.1+", "Public License can be found in `/usr/share/common-licenses/LGPL-2.1'"),
    "gconf2-common": ("LGPL-2+", "Public License can be found in `/usr/share/common-licenses/LGPL-2'"),
    "libgstreamer1.0-0": ("LGPL-2+", "License: LGPL-2+"),
    "libgstreamer-plugins-base1.0-0": ("LGPL-2+", "License: LGPL-2+"),
    "gstreamer1.0-plugins-good": ("LGPL-2+", "License: LGPL-2+"),
    "libquicktime2": ("LGPL-2.1+", "can be found in `/usr/share/common-licenses/LGPL-2.1'"),
    "libgwenhywfar-data": ("LGPL", "Gwenhywfar is licensed under the GNU LGPL"),
    "simplesamlphp": ("LGPL-2.1", "SimpleSAMLphp is licensed under the GNU Lesser General Public License"),
    "libgtksourceview-4-common": ("LGPL-2.1+", "Public License can be found in `/usr/share/common-licenses/LGPL-2.1'"),
    "xkb-data": ("MIT", "Permission is hereby granted, free of charge, to any person obtaining"),
}


def names_of(source, language):
    """The packages of a source for a language."""
    codes = {kind: codes.get(language, language) for kind, codes in CODES.items()}
    return source.packages.format(**codes).split()


def details_of(name, cache):
    """Version and licences of a package in the cache, or None if it is not there or lacks some files."""
    folder = cache / "files" / name
    details = json.loads((folder / "package.json").read_text()) if (folder / "package.json").exists() else {}
    if details.get("kept") != KEPT.pattern:
        return None
    copyrights = [path.read_text(errors="replace") for path in folder.glob("usr/share/doc/*/copyright")]
    licences = dict.fromkeys(licence for text in copyrights for licence in licences_of(text, name))
    return {"version": details["version"], "licences": list(licences)}


def fetch(names, cache):
    """Downloads the packages that the cache lacks and keeps their translations in it."""
    missing = [name for name in names if not details_of(name, cache)]
    if not missing:
        return
    for program in ("apt-get", "apt-cache", "dpkg-deb"):
        if not shutil.which(program):
            raise UserError(f"the corpus must be made on Debian or in a container of it. Received: no {program}")
    shown = _run("apt-cache", "show", "--no-all-versions", *missing).stdout
    known = [name for name in missing if f"Package: {name}\n" in shown or _debs(name, cache)]
    if unknown := sorted(set(missing) - set(known)):
        print("left out, since apt does not know them (does `apt-get update` help?):", *unknown)
    with Progress(len(known), "downloading", "package") as bar:
        for start in range(0, len(known), BATCH):
            _download(known[start : start + BATCH], cache)
            bar.add(len(known[start : start + BATCH]))


def _debs(name, cache):
    """What was downloaded of a package, the newest last."""
    return sorted((cache / "debs").glob(f"{name}_*.deb"), key=lambda path: path.stat().st_mtime)


def _download(names, cache):
    (cache / "debs").mkdir(parents=True, exist_ok=True)
    absent = [name for name in names if not _debs(name, cache)]
    run = _run("apt-get", "download", *absent, folder=cache / "debs") if absent else None
    if run and run.returncode:
        raise UserError(f"apt-get must be able to download packages. Received: {run.stderr.strip()[-500:]}")
    for name in names:
        *_, deb = _debs(name, cache)
        unpack(deb, cache / "files" / name)
        deb.unlink()


def _run(*command, folder=None):
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


def unpack(deb, folder):
    """Unpacks the translations and the licence of a package into a folder, completely or not at all."""
    new = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    process = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE)
    with process, tarfile.open(fileobj=process.stdout, mode="r|") as archive:
        for member in archive:
            if member.isfile() and KEPT.fullmatch(member.name):
                archive.extract(member, new, filter="data")
    if process.returncode:
        raise UserError(f"a package must be complete: delete it and run this again. Received: {deb}")
    version = _run("dpkg-deb", "--field", str(deb), "Version").stdout.strip()
    (new / "package.json").write_text(json.dumps({"version": version, "kept": KEPT.pattern}))
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)


def licences_of(text, package=""):
    """The licences that Debian's copyright file gives for the whole package, or for its translations."""
    licence, sentence = FREE_TEXT.get(package, ("", ""))
    if licence:
        return [licence] if sentence in text else []
    found = []
    for stanza in re.split(r"\n\s*\n", text):
        names = re.search(r"^Files:(.*(?:\n[ \t]+.*)*)", stanza, re.MULTILINE)
        licence = re.search(r"^License:[ \t]*(.+)", stanza, re.MULTILINE)
        if names and licence and any(map(TRANSLATIONS.fullmatch, re.split(r"[\s,]+", names[1]))):
            found.append(licence[1].strip())
    return found


def is_permitted(licence):
    """Whether a licence is permissive or weak copyleft, or offers such a choice.

    >>> is_permitted("MPL-1.1 or GPL-2"), is_permitted("LGPL-2+ and GPL-2+")
    (True, False)
    """
    choices = [re.split(r"\s+and\s+|[,;]\s*", choice) for choice in re.split(r"(?i)\s+or\s+|\s*\|\s*", licence)]
    return any(all(PERMITTED.search(part) and not NOT_PERMITTED.search(part) for part in parts) for parts in choices)


def is_usable(source, languages, cache, with_gpl=False):
    """Whether the packages of a source are there and their licences permit it; says so if not."""
    names = dict.fromkeys(name for language in languages for name in names_of(source, language))
    details = [found for name in names if (found := details_of(name, cache))]
    refused = [found for found in details if not (found["licences"] and all(map(is_permitted, found["licences"])))]
    if refused and not with_gpl:
        print(f"left out by its licence: {source.application}", *refused[0]["licences"], sep=", ")
    return bool(details) and (with_gpl or not refused)
