"""Draws every tensor of docs/lectures/one-sentence.md with its shape: in training, and training beside decoding.

KERAS_BACKEND=tensorflow python docs/one_sentence_svg.py docs/lectures

The model runs, and the shapes are those of what its layers return.
"""

import contextlib
import pathlib
import sys
from unittest import mock

import keras
import numpy as np
import svg

from keras_tfm import Translator, ops, record_attention
from keras_tfm.layers import MultiHeadAttention

MODEL = pathlib.Path(__file__).parent.parent / "saved_models/software/keras"
SOURCE, TARGET = "The file could not be saved.", "Die Datei konnte nicht gespeichert werden."
START, END, CAPACITY, POSITION = 1, 2, 16, 3  # of the cache, and of the step that is drawn
TEAL, ORANGE, GREY, LINE = "#ccfbf1", "#ffedd5", "#f1f5f9", "#94a3b8"
LOGITS = "logits: x · embeddingsᵀ"
LEGEND = {"new": "new in this call", "kept": "kept from earlier calls", "none": "masked, or still empty"}
CELLS = {"new": "#0d9488", "kept": "#fb923c", "none": "#fff"}
STYLE = ".shape{font:14px ui-monospace,monospace}.code{font:600 14px ui-monospace,monospace;fill:#0f766e}"
STYLE += ".piece{font-size:12px}.id{font:12px ui-monospace,monospace;fill:#475569}.part{font-weight:600;fill:#0f766e}"
STYLE += "path{fill:none;stroke:#475569;stroke-width:1.6}.bracket{stroke:#0f766e}.tip{marker-end:url(#tip)}"
TIP = '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
TIP += '<path d="M0 0L8 4L0 8"/></marker></defs>'


@contextlib.contextmanager
def recorded_shapes():
    """What a model computes in this context: {path: [shape, …]}, of layers, dense layers inside them and attention."""
    shapes = {}
    call, dense, context = keras.Layer.__call__, ops.dense, MultiHeadAttention.context

    def noted(path, output):
        shapes.setdefault(path, []).append(tuple(keras.tree.flatten(output)[0].shape))
        return output

    def noted_dense(x, *layers):
        return [noted(layer.path, y) for layer, y in zip(layers, dense(x, *layers), strict=True)]

    with (
        mock.patch.object(keras.Layer, "__call__", lambda self, *a, **k: noted(self.path, call(self, *a, **k))),
        mock.patch.object(MultiHeadAttention, "context", lambda *a, **k: noted(f"{a[0].path}/heads", context(*a, **k))),
        mock.patch.object(ops, "dense", noted_dense),
        record_attention() as maps,
    ):
        yield shapes
    shapes |= {f"{path}/weights": [calls[0].shape] for path, calls in maps.items()}


class Run:
    """The sentence in training, and decoded step by step."""

    def __init__(self):
        translator = Translator.load(MODEL)
        (self.model,), self.tokenizer = translator.models, translator.source_tokenizer
        self.source, self.target = (self.ids_of(text) for text in (f">>de<<{SOURCE}", TARGET))
        self.shifted = np.array([[START, *self.target[0, :-1]]])
        with recorded_shapes() as self.training:
            embedded = self.model.source_embedding(self.source)
            x = self.model.decoder(self.model.target_embedding(self.shifted), self.model.encoder(embedded))
            logits = self.model.target_embedding(x, reverse=True)
        self.best = ops.convert_to_numpy(ops.argmax(logits, -1))
        with recorded_shapes() as self.prefill:
            cache = self.model.prefill(self.source, max_length=CAPACITY)
        self.token = np.array([[START]])
        for position in range(POSITION + 1):
            self.read = self.token
            with recorded_shapes() as self.step:
                logits, cache = self.model.step(self.read, position, cache)
            self.token = ops.convert_to_numpy(ops.argmax(logits, -1))
        self.cache = cache

    def ids_of(self, text):
        return np.array([[*self.tokenizer.encode([text])[0], END]])

    def pieces(self, ids):
        names = {START: "start", END: "end"}
        return [names.get(i) or self.tokenizer.decode([[i]])[0].strip() for i in ids[0].tolist()]


def main(folder):
    run = Run()
    title = "In training, every tensor from text to text"
    svg.write(folder / "one-sentence.svg", 960, 1100, title, whole_model(run), STYLE)
    title = "Training computes all places at once, decoding one per step"
    svg.write(folder / "one-sentence_2.svg", 940, 1000, title, side_by_side(run), STYLE)


