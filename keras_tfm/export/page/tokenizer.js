// Text to token ids and back, exactly as keras_tfm/text does it. Ids 0 to 3 are padding, start, end and unknown.

const END = 2;
const UNKNOWN = 3;
const SPECIALS = 4;
const SPACE = "▁"; // stands for a space inside pieces
const utf8 = new TextEncoder();

/** Returns the tokenizer in a folder that `save_tokenizer` wrote; `read(name)` returns a file of it as a Uint8Array. */
export async function loadTokenizer(read) {
  const settings = JSON.parse(string(await read("tokenizer.json")));
  if (settings.class === "ByteTokenizer") return new ByteTokenizer();
  if (settings.class === "SentencePieceTokenizer") return new SentencePieceTokenizer(await read("sentencepiece.model"));
  if (settings.class === "MarianTokenizer") {
    const { pieces } = JSON.parse(string(await read("vocabulary.json")));
    return new MarianTokenizer(await read("sentencepiece.model"), pieces);
  }
  throw new Error(`This page has no tokenizer of the kind ${settings.class}`);
}

/** Ids up to the first end token, without special tokens. */
function content(ids) {
  const end = ids.indexOf(END);
  return Array.from(end < 0 ? ids : ids.slice(0, end)).filter((id) => id === UNKNOWN || id >= SPECIALS);
}

/** Lone surrogates, which UTF-8 cannot encode, become question marks. */
function clean(text) {
  return text.replace(/\p{Surrogate}/gu, "?");
}

export class ByteTokenizer {
  encode(text) {
    return Array.from(utf8.encode(clean(text)), (byte) => byte + SPECIALS);
  }

  decode(ids) {
    const bytes = content(ids).filter((id) => id !== UNKNOWN).map((id) => id - SPECIALS);
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(new Uint8Array(bytes));
  }

  /** A token as a short text. */
  label(id) {
    const byte = id - SPECIALS;
    if (byte < 0) return ["", "start", "end", "?"][id];
    return byte > 32 && byte < 127 ? String.fromCharCode(byte) : hexadecimal(byte);
  }
}

const KINDS = { 1: "unigram", 2: "bpe", 3: "word", 4: "char" };
const [NORMAL, UNKNOWN_PIECE, CONTROL, USER_DEFINED, UNUSED, BYTE] = [1, 2, 3, 4, 5, 6]; // types of pieces

export class SentencePieceTokenizer {
  /** `bytes` is the content of sentencepiece.model, a ModelProto of sentencepiece_model.proto. */
  constructor(bytes) {
    const model = message(bytes);
    const trainer = message(model.get(2)?.[0]);
    const normalizer = message(model.get(3)?.[0]);
    const flag = (of, field, otherwise) => Boolean(of.get(field)?.at(-1) ?? otherwise);
    this.kind = KINDS[trainer.get(3)?.at(-1) ?? 1];
    this.spaceAtEnd = flag(trainer, 24, false);
    this.byteFallback = flag(trainer, 35, false);
    this.unknownSurface = trainer.has(44) ? string(trainer.get(44).at(-1)) : " \u2047 ";
    this.addSpace = flag(normalizer, 3, true);
    this.trimSpaces = flag(normalizer, 4, true);
    this.escapeSpaces = flag(normalizer, 5, true);
    const rules = normalizer.get(2)?.at(-1);
    this.rules = rules?.length ? new CharacterRules(rules) : null;
    if (message(model.get(5)?.[0]).get(2)?.at(-1)?.length) {
      throw new Error("sentencepiece.model must have no rules for denormalization. Received: a model with some");
    }
    this.pieces = model.get(1).map((piece) => {
      const fields = message(piece);
      const score = fields.get(2)?.at(-1) ?? 0;
      return { text: string(fields.get(1).at(-1)), score, type: fields.get(3)?.at(-1) ?? NORMAL };
    });
    this.unknown = this.pieces.findIndex(({ type }) => type === UNKNOWN_PIECE);
    this.ids = new Map(); // of pieces that occur in text
    this.bytes = []; // of the piece for each byte
    this.pieces.forEach(({ text, type }, id) => {
      const inText = type === NORMAL || type === USER_DEFINED || type === UNUSED;
      if (inText) this.ids.set(text, id);
      if (type === BYTE) this.bytes[parseInt(text.slice(3, 5), 16)] = id;
    });
    const lengths = [...this.ids.keys()].map((text) => [...text].length);
    this.longest = lengths.reduce((a, b) => Math.max(a, b), 1);
    this.userDefined = [...this.ids.keys()].filter((text) => this.pieces[this.ids.get(text)].type === USER_DEFINED);
    this.userDefined.sort((a, b) => b.length - a.length); // the longest match wins
    const scores = this.pieces.filter(({ type }) => type === NORMAL).map(({ score }) => score);
    this.lowest = scores.reduce((a, b) => Math.min(a, b), Infinity);
  }

