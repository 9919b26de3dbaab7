"""What the three trainers must show on the smoke model, and what a run folder holds afterwards."""

import json
import math
import shutil
from types import SimpleNamespace

import pytest
import torch
from smoke_jobs import ALL_CHECKPOINTS, ON_A_GPU, first_steps, prepare_smoke_job, rewards_of
from tiny_tokenizers import STYLES, llama_2

from aligner_lib.config.compose import load
from aligner_lib.config.kinds import kinds
from aligner_lib.datasets.batches import TokenBatch, pad_rows
from aligner_lib.datasets.chat_template import OWN, encode_prompt, use_template
from aligner_lib.datasets.load import load_pairs, load_prompts
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.errors import UserError
from aligner_lib.jobs import inference
from aligner_lib.jobs.inference import (
    answering,
    as_prompt,
    load_engine,
    log_probability,
    scoring,
    tokenizer_of,
)
from aligner_lib.models import resolve
from aligner_lib.models.reward_scale import RewardScale
from aligner_lib.run_folder.explain import explain
from aligner_lib.tutorial.comparison.frozen_features import hidden_states

# what `aligner explain` reads of each kind's run, among other readings
READINGS = {
    "sft": {"learning_rate", "loss_falls"},
    "rm": {"learning_rate", "first_loss"},
    "ppo": {"tokens_learnt", "advantages_scaled", "advantages_centred", "reward_at_the_end", "first_ratio"},
    "grpo": {"learning_rate", "first_ratio"},
    "evaluate": set(),
}


@pytest.mark.parametrize("kind", READINGS)
def test_a_run_logs_the_metrics_that_its_kind_declares_and_says_what_was_run(kind, request):
    """So the glossary, which is made from the declarations, tells of every metric and of no other."""
    run, declared = request.getfixturevalue(kind), kinds()[kind]
    logged = {name for record in run.metrics() for name in record} - {"step", "time"}
    named = {name for name in logged if not declared.is_of_users_names(name)}
    judged = {name for name in declared.metric_names() if name.endswith("/good")}  # needs an instruction
    assert named == declared.metric_names() - judged - ON_A_GPU
    explanation = explain(run)
    assert explanation.off == []
    assert READINGS[kind] <= {reading.name for reading in explanation.readings}
    info = run.info
    assert (info["status"], info["kind"], info["seed"], info["profile"]) == ("finished", kind, 1234, "smoke")
    assert (info.get("validation_samples", 0) > 1) == (kind in ("rm", "dpo"))
    data = "model.environments.e.use" if kind == "grpo" else ".jsonl"
    assert "model" in info["hashes"] and any(name.endswith(data) for name in info["hashes"])
    if kind != "evaluate":
        assert info["heartbeat"]["step"] == info["max_steps"] == run.metrics()[-1]["step"]
        assert load(kind, info["config"]).trainer[kind].save_interval == 2
        assert [path.name for path in run.checkpoints()] == [f"step_{info['max_steps']:06d}"]


def test_sft_learns_from_its_samples(sft):
    _, losses = sft.series("validation/loss")
    assert losses[-1] < losses[0] - 0.1
    assert losses[0] == pytest.approx(math.log(1024), abs=0.2)  # a random model knows nothing of 1024 tokens


def test_a_reward_head_of_zeros_gives_ln_2_and_no_success(rm):
    first, after = rm.metrics()[:2]
    assert first["step"] == 0
    assert first["validation/loss"] == pytest.approx(math.log(2), abs=1e-7)
    assert first["validation/acc"] == first["validation/rewards_all_std"] == 0
    assert after["train/loss"] == pytest.approx(math.log(2), abs=1e-6)


def scale_of(record: dict) -> RewardScale:
    return RewardScale(record["validation/rewards_all_mean"], record["validation/rewards_all_std"])


def test_a_checkpoint_has_the_scale_of_its_own_weights_also_between_validations(jobs, rm):
    assert RewardScale.load(rm.latest_checkpoint()) == scale_of(rm.metrics()[-1])
    intervals = {"trainer__rm__val_check_interval": 3, "trainer__rm__save_interval": 2}
    apart = jobs.run("rm", "rm_apart", **first_steps("rm", 4), **intervals, **ALL_CHECKPOINTS)
    (measured,) = (record for record in rm.metrics() if record["step"] == 4)
    assert RewardScale.load(apart.path / "checkpoints" / "step_000004") == scale_of(measured)


