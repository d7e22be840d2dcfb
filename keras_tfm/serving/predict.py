"""The requests of TensorFlow Serving's REST API, for a signature with one input, `texts`, and one output.

By rows, answered with `predictions`:

    {"instances": ["a text", …]}
    {"instances": [{"texts": "a text"}, …]}

or by columns, answered with `outputs`:

    {"inputs": ["a text", …]}
    {"inputs": {"texts": ["a text", …]}}

Instead of "a text", {"b64": "YSB0ZXh0"} is the same in base64.
"""

import asyncio
import base64
import time
import unicodedata
from typing import NamedTuple

from keras_tfm.serving.answers import Refused, shortened
from keras_tfm.serving.parsing import BadBody, Parser
from keras_tfm.text.base import LINE_END, SENTENCE_END

INPUT = "texts"
KEYS = {"instances": "predictions", "inputs": "outputs"}  # of a request → of its answer
RULE = 'the body must be a JSON object, {"instances": ["a text", …]}'
LONGEST_CHARACTER = 12  # bytes, as two escapes of JSON: "\ud83d\ude42"
OVERHEAD = 128  # bytes of JSON around a text
STEP = 0.001  # seconds after which others take their turn


class Prediction(NamedTuple):
    """The texts of a request, the number of sentences that each is translated as, and the key of the answer."""

    texts: list
    pieces: list
    key: str


def largest_body(max_texts, max_characters):
    """Maximum bytes of a request within the limits, written as wastefully as JSON allows."""
    return (LONGEST_CHARACTER * max_characters + OVERHEAD) * max_texts + 1024


class Reader:
    """Reads requests a millisecond at a time, and large ones one after the other, so that the others go on."""

    def __init__(self, max_texts, max_characters):
        self.max_texts, self.max_characters, self._turn = max_texts, max_characters, asyncio.Lock()

    async def read(self, body, max_length):
        """The `Prediction` that a body asks for; for `max_length`, see `count_pieces`."""
        steps = self._steps(body, max_length)
        if not (result := _run(steps)):
            async with self._turn:
                while not (result := _run(steps)):
                    await asyncio.sleep(0)
        return result

    def _steps(self, body, max_length):
        """Yields None after each step, and the `Prediction` after the last one."""
        strings = {"max_bytes": max(LONGEST_CHARACTER * self.max_characters + 2, 1024)}
        parser = Parser(body, max_values=8 * self.max_texts + 64, **strings)
        try:
            yield from parser.steps()
        except BadBody as error:
            raise Refused(error.status, f"{RULE}. Received: {error}") from None
        name, values = _values(parser.value)
        if len(values) > self.max_texts:
            raise Refused(413, f"`{name}` must be at most {self.max_texts} strings. Received: {len(values)}")
        texts, pieces = [], []
        for value in values:
            yield
            texts.append(_text(value, name, values))
            if len(texts[-1]) > self.max_characters:
                rule = f"`{name}` must be strings of at most {self.max_characters} characters"
                raise Refused(413, f"{rule}. Received: {len(texts[-1])}")
            pieces.append(count_pieces(texts[-1], max_length))
        if sum(pieces) > self.max_texts:
            rule = (
                f"`{name}` must be at most {self.max_texts} lines, or sentences of lines of {max_length} or more bytes"
            )
            raise Refused(413, f"{rule}. Received: {sum(pieces)}")
        yield Prediction(texts, pieces, KEYS[name])


def _run(steps):
    """Runs steps for a millisecond; returns the result if it is there."""
    end = time.monotonic() + STEP
    return next((result for result in steps if result or time.monotonic() > end), None)


def _values(request):
    """The name and the values of the input of a request."""
    if not isinstance(request, dict):
        raise Refused(422, f"{RULE}. Received: {shortened(request)}")
    signature = request.get("signature_name", "serving_default")
    if signature != "serving_default":
        rule = "`signature_name` must be serving_default; other signatures need TensorFlow Serving and a SavedModel"
        raise Refused(422, f"{rule}. Received: {shortened(signature)}")
    names = [name for name in KEYS if name in request]
    if len(names) == 2:
        raise Refused(422, "`instances` or `inputs` must be given. Received: both")
    name = names[0] if names else "instances"
    values = request.get(name)
    if name == "inputs" and isinstance(values, dict) and [*values] == [INPUT]:
        values = values[INPUT]
    if not isinstance(values, list) or not values:
        received = f"no {name}" if values is None else shortened(values)
        raise Refused(422, f"`{name}` must be a list of one or more strings. Received: {received}")
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
            raise Refused(422, f"`b64` must be base64. Received: {shortened(text['b64'])}") from None
    if not isinstance(text, str):
        also = f', or of objects {{"{INPUT}": "a text"}}' if isinstance(value, dict) else ""
        raise Refused(422, f"`{name}` must be a list of one or more strings{also}. Received: {shortened(values)}")
    return text.encode("utf-8", "replace").decode()  # without halves of surrogate pairs


def count_pieces(text, max_length):
    """How many sentences a text is translated as, at most.

    Args:
        text: a string.
        max_length: number of tokens from which a `Translator` splits a line into sentences; None for exports, which
            split nothing.

    >>> count_pieces("one line\\n another. With two sentences.", 512), count_pieces("One. Two.", 5)
    (2, 2)
    """
    if max_length is None:
        return 1
    lines = LINE_END.split(text.removesuffix("\n"))
    return sum(len(SENTENCE_END.split(line)) if _may_be_longer(line, max_length) else 1 for line in lines)


def _may_be_longer(line, max_length):
    """Whether a line may have so many tokens: one has at least a byte of the line, or of what that is normalized to."""
    return max(len(form.encode()) for form in (line, unicodedata.normalize("NFKC", line))) + 2 > max_length