  encode(text) {
    return this.split(text).map(({ id }) => id);
  }

  /** The pieces of a text, as { text, id }; several unknown ones in a row are one. */
  split(text) {
    const normal = this.#normalized(clean(text));
    const result = [];
    for (const piece of normal ? this[this.kind](normal) : []) {
      const id = this.ids.get(piece) ?? this.unknown;
      const last = result.at(-1);
      if (id !== this.unknown) result.push({ text: piece, id });
      else if (this.byteFallback) {
        const ids = Array.from(utf8.encode(piece), (byte) => this.bytes[byte]);
        result.push(...ids.map((id) => ({ text: this.pieces[id].text, id })));
      } else if (last?.id === this.unknown) last.text += piece;
      else result.push({ text: piece, id });
    }
    return result;
  }

  decode(ids) {
    let text = "";
    let bytes = [];
    let first = true; // whether a space that `encode` added may come now
    const flush = () => {
      text += lenient(bytes);
      bytes = [];
    };
    for (const id of content(ids)) {
      const { text: piece, type } = this.pieces[id];
      if (type === BYTE) {
        bytes.push(parseInt(piece.slice(3, 5), 16));
        continue;
      }
      flush();
      if (type === CONTROL) continue;
      let surface = id === UNKNOWN ? this.unknownSurface : piece;
      if (id !== UNKNOWN && first && !text && (this.addSpace || this.trimSpaces) && surface.startsWith(SPACE)) {
        surface = surface.slice(SPACE.length);
        first = this.trimSpaces;
      }
      text += id === UNKNOWN ? surface : surface.replaceAll(SPACE, " ");
    }
    flush();
    return text;
  }

  /** A token as a short text. */
  label(id) {
    const { text, type } = this.pieces[id];
    if (id < SPECIALS) return ["", "start", "end", "?"][id];
    if (type === BYTE) return hexadecimal(parseInt(text.slice(3, 5), 16));
    return text.replaceAll(SPACE, " ").trim() || "␣";
  }

  // ── normalization ──

  #normalized(text) {
    const parts = [...this.#parts(text)];
    let result = "";
    let afterSpace = this.trimSpaces;
    for (const part of parts) {
      const kept = afterSpace ? part.replace(/^ +/, "") : part;
      if (!kept) continue;
      result += kept;
      afterSpace = this.trimSpaces && kept.endsWith(" ");
    }
    if (!result) return "";
    const space = this.escapeSpaces ? SPACE : " ";
    result = this.escapeSpaces ? result.replaceAll(" ", SPACE) : result;
    const added = this.addSpace ? space : "";
    if (!this.spaceAtEnd) result = added + result;
    while (this.trimSpaces && result.endsWith(space)) result = result.slice(0, -1);
    return this.spaceAtEnd ? result + added : result;
  }

