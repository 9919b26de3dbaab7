// A page without a kernel: what a kernel would answer lies in the page (widgets/share/page.py).

// A model of anywidget whose state nobody else has.
class StillModel {
  constructor(values) {
    this.values = { cell: null, ...values };
    this.changed = new Set();
    this.heard = new Map();
  }

  get(name) {
    return this.values[name];
  }

  set(name, value) {
    this.values[name] = value;
    this.changed.add(name);
    this.emit(`change:${name}`);
  }

  save_changes() {
    this.changed.clear();
  }

  send() {}

  on(events, listener) {
    for (const event of events.split(" ")) this.heard.set(event, [...(this.heard.get(event) ?? []), listener]);
  }

  off(events, listener) {
    for (const event of events.split(" ")) this.heard.set(event, (this.heard.get(event) ?? []).filter((other) => other !== listener));
  }

  emit(event, ...rest) {
    (this.heard.get(event) ?? []).forEach((listener) => listener(...rest));
  }
}

// The model of a monitor. content: axes, rows, texts.
class StillMonitor extends StillModel {
  constructor(content) {
    super({ axis: "step" });
    this.content = content;
    const query = content.texts[0].records.length ? { run: 0, open: true } : {};
    Object.assign(this.values, { data: this.drawn("step"), texts: this.found(query), texts_query: query });
  }

  save_changes() {
    const { changed } = this;
    this.changed = new Set();
    if (changed.has("axis")) this.tell("data", this.drawn(this.values.axis));
    if (changed.has("texts_query")) this.tell("texts", this.found(this.values.texts_query));
  }

  send(message) {
    if (message.kind === "rows") {
      const { metrics, rows } = this.content.rows[message.run];
      this.emit("msg:custom", { ...message, metrics, rows: rows.slice(message.start, message.stop) }, []);
    }
    this.emit("msg:custom", { kind: "answer" }, []);
  }

  tell(name, value) {
    this.values[name] = value;
    this.emit(`change:${name}`);
  }

  drawn(axis) {
    return new DataView(Uint8Array.from(atob(this.content.axes[axis]), (letter) => letter.charCodeAt(0)).buffer);
  }

  found(query) {
    return findCompletions(this.content.texts[query.run ?? 0], query);
  }
}

// The page of completions for a query: as CompletionPages.find in widgets/completions/completions.py, which a test compares.

const PAGE_OF_RESPONSES = 8, PAGE_OF_GROUPS = 3;
const SORTS = {
  written: ["id", 1], "best reward": ["reward", -1], "worst reward": ["reward", 1],
  "highest KL": ["kl", -1], longest: ["length", -1], shortest: ["length", 1],
};
const COLOURS = { none: "", KL: "token_kl", advantage: "token_advantage" };
const BESIDE = ["step", "response", "reward", "kl", "length", "finished", "turns", "metrics", "failure", "tokens", "weights"];

function findCompletions(run, query) {
  const every = run.records, splits = [...new Set(every.map((one) => one.split))].sort();
  const asked = withDefaults(run, query, splits);
  const ofSplit = every.filter((one) => asked.split === "" || one.split === asked.split);
  const steps = [...new Set(ofSplit.map((one) => one.step))].sort((a, b) => a - b);
  const chosen = Number.isInteger(query.step) ? query.step : null, step = nearestStep(steps, chosen);
  let matching = ofSplit.filter((one) => matches(run, one, asked, step)).sort(sortedBy(asked.sort));
  const canGroup = matching.some((one) => run.splits_with_groups.includes(one.split));
  const together = canGroup && asked.together, size = together ? PAGE_OF_GROUPS : PAGE_OF_RESPONSES;
  if (together) {
    const first = new Map();
    for (const one of matching) if (!first.has(one.members[0])) first.set(one.members[0], one);
    matching = [...first.values()];
  }
  const last = matching.length ? Math.floor((matching.length - 1) / size) * size : 0;
  const start = Math.max(0, Math.min(query.start ?? 0, last));
  const rows = matching.slice(start, start + size).map((one) => (together ? groupOf(run, one, asked) : rowOf(run, one, asked)));
  const notes = [];
  if (every.length && chosen !== null && chosen !== step) {
    notes.push(`Step ${chosen} has no ${asked.split ? `${asked.split} ` : ""}completions; these are of step ${step}.`);
  }
  const responses = rows.flatMap((row) => row.members ?? [row]);
  notes.push(...notesOn(responses, asked));
  if (rows.length && rows.every((row) => row.beside?.note)) {
    notes.push(...new Set(rows.map((row) => row.beside[rows.length === 1 ? "note" : "notes"])));
    rows.forEach((row) => { delete row.beside; });
  }
  if (run.note) notes.push(run.note);
  return {
    run: run.name, beside: "first answer", steps, step, latest: chosen === null, splits, environments: run.environments,
    can_group: canGroup, can_fail: every.some((one) => "failure" in one), counted: together ? "groups " : "",
    sorts: Object.keys(SORTS), colours: Object.keys(COLOURS), asked, scale: scaleOf(responses),
    verdicts: run.verdicts, note: notes.join(" "), all: every.length, total: matching.length, start, size, rows,
  };
}

