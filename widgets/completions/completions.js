// Completions of a run, step by step. What is asked for, with its defaults, comes back in page.asked.

class CompletionsView extends PagedView {
  constructor(model, element) {
    super(model, element, "completions");
    this.slider = make("input", { type: "range", min: 0, "aria-label": "step", oninput: () => this.go(Number(this.slider.value)) });
    this.step = make("output", { class: "lab-facts" });
    this.bar.append(make("span", { class: "lab-step" }, this.slider, this.step));
    this.every = this.check("every step", "every");
    this.split = this.choice("prompts", "split");
    this.environment = this.choice("environment", "environment");
    this.together = this.check("groups together", "together");
    this.sort = this.choice("sorted by", "sort");
    this.colour = this.choice("tokens by", "colour");
    this.end = this.check("end token", "end");
    this.beside = this.check("beside it", "beside");
    this.cut = this.check("cut off only", "cut");
    this.failed = this.check("failed only", "failed");
    this.search();
    this.scale = make("div", { class: "lab-scale", hidden: true });
    this.note = make("p", { class: "lab-note", role: "status" });
    this.bar.after(this.scale, this.note);
  }

  // The last place follows the run; any other stays at its step.
  go(place) {
    const { steps } = this.model.get("page");
    this.ask({ step: place >= steps.length - 1 ? null : steps[place], every: false });
  }

  drawTools(page) {
    const { asked } = page;
    set(this.slider, { max: Math.max(0, page.steps.length - 1), disabled: page.steps.length < 2 || asked.every });
    const place = page.steps.indexOf(this.asked("step") ?? page.steps.at(-1)); // a slow kernel's page may be of an earlier key
    this.slider.value = place < 0 ? page.steps.indexOf(page.step) : place;
    set(this.slider, { "aria-valuetext": `step ${page.steps[this.slider.value]}` });
    say(this.step, page.step === null ? "no steps yet" : `step ${page.step}${page.latest ? ", the latest" : ""}`);
    this.options(this.split, ["", ...page.splits], asked.split);
    this.options(this.sort, page.sorts, asked.sort);
    this.options(this.colour, page.colours, asked.colour);
    this.options(this.environment, ["", ...page.environments], asked.environment);
    for (const name of ["every", "together", "beside", "cut", "failed", "end"]) this[name].firstChild.checked = asked[name];
    this.environment.parentElement.hidden = page.environments.length < 2 && !asked.environment;
    this.together.hidden = !page.can_group;
    this.beside.hidden = Boolean(page.counted);
    this.failed.hidden = !page.can_fail;
    this.end.hidden = asked.colour === "none";
    this.beside.lastChild.textContent = ` ${page.beside} beside it`;
    say(this.note, page.note);
    drawScale(this.scale, page.scale, asked.colour);
  }

  card(row, page) {
    return row.members ? this.group(row, page) : this.response(row, page);
  }

  // The responses to one prompt, the best first.
  group(row, page) {
    const heading = [row.split, `step ${row.step}`, row.environment].filter(Boolean).join(" · ");
    const differ = row.best !== row.worst, judged = row.members.filter((one) => typeof one.reward === "number");
    const rewards = row.mean === undefined ? "no reward" : differ
      ? `rewards ${number(row.worst)} to ${number(row.best)}, mean ${number(row.mean)}`
      : `all ${judged.length} rewards are ${number(row.best)}: nothing to learn from`;
    const named = (one) => (differ && one.reward === row.best ? "best" : differ && one.reward === row.worst ? "worst" : "");
    return [
      make("div", { class: "lab-box-head" }, make("span", { class: "lab-name" }, heading), make("span", { class: "lab-figure" }, rewards)),
      this.prompt(row),
      make("div", { class: "lab-sides lab-group" }, ...row.members.map((one) => set(this.side(named(one), one, page), { "data-moves": moves(one) }))),
    ];
  }

  prompt(row) {
    return promptTurns(row.prompt_turns);
  }