  /** The text in parts: symbols that the user defined, what rules replace, and single characters. */
  *#parts(text) {
    if (!this.rules && !this.userDefined.length) {
      yield* text;
      return;
    }
    const bytes = utf8.encode(text);
    const sizes = { 0xc: 2, 0xd: 2, 0xe: 3, 0xf: 4 };
    const symbols = this.userDefined.map((symbol) => utf8.encode(symbol));
    for (let at = 0; at < bytes.length; ) {
      const symbol = symbols.find((symbol) => symbol.every((byte, n) => bytes[at + n] === byte));
      const rule = symbol ? null : this.rules?.longest(bytes, at);
      const size = symbol?.length ?? rule?.size ?? sizes[bytes[at] >> 4] ?? 1;
      yield rule ? rule.text : string(bytes.subarray(at, at + size));
      at += size;
    }
  }

  // ── one method for each kind: normalized text → pieces ──

  /** Characters, and symbols that the user defined, which are not split. */
  char(text) {
    if (!this.userDefined.length) return [...text];
    const result = [];
    for (let at = 0; at < text.length; at += result.at(-1).length) {
      const symbol = this.userDefined.find((symbol) => text.startsWith(symbol, at));
      result.push(symbol ?? String.fromCodePoint(text.codePointAt(at)));
    }
    return result;
  }

  word(text) {
    return text.match(/▁[^▁]*|[^▁]+/gu);
  }

  /** Merges neighbours, the pair with the highest score first, and of equals the leftmost. */
  bpe(text) {
    const symbols = this.char(text);
    const frozen = symbols.map((symbol) => this.userDefined.includes(symbol));
    const before = symbols.map((_, n) => n - 1);
    const after = symbols.map((_, n) => (n + 1 < symbols.length ? n + 1 : -1));
    const parts = new Map(); // of merged pieces that may be used on the way only
    const queue = new Queue((a, b) => a.score > b.score || (a.score === b.score && a.left < b.left));
    const consider = (left, right) => {
      if (left < 0 || right < 0 || frozen[left] || frozen[right]) return;
      const piece = symbols[left] + symbols[right];
      const id = this.ids.get(piece);
      if (id === undefined) return;
      queue.push({ left, right, piece, score: this.pieces[id].score });
      if (this.pieces[id].type === UNUSED) parts.set(piece, [symbols[left], symbols[right]]);
    };
    for (let n = 1; n < symbols.length; n++) consider(n - 1, n);
    for (let best = queue.pop(); best; best = queue.pop()) {
      const { left, right, piece } = best;
      if (!symbols[left] || !symbols[right] || symbols[left] + symbols[right] !== piece) continue; // merged otherwise
      symbols[left] = piece;
      symbols[right] = "";
      after[left] = after[right];
      if (after[right] >= 0) before[after[right]] = left;
      consider(before[left], left);
      consider(left, after[left]);
    }
    const used = (piece) => (parts.has(piece) ? parts.get(piece).flatMap(used) : [piece]);
    return symbols.filter(Boolean).flatMap(used);
  }

  /** The most probable pieces, by Viterbi's algorithm in single precision. */
  unigram(text) {
    const letters = [...text];
    const scores = [0, ...letters.map(() => undefined)]; // of the best way to each place
    const starts = [0]; // of its last piece
    const unknown = Math.fround(this.lowest - 10);
    let frontier = 0;
    for (let start = 0; start < letters.length; start++) {
      const offset = scores[start];
      if (Math.abs(offset) > 1e5) {
        // In long texts scores start again, as in SentencePiece, so that rounding stays small.
        for (let at = start; at <= frontier; at++) {
          if (scores[at] !== undefined) scores[at] = Math.fround(scores[at] - offset);
        }
      }
      const reach = (end, score) => {
        const total = Math.fround(score + scores[start]);
        if (scores[end] !== undefined && !(total > scores[end])) return;
        scores[end] = total;
        starts[end] = start;
        frontier = Math.max(frontier, end);
      };
      let piece = "";
      let single = false;
      for (let end = start + 1; end <= Math.min(letters.length, start + this.longest); end++) {
        piece += letters[end - 1];
        const id = this.ids.get(piece);
        if (id === undefined || this.pieces[id].type === UNUSED) continue;
        single ||= end === start + 1;
        const symbol = this.pieces[id].type === USER_DEFINED; // always wins
        reach(end, symbol ? Math.fround(0.1 * (utf8.encode(piece).length - 1)) : this.pieces[id].score);
      }
      if (!single) reach(start + 1, unknown);
    }
    const result = [];
    for (let end = letters.length; end > 0; end = starts[end]) {
      result.push(letters.slice(starts[end], end).join(""));
    }
    return result.reverse();
  }
}

/** Pieces of SentencePiece with the ids of another vocabulary; a text may start with a language code, ">>fra<<". */
export class MarianTokenizer {
  /** `bytes` is the content of sentencepiece.model, and `pieces` are those with ids 4, 5, … */
  constructor(bytes, pieces) {
    this.splitter = new SentencePieceTokenizer(bytes);
    this.pieces = pieces;
    this.ids = new Map(pieces.map((piece, n) => [piece, n + SPECIALS]));
    this.addsSpace = this.splitter.split("a")[0].text.startsWith(SPACE);
  }

  encode(text) {
    const code = clean(text).match(/^>>.*?<</s) ?? [];
    const pieces = this.splitter.split(clean(text).slice(code.join("").length)).map(({ text }) => text);
    return [...code, ...pieces].map((piece) => this.ids.get(piece) ?? UNKNOWN);
  }

