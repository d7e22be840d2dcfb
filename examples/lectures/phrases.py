"""The language of the lecture on beam search: lists of nouns, in English and in German with articles."""

import numpy as np

NOUNS = """picture Aufnahme Bild Foto; road Straße Weg Pfad; job Arbeit Beruf Posten; shop Filiale Laden Geschäft;
coat Jacke Mantel Anorak; bag Tasche Beutel Sack; trip Reise Ausflug Trip; cup Tasse Becher Pott"""
NOUNS = [entry.split() for entry in NOUNS.split(";")]  # the first translation takes "eine", the others "ein"
LONGEST = 5  # nouns in a sentence
START, END, EIN, EINE, GERMAN = 1, 2, 3, 4, 5
ENGLISH, MAX = GERMAN + 3 * len(NOUNS), 2 * LONGEST + 1
WORDS = ["–", "–", "■", "ein", "eine", *(word for _, *words in NOUNS for word in words), *(noun for noun, *_ in NOUNS)]


def data(count, seed, missing, lengths=range(1, LONGEST + 1)):
    """Sentences such as "picture cup", and "eine Aufnahme ein Becher"; a share of the latter is missing.

    A noun has its first translation in 45 % of cases, each of the others in 27.5 %.
    """
    rng = np.random.default_rng(seed)
    nouns, places = rng.integers(0, len(NOUNS), (count, LONGEST)), np.arange(LONGEST)
    chosen, length = rng.choice(3, (count, LONGEST), p=[0.45, 0.275, 0.275]), rng.choice(lengths, (count, 1))
    pairs = np.stack([np.where(chosen, EIN, EINE), GERMAN + 3 * nouns + chosen], axis=2).reshape(count, -1)
    end = 2 * length * (rng.random((count, 1)) >= missing)
    target = np.where(np.arange(MAX) < end, np.pad(pairs, ((0, 0), (0, 1))), (np.arange(MAX) == end) * END)
    source = np.pad(np.where(places < length, ENGLISH + nouns, 0), ((0, 0), (0, 1)))
    source[np.arange(count), length[:, 0]] = END
    return {"source": source, "target": np.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=START)}, target


def read_back(written):
    """The sources that these translations are right for: ids of English nouns, 0 for what is no translation."""
    article, word = np.pad(written, ((0, 0), (0, 1))).reshape(len(written), -1, 2).transpose(2, 0, 1)
    noun, choice = np.divmod(word - GERMAN, 3)
    agrees = (word >= GERMAN) & (word < ENGLISH) & (article == np.where(choice, EIN, EINE))
    return np.where(agrees, ENGLISH + noun, np.where(article == END, END, 0))
