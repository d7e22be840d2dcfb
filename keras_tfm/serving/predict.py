"""The requests of TensorFlow Serving's REST API, for a signature with one input, `texts`, and one output.

By rows, answered with `predictions`:

    {"instances": ["a text", …]}
    {"instances": [{"texts": "a text"}, …]}

or by columns, answered with `outputs`:

    {"inputs": ["a text", …]}
    {"inputs": {"texts": ["a text", …]}}

Instead of "a text", {"b64": "YSB0ZXh0"} is the same in base64.

Besides these keys, "target_language": "de" selects the target language of a multilingual model. By rows, each text may
have its own, {"texts": "a text", "target_language": "de"}; or a text begins with its tag, ">>de<<a text".
"""

import base64
import json
from typing import NamedTuple

from keras_tfm.serving.bodies import RULE, Pacer, parse
from keras_tfm.serving.responses import RequestError
from keras_tfm.text.base import LINE_END, SENTENCE_END, max_tokens
from keras_tfm.text.masking import split_tag
from keras_tfm.text.translating import LONG_LINE, SPACE

INPUT, LANGUAGE = "texts", "target_language"
KEYS = {"instances": "predictions", "inputs": "outputs"}  # of a request → of its response
ESCAPED_CHARACTER = 12  # maximum bytes of a character in JSON, as two escapes: "\ud83d\ude42"
OVERHEAD = 192  # bytes of JSON around a text


class Model(NamedTuple):
    """What the server has to know of the model that its workers hold."""

    origin: str = ""  # which state of an unfinished run it is
    max_length: int | None = None  # see `count_sentences`
    languages: tuple[str, ...] = ()  # target languages of a multilingual model
    target_language: str | None = None  # the language of texts that name none
    placeholders: bool = False  # whether it keeps them: then exports split texts, too


class Prediction(NamedTuple):
    """What a request asks for: its texts, each with the tag of its language, if the model has several."""

    texts: list[str]
    sentences: list[int]  # number of sentences of each text, as the model translates it
    characters: int  # of the client, without tags that the server has added
    key: str  # of the response


def largest_body(max_texts, max_characters):
    """Maximum bytes of a request within the limits, however its JSON is formatted and escaped."""
    return (ESCAPED_CHARACTER * max_characters + OVERHEAD) * max_texts + 1024


async def read_prediction(body, lock, max_texts, max_characters, model):
    """The `Prediction` that a request asks of a `Model`; for `lock`, see `Pacer`."""
    pause, max_bytes = Pacer(lock), max(ESCAPED_CHARACTER * max_characters + 2, 1024)
    request = await parse(body, pause, 8 * max_texts + 64, max_bytes)
    name, values = _values(request)
    if len(values) > max_texts:
        raise RequestError(413, f"`{name}` must be at most {max_texts} strings. Received: {len(values)}")
    language = _language(request, model)
    # each line or sentence has a tag, which is one token
    max_length = model.max_length and model.max_length - bool(model.languages)
    texts, sentences, characters = [], [], 0
    for value in values:
        text = _text(value, name, values)
        if len(text) > max_characters:
            rule = f"`{name}` must be strings of at most {max_characters} characters"
            raise RequestError(413, f"{rule}. Received: {len(text)}")
        characters += len(text)
        sentences.append(count_sentences(text, max_length, model.placeholders))
        texts.append(_tagged(text, _language(value, model) or language, model))
        await pause()
    if sum(sentences) > max_texts:
        rule = f"`{name}` must be at most {max_texts} lines, or sentences of lines of {max_length} or more bytes"
        raise RequestError(413, f"{rule}. Received: {sum(sentences)}")
    return Prediction(texts, sentences, characters, KEYS[name])


def _values(request):
    """The name and the values of the input of a request."""
    if not isinstance(request, dict):
        raise RequestError(422, f"{RULE}. Received: {shortened(request)}")
    signature = request.get("signature_name", "serving_default")
    if signature != "serving_default":
        rule = "`signature_name` must be serving_default; other signatures need TensorFlow Serving and a SavedModel"
        raise RequestError(422, f"{rule}. Received: {shortened(signature)}")
    names = [name for name in KEYS if name in request]
    if len(names) == 2:
        raise RequestError(422, "`instances` or `inputs` must be given. Received: both")
    name = names[0] if names else "instances"
    values = request.get(name)
    if name == "inputs" and isinstance(values, dict) and [*values] == [INPUT]:
        values = values[INPUT]
    if not isinstance(values, list) or not values:
        received = f"no {name}" if values is None else shortened(values)
        raise RequestError(422, f"`{name}` must be a list of one or more strings. Received: {received}")
    return name, values


def _text(value, name, values):
    """The text that one of these values stands for."""
    text = value
    if name == "instances" and isinstance(text, dict) and {*text} - {LANGUAGE} == {INPUT}:
        text = text[INPUT]
    if isinstance(text, dict) and [*text] == ["b64"] and isinstance(text["b64"], str):
        try:
            text = base64.b64decode(text["b64"], validate=True).decode("utf-8", "replace")
        except ValueError:
            raise RequestError(422, f"`b64` must be base64. Received: {shortened(text['b64'])}") from None
    if not isinstance(text, str):
        also = f', or of objects {{"{INPUT}": "a text"}}' if isinstance(value, dict) else ""
        raise RequestError(422, f"`{name}` must be a list of one or more strings{also}. Received: {shortened(values)}")
    return text.encode("utf-8", "replace").decode()  # without lone surrogates


def _language(value, model):
    """The language that a request, or one of its values, names; None if it names none."""
    language = value.get(LANGUAGE) if isinstance(value, dict) else None
    if language is None or (isinstance(language, str) and language in model.languages):
        return language
    rule = f"one of {', '.join(model.languages)}" if model.languages else "left out: this model has only one"
    raise RequestError(422, f"`{LANGUAGE}` must be {rule}. Received: {shortened(language)}")


def _tagged(text, language, model):
    """The text with the tag of its language: its own, that of the request, or none if the model has a default."""
    if not model.languages or split_tag(text, model.languages)[0]:
        return text
    if not language and not model.target_language and len(model.languages) > 1:
        raise RequestError(422, f"`{LANGUAGE}` must be one of {', '.join(model.languages)}. Received: none")
    return f">>{language}<<{text}" if language else text


def shortened(value, length=80):
    """The beginning of the JSON of a value, without lone surrogates.

    >>> shortened({"instances": [1] * 1000}, length=20)
    '{"instances": [1, 1, …'
    """
    text = ""
    for part in json.JSONEncoder(ensure_ascii=False).iterencode(value):
        text += part
        if len(text) > length:
            text = f"{text[:length]} …"
            break
    return text.encode("utf-8", "replace").decode()


def count_sentences(text, max_length, placeholders=False):
    """Maximum number of sentences that a text is translated as.

    Args:
        text: a string.
        max_length: number of tokens from which a line is split into sentences; None for exports without placeholders,
            which never split.
        placeholders: whether the model keeps placeholders, see `keras_tfm.text.translating`.

    >>> count_sentences("one line\\n another. With two sentences.", 512), count_sentences("One. Two.", 5)
    (2, 2)
    """
    if max_length is None:
        return 1
    lines = SPACE.split(text.strip())[::2] if placeholders else LINE_END.split(text.removesuffix("\n"))
    total = 0
    for line in lines:
        is_long = max_tokens(line) > max_length or placeholders and len(line) > LONG_LINE
        total += len(SENTENCE_END.split(line)) if is_long else 1
    return total