def shape_of(shapes, *paths):
    """The shape that the last outputs of all these paths have."""
    (shape,) = {shapes[path][-1] for path in paths}
    return str(shape)


# ── the whole model ──

LEFT, RIGHT, WIDTH = 62, 508, 390  # where the columns begin, and their width
AXES = {
    "ids": "(batch, tokens)",
    "most tensors": "(batch, tokens, features)",
    "queries, keys, values": "(batch, tokens, heads, features)",
    "weights": "(batch, heads, queries, keys)",
}


def whole_model(run):
    """Two columns that are read from above: the encoder, and the decoder beside it."""
    options, (source, target, logits) = run.model.get_config(), map(str, run.training["embedding"])
    scaled, heads = f"embeddings · √{options['model_dim']}", f"{options['num_heads']} heads"

    def of(*paths):
        return shape_of(run.training, *paths)

    def self_attention(block):
        lines = {"norm": of(f"{block}/attention_residual/norm")}
        lines["queries, keys, values"] = of(*(f"{block}/attention/{name}" for name in ("query", "key", "value")))
        return lines | attended(f"{block}/attention")

    def cross_attention(block):
        lines = {"norm": of(f"{block}/memory_residual/norm"), "queries": of(f"{block}/memory_attention/query")}
        keys_and_values = (f"{block}/memory_attention/{name}" for name in ("key", "value"))
        return lines | {"keys, values of the memory": of(*keys_and_values)} | attended(f"{block}/memory_attention")

    def attended(layer):
        return {"weights": of(f"{layer}/weights"), "weighted values": of(f"{layer}/heads"), "output": of(layer)}

    def feed_forward(block):
        lines = {"norm": "feed_forward_residual/norm", "inside": "feed_forward/inner", "output": "feed_forward"}
        return {name: of(f"{block}/{path}") for name, path in lines.items()}

    encoder = Column(LEFT, -1, "encoder: the source")
    encoder.text(f"“{SOURCE}”")
    encoder.tokens("ids", run.pieces(run.source), run.source)
    encoder.box("", {scaled: source, "+ positions": of("encoder/encoder_positions_0")})
    encoder.part(f"self-attention, {heads}", self_attention("encoder/encoder_0"), ORANGE)
    encoder.part("feed-forward", feed_forward("encoder/encoder_0"), TEAL)
    encoder.bracket(f"× {options['num_layers']} blocks")
    encoder.box("memory", {"norm": of("encoder/encoder_norm")})

    decoder = Column(RIGHT, 1, "decoder: the target, shifted right")
    decoder.text(f"“{TARGET}”")
    decoder.tokens("ids", run.pieces(run.shifted), run.shifted)
    decoder.box("", {scaled: target, "+ positions": of("decoder/decoder_positions_0")})
    decoder.part(f"causal self-attention, {heads}", self_attention("decoder/decoder_0"), ORANGE)
    keys_and_values = decoder.y + 106
    decoder.part(f"cross-attention, {heads}", cross_attention("decoder/decoder_0"), ORANGE)
    decoder.part("feed-forward", feed_forward("decoder/decoder_0"), TEAL)
    decoder.bracket(f"× {options['num_decoder_layers']} blocks")
    decoder.box("", {"norm": of("decoder/decoder_norm"), LOGITS: logits, "softmax": logits})
    decoder.tokens("most probable ids", run.pieces(run.best), run.best)
    decoder.arrow(22)
    decoder.text(f"“{run.tokenizer.decode(run.best[:, :-1])[0]}”")
    yield from (TIP, *encoder.shapes, *decoder.shapes)
    yield path(f"M{LEFT + WIDTH} {encoder.y - 24}h28V{keys_and_values}H{RIGHT - 2}")
    for number, (name, axes) in enumerate(AXES.items()):
        yield svg.text(LEFT, 850 + 46 * number, name, "note start")
        yield svg.text(LEFT, 870 + 46 * number, axes, "shape start")


def path(steps, classes="tip"):
    return f'<path class="{classes}" d="{steps}"/>'


