// Preference pairs, chosen beside rejected.

class PairsView extends PagedView {
  constructor(model, element) {
    super(model, element, "preference pairs");
    this.sort = this.choice("sorted by", "sort");
    this.wrong = this.check("where the reward model disagrees", "wrong");
    this.search();
  }

  drawTools(page) {
    this.options(this.sort, page.sorts, this.asked("sort"));
    this.wrong.hidden = !page.scored;
  }

  card(row) {
    const side = (name) => textBox(name, row[name], row.margin === undefined ? [] : [["reward", number(row[`reward_${name}`])]]);
    return [promptTurns(row.prompt_turns), make("div", { class: "lab-sides" }, side("chosen"), side("rejected"))];
  }
}

export default widgetOf(PairsView);
