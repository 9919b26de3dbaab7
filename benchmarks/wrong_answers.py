"""`python -m benchmarks.wrong_answers`: which wrong answers to the exercises `check` accepts.

A wrong answer is a notebook's solution with one changed expression. A seed draws equally many answers of each mistake. An accepted
answer is either as right as the solution, or shows a gap of the exercise's inputs, so read each accepted answer. `RIGHT` lists the
accepted answers that were read and are right.

    --count 40 --seed 0   how many answers of each mistake, and which draw
    --of gae              answers of one exercise alone
    --list                print all answers with their verdicts, not only the accepted answers
    --page                all answers of all exercises, so without --of, as the table of docs/decisions/wrong-answers.md
"""

from __future__ import annotations

import ast
import json
import random
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from aligner_lib.tutorial.exercises.registry import exercise
from benchmarks import mutations
from benchmarks.mutations import Mutant, mutants_of, planted
from benchmarks.options import documented_parser

SOLVED = Path(__file__).resolve().parents[1] / "notebooks" / "solved"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "decisions" / "wrong-answers.md"
INTRODUCTION = """# Wrong answers to the exercises

`python -m benchmarks.wrong_answers --page` writes this page. A program makes wrong answers: each is a notebook's solution with one
changed expression. *named*: `check` rejects the answer and names the mistake. *described*: `check` rejects the answer with the first
difference. *raised*: the answer raises an error or does not end. *right*: the changed answer is as right as the solution, and was read
(`RIGHT` in the program lists the reasons). *accepted*: a wrong answer passes.
"""
OUTCOMES = ("named", "described", "raised", "right", "accepted")

RIGHT = {  # exercise:line of its solution, and the change
    "A tensor with one dimension has no other one.": (
        "reinforce_loss:7 logits.log_softmax(dim=-1) → (logits.log_softmax(dim=0))",
        "off_policy_loss:7 logits.log_softmax(dim=-1) → (logits.log_softmax(dim=0))",
        "bandit_loss:8 logits.log_softmax(dim=-1) → (logits.log_softmax(dim=0))",
        "optimal_policy:7 (reference_logprobs + rewards / beta).log_softmax(dim=-1) → "
        "((reference_logprobs + rewards / beta).log_softmax(dim=0))",
        "reinforce_loss:7 1 → (0)",
        "off_policy_loss:7 1 → (0)",
        "bandit_loss:8 1 → (0)",
        "optimal_policy:7 1 → (0)",
    ),
    "Only the length or the shape is read, and the other argument has the same one.": (
        "best_of_n:10 proxy → gold",
        "gae:8 values → mask",
        "gae:9 values → mask",
        "gae:7 values → rewards",
        "gae:8 values → rewards",
        "gae:9 values → rewards",
        "last_and_mean:6 hidden → hidden.detach()",
        "last_and_mean:7 hidden → hidden.detach()",
        "last_and_mean:6 hidden → lengths",
        "token_rewards:8 mask → kl",
        "update:11 batch[0] → (batch[1])",
    ),
    "The tensor has no gradient to lose.": (
        "bandit_loss:13 advantages → advantages.detach()",
        "bandit_loss:10 with_penalty → with_penalty.detach()",
        "last_and_mean:8 counts → counts.detach()",
        "masked_loss:7 mask → mask.detach()",
        "masked_loss:8 mask → mask.detach()",
    ),
    "No value reaches the limit, or what lies beyond it is 0 to five digits.": (
        "gain_in_parts:13 gold[1] - gold[0] → ((gold[1] - gold[0]).clamp(-10, 10))",
        "gain_in_parts:12 share[1] - share[0] → ((share[1] - share[0]).clamp(-10, 10))",
        "kappa:12 observed - expected → ((observed - expected).clamp(-10, 10))",
        "both_orders:8 first + 1 - second → ((first + 1 - second).clamp(-10, 10))",
        "ppo_step:19 advantages - counted.mean() → ((advantages - counted.mean()).clamp(-10, 10))",
        "rollout:12 policy(tokens)[:, -1].exp() → (policy(tokens)[:, -1].exp().clamp(-10, 10))",
        "truncated_weights:6 (logprobs - sampler_logprobs).exp() → "
        "((logprobs - sampler_logprobs).exp().clamp(-10, 10))",
        "truncated_weights:6 logprobs - sampler_logprobs → ((logprobs - sampler_logprobs).clamp(-10, 10))",
        "update:14 logprobs - old_logprobs → ((logprobs - old_logprobs).clamp(-10, 10))",
        "win_rate_interval:11 rate - 1.96 * error → ((rate - 1.96 * error).clamp(-10, 10))",
    ),
    "The docstring excludes an advantage of 0, and no drawn ratio lies on a bound.": (
        "no_gradient:6 advantages > 0 → (advantages >= 0)",
        "no_gradient:7 advantages < 0 → (advantages <= 0)",
        "no_gradient:6 ratio > 1 + epsilon → (ratio >= 1 + epsilon)",
        "no_gradient:7 ratio < 1 - epsilon → (ratio <= 1 - epsilon)",
    ),
    "The small number matters only where all advantages are equal.": (
        "ppo_step:19 counted.std(correction=0) + 1e-8 → (counted.std(correction=0) - 1e-08)",
        "ppo_step:19 counted.std(correction=0) + 1e-8 → (counted.std(correction=0))",
        "ppo_step:19 1e-8 → (2e-08)",
        "ppo_step:19 1e-8 → (0)",
    ),
    "Where all advantages are equal, any small number gives 0; elsewhere twice the small number changes no digit.": (
        "whiten:8 1e-8 → (2e-08)",
    ),
    "The clip is narrower than the other limit. And where the value moved towards the return, both clips end at the same place; "
    "elsewhere the loss without a clip is the larger one.": (
        "value_loss:6 values - old_values → ((values - old_values).clamp(-10, 10))",
        "value_loss:6 values → returns",
    ),
    "Another way to write the same.": (
        "grpo_advantages:12 group.unique() → (group)",
        "auc:7 ((good > bad) + 0.5 * (good == bad)).float() → ((good > bad) + 0.5 * (good == bad))",
        "episode_tokens:9 zip(written, observed) → (zip(observed, written))",
        "masked_loss:7 zip(logprobs, masks) → (zip(masks, logprobs))",
        "naive_bayes:12 bad.keys() → (bad)",
        "naive_bayes:12 good.keys() → (good)",
        "ppo_step:19 (advantages - counted.mean()) / (counted.std(correction=0) + 1e-8) * mask → "
        "((advantages - counted.mean()) / (counted.std(correction=0) + 1e-08))",
        "rollout:15 over | (tokens[:, -1] == end) → (tokens[:, -1] == end)",
        "update:21 mean.detach() → (mean)",
        "win_rate_interval:7 (own > others).float() → (own > others)",
    ),
}

