"""The requests of TensorFlow Serving's REST API, for a signature with one input, `texts`, and one output.

By rows, answered with `predictions`:

    {"instances": ["a text", …]}
    {"instances": [{"texts": "a text"}, …]}

or by columns, answered with `outputs`:

    {"inputs": ["a text", …]}
    {"inputs": {"texts": ["a text", …]}}

Instead of "a text", {"b64": "YSB0ZXh0"} is the same in base64.
"""

import base64
import json
import unicodedata

from keras_tfm.serving.bodies import RULE, Pacer, parse
from keras_tfm.serving.responses import RequestError
from keras_tfm.text.base import LINE_END, SENTENCE_END

INPUT = "texts"
KEYS = {"instances": "predictions", "inputs": "outputs"}  # of a request → of its response
ESCAPED_CHARACTER = 12  # maximum bytes of a character in JSON, as two escapes: "\ud83d\ude42"
OVERHEAD = 128  # bytes of JSON around a text


def largest_body(max_texts, max_characters):
    """Maximum bytes of a request within the limits, however its JSON is formatted and escaped."""
    return (ESCAPED_CHARACTER * max_characters + OVERHEAD) * max_texts + 1024


async def read_prediction(body, lock, max_texts, max_characters, max_length):
    """The texts of a request, their numbers of sentences, and the key of the response.

    For `lock`, see `Pacer`; for `max_length`, `count_sentences`.
    """
    pause, max_bytes = Pacer(lock), max(ESCAPED_CHARACTER * max_characters + 2, 1024)
    name, values = _values(await parse(body, pause, 8 * max_texts + 64, max_bytes))
    if len(values) > max_texts:
        raise RequestError(413, f"`{name}` must be at most {max_texts} strings. Received: {len(values)}")
    texts, sentences = [], []
    for value in values:
        text = _text(value, name, values)
        if len(text) > max_characters:
            rule = f"`{name}` must be strings of at most {max_characters} characters"
            raise RequestError(413, f"{rule}. Received: {len(text)}")
        texts.append(text)
        sentences.append(count_sentences(text, max_length))
        await pause()
    if sum(sentences) > max_texts:
        rule = f"`{name}` must be at most {max_texts} lines, or sentences of lines of {max_length} or more bytes"
        raise RequestError(413, f"{rule}. Received: {sum(sentences)}")
    return texts, sentences, KEYS[name]


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
    if name == "instances" and isinstance(text, dict) and [*text] == [INPUT]:
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


def count_sentences(text, max_length):
    """Maximum number of sentences that a text is translated as.

    Args:
        text: a string.
        max_length: number of tokens from which a `Translator` splits a line into sentences; None for exports, which
            never split.

    >>> count_sentences("one line\\n another. With two sentences.", 512), count_sentences("One. Two.", 5)
    (2, 2)
    """
    if max_length is None:
        return 1
    total = 0
    for line in LINE_END.split(text.removesuffix("\n")):
        # A token has at least a byte of the line, or of its normalized form; two more mark the beginning and the end.
        max_tokens = 2 + max(len(form.encode()) for form in (line, unicodedata.normalize("NFKC", line)))
        total += len(SENTENCE_END.split(line)) if max_tokens > max_length else 1
    return total
