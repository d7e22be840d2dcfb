"""What the page must keep in translations, found, masked and put back by JavaScript, against Python."""

import json
import pathlib
import random
import re
import shutil
import subprocess

import pytest
from conftest import BYTES, once
from test_masking import PARTS
from test_masking import WORDS as PLAIN
from test_protected import WORDS

from keras_tfm.export import javascript
from keras_tfm.text import masking, train_tokenizer

PAGE = pathlib.Path(__file__).parents[2] / "keras_tfm/export/page"
NODE = pytest.mark.skipif(not shutil.which("node"), reason="Node.js is not installed: protected.js cannot run")
pytestmark = once
MOST = 8  # slots
KNOWN = "abcdefghijklmnopqrstuvwxyzAZ09_%$#{}<>/&;:@.'\"()[]-^\\+~ !?=,é日"  # to a tokenizer
LETTERS = [
    *"aZ09_%$#{}<>/&;:@.'\"()[]-+ !?=,\t\n\r\x0b\x1c\x85\xa0\ufeffé日🙂⟦⟧١²",
    "<code>",
    "</code>",
    "%s",
    "http://",
    ">>",
]

# Reads expressions, texts and pairs of a text and its translation; offsets count characters, as in Python.
PROGRAM = """
import { readFileSync } from "node:fs";
import { Protection } from "PROTECTED";
const { expressions, maxSlots, texts, pairs } = JSON.parse(readFileSync(0, "utf-8"));
const protection = new Protection(expressions, maxSlots);
const place = (text, end) => [...text.slice(0, end)].length;
const spansOf = (text) => protection.spans(text, protection.unseen);
const places = (text) => spansOf(text).map(({ start, end }) => [place(text, start), place(text, end)]);
const spans = texts.map(places);
const masked = texts.map((text) => protection.mask(text)).map(({ text, replacements }) => [text, replacements]);
const restored = pairs.map(([text, translation]) => protection.restore(protection.mask(text), translation));
console.log(JSON.stringify({ spans, masked, restored: restored.map(({ text, problem }) => [text, problem]) }));
"""


def texts():
    """Texts of software, and nonsense made of the characters that matter, some thousand in all."""
    rng, parts = random.Random(0), [*PARTS, *PLAIN, *WORDS.split(), "{n, plural, one {# file} other {{n} files}}"]
    real = [rng.choice(["", " "]).join(rng.choices(parts, k=rng.randint(1, 12))) for _ in range(1000)]
    return [*parts, *real, *("".join(rng.choices(LETTERS, k=rng.randint(1, 25))) for _ in range(3000))]


def pairs(masked):
    """Each text with what a model might make of it: slots in another order, lost, repeated or invented."""
    rng = random.Random(1)
    for text in masked:
        words = re.split(r"(⟦\d+⟧)", text.text)
        changed = rng.choice([words, words[:-1], [*words, "⟦1⟧"], rng.sample(words, len(words))])
        yield text.source, "".join(changed) + rng.choice(["", "", "", "⟦01⟧", "⟦0⟧", "⟦99⟧", "%d", "<b>", "</i>"])


@NODE
@pytest.mark.parametrize("tokenizer", [BYTES, train_tokenizer([KNOWN] * 9, "char", 400)], ids=["bytes", "characters"])
def test_javascript_keeps_what_python_keeps(tokenizer):
    strings, unseen = texts(), tokenizer.unseen_characters
    masked = [masking.mask(text, MOST, unseen=unseen) for text in strings]
    both, expressions = list(pairs(masked)), javascript.expressions(tokenizer)
    assert ("unseen" in expressions) == (tokenizer is not BYTES)
    request = {"expressions": expressions, "maxSlots": MOST, "texts": strings, "pairs": both}
    program = PROGRAM.replace("PROTECTED", (PAGE / "protected.js").as_uri())
    command = ["node", "--input-type=module", "--eval", program]
    run = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    actual = json.loads(run.stdout)
    expected = [[[span.start, span.end] for span in masking._spans(text, unseen=unseen)] for text in strings]
    assert sum(map(len, expected)) > 3000
    assert_same(strings, expected, actual["spans"])
    assert_same(strings, [[each.text, [*each.replacements]] for each in masked], actual["masked"])
    restored = [[*each.restore(translation)] for each, (_, translation) in zip(masked, both, strict=True)]
    assert 500 < sum(bool(problem) for _, problem in restored) < len(restored) - 500
    assert_same(both, restored, actual["restored"])


def assert_same(inputs, expected, actual):
    wrong = [each for each in zip(inputs, expected, actual, strict=True) if each[1] != each[2]]
    assert not wrong, (len(wrong), wrong[:3])


def test_a_pattern_that_javascript_would_match_otherwise_is_refused():
    with pytest.raises(ValueError, match="re.ASCII"):
        javascript.expression(re.compile(r"\w"))