# ---- mistakes of learners beside the mistakes of `benchmarks.mutations` ---------------------------------------------

OTHER_METHOD = {"maximum": "minimum", "minimum": "maximum", "argmax": "argmin", "log_softmax": "softmax"}


def dimension(node: ast.AST) -> Iterator[ast.AST]:
    """Dimension 0 in place of another dimension."""
    for keyword in node.keywords if isinstance(node, ast.Call) else ():
        if keyword.arg == "dim":
            yield mutations.replaced(node, keyword.value, ast.Constant(0))


def left_out(node: ast.AST) -> Iterator[ast.AST]:
    """A part left out: a + b → a and → b, a.exp() → a."""
    if isinstance(node, ast.BinOp):
        yield node.left
        yield node.right
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield node.func.value


def other_method(node: ast.AST) -> Iterator[ast.AST]:
    """A maximum in place of a minimum, a softmax without its log, | in place of &."""
    if isinstance(node, ast.Attribute) and node.attr in OTHER_METHOD:
        yield ast.Attribute(node.value, OTHER_METHOD[node.attr])
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
        op = ast.BitOr() if isinstance(node.op, ast.BitAnd) else ast.BitAnd()
        yield ast.BinOp(node.left, op, node.right)


def limit(node: ast.AST) -> Iterator[ast.AST]:
    """A clamp with only one of its bounds, or a needless clamp of a difference, an exponential or log-probabilities."""
    method = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
    difference = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)
    if method == "clamp" and len(node.args) == 2:
        yield ast.Call(node.func, [node.args[0]], [])
        yield ast.Call(node.func, [], [ast.keyword("max", node.args[1])])
    elif method in ("exp", "log_softmax", "logsigmoid") or (difference and not _has_number(node)):
        yield ast.Call(ast.Attribute(node, "clamp"), [ast.Constant(-10), ast.Constant(10)], [])


def _has_number(node: ast.BinOp) -> bool:
    return any(isinstance(part, ast.Constant) for part in (node.left, node.right))