// What a reader would else have to guess from something that is missing.
function notesOn(responses, asked) {
  const notes = [], count = (is) => responses.filter(is).length;
  const without = asked.colour === "none" ? 0 : count((one) => !one.weights), failed = count((one) => "failure" in one);
  if (without) {
    const which = without === responses.length ? "These responses have" : `${without} of these responses have`;
    notes.push(`${which} no ${asked.colour} of their tokens: the run computes it only for those it trains on, which are under the prompts of train.`);
  }
  if (failed) {
    notes.push(`${failed} of these responses have no reward, as their environment failed; environment_failures.txt in the run folder has its first traceback.`);
  }
  return notes;
}

function withDefaults(run, query, splits) {
  const validation = splits.includes("validation") ? "validation" : "";
  const own = (name, otherwise, allowed) => (query[name] === undefined || (allowed && !allowed.includes(query[name])) ? otherwise : query[name]);
  return {
    split: own("split", run.splits_with_groups[0] ?? validation, ["", ...splits]),
    environment: own("environment", ""), together: own("together", true),
    sort: own("sort", "written", Object.keys(SORTS)), colour: own("colour", "none", Object.keys(COLOURS)),
    text: own("text", "").toLowerCase(), beside: own("beside", true),
    every: own("every", false), cut: own("cut", false), failed: own("failed", false), end: own("end", false),
  };
}

// The last of the steps up to the wanted one, the first if all are later; the latest for null.
function nearestStep(steps, chosen) {
  if (chosen === null) return steps.at(-1) ?? null;
  return steps.findLast((step) => step <= chosen) ?? steps[0] ?? null;
}

function matches(run, one, asked, step) {
  return (asked.every || one.step === step)
    && (!asked.cut || one.finished === false)
    && (!asked.failed || "failure" in one)
    && ["", one.environment].includes(asked.environment)
    && (!asked.text || run.prompts[one.prompt].text.toLowerCase().includes(asked.text) || one.response.toLowerCase().includes(asked.text));
}

// A record without the figure comes last; of equal ones the earlier first.
function sortedBy(sort) {
  const [name, sign] = SORTS[sort];
  const place = (one) => (Number.isFinite(one[name]) ? sign * one[name] : Infinity);
  return (a, b) => (place(a) === place(b) ? a.id - b.id : place(a) - place(b));
}

function rowOf(run, one, asked) {
  const row = { ...weighted(one, asked), prompt_turns: run.prompts[one.prompt].turns };
  return asked.beside ? { ...row, beside: besideOf(run, one, asked) } : row;
}

function besideOf(run, one, asked) {
  const other = run.records[one.first];
  if (other === one) {
    return {
      note: "The run's first answer to this prompt: none came before it.",
      notes: "The run's first answers to these prompts: none came before them.",
    };
  }
  const whole = weighted(other, asked);
  return Object.fromEntries(BESIDE.filter((name) => name in whole).map((name) => [name, whole[name]]));
}

function groupOf(run, one, asked) {
  const members = one.members.map((id) => run.records[id]).sort(sortedBy("best reward"));
  const rewards = members.map((member) => member.reward).filter(Number.isFinite);
  const mean = (numbers) => numbers.reduce((sum, part) => sum + part, 0) / numbers.length;
  return {
    prompt_turns: run.prompts[one.prompt].turns, step: one.step, split: one.split, environment: one.environment ?? "",
    members: members.map((member) => ({ ...weighted(member, asked), ...(member.token_advantage?.length ? { advantage: mean(member.token_advantage) } : {}) })),
    ...(rewards.length ? { best: rewards[0], worst: rewards.at(-1), mean: mean(rewards) } : {}),
  };
}

// A record with the weights of its tokens, where it has any; the end token only if it is asked for.
function weighted(one, asked) {
  const { tokens, token_kl, token_advantage, members, first, prompt, ...row } = one, weights = one[COLOURS[asked.colour]];
  if (!tokens || !weights || weights.length !== tokens.length) return row;
  const ends = !asked.end && tokens.length && one.finished !== false && !one.response.endsWith(tokens.at(-1));
  const count = tokens.length - (ends ? 1 : 0);
  return { ...row, tokens: tokens.slice(0, count), weights: weights.slice(0, count) };
}

const COLOUR_PERCENTILE = 98;

// One scale for the page's tokens; null where no token has a weight.
function scaleOf(rows) {
  const weights = rows.flatMap((row) => [row, row.beside ?? {}]).flatMap((side) => side.weights ?? []).filter(Number.isFinite);
  if (!weights.length) return null;
  const sizes = weights.map(Math.abs).sort((a, b) => a - b);
  const place = (COLOUR_PERCENTILE / 100) * (sizes.length - 1), below = Math.floor(place);
  const between = sizes[below] + (place - below) * ((sizes[below + 1] ?? sizes[below]) - sizes[below]);
  const most = between || sizes.at(-1) || 1;
  const least = weights.some((weight) => weight < 0) ? -most : 0;
  return { least, most, beyond: sizes.filter((size) => size > most).length, percentile: COLOUR_PERCENTILE };
}
