"""The exercises: references pass, planted mistakes are named, and other errors are described."""

import ast
import importlib
import json
import math
import os
import random
import re
import warnings
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import cache
from html import unescape
from pathlib import Path
from unittest.mock import Mock

import exercises_page
import pytest
import torch

from aligner_lib.config.functions import check as check_function
from aligner_lib.config.functions import library_functions, source_of, with_imports
from aligner_lib.config.kinds import kind_of
from aligner_lib.errors import UserError
from aligner_lib.tutorial import check, show_source
from aligner_lib.tutorial.checking.check import judge
from aligner_lib.tutorial.checking.verdict import NOT_YET, PASSED, WRONG
from aligner_lib.tutorial.exercises.draw import Draw
from aligner_lib.tutorial.exercises.exercise import Exercise
from aligner_lib.tutorial.exercises.outcome import AnswerOutcome, outcome
from aligner_lib.tutorial.exercises.registry import NOTEBOOKS, exercises

ROOT = Path(__file__).parents[2]
ALL = exercises()
PLANTED = {(name, mistake.name): mistake for name, exercise in ALL.items() for mistake in exercise.mistakes}
OUTCOMES: dict[tuple, AnswerOutcome] = {}
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
        assert len({mistake.name for mistake in exercise.mistakes}) == len(exercise.mistakes) >= 5, name
        if exercise.library:  # a notebook shows the source of the library's function
            module, _, function = exercise.library.rpartition(".")
            source = show_source(getattr(importlib.import_module(module), function))
            assert f"def {function}(" in source.code and source.code in repr(source), name
            assert f"/{module.rpartition('.')[2]}.py, line " in source.where


def test_the_page_of_exercises_is_current(monkeypatch):
    # the test of each planted mistake shows that all of them are recognised
    monkeypatch.setattr(exercises_page, "caught", lambda exercise: exercise.mistakes)
    current = exercises_page.PAGE.text_with(exercises_page.table())
    assert exercises_page.PAGE.text() == current, "run python notebooks/exercises_page.py"


@cache
def with_the_same_cases(name: str) -> Exercise:
    cases = [ALL[name].inputs(Draw(SEED, number)) for number in range(ALL[name].cases)]
    return replace(ALL[name], inputs=lambda draw: cases[draw.case])


@pytest.fixture
def outcomes_once(monkeypatch):
    """`judge` calls each function once with each case: a planted mistake is compared with all others of its exercise."""

    def once(function, case, gradients):
        key = function, id(case)
        if key not in OUTCOMES:
            OUTCOMES[key] = outcome(function, case, gradients)
        return OUTCOMES[key]

    monkeypatch.setattr("aligner_lib.tutorial.checking.check.outcome", once)


@pytest.mark.parametrize(("name", "mistake"), PLANTED)
def test_each_planted_mistake_is_rejected_by_name(name, mistake, outcomes_once):
    planted = PLANTED[name, mistake]
    verdict = judge(with_the_same_cases(name), planted.answer, SEED)
    assert not verdict and verdict.status == WRONG
    assert verdict.mistake is planted, repr(verdict)
    for shown in (repr(verdict), verdict._repr_html_()):
        assert planted.meaning.split("&")[0][:40].split("<")[0].split("'")[0] in shown
    assert verdict.function is ALL[name].reference


pad = torch.nn.functional.pad


def reference(name, change):
    """The reference of an exercise, with its outputs changed."""
    return lambda *inputs: change(ALL[name].reference(*inputs))


def last_match(pattern, is_right):
    """exact_match with this pattern, and is_right(last match, answer) as comparison."""

    def exact_match(response, answer):
        numbers = re.findall(pattern, response)
        return float(bool(numbers) and is_right(numbers[-1], answer))

    return exact_match


def words_of_digits(response, answer):
    words = [word.strip(".,") for word in response.split()]
    numbers = [word for word in words if word.lstrip("-").replace(".", "").isdigit()]
    return float(bool(numbers) and float(numbers[-1]) == float(answer))


def best_of_the_first_round(score, answer, words, rounds):
    best = max(words, key=lambda word: score(f"{answer} {word}"))
    return answer + f" {best}" * rounds


def gae_down_to_column_1(values, rewards, mask, discount, gae_lambda):
    values, rewards = values * mask, rewards * mask
    advantages, returns, ahead = torch.zeros_like(values), torch.zeros_like(values), torch.zeros(len(values))
    following = pad(values, (0, 1))[:, 1:]
    for t in range(values.shape[1] - 1, 0, -1):
        error = rewards[:, t] + discount * following[:, t] - values[:, t]
        advantages[:, t] = ahead = (error + discount * gae_lambda * ahead) * mask[:, t]
        returns[:, t] = advantages[:, t] + values[:, t]
    return advantages, returns