@pytest.mark.parametrize(("measured", "mean"), [(True, 3.0), (False, 10.0)])
def test_only_a_measured_scale_comes_from_the_checkpoint(here, tmp_path, measured, mean):
    from aligner_lib.kinds.rm.trainer import RewardModelTrainer

    RewardScale(3.0, 2.0).save(tmp_path)
    engine = SimpleNamespace(load=lambda *_, **__: None, steps=4)
    sizes = dict.fromkeys(("global_batch_size", "micro_batch_size", "validation_micro_batch_size"), 1)
    scale = {"scale": RewardScale(10.0, 4.0), "measure_scale": measured}
    trainer = RewardModelTrainer(engine, None, [], [], lambda step: 0.1, **sizes, **scale, seed=0)
    trainer.load(tmp_path)
    assert trainer.scale.mean == mean


def test_the_actor_takes_two_optimiser_steps_a_rollout(ppo):
    """From the second step on: in the first the critic warms up. Before its first update the actor is the reference."""
    assert ppo.series("train_optim/optim_step") == (list(range(2, 9)), [2, 4, 6, 8, 10, 12, 14])
    warm_up, first, second = ppo.metrics()[1:4]
    assert not any(name.startswith("train_optim/") for name in warm_up)
    assert warm_up["critic/loss"] > 0 and first["train_optim/grad_norm"] > 0
    for record in (warm_up, first):
        assert record["train_rollouts/kl"] == record["train_rollouts/init_policy_kl"] == 0
    assert second["train_rollouts/init_policy_kl"] > 0
    _, ratios = ppo.series("train_optim/first_ppo_ratio")
    assert ratios == pytest.approx([1.0] * len(ratios), abs=1e-5)


@pytest.fixture(scope="module")
def sampled(jobs):
    """Three steps of PPO, the critic's own and two with an update of the actor: groups of four responses, at another
    temperature, with a price for a missing end, and without cut responses in the loss."""
    return jobs.run(
        "ppo",
        "ppo_sampled",
        trainer__ppo__max_steps=3,
        trainer__ppo__critic_warmup_steps=1,
        trainer__ppo__missing_eos_penalty=2.5,
        trainer__ppo__mask_truncated_responses=True,
        model__global_batch_size=16,
        model__optim__lr=0.003,
        model__optim__sched__warmup_steps=1,
        model__ppo__num_generations_per_prompt=4,
        model__ppo__sampling_params__temperature=0.7,
        model__ppo__sampling_params__top_p=0.9,
    )


def test_at_another_temperature_the_ratio_is_1_too_and_that_is_said(jobs, sampled):
    before_any_update = sampled.metrics()[2]
    assert before_any_update["train_optim/first_ppo_ratio"] == pytest.approx(1.0, abs=1e-5)
    assert before_any_update["train_rollouts/init_policy_kl"] == 0
    log = jobs.log("ppo_sampled").read_text()
    assert "greedy" not in log and "min_length" not in log
    assert "temperature is 0.7: the compared log-probabilities are scaled by the temp" in log
    assert "top_p=0.9: responses come from a cut distribution" in log


def test_responses_to_one_prompt_are_a_group_and_a_missing_end_costs_the_penalty(sampled):
    responses, first = records(sampled, step=1), sampled.metrics()[1]
    groups: dict[int, list[dict]] = {}
    for record in responses:
        groups.setdefault(record["group"], []).append(record)
    assert len(groups) == 4
    for group in groups.values():
        assert len({record["prompt"] for record in group}) == 1
        assert len({record["response"] for record in group}) == len(group) == 4
    assert first["train_rollouts/consumed_samples"] == len(responses) == 16
    rewards = [r["reward"] for r in responses]
    penalised = [r["reward"] - (0.0 if r["finished"] else 2.5) for r in responses]  # no KL yet
    assert first["train_rollouts/rewards"] == pytest.approx(sum(rewards) / 16, abs=1e-5)
    assert first["train_rollouts/rlhf_rewards"] == pytest.approx(sum(penalised) / 16, abs=1e-5)
    assert penalised != rewards


