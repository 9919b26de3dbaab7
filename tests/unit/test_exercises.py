"""The exercises: references pass, planted mistakes are named, and other errors are described."""

import ast
import importlib
import json
import os
import random
import re
import warnings
from collections import Counter
from contextlib import suppress
from functools import cache
from html import unescape
from math import log
from pathlib import Path

import exercises_page
import pytest
import torch

from aligner_lib.config.functions import check as check_function
from aligner_lib.config.functions import with_imports
from aligner_lib.config.kinds import kind_of
from aligner_lib.errors import UserError
from aligner_lib.tutorial import check, show_source
from aligner_lib.tutorial.checking.check import judge
from aligner_lib.tutorial.checking.verdict import NOT_YET, PASSED, WRONG
from aligner_lib.tutorial.exercises.draw import Draw
from aligner_lib.tutorial.exercises.exercise import STUB
from aligner_lib.tutorial.exercises.registry import NOTEBOOKS, exercises

ROOT = Path(__file__).parents[2]
ALL = exercises()
PLANTED = {(name, mistake.name): mistake for name, exercise in ALL.items() for mistake in exercise.mistakes}
# another one every time: an answer must not be right, or told, by luck
SEED = 0 if "CI" in os.environ else random.randrange(10**6)


@pytest.fixture(autouse=True)
def no_warning():
    """A warning of the exercises' own code would look like one about the learner's."""
    print(f"seed {SEED}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_every_notebook_has_exercises_with_at_least_five_planted_mistakes():
    assert {exercise.notebook for exercise in ALL.values()} == set(NOTEBOOKS)
    for name, exercise in ALL.items():
        names, meanings = zip(*((mistake.name, mistake.meaning) for mistake in exercise.mistakes))
        assert len(names) == len(set(names)) == len(set(meanings)) >= 5, name
        assert all(text.endswith(".") for text in meanings), name
        assert 3 <= exercise.minutes <= 20 and 1 <= exercise.difficulty <= 5 and exercise.hint


@pytest.mark.parametrize("name", [name for name, exercise in ALL.items() if exercise.library])
def test_the_source_of_the_library_s_function_is_shown(name):
    module, _, function = ALL[name].library.rpartition(".")
    source = show_source(getattr(importlib.import_module(module), function))
    assert f"def {function}(" in source.code and f"/{module.rpartition('.')[2]}.py, line " in source.where
    assert function in source._repr_html_() and source.code in repr(source)


def test_the_page_of_exercises_is_current(monkeypatch):
    # the test of each planted mistake shows that all of them are recognised
    monkeypatch.setattr(exercises_page, "caught", lambda exercise: exercise.mistakes)
    text = exercises_page.PAGE.read_text()
    current = exercises_page.page_with(exercises_page.table(), text)
    assert text == current, "run python notebooks/exercises_page.py"


@pytest.mark.parametrize(("name", "mistake"), PLANTED)
def test_each_planted_mistake_is_rejected_by_name(name, mistake):
    planted = PLANTED[name, mistake]
    verdict = judge(ALL[name], planted.answer, SEED)
    assert not verdict and verdict.status == WRONG
    assert verdict.mistake is planted, repr(verdict)
    for shown in (repr(verdict), verdict._repr_html_()):
        assert planted.meaning.split("&")[0][:40].split("<")[0].split("'")[0] in shown
    assert verdict.function is ALL[name].reference


def rollout_until_all_have_ended(policy, prompts, length, end, draw):
    tokens, over = prompts, torch.zeros(len(prompts), dtype=torch.bool)
    mask = [over] * (prompts.shape[1] - 1)
    for _ in range(length):
        drawn = draw(policy(tokens)[:, -1].exp())
        tokens = torch.cat([tokens, torch.where(over, end, drawn)[:, None]], dim=1)
        mask.append(~over)
        over = over | (tokens[:, -1] == end)
        if over.all():
            break
    return tokens, torch.stack(mask, dim=1)


def update_with_a_step_too_many(policy, critic, optimizer, *others):
    losses = ALL["update"].reference(policy, critic, optimizer, *others)
    optimizer.step()
    return losses


def each_side_s_own_vocabulary(chosen, rejected, answer):
    good, bad = (Counter(word for words in texts for word in words) for texts in (chosen, rejected))
    seen = [word for word in answer if word in good or word in bad]
    of_good, of_bad = sum(good.values()) + len(good), sum(bad.values()) + len(bad)
    return sum(log((good[word] + 1) / of_good) - log((bad[word] + 1) / of_bad) for word in seen)


def best_of_the_first_round(score, answer, words, rounds):
    best = max(words, key=lambda word: score(f"{answer} {word}"))
    return answer + f" {best}" * rounds


def best_as_often_as_it_pays(score, answer, words, rounds):
    best = max(words, key=lambda word: score(f"{answer} {word}"))
    for _ in range(rounds):
        if score(f"{answer} {best}") > score(answer):
            answer = f"{answer} {best}"
    return answer


def penalty_of_the_size(rewards, kl, mask, coefficient):
    result = -coefficient * kl.abs() * mask
    last = (mask * torch.arange(mask.shape[1])).argmax(dim=1)
    result[torch.arange(len(mask)), last] += rewards
    return result


def gae_down_to_column_1(values, rewards, mask, discount, gae_lambda):
    values, rewards = values * mask, rewards * mask
    advantages, returns, ahead = torch.zeros_like(values), torch.zeros_like(values), torch.zeros(len(values))
    following = pad(values, (0, 1))[:, 1:]
    for t in range(values.shape[1] - 1, 0, -1):
        error = rewards[:, t] + discount * following[:, t] - values[:, t]
        advantages[:, t] = ahead = (error + discount * gae_lambda * ahead) * mask[:, t]
        returns[:, t] = advantages[:, t] + values[:, t]
    return advantages, returns


def returns_of_rewards(values, rewards, mask, discount, gae_lambda):
    advantages, _ = ALL["gae"].reference(values, rewards, mask, discount, gae_lambda)
    returns, ahead = torch.zeros_like(values), torch.zeros(len(values))
    for t in reversed(range(values.shape[1])):
        ahead = (rewards[:, t] + discount * ahead) * mask[:, t]
        returns[:, t] = ahead
    return advantages, returns


def right_of_all(rewards, ended, right):
    before, first, good = rewards[0], ended[0], (ended & right).float().mean(dim=1)
    ending = (ended[1].float().mean() - first.float().mean()) * (before[first].mean() - before[~first].mean())
    worth = before[first & right[0]].mean() - before[first & ~right[0]].mean()
    gold = (good[1] - good[0]) * worth
    return ending, gold, rewards[1].mean() - before.mean() - ending - gold


def normalised_over_all(rewards, group):
    return (rewards - rewards.mean()) / (rewards.std() + 1e-4)


def logprobs_one_too_late(logits, tokens):
    return logits.log_softmax(-1)[:, 1:].gather(-1, tokens[:, 1:, None]).squeeze(-1)


def loss_in_float64(chosen, rejected):
    return ALL["bradley_terry"].reference(chosen, rejected).double()


def raises(chosen, rejected):
    margin = chosen - rejected
    return margin[len(margin)]


def raises_without_a_word(chosen, rejected):
    raise NotImplementedError


def reference(name, change):
    """The reference of an exercise, with its outputs changed."""
    return lambda *inputs: change(ALL[name].reference(*inputs))


pad = torch.nn.functional.pad
SHOWN = [
    # the gradient is wrong and the values are right
    ("bradley_terry", "rejected_detached", "the gradient to rejected is 0 everywhere"),
    ("clipped_loss", "ratio_detached", "the gradient to ratio is 0 everywhere"),
    ("masked_loss", "only_the_last_learns", "the gradient to logprobs[0] is 0 everywhere"),
    ("clipped_loss", "stop_gradient", "clipped has no gradient"),
    ("kl_estimators", "detached", "the gradient to logprobs is 0 everywhere"),
]
# a learner's code, and the planted mistake that it has
RECOGNISED = [
    ("grpo_advantages", normalised_over_all, "groups_ignored"),
    ("next_logprobs", logprobs_one_too_late, "wrong_side_shifted"),
    ("naive_bayes", each_side_s_own_vocabulary, "a_vocabulary_for_each_side"),
    ("first_losses", lambda size, beta: (log(size), log(2), log(2), (1 / beta) ** 2), "two_forgotten"),
    ("fool", best_of_the_first_round, "one_word_repeated"),
    ("fool", best_as_often_as_it_pays, "one_word_repeated"),
    ("fool", lambda score, answer, words, n: " ".join([answer] + [words[0]] * n), "one_word_repeated"),
    ("gae", returns_of_rewards, "returns_without_lambda"),
    ("gae", gae_down_to_column_1, "first_column_left_out"),
    ("token_rewards", penalty_of_the_size, "absolute_kl"),
    ("gain_in_parts", right_of_all, "joint_share"),
    ("rollout", rollout_until_all_have_ended, "not_filled_up"),
    ("bradley_terry", lambda chosen, rejected: -(chosen - rejected).sigmoid().log(), "log_of_zero"),
    ("bradley_terry", lambda chosen, rejected: (1 + (rejected - chosen).exp()).log(), "log_of_zero"),
    ("bradley_terry", lambda chosen, rejected: (rejected - chosen).exp().log1p(), "log_of_zero"),
    # none; the first four have another dtype or shape than the functions of seen_in compute with
    ("token_rewards", lambda *inputs: ALL["token_rewards"].reference(*inputs).double() + 1, None),
    ("gae", lambda values, rewards, mask, *_: (torch.zeros_like(mask), mask), None),
    ("kl_estimators", lambda logprobs, reference: (logprobs > 0, logprobs > 0, logprobs > 0), None),
    ("exact_match", lambda response, answer: torch.zeros(0), None),
    ("fool", lambda score, answer, words, rounds: None, None),
    ("fool", lambda score, answer, words, rounds: (" ".join([answer] + [words[0]] * rounds), rounds), None),
    ("fool", lambda score, answer, words, rounds: f"{answer} {words[0]}", None),
    ("fool", lambda score, answer, words, rounds: " ".join([answer, *words]), None),
    ("fool", lambda score, answer, words, rounds: answer[rounds:1000:0], None),
]
# a change of the right result, and the description of the difference
DESCRIBED = [
    ("gae", lambda both: both[::-1], "right, but in another order. Return advantages, returns."),
    ("gae", lambda both: (both[0], -both[1]), "Every value of returns has the other sign."),
    ("perplexity", lambda value: 3 * value, "Every value of perplexity is 3 times the right one."),
    ("perplexity", lambda value: value - 0.5, "Every value of perplexity is the right one minus 0.5."),
    ("next_logprobs", lambda values: pad(values, (1, -1)), "one place too far to the right."),
    ("next_logprobs", lambda values: pad(values, (-1, 1)), "one place too far to the left."),
    ("token_rewards", lambda values: values.mT, "is transposed: its rows should be its columns."),
    ("next_logprobs", lambda values: values.clamp(min=-20), "No value of logprobs is below -20, and"),
    ("dpo_losses", lambda values: -((-values).exp() + 1e-8).log(), "No value of loss is above 18.42,"),
    ("clipped_loss", lambda both: (both[0].detach(), both[1]), "are right, but loss has no gradient."),
    ("gae", lambda both: torch.tensor(1.0), "returns one value; it should return 2: advantages, returns."),
    ("gae", lambda both: torch.stack(both).numpy(), "returns one ndarray of shape [2, "),
    ("clipped_loss", lambda both: both[0], "returns one Tensor of shape ["),
    ("first_losses", list, "returns one list of 4 values; it should return 4: sft, reward_model, dpo, ipo."),
]
# answers to bradley_terry that are no loss
REFUSED = [
    (lambda chosen, rejected: None, ". loss is None. Is the return missing?"),
    (lambda chosen, rejected: (chosen, rejected), "returns 2 values; it should return one value, loss"),
    (lambda chosen, rejected: torch.zeros(0), "(no elements)"),
    (lambda chosen, rejected: torch.zeros(2, 0), "(no elements)"),
    (lambda chosen, rejected: "yes", "of type str; it should be a tensor (float32"),
    (lambda chosen, rejected: chosen[:, None], "has the shape [5, 1]; it should have [5]"),
    (loss_in_float64, "The numbers of loss are right, but they are float64; it should be float32"),
    (raises, "Your function raised IndexError in line 3: index 5 is out of bounds"),
    (raises_without_a_word, "Your function raised NotImplementedError in line 2."),
    (lambda chosen: chosen, "check calls bradley_terry(chosen, rejected), but your function does not accept"),
    (torch.tensor(1.0), "Check expects the function itself, bradley_terry without parentheses"),
]


def last_match(pattern, passes=lambda number, answer: float(number) == float(answer)):
    """exact_match with this pattern, and passes(last match, answer) as comparison."""

    def exact_match(response, answer):
        numbers = re.findall(pattern, response)
        return float(bool(numbers) and passes(numbers[-1], answer))

    return exact_match


def words_of_digits(response, answer):
    words = [word.strip(".,") for word in response.split()]
    numbers = [word for word in words if word.lstrip("-").replace(".", "").isdigit()]
    return float(bool(numbers) and float(numbers[-1]) == float(answer))


def groups_counted_from_0(rewards, group):
    advantages = torch.zeros_like(rewards)
    for number in range(len(group.unique())):
        members = group == number
        if rewards[members].unique().numel() > 1:
            advantages[members] = (rewards[members] - rewards[members].mean()) / (
                rewards[members].std() + 1e-4
            )
    return advantages


def ratio_of_probabilities(logprobs, reference):
    ratio = reference.exp() / logprobs.exp()
    return logprobs - reference, (logprobs - reference) ** 2 / 2, ratio - 1 - ratio.log()


def half_in_k3(logprobs, reference):
    d = logprobs - reference
    return d, d**2 / 2, d + 0.5 * ((-d).exp() - 1)


# answers of readers that equal no planted answer, because the mistake has several forms
FORMS = [
    ("grpo_advantages", groups_counted_from_0, None),
    ("exact_match", words_of_digits, "separate_words"),
    ("exact_match", last_match(r"-?\d+(\.\d+)?", str.__eq__), "always_0"),
    ("exact_match", last_match(r"-?\d+", str.__eq__), "decimals_cut"),
    ("exact_match", lambda response, answer: float(response.endswith(answer)), "ending"),
    ("whiten", lambda values, mask: (values - values[mask].mean()) / values[mask].std() * mask, "corrected_variance"),
    ("reinforce_loss", lambda z, x, r: -(r * (z.exp() / z.exp().sum()).log()[x]).mean(), "log_of_zero"),
    ("kl_estimators", ratio_of_probabilities, "zero_over_zero"),
    ("kl_estimators", half_in_k3, "another_multiple_in_k3"),
    ("truncated_weights", lambda new, old, cap: (new.exp() / old.exp()).clamp(0, cap), "zero_over_zero"),
    ("no_gradient", lambda ratio, values, limit: (values > 0) & (ratio > limit), "compared_with_epsilon"),
]  # fmt: skip
RIGHT_FORMS = [
    ("exact_match", last_match(r"-?\d*\.?\d+", lambda number, answer: abs(float(number) - float(answer)) < 1e-6)),
    ("whiten", lambda a, m: torch.where(m, (a - a[m].mean()) / (((a[m] - a[m].mean()) ** 2).mean() + 1e-8).sqrt(), 0.0)),
    ("pair_weights", lambda margins, beta: beta / (1 + (beta * margins).exp())),
    ("leave_one_out", lambda r: torch.stack([r[i] - torch.cat([r[:i], r[i + 1 :]]).mean() for i in range(len(r))])),
    ("reinforce_loss", lambda logits, drawn, rewards: -(rewards * (logits - logits.logsumexp(0))[drawn]).mean()),
    ("off_policy_loss", lambda z, x, old, values: -((z[x] - z.logsumexp(0) - old).exp() * values).mean()),
    ("truncated_weights", lambda new, old, cap: (new - old).clamp(max=log(cap)).exp()),
    ("kl_estimators", lambda new, reference: (new - reference, (reference - new) ** 2 / 2, (reference - new).expm1() + new - reference)),
    ("implicit_reward", lambda new, reference, mask, beta: beta * torch.where(mask, new - reference, 0.0).sum(1)),
    ("no_gradient", lambda ratio, values, e: torch.where(values > 0, ratio > 1 + e, ratio < 1 - e)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "answer"), RIGHT_FORMS)
def test_a_right_answer_in_another_form_passes(name, answer):
    verdict = judge(ALL[name], answer, SEED)
    assert verdict, repr(verdict)


@pytest.mark.parametrize(
    ("name", "answer", "mistake", "words"),
    [
        *((name, answer, mistake, "") for name, answer, mistake in FORMS),
        *((name, PLANTED[name, flaw].answer, flaw, f"are right, but {words}") for name, flaw, words in SHOWN),
        *((name, answer, mistake, "") for name, answer, mistake in RECOGNISED),
        *((name, reference(name, change), None, words) for name, change, words in DESCRIBED),
        *(("bradley_terry", answer, None, words) for answer, words in REFUSED),
        ("update", update_with_a_step_too_many, None, "but after your function, the weight policy.0.weight["),
    ],
)
def test_a_wrong_answer_is_described(name, answer, mistake, words):
    seed = SEED
    if name == "bradley_terry":  # the words name 5 pairs
        seed = next(s for s in range(100) if len(ALL[name].inputs(Draw(s))["chosen"]) == 5)
    verdict = judge(ALL[name], answer, seed)
    assert not verdict and (verdict.mistake and verdict.mistake.name) == mistake, repr(verdict)
    assert words in repr(verdict) and words.split("'")[0] in unescape(verdict._repr_html_())


def test_the_first_difference_and_both_results_are_shown():
    def answer(values, rewards, mask, discount, gae_lambda):
        advantages, returns = ALL["gae"].reference(values, rewards, mask, discount, gae_lambda)
        advantages[1, 1:3] += 7.0
        return advantages, returns

    verdict = judge(ALL["gae"], answer, SEED)
    right, _ = ALL["gae"].reference(*verdict.inputs.values())
    first = f"advantages[1, 1] is {right[1, 1] + 7:.4g}; it should be {right[1, 1] + 0.0:.4g} (2 of"
    assert verdict.sentence.startswith(first)  # + 0.0: a zero is shown without its sign
    assert verdict.mistake is None and f"float32 {list(right.shape)}" in repr(verdict)
    assert verdict._repr_html_().count("<u>") == 4 and "gae_lambda" in verdict._repr_html_()


def test_a_verdict_in_a_terminal_shows_the_input_of_the_failed_case():
    verdict = judge(ALL["exact_match"], lambda response, answer: float(answer in response[:1]), SEED)
    response, answer = verdict.inputs.values()
    assert f"the input of the failed case:\n    response: {response!r}\n    answer: {answer!r}" in repr(
        verdict
    )
    verdict = judge(ALL["value_loss"], lambda *inputs: inputs[0], SEED)
    rows, columns = verdict.inputs["values"].shape
    shown = repr(verdict).partition("the input of the failed case:\n")[2].splitlines()
    assert shown[0] == f"    values: float32 [{rows}, {columns}]" and len(shown) == 3 * (1 + min(rows, 3)) + 1
    assert shown[-1] == f"    clip: {verdict.inputs['clip']}"


def test_a_list_of_numbers_is_shown_in_a_line():
    verdict = judge(ALL["leave_one_out"], lambda rewards: [reward + 1 for reward in rewards], SEED)
    numbers = "  ".join(f"{reward + 1:.4g}" for reward in verdict.inputs["rewards"].tolist())
    yours = repr(verdict).partition("yours: list\n")[2].partition("\nexpected:")[0]
    assert yours.split() == numbers.split() and "\n" not in yours
    assert "\n" not in verdict._repr_html_().partition("<pre>")[2].partition("</pre>")[0]


def test_a_changed_input_and_a_missing_return_are_reported_and_a_learner_s_text_is_escaped():
    reference = ALL["perplexity"].reference
    verdict = judge(ALL["perplexity"], lambda logprobs, mask: reference(logprobs.mul_(mask), mask))
    assert "your function changed the input logprobs. Write to a copy" in verdict.sentence
    nothing = judge(ALL["gae"], lambda *inputs: None)
    assert "Your function returns nothing. Is the return missing?" in repr(nothing)
    shown = judge(ALL["fool"], lambda *inputs: "<script>alert(1)</script>")._repr_html_()
    assert "<script>" not in shown and "&lt;script&gt;" in shown


def never_ends(chosen, rejected):
    while True:
        with suppress(Exception):
            chosen = chosen + 0


def test_a_loop_without_end_is_ended_after_one_call(monkeypatch):
    monkeypatch.setattr("aligner_lib.tutorial.exercises.outcome.SECONDS", 0.2)
    verdict = judge(ALL["bradley_terry"], never_ends, SEED)
    assert "Your function did not end within" in verdict.sentence and " in line " in verdict.sentence
    assert judge(ALL["bradley_terry"], ALL["bradley_terry"].reference, SEED)


def test_numbers_are_told_apart_and_a_negative_zero_has_no_sign():
    verdict = judge(ALL["perplexity"], reference("perplexity", lambda value: value * 1.0002), SEED)
    yours, right = verdict.sentence.split("; it should be ")
    assert yours.split()[-1] != right.split(" ")[0].rstrip(".")
    verdict = judge(ALL["bradley_terry"], lambda chosen, rejected: -0.0 * chosen, SEED)
    assert "yours: float32" in repr(verdict) and "-0" not in repr(verdict).split("expected:")[0]


def test_an_unknown_exercise_and_a_function_without_source_are_refused():
    with pytest.raises(UserError, match="there is no exercise 'gea'; did you mean 'gae'"):
        check("gea", lambda: None)
    with pytest.raises(ValueError, match="has no Python source to show"):
        show_source(len)


def test_inputs_are_ragged_and_depend_on_the_seed_alone():
    inputs = ALL["gae"].inputs
    one, other, third = (inputs(Draw(seed))["values"] for seed in (SEED, SEED, SEED + 1))
    assert torch.equal(one, other) and not (one.shape == third.shape and torch.equal(one, third))
    lengths = inputs(Draw(SEED))["mask"].sum(dim=1)
    assert lengths.min() >= 2 and not inputs(Draw(SEED))["mask"][:, -1].all()


@cache
def code(path: Path) -> list[tuple[str, list[str]]]:
    cells = json.loads(path.read_text())["cells"]
    cells = [cell for cell in cells if cell["cell_type"] == "code"]
    return [("".join(cell["source"]), cell["metadata"].get("tags", [])) for cell in cells]


def notebooks_with_exercises(folder: str) -> list[Path]:
    paths = sorted((ROOT / folder).glob("[0-9]*.ipynb"))
    return [path for path in paths if path.stem.partition("_")[0] in NOTEBOOKS]


@cache
def sources(folder: str, tag: str) -> dict[str, str]:
    """The text of every cell with this tag, by the name of its function. Notebook 11 repeats functions of 05 to the letter."""
    by_name: dict[str, str] = {}
    for path in notebooks_with_exercises(folder):
        for source in (source for source, tags in code(path) if tag in tags):
            name = ast.parse(source).body[-1].name
            assert by_name.setdefault(name, source) == source, f"{path.stem} has another {name}"
    return by_name


def defined(source: str, name: str):
    """The function of a cell; the notebooks import torch before."""
    names = {"torch": torch}
    exec(compile(source, name, "exec"), names)
    return names[name]


@cache
def functions(folder: str, tag: str) -> dict:
    """Every function of a cell with this tag, by its name."""
    return {name: defined(source, name) for name, source in sources(folder, tag).items()}


def test_solutions_pass_and_stubs_are_not_yet_answered():
    solutions, stubs = functions("notebooks/solved", "solution"), functions("notebooks", "exercise")
    assert list(solutions) == list(stubs) == list(ALL)
    for name, solution in solutions.items():
        verdict = judge(ALL[name], solution, SEED)
        assert verdict and verdict.status == PASSED and verdict.function is solution, repr(verdict)
        stub = judge(ALL[name], stubs[name])
        assert stub.status == NOT_YET and not stub
        with pytest.raises(NotImplementedError, match=STUB):
            stubs[name](*ALL[name].inputs(Draw(0)).values())
        assert solution.__doc__ == stubs[name].__doc__ and "→" in solution.__doc__
        # a docstring that promises float [] has a tensor shown beside the learner's
        inputs = ALL[name].inputs(Draw(SEED)).values()
        own, expected = solution(*inputs), ALL[name].reference(*inputs)
        assert type(own) is type(expected), name
        if isinstance(own, tuple):
            assert list(map(type, own)) == list(map(type, expected)), name


@pytest.mark.parametrize("name", [name for name, exercise in ALL.items() if exercise.trains])
def test_solutions_that_train_equal_the_library_bit_for_bit(name):
    """The notebooks hand them to a run, whose figures must be those of any other."""
    exercise, (kind, replaced) = ALL[name], ALL[name].trains
    place = kind_of(kind).functions[replaced]
    assert place.replace(":", ".") == exercise.library
    check_function(with_imports(sources("notebooks/solved", "solution")[name]), place, name)
    solution = functions("notebooks/solved", "solution")[name]
    for case in range(exercise.cases):
        inputs = exercise.inputs(Draw(SEED, case)).values()
        own, library = solution(*inputs), exercise.reference(*inputs)
        assert all(map(torch.equal, own, library)) if isinstance(own, tuple) else torch.equal(own, library)


def test_the_function_that_mends_a_run_in_the_bug_hunt_passes_the_check_of_05():
    cells = code(ROOT / "notebooks" / "10_bug_hunt.ipynb")
    (source,) = (source for source, _ in cells if source.startswith("def token_rewards("))
    verdict = judge(ALL["token_rewards"], defined(source, "token_rewards"), SEED)
    assert verdict, repr(verdict)


@pytest.mark.parametrize("path", notebooks_with_exercises("notebooks"), ids=lambda path: path.stem)
def test_a_notebook_uses_a_learner_s_function_only_after_its_check(path):
    """Only check gets a learner's function; a run takes it if it has passed."""
    own = [ast.parse(source).body[-1].name for source, tags in code(path) if "exercise" in tags]
    seen = ""
    for source, tags in code(path):
        seen += source
        if "exercise" in tags:
            continue
        for node in ast.walk(ast.parse(source.replace("await ", ""))):
            if isinstance(node, ast.Name) and node.id in own:
                line = source.splitlines()[node.lineno - 1]
                assert "import torch" in seen or path.stem.startswith("02")
                assert f'check("{node.id}", {node.id})' in line or (" if " in line and "_check" in line), line
    assert all(f'check("{name}", {name})' in seen for name in own)