class Column:
    """Boxes from above with arrows between them; side -1 is the left one."""

    def __init__(self, x, side, name):
        self.x, self.side, self.y, self.first = x, side, 86, None
        self.middle, self.edge = x + WIDTH // 2, x if side < 0 else x + WIDTH
        self.shapes = [svg.text(self.middle, 76, name, "part")]

    def text(self, words):
        self.shapes.append(svg.text(self.middle, self.y + 16, words))
        self.y += 24

    def arrow(self, length):
        self.shapes.append(path(f"M{self.middle} {self.y}v{length - 2}"))
        self.y += length

    def frame(self, height, colour=GREY):
        self.shapes.append(svg.rect(self.x, self.y, WIDTH, height, colour, f'rx="8" stroke="{LINE}"'))
        self.y += height

    def line(self, name, shape, y):
        self.shapes.append(svg.text(self.x + 14, y, name, "start"))
        self.shapes.append(svg.text(self.x + WIDTH - 14, y, shape, "shape end"))

    def tokens(self, name, pieces, ids):
        """Pieces side by side, with their ids below."""
        self.arrow(24)
        self.frame(76)
        lengths = np.array([max(len(piece), len(str(i))) + 1.4 for piece, i in zip(pieces, ids[0], strict=True)])
        places = (np.cumsum(lengths) - lengths / 2) * (WIDTH - 12) / sum(lengths) + self.x + 6
        for x, piece, i in zip(places.round(), pieces, ids[0], strict=True):
            self.shapes += [svg.text(x, self.y - 54, piece, "piece"), svg.text(x, self.y - 35, str(i), "id")]
        self.line(name, str(ids.shape), self.y - 12)

    def box(self, name, lines, colour=GREY, gap=24):
        """What is computed, each with its shape, below a name."""
        self.arrow(gap)
        top = self.y + (26 if name else 6)
        self.frame(top - self.y + 21 * len(lines) + 5, colour)
        self.shapes.append(svg.text(self.middle, top - 6, name, "name"))
        for number, (line, shape) in enumerate(lines.items()):
            self.line(line, shape, top + 21 * number + 15)

    def part(self, name, lines, colour):
        """A box to whose output its input is added."""
        top, out = self.y + 8, self.edge + 16 * self.side
        self.first = self.first or top
        self.box(name, lines, colour, gap=28)
        self.arrow(14)
        centre = self.y + 8
        self.shapes.append(path(f"M{self.middle} {top}H{out}V{centre}H{self.middle + 10 * self.side}"))
        self.shapes.append(f'<circle cx="{self.middle}" cy="{centre}" r="8" fill="#fff" stroke="#475569"/>')
        self.shapes.append(svg.text(self.middle, centre + 5, "+"))
        self.y += 16

    def bracket(self, words):
        """Around all parts so far."""
        out, back = self.edge + 30 * self.side, -6 * self.side
        self.shapes.append(path(f"M{out + back} {self.first}H{out}V{self.y}h{back}", "bracket"))
        x, y = out + (16 if self.side > 0 else -8), (self.first + self.y) / 2
        self.shapes.append(svg.text(x, y, words, upright=True))


# ── training beside decoding ──

CARDS, CARD, NAMES = (14, 574), 330, 459  # where the cards begin, their width, and the middle of the names between them
PITCH = 11  # of the cells, one for each token