def test_cut_responses_may_be_masked_and_the_actor_s_schedule_is_of_its_own_updates(sampled):
    assert sampled.series("train_optim/lr") == ([2, 3], pytest.approx([0.0015, 0.003]))
    assert sampled.series("train_optim/optim_step") == ([2, 3], [1, 2])
    responses = records(sampled, step=2)
    assert_normalized([a for r in responses if r["finished"] for a in r["token_advantage"]])
    assert {a for r in responses if not r["finished"] for a in r["token_advantage"]} == {0.0}


def test_sampling_that_parts_from_the_log_probabilities_is_told(jobs, caplog):
    settings = {
        "model__ppo__sampling_params__use_greedy": True,
        "model__ppo__length_params__min_length": 2,
    }
    prepare_smoke_job("ppo", jobs.settings("ppo", "told", **settings))
    assert "use_greedy=True: every response is the likeliest" in caplog.text
    assert "min_length=2: stop tokens are barred from the first tokens" in caplog.text


def records(run, step: int) -> list[dict]:
    """The training's responses of a step."""
    return [r for r in run.rollouts() if r["step"] == step and r["split"] == "train"]


def assert_normalized(advantages: list[float]) -> None:
    assert sum(advantages) / len(advantages) == pytest.approx(0, abs=1e-3)
    assert sum(a * a for a in advantages) / len(advantages) == pytest.approx(1, abs=1e-3)


def test_rollout_records_agree_with_the_metrics(ppo):
    """The advantages of all tokens are normalised: the actor learns from responses that were cut off, too."""
    coefficient = 0.01  # of the smoke profile
    assert {r["finished"] for r in records(ppo, step=2)} == {True, False}
    for r in ppo.rollouts():
        assert r["length"] == 12 or r["finished"]
        assert not r["finished"] or "l" in r["response"] or r["tokens"][-1] == "<|im_end|>"
    for record in ppo.metrics()[1:]:
        rollouts = records(ppo, record["step"])
        assert len(rollouts) == record["train_rollouts/rollout_size"] == 16
        mean = lambda name: sum(r[name] for r in rollouts) / 16  # noqa: B023, E731
        assert record["train_rollouts/rewards"] == pytest.approx(mean("reward"), abs=1e-5)
        assert record["train_rollouts/generation_length"] == pytest.approx(mean("length"))
        both = record["train_rollouts/generation_length"] + record["train_rollouts/prompt_lengths"]
        assert record["train_rollouts/response_lengths"] == pytest.approx(both)
        assert record["train_rollouts/fraction_of_samples_properly_ended"] == mean("finished")
        tokens = sum(r["length"] for r in rollouts)
        kl = sum(r["kl"] * r["length"] for r in rollouts) / tokens
        assert record["train_rollouts/kl"] == pytest.approx(kl, abs=1e-6)
        absolute = [[abs(k) for k in r["token_kl"]] for r in rollouts]
        means = [sum(kls) / len(kls) for kls in absolute]
        assert record["train_rollouts/init_policy_kl"] == pytest.approx(sum(means) / 16, abs=1e-5)
        rewards = [r["reward"] - coefficient * sum(kls) for r, kls in zip(rollouts, absolute)]
        assert record["train_rollouts/rlhf_rewards"] == pytest.approx(sum(rewards) / 16, abs=1e-5)
        by_token = [reward / r["length"] for reward, r in zip(rewards, rollouts)]
        assert record["train_rollouts/rewards_with_kl"] == pytest.approx(sum(by_token) / 16, abs=1e-5)
        advantages = [a for r in rollouts for a in r["token_advantage"]]
        assert len(advantages) == tokens
        assert_normalized(advantages)


def test_validation_prompts_and_draws_are_the_same_every_time(ppo):
    validation = [r for r in ppo.rollouts() if r["split"] == "validation"]
    first, *later = ([r["prompt"] for r in validation if r["step"] == step] for step in (0, 4, 8))
    assert len(first) == 4 and later == [first, first]