def half_in_k3(logprobs, reference):
    d = logprobs - reference
    return d, d**2 / 2, d + 0.5 * ((-d).exp() - 1)


def linear_part_of_k3_detached(logprobs, reference):
    d = logprobs - reference
    return d, d**2 / 2, d.detach() + (-d).exp() - 1


def update_with_a_step_too_many(policy, critic, optimizer, *others):
    losses = ALL["update"].reference(policy, critic, optimizer, *others)
    optimizer.step()
    return losses


def fails_for_a_number(call, functions):
    assert not call.isdigit()
    return ALL["answer_call"].reference(call, functions)


def update_with_a_fixed_clip(*inputs):
    *others, loss, settings = inputs
    return ALL["update"].reference(*others, lambda ratio, x, *_: loss(ratio, x, 0.2, 0.2), settings)


def equal_rewards_not_skipped(rewards, group):
    groups = [rewards[group == number] for number in group.unique()]
    result = torch.zeros_like(rewards)
    for number, own in zip(group.unique(), groups):
        if len(own) > 1:
            result[group == number] = (own - own.mean()) / (own.std() + 1e-4)
    return result


def implicit_reward_of_probabilities(logprobs, reference, mask, beta):
    ratio = (logprobs * mask).sum(1).exp() / (reference * mask).sum(1).exp()
    return beta * ratio.log()


def naive_bayes_of_products(chosen, rejected, answer):
    good, bad = (Counter(word for text in texts for word in text) for texts in (chosen, rejected))
    vocabulary, known = len(good | bad), [word for word in answer if word in good or word in bad]
    of_good, of_bad = (
        math.prod((side[word] + 1) / (side.total() + vocabulary) for word in known) for side in (good, bad)
    )
    return math.log(of_good / of_bad)


def raises(chosen, rejected):
    margin = chosen - rejected
    return margin[len(margin)]


