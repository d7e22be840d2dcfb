import random

import pytest
from conftest import once, refused

from keras_tfm.text import masking, train_tokenizer
from keras_tfm.text.masking import mask, mask_pair

pytestmark = once
PARTS = ["%s", "%1$d", "{name}", "${x}", "$object$", "%PRODUCTNAME", "<b>", "</b>", "&amp;", "https://a.b/c?d=%20"]
WORDS = ["open", "the", "file", "100 %", "a_b", "3 < 4", "x@y", "ü", "日本", "⟦1⟧", ">>de<<"]


def random_texts(count=300):
    rng = random.Random(1)
    for _ in range(count):
        yield " ".join(rng.choice(PARTS + WORDS) for _ in range(rng.randint(1, 14)))


def test_a_copy_of_the_masked_text_is_restored_to_the_source():
    for text in random_texts():
        masked = mask(text, 16)
        assert masked.restore(masked.text) == (text, "")


def test_nothing_that_is_protected_stays_in_a_masked_text():
    for text in random_texts():
        rest = masking.SLOT.sub("", mask(text, 16).text)
        assert not any(part in rest for part in [*PARTS, "⟦", ">>"])


def test_any_order_is_restored_unless_it_changes_the_meaning():
    assert mask("{a} of {b}", 16).restore("⟦2⟧: ⟦1⟧") == ("{b}: {a}", "")
    assert mask("%1$s of %2$d", 16).restore("⟦2⟧: ⟦1⟧") == ("%2$d: %1$s", "")
    assert mask("%s of %d", 16).restore("⟦2⟧: ⟦1⟧").problem  # printf counts them
    assert mask("Press <b>OK</b>", 16).restore("⟦2⟧OK⟦1⟧").problem


@pytest.mark.parametrize("answer", ["Löschen", "⟦1⟧ ⟦1⟧", "⟦1⟧ ⟦2⟧ %d", "$x$ ⟦1⟧", "⟦1⟧ <i>"])
def test_what_is_missing_repeated_or_invented_is_a_problem(answer):
    masked = mask("Delete %s", 16)
    assert masked.restore("⟦1⟧ löschen") == ("%s löschen", "")
    assert masked.restore(answer).problem


def test_a_text_with_too_many_parts_is_left_as_it_is():
    text = "{a} " * 17
    assert mask(text, 17).text != text == mask(text, 16).text
    assert mask("Delete %s", 0).restore("Löschen").problem and not mask("Delete %s", 0).restore("%s weg").problem


def test_both_sides_of_a_pair_have_the_same_slots():
    for text in random_texts():
        words = text.split(" ")
        random.Random(2).shuffle(words)
        source, target = mask_pair(text, " ".join(words), 16)
        assert sorted(source.split()) == sorted(target.split())
    assert mask_pair("%s and %s", "%s und %s", 16) == ("⟦1⟧ and ⟦2⟧", "⟦1⟧ und ⟦2⟧")
    assert mask_pair("%s", "%d", 16) is None and mask_pair("%s %s", "%s %s", 1) is None


def test_terms_of_a_glossary_are_whole_words_outside_of_what_is_protected():
    glossary = masking.check_glossary({"file": "Akte", "file system": "Dateisystem"}, 16)
    assert mask("The file", 16, glossary).restore("Die ⟦1⟧") == ("Die Akte", "")
    assert mask("File", 16, glossary).restore("⟦1⟧") == ("Akte", "")
    assert mask("file system", 16, glossary).replacements == ("Dateisystem",)
    assert mask("profile {file} files", 16, glossary).replacements == ("{file}",)
    for wrong in ({"": "x"}, {"a": 1}, ["a"], "a"):
        with refused("glossary"):
            masking.check_glossary(wrong, 16)
    with refused("glossary"):
        masking.check_glossary({"file": "Akte"}, 0)


def test_characters_that_a_tokenizer_has_not_seen_are_copied():
    tokenizer = train_tokenizer(["a text of letters, ünd more"] * 20, vocab_size=300, symbols=masking.slots(4))
    assert mask("a μm μs 🙂🙂 text", 16, unseen=tokenizer.unseen_characters).text == "a ⟦1⟧m ⟦2⟧s ⟦3⟧ text"
    assert mask("ünd {x}", 16, unseen=tokenizer.unseen_characters).text == "ünd ⟦1⟧"
    assert mask("μ ξ {x}", 2, unseen=tokenizer.unseen_characters).text == "μ ξ ⟦1⟧"  # what must be kept comes first


def test_languages_are_those_that_the_model_knows():
    assert masking.tags(["de", "fr"], "fr", 2) == [">>fr<<"] * 2 and masking.tags(["de"], None, 2) == ["", ""]
    assert masking.tags(["de", "fr"], ["fr", "de"], 2) == [">>fr<<", ">>de<<"]
    assert masking.tags(["de", "pt-BR"], ["de_DE", "DE", "pt_br"], 3) == [">>de<<", ">>de<<", ">>pt-BR<<"]
    for languages, wrong in ((["de"], "fr"), ([], "de"), (["de"], ["de"])):
        with refused("target_language"):
            masking.tags(languages, wrong, 2)