def constant(node: ast.AST) -> Iterator[ast.AST]:
    """Another number: twice as large, or 0."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value:
        yield ast.Constant(2 * node.value)
        yield ast.Constant(0)


def statement(node: ast.AST) -> Iterator[ast.AST]:
    """A line left out."""
    documents = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Assign | ast.Expr | ast.Break) and not documents:
        yield ast.Pass()


MISTAKES: dict[str, mutations.Mistake] = mutations.MISTAKES | {
    "dimension": dimension,
    "left out": left_out,
    "other method": other_method,
    "limit": limit,
    "constant": constant,
    "statement": statement,
}

KINDS = (*MISTAKES, "other name", "detached")


def of_names(source: str, with_gradient: tuple[str, ...]) -> Iterator[Mutant]:
    """An argument of the function in place of another argument, and a tensor without its gradient, at each place where the
    function reads them.

    with_gradient: the arguments whose gradients `check` compares.
    """
    function = ast.parse(source).body[-1]
    arguments = [argument.arg for argument in function.args.args]
    read = [
        node for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    ]
    for node in read:
        names = [name for name in arguments if name != node.id] if node.id in arguments else []
        changed = [("other name", name) for name in names]
        if with_gradient and (node.id in with_gradient or _is_assigned(node.id, function)):
            changed.append(("detached", f"{node.id}.detach()"))
        for mistake, after in changed:
            yield Mutant(mistake, function.name, node.lineno, node.col_offset, node.id, after)


def _is_assigned(name: str, function: ast.FunctionDef) -> bool:
    return any(
        isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id == name for n in ast.walk(function)
    )


# ---- answers and verdicts -------------------------------------------------------------------------------------------


def solutions() -> dict[str, str]:
    """The source of each exercise's solution, by the exercise's name."""
    by_name: dict[str, str] = {}
    for path in sorted(SOLVED.glob("[0-9]*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if "solution" in cell["metadata"].get("tags", []):
                source = "".join(cell["source"])
                by_name.setdefault(ast.parse(source).body[-1].name, source)
    return by_name


def wrong_answers(name: str, source: str) -> list[Mutant]:
    """All answers to an exercise with one changed expression, without duplicate texts. A mutant's path is the exercise."""
    by_text: dict[str, Mutant] = {}
    for mutant in [*mutants_of(name, source, MISTAKES), *of_names(source, exercise(name).gradients)]:
        by_text.setdefault(planted(source, mutant), mutant)
    return list(by_text.values())


def draw(count: int, seed: int, pool: list[Mutant]) -> list[Mutant]:
    """Up to `count` answers of each mistake."""
    by_mistake = {mistake: [m for m in pool if m.mistake == mistake] for mistake in KINDS}
    return [
        mutant
        for mistake, answers in by_mistake.items()
        for mutant in random.Random(f"{seed} {mistake}").sample(answers, min(count, len(answers)))
    ]


def outcome(mutant: Mutant, source: str) -> str:
    """The outcome of `check` for the answer: named, described, raised (an error of the answer), right or accepted."""
    import torch

    from aligner_lib.tutorial.checking.check import judge

    names = {"torch": torch}
    exec(compile(planted(source, mutant), mutant.path, "exec"), names)
    with warnings.catch_warnings(action="ignore"):
        verdict = judge(exercise(mutant.path), names[mutant.path])
    if verdict:
        return "right" if is_right(mutant) else "accepted"
    if verdict.mistake:
        return "named"
    return "raised" if verdict.difference.what in ("an error", "the time") else "described"


def change(mutant: Mutant) -> str:
    """The place and the content of an answer's change, as in `RIGHT`."""
    return f"{mutant.path}:{mutant.line} " + " ".join(f"{mutant.before} → {mutant.after}".split())


def is_right(mutant: Mutant) -> bool:
    """Whether the answer was read and is as right as the solution."""
    return any(change(mutant) in answers for answers in RIGHT.values())


def main(words: list[str] | None = None) -> None:
    sources = solutions()
    parser = documented_parser("wrong_answers", __doc__)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--of", choices=sources, metavar="EXERCISE")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args(words)
    if options.page and options.of:
        parser.error(
            f"--of {options.of}: the page counts the answers of all exercises; leave out --of or --page"
        )
    pool = [m for name in sources if options.of in (None, name) for m in wrong_answers(name, sources[name])]
    counts: Counter = Counter()
    for mutant in pool if options.page else draw(options.count, options.seed, pool):
        verdict = outcome(mutant, sources[mutant.path])
        counts[mutant.mistake, verdict] += 1
        counts[mutant.path, verdict] += 1
        if options.list or verdict == "accepted":
            print(f"{verdict:10} {mutant}", flush=True)
    print(f"{'':17}" + "".join(f"{verdict:>11}" for verdict in OUTCOMES))
    for mistake in KINDS:
        print(f"{mistake:17}" + "".join(f"{counts[mistake, verdict]:11}" for verdict in OUTCOMES))
    if options.page:
        PAGE.write_text(page(counts, list(sources)), encoding="utf-8")


def page(counts: Counter, names: list[str]) -> str:
    """The table of docs/decisions/wrong-answers.md, as Markdown. counts: answers by exercise or mistake, and outcome; names: exercises."""
    columns = ("made", *OUTCOMES)

    def table(first: str, rows: list[str]) -> list[str]:
        lines = [f"| {first} | " + " | ".join(columns) + " |", "| --- " * (len(columns) + 1) + "|"]
        for row in rows:
            of_row = [counts[row, verdict] for verdict in OUTCOMES]
            lines.append(f"| `{row}` | {sum(of_row)} | " + " | ".join(map(str, of_row)) + " |")
        total = [sum(counts[row, verdict] for row in rows) for verdict in OUTCOMES]
        return [*lines, f"| **all** | {sum(total)} | " + " | ".join(map(str, total)) + " |", ""]

    return "\n".join([INTRODUCTION, *table("exercise", names), *table("kind of change", list(KINDS))])


if __name__ == "__main__":
    main()