# a learner's code that equals no planted answer, and the planted mistake that its outputs show
RECOGNISED = [
    ("bradley_terry", lambda chosen, rejected: (1 + (rejected - chosen).exp()).log(), "log_of_zero"),
    ("fool", best_of_the_first_round, "one_word_repeated"),
    ("gae", gae_down_to_column_1, "first_column_left_out"),
    ("exact_match", words_of_digits, "separate_words"),
    ("exact_match", last_match(r"-?\d+", str.__eq__), "decimals_cut"),
    ("whiten", lambda x, m: (x - x[m].mean()) / x[m].std() * m, "corrected_variance"),
    ("reinforce_loss", lambda z, x, r: -(r * (z.exp() / z.exp().sum()).log()[x]).mean(), "log_of_zero"),
    ("kl_estimators", half_in_k3, "another_multiple_in_k3"),
    ("kl_estimators", linear_part_of_k3_detached, None),
    ("answer_call", fails_for_a_number, None),
    ("update", update_with_a_fixed_clip, None),
    ("grpo_advantages", equal_rewards_not_skipped, None),
    (
        "exact_match",
        last_match(r"-?\d+(?:\.\d+)?", lambda last, answer: float(last) == int(float(answer))),
        None,
    ),
    (
        "exact_match",
        last_match(r"-?\d+(?:\.\d+)?", lambda last, answer: last.rstrip("0").rstrip(".") == answer),
        None,
    ),
    ("exact_match", last_match(r"-?\d+(?:\.\d)?", lambda last, answer: float(last) == float(answer)), None),
    ("whiten", lambda x, m: (x - x[m].mean()) / (x[m].var(correction=0) + 1e-4).sqrt() * m, None),
    ("implicit_reward", implicit_reward_of_probabilities, None),
    ("naive_bayes", naive_bayes_of_products, None),
    ("no_gradient", lambda ratio, a, limit: (a > 0) & (ratio > limit), "compared_with_epsilon"),
    # no mistake is named where the recognition can't read the type, or sees a part of the mistake alone
    ("gae", lambda values, rewards, mask, *_: (torch.zeros_like(mask), mask), None),
    ("fool", lambda score, answer, words, rounds: None, None),
    ("fool", lambda score, answer, words, rounds: f"{answer} {words[0]}", None),
]
# a planted mistake with the right values and a wrong gradient
WRONG_GRADIENTS = [
    ("bradley_terry", "rejected_detached", "the gradient to rejected is 0 everywhere"),
    ("masked_loss", "only_the_last_learns", "the gradient to logprobs[0] is 0 everywhere"),
    ("clipped_loss", "stop_gradient", "clipped has no gradient"),
]
# a change of the right result, and the description of the difference
DESCRIBED = [
    ("gae", lambda results: results[::-1], "right, but in another order. Return advantages, returns."),
    ("gae", lambda results: (results[0], -results[1]), "Every value of returns has the other sign."),
    ("perplexity", lambda value: 3 * value, "Every value of perplexity is 3 times the right one."),
    ("perplexity", lambda value: value - 0.5, "Every value of perplexity is the right one minus 0.5."),
    ("perplexity", torch.zeros_like, "Every value of perplexity is 0 for every input."),
    ("no_gradient", torch.zeros_like, "Every value of flat is False for every input."),
    ("next_logprobs", lambda values: pad(values, (1, -1)), "one place too far to the right."),
    ("token_rewards", lambda values: values.mT, "is transposed: its rows should be its columns."),
    ("next_logprobs", lambda values: values.clamp(min=-20), "No value of logprobs is below -20, and"),
    ("dpo_losses", lambda values: -((-values).exp() + 1e-8).log(), "No value of loss is above 18.42,"),
    (
        "clipped_loss",
        lambda results: (results[0].detach(), results[1]),
        "are right, but loss has no gradient.",
    ),
    ("gae", lambda results: torch.tensor(1.0), "returns one value; it should return 2: advantages, returns."),
    ("gae", lambda results: torch.stack(results).numpy(), "returns one ndarray of shape [2, "),
    ("gae", lambda results: None, "Your function returns nothing. Is the return missing?"),
    ("bradley_terry", lambda loss: None, ". loss is None. Is the return missing?"),
    ("bradley_terry", lambda loss: (loss, loss), "returns 2 values; it should return one value, loss"),
    (
        "bradley_terry",
        lambda loss: (loss,),
        "a tuple of one value. Is there a comma after the returned value?",
    ),
    ("bradley_terry", lambda loss: torch.zeros(0), "(no elements)"),
    ("bradley_terry", list, "of type list; it should be a tensor (float32"),
    ("bradley_terry", lambda loss: "yes", "of type str; it should be a tensor (float32"),
    ("bradley_terry", lambda loss: loss[:, None], "has the shape [5, 1]; it should have [5]"),
    ("bradley_terry", torch.Tensor.double, "The numbers of loss are right, but they are float64"),
]
# answers to bradley_terry that can't be called, or fail
NO_RESULT = [
    (raises, "Your function raised IndexError in line 3: index 5 is out of bounds"),
    (lambda chosen: chosen, "check calls bradley_terry(chosen, rejected), but your function does not accept"),
    (torch.tensor(1.0), "Check expects the function itself, bradley_terry without parentheses"),
]


@pytest.mark.parametrize(
    ("name", "answer", "mistake", "words"),
    [
        *((name, answer, mistake, "") for name, answer, mistake in RECOGNISED),
        *((name, PLANTED[name, flaw].answer, flaw, f"are right, but {words}") for name, flaw, words in WRONG_GRADIENTS),
        *((name, reference(name, change), None, words) for name, change, words in DESCRIBED),
        *(("bradley_terry", answer, None, words) for answer, words in NO_RESULT),
        ("update", update_with_a_step_too_many, None, "but after your function, the weight "),
    ],
)  # fmt: skip
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
    # on a terminal, the input stands below
    shown = repr(verdict).partition("the input of the failed case:\n")[2].splitlines()
    assert shown[0] == f"    values: float32 {list(right.shape)}"
    assert shown[-1] == f"    gae_lambda: {verdict.inputs['gae_lambda']:.6g}"


@pytest.mark.parametrize(
    ("name", "change", "place"),
    [
        ("perplexity", lambda logprobs, mask: logprobs.mul_(2), "logprobs"),
        ("masked_loss", lambda logprobs, masks: logprobs.clear(), "logprobs"),
        ("naive_bayes", lambda chosen, *others: chosen.append([]), "chosen"),
        ("naive_bayes", lambda chosen, *others: chosen[0].append("word"), "chosen[0]"),
        ("naive_bayes", lambda chosen, *others: chosen[0].__setitem__(0, "word"), "chosen[0][0]"),
        ("update", lambda *inputs: setattr(inputs[-1], "epochs", 0), "settings.epochs"),
    ],
)
def test_a_changed_input_is_reported_with_its_place(name, change, place):
    verdict = judge(ALL[name], lambda *inputs: (ALL[name].reference(*inputs), change(*inputs))[0], SEED)
    assert f"your function changed the input {place}. Write to a copy" in verdict.sentence, repr(verdict)


