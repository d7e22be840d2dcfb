"""Messages of ICU in documents."""

import json

import pytest
from conftest import once
from shouting import Shouting

from keras_tfm.documents import FORMATS, translate_document

pytestmark = once


def translated(message, language="de"):
    document = FORMATS[".json"](json.dumps({"a": message}).encode(), "app.json", language)
    result = translate_document(Shouting(), document)
    return json.loads(result.content)["a"], result.problems


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("{n, plural, one {# file} other {# files}}", "{n, plural, one {# FILE} other {# FILES}}"),
        (
            "Open {n,plural,=0{nothing}other{# of {max, number}}}. Now!",
            "{n,plural, =0 {OPEN NOTHING. NOW!} one {OPEN # OF {max, number}. NOW!}"
            " other {OPEN # OF {max, number}. NOW!}}",
        ),
        (
            "{who, select, me {You} other {{name}}} left #1",
            "{who, select, me {YOU LEFT #1} other {{name} LEFT #1}}",
        ),
        (
            "{a, plural, other {# cats}} and {b, plural, other {# dogs}}",
            "{a, plural, one {{b, plural, one {{a, number} CATS AND # DOGS} other {{a, number} CATS AND # DOGS}}}"
            " other {{b, plural, one {{a, number} CATS AND # DOGS} other {{a, number} CATS AND # DOGS}}}}",
        ),
    ],
)
def test_each_case_is_translated_as_a_whole_text(message, expected):
    assert translated(message) == (expected, [])


@pytest.mark.parametrize(
    ("language", "selectors"),
    [("ja", ["one", "other"]), ("pl", ["one", "few", "many", "other"]), ("xx", ["one", "other"])],
)
def test_a_translation_has_the_cases_of_its_language(language, selectors):
    text, problems = translated("{n, plural, one {# file} other {# files}}", language)
    forms = {"one": "# FILE"}
    assert text == "{n, plural, " + " ".join(f"{each} {{{forms.get(each, '# FILES')}}}" for each in selectors) + "}"
    assert not problems


def test_one_is_for_1_alone_if_its_text_has_no_number():
    text, _ = translated("{n, plural, one {a file} other {# files}}", "ru")
    assert text == "{n, plural, =1 {A FILE} one {# FILES} few {# FILES} many {# FILES} other {# FILES}}"


def test_a_case_for_1_alone_is_also_that_of_one_where_this_means_the_same():
    message = "{n, plural, =1 {a file} other {# files}}"
    assert translated(message)[0] == "{n, plural, =1 {A FILE} one {A FILE} other {# FILES}}"
    assert translated(message, "ru")[0].startswith("{n, plural, =1 {A FILE} one {# FILES} few")


def test_a_message_that_an_attribute_quotes_is_part_of_its_tag():
    text = 'Updated <x id="ICU" equiv-text="{n, plural, one {a} other {b}}"/> ago'
    assert translated(text) == (text.replace("Updated", "UPDATED").replace("ago", "AGO"), [])


@pytest.mark.parametrize(
    "message",
    [
        "{n, plural, one {a '{'file} other {b}}",
        "{n, plural, one a other {b}}",
        "{n, plural, }",
        "No. # {n, plural, one {# a} other {# b}}",
        "There {0,choice,0#are no files|1#is one file}.",
        "{n, plural, offset:1 one {# a} other {# b}} in {m, plural, other {#}}",
    ],
)
def test_a_message_that_cannot_be_read_stays_and_is_reported(message):
    text, problems = translated(message)
    assert text == message and len(problems) == 1


def test_a_case_that_loses_a_placeholder_is_reported():
    message = "{n, plural, one {mislay {name}} other {keep {name}}}"
    text, problems = translated(message)
    assert text == message and problems[0].reason == "lacks {name}"


def test_quoted_braces_stay():
    assert translated("Use '{name}' or '{'x'}' for {user}") == ("USE '{name}' OR '{'X'}' FOR {user}", [])