  response(row, page) {
    const heading = [row.split, `step ${row.step}`, row.environment].filter(Boolean).join(" · ");
    const mine = this.side(heading, row, page);
    const other = !row.beside ? null
      : row.beside.note ? make("div", { class: "lab-box lab-note" }, row.beside.note)
      : this.side(`${page.beside} · step ${row.beside.step}`, row.beside, page);
    return [this.prompt(row), make("div", { class: "lab-sides" }, other, mine)];
  }

  side(heading, record, page) {
    const figures = [record.failure ? ["failed:", record.failure.replace("_", " ")] : ["reward", number(record.reward)]];
    if (typeof record.advantage === "number") figures.push(["advantage", signed(Number(record.advantage.toPrecision(2)))]);
    if (record.kl !== undefined && record.kl !== null) figures.push(["KL", number(record.kl)]);
    figures.push([record.finished === false ? "cut off at" : "tokens", number(record.length)]);
    if (record.turns > 1) figures.push(["turns", number(record.turns)]);
    const verdicts = [];
    for (const [name, value] of Object.entries(record.metrics ?? {})) {
      if (page.verdicts.includes(name)) verdicts.push([name.replace(/^form\//, "").replaceAll("_", " "), value === 1]);
      else figures.push([name, number(value)]);
    }
    const tokens = record.weights && page.scale && colouredTokens(record.tokens, record.weights, page.scale.most, page.asked.colour);
    return textBox(heading, record.response.trimStart(), figures, tokens, verdicts);
  }
}

// Whether its advantage makes a response likelier.
function moves(record) {
  if (record.failure) return "failed";
  return record.advantage > 0 ? "up" : record.advantage < 0 ? "down" : "not";
}

const STRONGEST = 45; // per cent of the colour: text stays readable on it
const FAINT = 0.08; // of the scale: a token nearer to 0 has no line

function shade(weight, most) {
  const strength = Math.min(1, Math.abs(weight) / most) * STRONGEST;
  return `color-mix(in srgb, ${weight < 0 ? "var(--lab-1)" : "var(--lab-0)"} ${strength.toFixed(1)}%, transparent)`;
}

// One scale for the page: `most` is its strongest colour, on both sides of 0. The sign is a line, too, for eyes and prints
// without colours: above a token that weighs more than 0, below one that weighs less.
function colouredTokens(tokens, weights, most, by) {
  return tokens.map((token, i) => {
    const weight = typeof weights[i] === "number" ? weights[i] : 0;
    const sign = Math.abs(weight) < FAINT * most ? null : weight < 0 ? "minus" : "plus";
    return make("span", { class: "lab-token", "data-sign": sign, title: `${by} ${number(weights[i])}`, style: `background: ${shade(weight, most)}` }, token);
  });
}

// The colours with their numbers. scale: {least, most, beyond, percentile}; null without colours.
function drawScale(element, scale, by) {
  set(element, { hidden: !scale });
  if (!scale) return element.replaceChildren();
  const { least, most, beyond, percentile } = scale;
  const places = least < 0 ? [least, least / 2, 0, most / 2, most] : [0, most / 2, most];
  const numbers = least < 0 ? [least, 0, most] : places;
  const half = (sign, ends) => make("i", { class: "lab-token", "data-sign": sign, style: `background: linear-gradient(to right, ${ends.map((end) => shade(end, most)).join(", ")})` });
  element.replaceChildren(
    make("span", { class: "lab-name" }, `${by} of a token`),
    make("span", { class: "lab-ramp" },
      make("span", { class: "lab-ramp-halves", "aria-hidden": "true" }, least < 0 ? half("minus", places.slice(0, 3)) : null, half("plus", places.slice(-3))),
      make("span", { class: "lab-ramp-numbers" }, ...numbers.map((place) => make("b", {}, number(Number(place.toPrecision(2))))))),
    make("small", {}, [least < 0 ? "A line above a token: more than 0; below: less." : "",
      beyond ? `${beyond} ${beyond === 1 ? "token is" : "tokens are"} beyond the ${percentile}th percentile and have its colour.` : ""].filter(Boolean).join(" ")));
}