@pytest.mark.parametrize(("name", "of_a_number"), [("reinforce_loss", True), ("bradley_terry", False)])
def test_a_wrong_gradient_of_a_number_is_shown_without_a_weight(name, of_a_number):
    verdict = judge(ALL[name], reference(name, lambda loss: 2 * loss - loss.detach()), SEED)
    (first, *others) = verdict.inputs.values()
    loss = ALL[name].reference(first.requires_grad_(), *others).sum()
    (right,) = torch.autograd.grad(loss, first)
    assert torch.allclose(verdict.difference.yours, 2 * right) == of_a_number
    assert ("a sum of the outputs with random weights" in verdict.sentence) == (not of_a_number)


def test_a_list_of_the_right_outputs_passes():
    assert judge(ALL["gae"], reference("gae", list), SEED)


def test_a_learner_s_text_is_escaped():
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
    assert judge(ALL["bradley_terry"], reference("bradley_terry", lambda loss: loss), SEED)


def switches_gradients_off(chosen, rejected):
    torch.set_grad_enabled(False)
    raise ValueError


def test_gradients_that_a_function_switches_off_are_on_again_after_the_check():
    judge(ALL["bradley_terry"], switches_gradients_off, SEED)
    assert torch.is_grad_enabled()


def test_the_tutorial_s_and_the_library_s_function_are_no_answer_and_no_attempt(monkeypatch):
    recorded = Mock()
    monkeypatch.setattr("aligner_lib.tutorial.checking.check.record_exercise", recorded)
    handed_out = check("gae", lambda *inputs: None).function
    for function, author in (
        (handed_out, "tutorial's solution"),
        (library_functions("ppo").advantages, "library's aligner_lib."),
    ):
        verdict = check("gae", function)
        assert verdict.status == NOT_YET and author in verdict.sentence and verdict.function is handed_out
    recorded.assert_called_once_with("gae", False)  # the first check's


def test_an_error_of_a_reference_names_the_exercise_and_the_case():
    failing = replace(ALL["gae"], reference=lambda *inputs: 1 / 0)
    with pytest.raises(
        UserError, match="the reference of gae fails on case 0: ZeroDivisionError in line 1: division"
    ):
        judge(failing, lambda *inputs: None)
    short = replace(ALL["gae"], reference=lambda *inputs: inputs[0])
    with pytest.raises(
        UserError, match="gae fails on case 0: the exercise names advantages, returns, and the number of"
    ):
        judge(short, ALL["gae"].reference)


def test_thousands_of_nested_lists_are_answered_as_a_broken_call():
    assert ALL["answer_call"].reference("[" * 100_000, {}) == "error: the call is not JSON"


def test_an_unknown_exercise_and_a_function_without_source_are_refused():
    with pytest.raises(UserError, match="there is no exercise 'gea'; did you mean 'gae'"):
        check("gea", lambda: None)
    with pytest.raises(ValueError, match="has no Python source to show"):
        show_source(len)


def test_inputs_are_ragged_and_depend_on_the_seed_alone():
    first, same, other = (ALL["gae"].inputs(Draw(seed)) for seed in (SEED, SEED, SEED + 1))
    assert torch.equal(first["values"], same["values"])
    assert first["values"].shape != other["values"].shape or not torch.equal(first["values"], other["values"])
    assert first["mask"].sum(dim=1).min() >= 2 and not first["mask"][:, -1].all()


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
        assert stub.status == NOT_YET and not stub and "still has the line `raise Not" in stub.sentence
        assert solution.__doc__ == stubs[name].__doc__ and "→" in solution.__doc__


@pytest.mark.parametrize("name", [name for name, exercise in ALL.items() if exercise.trains])
def test_solutions_that_train_equal_the_library_bit_for_bit(name):
    """The notebooks hand them to a run, whose figures must be those of any other."""
    exercise, (kind, replaced) = ALL[name], ALL[name].trains
    place = kind_of(kind).functions[replaced]
    assert place.replace(":", ".") == exercise.library
    check_function(with_imports(sources("notebooks/solved", "solution")[name]), place, name)
    # `check` hands the reference out before a right answer
    check_function(source_of(exercise.reference, replaced, place), place, name)
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
