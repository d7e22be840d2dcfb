// What can be said about a token: its text, its characters, and how its tokenizer made it.

const KINDS = {
  bpe: "byte-pair encoding",
  unigram: "unigram model",
  char: "a tokenizer of characters",
  word: "a tokenizer of words",
};
const SPECIAL = ["padding", "starts a translation", "ends a text", "a piece that the tokenizer does not know"];

/** The text of a token with ▁ for spaces; null for a byte and for special tokens. */
function pieceOf(tokenizer, id) {
  if (id < SPECIAL.length || !tokenizer.pieces) return null;
  const ofMarian = tokenizer.splitter !== undefined;
  const piece = ofMarian ? tokenizer.pieces[id - SPECIAL.length] : tokenizer.pieces[id].text;
  return /^<0x[0-9A-F]{2}>$/.test(piece) ? null : piece;
}

/** A token as a short text, which shows its spaces: "▁" marks where a word begins. */
export function label(tokenizer, id) {
  const piece = pieceOf(tokenizer, id);
  return piece === null || piece === "▁" ? tokenizer.label(id) : piece;
}

/** A token as { id, label, position, words }; `words` is a sentence about it. */
export function describe(tokenizer, id, label, position) {
  return { id, label, position, words: `“${label}”, id ${id}, position ${position}: ${nature(tokenizer, id)}` };
}

function nature(tokenizer, id) {
  if (id < SPECIAL.length) return SPECIAL[id];
  const splitter = tokenizer.splitter ?? tokenizer;
  const piece = pieceOf(tokenizer, id);
  if (piece === null) return "a byte";
  if (/^>>\w+<<$/.test(piece)) return "says which language to translate into";
  if (piece === "▁") return "a space";
  const size = [...piece].length;
  const space = size > 1 && piece.startsWith("▁") ? " with the space before it, ▁" : "";
  const characters = `${size} character${size > 1 ? "s" : ""}${space}`;
  if (splitter.userDefined?.includes(piece)) return `${characters}, never split by the tokenizer`;
  if (splitter.kind !== "bpe" || size < 2) return `${characters}, ${KINDS[splitter.kind]}`;
  const steps = merges(splitter, piece);
  return steps.length ? `${characters}, merged as ${steps.map((pair) => pair.join(" + ")).join(", then ")}` : characters;
}

/** The merges that byte-pair encoding makes of a piece alone: [[left, right], …]; none if they do not lead to it. */
export function merges(splitter, piece) {
  const symbols = [...piece];
  const made = [];
  for (;;) {
    let chosen = null;
    for (let n = 1; n < symbols.length; n++) {
      const id = splitter.ids.get(symbols[n - 1] + symbols[n]);
      const score = id === undefined ? -Infinity : splitter.pieces[id].score;
      if (id !== undefined && (chosen === null || score > chosen.score)) chosen = { n, score };
    }
    if (chosen === null) return symbols.length === 1 ? made : [];
    made.push([symbols[chosen.n - 1], symbols[chosen.n]]);
    symbols.splice(chosen.n - 1, 2, symbols[chosen.n - 1] + symbols[chosen.n]);
  }
}