def side_by_side(run):
    """A row for each tensor: in training on the left, its name, in decoding on the right."""
    block, cache, blocks = "decoder/decoder_0", run.cache[0], f"× {len(run.cache)}"
    sources, targets = strip(run.source.shape[1]), strip(run.shifted.shape[1])
    now = [[""] * POSITION + ["new"]]  # the only token of a step, where it is in the sentence
    written = [["kept"] * POSITION + ["new"] + ["none"] * (CAPACITY - POSITION - 1)]
    visible = [["new"] * (POSITION + 1) + ["none"] * (CAPACITY - POSITION - 1)]
    causal = [["new"] * (n + 1) + ["none"] * (len(targets[0]) - n - 1) for n in range(len(targets[0]))]

    def both(name, paths, left, right):
        table.row(name, (shape_of(run.training, *paths), left), (shape_of(run.step, *paths), right))

    def of_block(*names):
        return [f"{block}/{name}" for name in names]

    def cached(part):
        (shape,) = {tuple(cache[part][name].shape) for name in "kv"}
        return str(shape)

    table = Table()
    table.card(0, "model({source, target})", "one call for everything")
    table.card(1, "prefill(source, max_length)", "once, before the first step")
    table.row("ids of the source", *[(str(run.source.shape), sources)] * 2)
    table.row("memory", *[(shape_of(shapes, "encoder"), sources) for shapes in (run.training, run.prefill)])
    memory = shape_of(run.training, *of_block("memory_attention/key", "memory_attention/value"))
    table.row(f"its keys, values {blocks}", (memory, sources), (cached("memory"), sources))
    table.row(f"cache {blocks}", ("none", [[]]), (cached("self"), strip(CAPACITY, "none")))
    table.close(1)

    table.card(1, "step(token, position, cache)", f"once for each token, here at position {POSITION}")
    start = table.y + 14
    table.words(run.pieces(run.shifted), "reads", run.pieces(run.read))
    table.row("ids", (str(run.shifted.shape), targets), (str(run.read.shape), now))
    both("embeddings + positions", ["decoder/decoder_positions_0"], targets, now)
    table.heading(f"self-attention {blocks}")
    projected = of_block("attention/query", "attention/key", "attention/value")
    both("queries, keys, values", projected, targets, now)
    own = shape_of(run.training, *projected[1:])
    table.row("keys, values attended to", (own, targets), (cached("self"), written))
    both("weights", of_block("attention/weights"), causal, visible)
    table.heading(f"cross-attention {blocks}")
    both("queries", of_block("memory_attention/query"), targets, now)
    table.row("keys, values of the memory", (memory, sources), (cached("memory"), strip(len(sources[0]), "kept")))
    both("weights", of_block("memory_attention/weights"), sources * len(targets[0]), sources)
    table.heading(f"feed-forward {blocks}")
    both("inside", of_block("feed_forward/inner"), targets, now)
    table.heading("the next token")
    both("norm", ["decoder/decoder_norm"], targets, now)
    both(LOGITS, ["embedding"], targets, now)
    table.words(["loss: mean of −log p of these ids"], "", ["argmax (beam search keeps several)"])
    table.row("ids", (str(run.target.shape), targets), (str(run.token.shape), now))
    table.words(run.pieces(run.target), "", run.pieces(run.token))
    end, edge = table.y - 12, CARDS[1] + CARD
    table.close(0)
    table.close(1)
    yield from (TIP, *table.cards, *table.shapes, path(f"M{edge - 110} {end}H{edge + 12}V{start}H{edge - 110}"))
    yield svg.text(edge + 27, (start + end) / 2, "the next step", "note", upright=True)
    for x, (state, words) in zip((130, 380, 660), LEGEND.items(), strict=True):
        yield from grid([[state]], x, table.y + 22)
        yield svg.text(x + 20, table.y + 27, words, "start")


def strip(length, state="new"):
    return [[state] * length]


def grid(cells, x, middle):
    height = 10 if len(cells) == 1 else 8
    for row, states in enumerate(cells):
        for column, state in enumerate(states):
            place = x + PITCH * column, middle + height * (row - len(cells) / 2), PITCH - 1, height - 1
            yield svg.rect(*place, CELLS[state], f'stroke="{LINE}"') if state else ""


class Table:
    """Rows from above: names in the middle, cards on both sides of them."""

    def __init__(self):
        self.y, self.shapes, self.cards, self.tops = 60, [], [], [0, 0]

    def card(self, side, code, words):
        """Begins a card. The one on the left has its head beside the first one on the right."""
        self.tops[side], x = self.y, CARDS[side] + CARD / 2
        self.shapes += [svg.text(x, self.y + 24, code, "code"), svg.text(x, self.y + 46, words, "note")]
        self.y += 58 * side

    def close(self, side):
        top, height = self.tops[side], self.y + 6 - self.tops[side]
        self.cards.append(svg.rect(CARDS[side], top, CARD, height, "#f8fafc", f'rx="8" stroke="{LINE}"'))
        self.y += 20 * side

    def row(self, name, *tensors):
        """A tensor as (shape, cells) on each side."""
        rows = max(len(cells) for _, cells in tensors)
        height = 10 if rows == 1 else 8 * rows
        middle = self.y + 8 + height / 2
        self.shapes.append(svg.text(NAMES, middle + 5, name))
        for side, (shape, cells) in enumerate(tensors):
            x = CARDS[side] + (12 if side else CARD - 12)
            self.shapes.append(svg.text(x, middle + 5, shape, "shape start" if side else "shape end"))
            self.shapes += grid(cells, CARDS[side] + (138 if side else 12), middle)
        self.y += height + 16

    def words(self, left, name, right):
        self.shapes.append(svg.text(NAMES, self.y + 18, name))
        for x, words in zip(CARDS, (left, right), strict=True):
            self.shapes.append(svg.text(x + CARD / 2, self.y + 18, " ".join(words), "piece"))
        self.y += 26

    def heading(self, words):
        self.shapes.append(svg.text(NAMES, self.y + 22, words, "part"))
        self.y += 30


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
