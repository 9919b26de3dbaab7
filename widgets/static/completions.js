// Completions of a run, step by step.

class CompletionsView extends PagedView {
  constructor(model, element) {
    super(model, element, "completions");
    this.slider = make("input", { type: "range", min: 0, "aria-label": "step", oninput: () => this.go(Number(this.slider.value)) });
    this.step = make("output", { class: "lab-facts" });
    this.bar.append(make("span", { class: "lab-step" }, this.slider, this.step));
    this.check("every step", "every");
    this.split = this.choice("of", "split");
    this.sort = this.choice("sorted by", "sort");
    this.colour = this.choice("tokens by", "colour");
    this.besideLabel = this.check("beside it", "beside");
    this.check("cut off only", "cut");
    this.search();
    this.legend = make("small", { class: "lab-key-line" });
    this.bar.append(this.legend);
  }

  // The last place follows the run; any other stays at its step.
  go(place) {
    const { steps } = this.model.get("page");
    this.ask({ step: place >= steps.length - 1 ? null : steps[place], every: false });
  }

  drawTools(page) {
    set(this.slider, { max: Math.max(0, page.steps.length - 1), disabled: page.steps.length < 2 || Boolean(this.asked("every")) });
    this.slider.value = page.steps.indexOf(page.step);
    set(this.slider, { "aria-valuetext": `step ${page.step}` });
    say(this.step, page.step === null ? "no steps yet" : `step ${page.step}${page.latest ? ", the latest" : ""}`);
    this.options(this.split, ["", ...page.splits], this.asked("split"));
    this.options(this.sort, page.sorts, this.asked("sort"));
    this.options(this.colour, page.colours, this.asked("colour"));
    const colour = this.asked("colour") ?? "none";
    say(this.legend, colour === "none" ? "" : `${colour} of each token: blue is positive, orange negative, the strongest colour is the response's largest`);
    this.besideLabel.lastChild.textContent = ` ${page.beside} beside it`;
  }

  card(row, page) {
    const figures = [["reward", number(row.reward)]];
    if (row.kl !== undefined && row.kl !== null) figures.push(["KL", number(row.kl)]);
    figures.push([row.finished === false ? "cut off at" : "tokens", number(row.length)]);
    const heading = `${row.split ?? ""} · step ${row.step}`;
    const mine = textBox(heading, row.response, figures, row.weights && colouredTokens(row.tokens, row.weights, this.asked("colour")));
    const other = row.beside && textBox(`${page.beside} · step ${row.beside.step}`, row.beside.response, [["reward", number(row.beside.reward)]]);
    return [make("div", { class: "lab-prompt lab-text" }, row.prompt.trim().replace(/\n\s*\n/g, "\n")), make("div", { class: "lab-sides" }, other, mine)];
  }
}

// The strongest token of a response is the strongest colour; negative advantages are the other colour.
function colouredTokens(tokens, weights, by) {
  const finite = weights.filter((weight) => typeof weight === "number").map(Math.abs);
  const top = Math.max(1e-9, ...finite);
  return tokens.map((token, i) => {
    const weight = typeof weights[i] === "number" ? weights[i] : 0;
    const strength = Math.round((100 * Math.abs(weight)) / top) * 0.45;
    const colour = weight < 0 ? "var(--lab-1)" : "var(--lab-0)";
    return make("span", { title: `${by} ${number(weights[i])}`, style: `background: color-mix(in srgb, ${colour} ${strength}%, transparent)` }, token);
  });
}

export default widgetOf(CompletionsView);