# ---- what PPO scores is what the reward model was trained on --------------------------------------------------------


def test_ppo_scores_a_response_as_the_reward_model_s_training_did(rm, here, formatted, monkeypatch, capsys):
    """The same text gets the same number in both, and in a talk with the notebook, at the same stop token."""
    from aligner_lib.kinds.rm.trainer import pair_loss

    folder = resolve(rm.path)
    tokenizer, engine, scale = Tokenizer(folder), load_engine(folder), RewardScale.load(folder)
    pairs, _ = load_pairs([formatted / "test_comparisons.jsonl"], tokenizer, 256)
    prompts, _ = load_prompts([formatted / "test_prompts.jsonl"], tokenizer, 256)
    score = scoring(rm.path)
    for pair, prompt in list(zip(pairs, prompts))[:5]:
        rows = [pair.chosen, pair.rejected]
        responses = [row[len(prompt.tokens) :] for row in rows]
        assert all(row[: len(prompt.tokens)] == prompt.tokens for row in rows)
        assert all(response[-1] == tokenizer.eos_id for response in responses)
        trained = engine.evaluate([TokenBatch(*pad_rows(rows, tokenizer.pad_id))], pair_loss)
        in_training = torch.tensor([trained["rewards_chosen_mean"], trained["rewards_rejected_mean"]])
        in_ppo = rewards_of(folder, rows, tokenizer.pad_id)
        assert in_ppo == pytest.approx(scale(in_training).tolist(), abs=1e-5)
        answers = [tokenizer.decode(response).removeprefix(" ") for response in responses]
        assert [score(prompt.text, answer) for answer in answers] == pytest.approx(in_ppo, abs=1e-5)
    longest_first = zip(prompts, range(20, 0, -1))
    texts = [(prompt.text, word * count) for prompt, count in longest_first for word in ("a ", "b ")]
    monkeypatch.setattr(inference, "SCORED_BEFORE_A_LINE", 16)
    assert score.of_all(texts) == pytest.approx([score(*text) for text in texts], abs=1e-5)
    assert "16 of 40 answers are scored" in capsys.readouterr().out


def test_a_reward_model_s_loss_has_the_centering_of_both_texts():
    from aligner_lib.kinds.rm.trainer import pair_loss

    # the chosen text has two tokens, the rejected one three
    values = torch.tensor([[0.0, 1.0], [2.0, 2.0], [9.0, 3.0]])
    model = SimpleNamespace(values=lambda hidden: hidden)
    batch = TokenBatch(torch.ones(2, 3, dtype=torch.long), torch.tensor([2, 3]))
    plain, centred = (pair_loss(model, batch, values, centering=weight) for weight in (0.0, 0.1))
    assert plain.loss_sum.item() == pytest.approx(math.log(1 + math.e))  # 2 against 3
    assert (centred.loss_sum - plain.loss_sum).item() == pytest.approx(0.1 * ((0 + 4) / 2 + (1 + 4 + 9) / 3))


PROMPT, ANSWER = "User: How are you?\n\nAssistant:", " I am well, 北京 😀."


def test_a_talk_scores_what_the_reward_model_s_training_reads_whatever_the_tokenizer(rm, here, tmp_path):
    """With BOS, with tokens for bytes, and no second space between prompt and answer."""
    folder = shutil.copytree(rm.latest_checkpoint(), tmp_path / "rm")
    tokenizer = Tokenizer(llama_2(folder))
    comparisons = tmp_path / "comparisons.jsonl"
    comparisons.write_text("\n".join(json.dumps({"text": PROMPT + text}) for text in (ANSWER, " Go.")))
    ((pair,), _) = load_pairs([comparisons], tokenizer, 256)
    scores = [scoring(folder)("How are you?", text.strip()) for text in (ANSWER, " Go.")]
    expected = rewards_of(folder, [pair.chosen, pair.rejected], tokenizer.pad_id)
    assert scores == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("make", STYLES.values(), ids=STYLES)
