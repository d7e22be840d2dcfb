// Beam search over the model's own logits, step by step as keras_tfm/decoding/beam.py does it, with a record of all steps.

const [PAD, START, END] = [0, 1, 2];
const PENALTIES = {
  length: (length, exponent) => length ** exponent,
  gnmt: (length, exponent) => ((5 + length) / 6) ** exponent,
};

/** Log-probabilities of logits, which are divided by a temperature first. */
export function logSoftmax(logits, temperature = 1) {
  const result = Float64Array.from(logits);
  let highest = -Infinity;
  for (let id = 0; id < result.length; id++) highest = Math.max(highest, result[id]);
  let sum = 0;
  for (let id = 0; id < result.length; id++) sum += Math.exp((result[id] = (result[id] - highest) / temperature));
  const normalizer = Math.log(sum);
  for (let id = 0; id < result.length; id++) result[id] -= normalizer;
  return result;
}

/** The k highest values that are allowed, as [{ id, value }, …], best first; of equals, the lowest id first. */
export function best(values, k, allowed = () => true) {
  const found = [];
  let least = -Infinity; // what a value must exceed
  for (let id = 0; id < values.length; id++) {
    const value = values[id];
    if (value <= least || !allowed(id)) continue;
    const place = found.findIndex((other) => value > other.value);
    found.splice(place < 0 ? found.length : place, 0, { id, value });
    if (found.length > k) found.pop();
    if (found.length === k) least = found[k - 1].value;
  }
  return found;
}

/** Which tokens may follow, as keras_tfm/decoding/constraints.py says. */
export class Rules {
  /** `settings` are those of the search, `source` the ids of the text, `longest` the most tokens of a translation. */
  constructor(settings, source, longest) {
    this.minLength = settings.min_length ?? 0;
    this.ngram = settings.no_repeat_ngram_size ?? 0;
    this.suppressed = new Set([PAD, START, ...(settings.suppress_tokens ?? [])]);
    this.copied = new Set(settings.copied_tokens ?? []);
    this.source = source;
    this.last = longest - 1; // position of the last token
  }

  /** A function that tells whether a token may follow these. */
  after(ids) {
    const count = (list, id) => list.filter((other) => other === id).length;
    const wanted = [...this.copied].filter((id) => this.source.includes(id));
    const missing = new Map(wanted.map((id) => [id, count(this.source, id) - count(ids, id)]));
    const total = [...missing.values()].reduce((a, b) => a + b, 0);
    const left = this.last + 1 - ids.length;
    return (id) => {
      if (this.suppressed.has(id) || (id === END && ids.length < this.minLength - 1)) return false;
      if (this.copied.has(id)) return (missing.get(id) ?? 0) > 0;
      if (this.copied.size && (id === END ? total > 0 : left <= total)) return false;
      return !this.#repeats(ids, id);
    };
  }

  #repeats(ids, id) {
    const n = this.ngram;
    if (!n || ids.length < n) return false;
    const next = [...ids.slice(ids.length - n + 1), id];
    return ids.some((_, at) => at + n <= ids.length && next.every((token, place) => ids[at + place] === token));
  }
}

/**
 * Finds the best hypotheses with a beam.
 *
 * `step(tokens, position, parents)` returns the logits for each token; `parents` are the rows of the step before that
 * the tokens follow. Options: numBeams, lengthPenalty, penalty, earlyStopping.
 *
 * Returns `nodes`, the tree of all hypotheses that were in the beam, the root first, and `ended`, the numbers of those
 * that ended, best first. A node is { number, parent, position, id, ids, score, share, state }: `score` is the sum of
 * its log-probabilities, `share` the last of them, `state` "alive", "ended" or "dead"; one that ended has a `final`
 * score, divided by the length penalty, and is `cut` if there was no room for more; one that died has the score of its `best` continuation and the `bar`, the
 * lowest score that stayed in the beam.
 */
export async function beamSearch(step, rules, options) {
  const { numBeams, lengthPenalty, penalty = "length", earlyStopping = true } = options;
  const divisor = (position) => PENALTIES[penalty](position + 1, lengthPenalty);
  const nodes = [{ number: 0, parent: -1, position: -1, id: START, ids: [], score: 0, share: 0, state: "alive" }];
  let alive = [nodes[0]];
  let ended = [];
  let parents = [0];
  for (let position = 0; position <= rules.last && alive.length; position++) {
    const bound = Math.max(divisor(position), earlyStopping ? -Infinity : divisor(rules.last));
    if (ended.length >= numBeams && alive[0].score / bound <= ended[numBeams - 1].final) break;
    const logits = await step(alive.map(({ id }) => id), position, parents);
    const found = alive.flatMap((parent, row) => {
      const shares = logSoftmax(logits[row]);
      const tokens = best(shares, numBeams, rules.after(parent.ids));
      return tokens.map(({ id, value }) => ({ parent, row, id, share: value, score: parent.score + value }));
    });
    const kept = [...found].sort((a, b) => b.score - a.score).slice(0, numBeams); // a stable sort
    for (const parent of alive.filter((parent) => !kept.some((each) => each.parent === parent))) {
      const tried = found.filter((each) => each.parent === parent).map(({ score }) => score);
      Object.assign(parent, { state: "dead", best: Math.max(...tried), bar: kept.at(-1)?.score });
    }
    const made = kept.map(({ parent, row, id, share, score }) => {
      const ids = [...parent.ids, id];
      const node = { number: nodes.length, parent: parent.number, position, id, ids, score, share, state: "alive", row };
      if (id === END || position >= rules.last) {
        Object.assign(node, { state: "ended", cut: id !== END, final: score / divisor(position) });
      }
      nodes.push(node);
      return node;
    });
    ended = [...ended, ...made.filter(({ state }) => state === "ended")];
    ended = ended.sort((a, b) => b.final - a.final).slice(0, numBeams);
    alive = made.filter(({ state }) => state === "alive");
    parents = alive.map(({ row }) => row);
  }
  return { nodes: nodes.map(({ row, ...node }) => node), ended: ended.map(({ number }) => number) };
}
