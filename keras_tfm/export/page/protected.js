// Finds, masks and restores what a translation must keep, as keras_tfm/text/masking.py does.

/** Replaces placeholders, tags, addresses and unseen characters with slots, such as "⟦1⟧", and restores them. */
export class Protection {
  /** `expressions` are those of translator.json, name → [source, flags], and `maxSlots` is the number of slots. */
  constructor(expressions, maxSlots) {
    this.maxSlots = maxSlots;
    for (const [name, [source, flags]] of Object.entries(expressions)) this[name] = new RegExp(source, flags);
  }

  /** A text with slots, as { text, source, replacements }, or with too many for them, and then with a `problem`. */
  mask(source) {
    let spans = this.spans(source, this.unseen);
    if (spans.length > this.maxSlots) spans = this.spans(source);
    const excess = `can keep at most ${this.maxSlots} placeholders in a line`;
    if (spans.length > this.maxSlots) return { text: source, source, replacements: [], problem: excess };
    let text = "";
    let position = 0;
    spans.forEach(({ start, end }, n) => {
      text += `${source.slice(position, start)}⟦${n + 1}⟧`;
      position = end;
    });
    return { text: text + source.slice(position), source, replacements: textsOf(source, spans) };
  }

  /** A translation with all that is protected, as { text, problem }; a problem is "" or a reason, such as "lacks %s". */
  restore({ source, replacements }, translation) {
    const written = Array.from(replacements.length ? translation.matchAll(this.slot) : [], (match) => Number(match[1]));
    const count = (n) => written.filter((number) => number === n + 1).length;
    const text = replacements.length ? this.fill(replacements, translation) : translation;
    const lacking = replacements.filter((_, n) => !count(n));
    const repeated = replacements.filter((_, n) => count(n) > 1);
    return { text, problem: problemOf(lacking, repeated) || this.#difference(source, text) };
  }

  /** A text with replacements in place of its slots. */
  fill(replacements, text) {
    return text.replace(this.slot, (_, number) => replacements[number - 1] ?? "");
  }

  /** What is protected in a text, what looks like a slot or a tag, and `unseen` characters, as [{ start, end }, …]. */
  spans(text, unseen) {
    const patterns = unseen ? [this.slot, this.tag, unseen, this.signs] : [this.slot, this.tag];
    const others = patterns.flatMap((pattern) => Array.from(text.matchAll(pattern), spanOf));
    return apart([...this.#find(text), ...others]);
  }

  /** As `find_protected` of Python. */
  #find(text) {
    const partners = partnersOf(text);
    const spans = Array.from(text.matchAll(this.protected), (match) => {
      const { start, end } = spanOf(match);
      return { start, end: match.groups.brace ? (partners.get(end - 1) ?? 0) : end };
    });
    return apart(spans);
  }

  /** What of the source's placeholders, tags and addresses a translation lacks, repeats or misplaces. */
  #difference(source, translation) {
    const [theirs, ours] = [source, translation].map((text) => textsOf(text, this.#find(text)));
    const problem = problemOf(without(theirs, ours), without(ours, theirs));
    if (problem) return problem;
    const [before, after] = [theirs, ours].map((parts) => parts.filter((part) => fullMatch(this.sequential, part)).join(" "));
    if (before !== after) return `has ${after} in place of ${before}`;
    if (this.#balanced(theirs) && !this.#balanced(ours)) return "closes a tag that is not open";
    const count = (text, sign) => text.split(sign).length;
    const stray = ["<", ">"].filter((sign) => count(translation, sign) > count(source, sign));
    return stray.length ? `has too many ${stray.join(" ")}` : "";
  }

  /** Whether each closing tag follows its opening one. */
  #balanced(parts) {
    const opened = new Map();
    const add = (name, by) => opened.set(name, (opened.get(name) ?? 0) + by).get(name);
    return parts.every((part) => {
      const opening = fullMatch(this.opening, part);
      const closing = opening ? null : fullMatch(this.closing, part);
      if (opening) add(opening[1], 1);
      return !closing || add(closing[1], -1) >= 0;
    });
  }
}

function spanOf(match) {
  return { start: match.index, end: match.index + match[0].length };
}

function textsOf(text, spans) {
  return spans.map(({ start, end }) => text.slice(start, end));
}

/** Spans in order, without those that overlap an earlier or longer one. */
function apart(spans) {
  let position = 0;
  const chosen = ({ start, end }) => {
    const fits = position <= start && start < end;
    if (fits) position = end;
    return fits;
  };
  return spans.sort((a, b) => a.start - b.start || b.end - a.end).filter(chosen);
}

/** Start of each opening brace → end of the closing one. */
function partnersOf(text) {
  const opened = [];
  const partners = new Map();
  for (const { 0: brace, index } of text.matchAll(/[{}]/g)) {
    if (brace === "{") opened.push(index);
    else if (opened.length) partners.set(opened.pop(), index + 1);
  }
  return partners;
}

/** Items that are more often in one list than in another. */
function without(items, others) {
  const counts = new Map();
  items.forEach((item) => counts.set(item, (counts.get(item) ?? 0) + 1));
  others.forEach((item) => counts.set(item, (counts.get(item) ?? 0) - 1));
  return [...counts].flatMap(([item, count]) => Array(Math.max(count, 0)).fill(item));
}

/** The match of a pattern with a whole text, or null. */
function fullMatch(pattern, text) {
  const match = [...text.matchAll(new RegExp(`^(?:${pattern.source})$`, pattern.flags))];
  return match[0] ?? null;
}

function problemOf(missing, extra) {
  const reasons = [["lacks", missing], ["has too many", extra]].filter(([, parts]) => parts.length);
  return reasons.map(([verb, parts]) => `${verb} ${parts.join(" ")}`).join(", ");
}