def test_a_record_has_prompt_and_response_as_they_were_written_whatever_the_tokenizer(here, tmp_path, make):
    from aligner_lib.kinds.policy_gradient.rollout_metrics import rollout_records
    from aligner_lib.megatron.generate import Response
    from aligner_lib.rollouts.policy import to_rollouts

    tokenizer = Tokenizer(make(tmp_path))
    prompt, answer = tokenizer.encode_parts([PROMPT, ANSWER])
    ended = Response([*answer, tokenizer.eos_id], [0.0] * (len(answer) + 1), finished=True)
    rollouts = to_rollouts([tokenizer.bos_ids + prompt], [ended], [0], tokenizer.pad_id)
    kl = torch.zeros(rollouts.response_mask.shape)
    (record,) = rollout_records("train", 1, tokenizer, rollouts, torch.tensor([0.5]), kl)
    assert (record["prompt"], record["response"]) == (PROMPT, ANSWER)
    assert "".join(record["tokens"]) == ANSWER + "</s>"
    assert len(record["tokens"]) == len(record["token_kl"]) == len(answer) + 1


def test_a_talk_with_a_model_of_the_wrong_head_is_refused(rm, smoke):
    with pytest.raises(UserError, match=rf"{rm.path} is a reward model or a critic"):
        answering(rm.path)
    with pytest.raises(UserError, match=rf"{smoke} is a language model"):
        scoring(smoke)


def test_a_talk_beyond_the_model_s_512_positions_is_refused(rm, smoke, here):
    long = "word " * 600
    talks = (
        lambda: answering(smoke, max_length=512)("Hello."),
        lambda: scoring(rm.path)(long, "Yes."),
        lambda: log_probability(smoke)("Hello.", long),
    )
    for talk in talks:
        with pytest.raises(
            UserError, match=r"and its answer have up to .* beyond the 512 positions of the mo"
        ):
            talk()


def test_in_a_talk_the_policy_says_what_it_would_in_a_rollout_and_a_cut_answer_scores_the_same(
    smoke, rm, here
):
    from aligner_lib.megatron.generate import Sampling
    from aligner_lib.rollouts.policy import Policy

    tokenizer = Tokenizer(smoke)
    policy = Policy(load_engine(smoke), tokenizer, Sampling(max_length=8), forward_micro_batch_size=1)
    text = "User: Hello.\n\nAssistant:"
    prompt = encode_prompt(use_template(tokenizer, OWN), text)  # the model's folder records no template
    rollouts = policy.rollout([prompt], [3], [0])
    answer, score = answering(smoke, max_length=8, seed=3), scoring(rm.path)
    cut = answer("Hello.")
    assert cut == answer(text) == tokenizer.decode(rollouts.response_tokens(0)).strip()
    assert not cut.finished and len(cut.tokens) == 8 and tokenizer.eos_id not in cut.tokens
    assert answering(smoke, max_length=8, seed=3).of_all(["Hello.", "How are you?"])[0] == cut
    drawn = [*encode_prompt(tokenizer_of(resolve(rm.path)), as_prompt("Hello.")), *cut.tokens]
    (rollout,) = rewards_of(resolve(rm.path), [drawn], tokenizer.pad_id)
    assert score("Hello.", cut) == pytest.approx(rollout, abs=1e-6)
    assert score("Hello.", str(cut)) != pytest.approx(rollout, abs=1e-3)  # a text is taken to be complete


def test_hidden_states_of_both_answers_are_those_of_each_text_alone(smoke, here):
    prompts = ["User: Hello.\n\nAssistant:", "User: How are you?\n\nAssistant:"]
    answers = {"chosen": ["Good day to you.", "Well."], "rejected": ["No.", "I do not say."]}
    pairs = [
        {"prompt": prompt, "chosen": chosen, "rejected": rejected}
        for prompt, chosen, rejected in zip(prompts, *answers.values())
    ]
    for name, (states, lengths) in zip(answers, hidden_states(smoke, pairs), strict=True):
        for row, (prompt, answer) in enumerate(zip(prompts, answers[name])):
            same = {"prompt": prompt, "chosen": answer, "rejected": answer}
            (alone, (length, _)), _ = hidden_states(smoke, [same] * 2)
            assert lengths[row] == length
            torch.testing.assert_close(states[row, :length], alone[0, :length], rtol=1e-4, atol=1e-5)