  decode(ids) {
    const pieces = content(ids).filter((id) => id !== UNKNOWN).map((id) => this.pieces[id - SPECIALS]);
    const text = string(new Uint8Array(pieces.flatMap((piece) => [...bytesOf(piece)])));
    return this.addsSpace && text.startsWith(" ") ? text.slice(1) : text;
  }

  /** A token as a short text. */
  label(id) {
    if (id < SPECIALS) return ["", "start", "end", "?"][id];
    return this.pieces[id - SPECIALS].replaceAll(SPACE, " ").trim() || "␣";
  }
}

/** What a piece of SentencePiece stands for. */
function bytesOf(piece) {
  const byte = piece.match(/^<0x([0-9A-F]{2})>$/);
  return byte ? [parseInt(byte[1], 16)] : utf8.encode(piece.replaceAll(SPACE, " "));
}

/** Rules that replace characters, such as NFKC: a double-array trie of UTF-8 bytes, and the replacements. */
class CharacterRules {
  constructor(bytes) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const size = view.getUint32(0, true);
    this.units = Array.from({ length: size / 4 }, (_, n) => view.getUint32(4 + 4 * n, true));
    this.texts = bytes.subarray(4 + size);
  }

  /** The longest rule for what begins at a place, as { size, text }, or null. */
  longest(bytes, at) {
    const next = (unit, node) => node ^ ((unit >>> 10) << ((unit & 512) >>> 6));
    let found = null;
    let node = next(this.units[0], 0);
    for (let n = at; n < bytes.length && bytes[n]; n++) {
      node ^= bytes[n];
      const unit = this.units[node];
      if ((unit & 0x800000ff) >>> 0 !== bytes[n]) break;
      node = next(unit, node);
      if (unit & 256) found = { size: n + 1 - at, start: this.units[node] & 0x7fffffff };
    }
    if (!found) return null;
    return { size: found.size, text: string(this.texts.subarray(found.start, this.texts.indexOf(0, found.start))) };
  }
}

/** A binary heap; `first(a, b)` tells whether a comes out before b. */
class Queue {
  constructor(first) {
    this.first = first;
    this.items = [];
  }

  push(item) {
    let place = this.items.push(item) - 1;
    for (let parent; place > 0 && this.first(item, this.items[(parent = (place - 1) >> 1)]); place = parent) {
      this.items[place] = this.items[parent];
    }
    this.items[place] = item;
  }

  pop() {
    const { items } = this;
    const top = items[0];
    const last = items.pop();
    if (!items.length) return top;
    let place = 0;
    for (;;) {
      let child = 2 * place + 1;
      if (child + 1 < items.length && this.first(items[child + 1], items[child])) child++;
      if (child >= items.length || !this.first(items[child], last)) break;
      items[place] = items[child];
      place = child;
    }
    items[place] = last;
    return top;
  }
}

/** A message of protocol buffers: field number → list of its values: numbers, or Uint8Arrays to be read further. */
function message(bytes = new Uint8Array()) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const fields = new Map();
  let at = 0;
  const number = () => {
    let result = 0;
    for (let factor = 1; ; factor *= 128) {
      const byte = view.getUint8(at++);
      result += (byte & 127) * factor;
      if (byte < 128) return result;
    }
  };
  const readers = {
    0: number,
    1: () => view.getFloat64((at += 8) - 8, true),
    2: () => {
      const size = number();
      return bytes.subarray(at, (at += size));
    },
    5: () => view.getFloat32((at += 4) - 4, true),
  };
  while (at < bytes.length) {
    const key = number();
    const field = Math.floor(key / 8);
    if (!fields.has(field)) fields.set(field, []);
    fields.get(field).push(readers[key % 8]());
  }
  return fields;
}

function string(bytes) {
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
}

function hexadecimal(byte) {
  return `<${byte.toString(16).toUpperCase().padStart(2, "0")}>`;
}

/** Bytes as text, with one U+FFFD for each byte that is not valid UTF-8; a TextDecoder writes one for several. */
function lenient(bytes) {
  const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  let text = "";
  for (let at = 0; at < bytes.length; ) {
    const size = bytes[at] < 0x80 ? 1 : bytes[at] < 0xe0 ? 2 : bytes[at] < 0xf0 ? 3 : 4;
    try {
      text += strict.decode(new Uint8Array(bytes.slice(at, at + size)));
      at += size;
    } catch {
      text += "\ufffd";
      at += 1;
    }
  }
  return text;
}
