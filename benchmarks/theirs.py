"""The other sides: TRL's trainers and plain transformers. Each function runs in its own process."""

from __future__ import annotations

import torch

from benchmarks import as_transformers
from benchmarks.contest import Rounds
from benchmarks.forced_stops import StopsAtProcessor
from benchmarks.setting import Setting, reward

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ENDLESS = 10_000  # epochs; the parent ends the process


# ---- TRL ------------------------------------------------------------------------------------------------------------


def trl_sft(setting: Setting, connection, sampling: str = "sequential") -> None:
    """TRL's SFTTrainer on the same token ids, with the loss on the answers only."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    samples = setting.in_first_epoch(setting.answers(setting.samples_a_round))
    rows = [
        {
            "input_ids": sample.tokens,
            "labels": [-100] * sample.answer_start + sample.tokens[sample.answer_start :],
            "length": len(sample),
        }
        for sample in samples
    ]
    trainer = SFTTrainer(
        model=as_transformers.causal_lm(setting),
        args=SFTConfig(**_on_samples(setting, sampling)),
        train_dataset=Dataset.from_list(rows),
        processing_class=as_transformers.tokenizer(setting),
    )
    _train(trainer, Rounds(setting, connection), ordered=sampling == "sequential")


def trl_reward(setting: Setting, connection, **options) -> None:
    """TRL's RewardTrainer on the same token ids. options: of its config."""
    from datasets import Dataset
    from trl import RewardConfig, RewardTrainer

    rows = [
        {"chosen_ids": pair.chosen, "rejected_ids": pair.rejected, "length": len(pair)}
        for pair in _pairs_in_order(setting)
    ]
    trainer = RewardTrainer(
        model=as_transformers.sequence_classifier(setting),
        args=RewardConfig(**_on_pairs(setting, options)),
        train_dataset=Dataset.from_list(rows),
        processing_class=as_transformers.tokenizer(setting),
    )
    _train(trainer, Rounds(setting, connection), ordered=_in_order(options))


def trl_dpo(setting: Setting, connection, **options) -> None:
    """TRL's DPOTrainer on the same token ids, with a copy of the weights as the reference. options: of its config."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    class OnTokens(DPOTrainer):
        def _prepare_dataset(self, dataset, *_):
            return dataset  # TRL's method accepts only texts; the dataset already has tokens

    trainer = OnTokens(
        model=as_transformers.causal_lm(setting),
        ref_model=None if options.get("precompute_ref_log_probs") else as_transformers.causal_lm(setting),
        args=DPOConfig(**_on_pairs(setting, options), beta=setting.dpo_beta),
        train_dataset=Dataset.from_list([_preference(pair) for pair in _pairs_in_order(setting)]),
        processing_class=as_transformers.tokenizer(setting),
    )
    _train(trainer, Rounds(setting, connection), ordered=_in_order(options))


def _pairs_in_order(setting: Setting) -> list:
    return setting.in_first_epoch(setting.pairs(setting.samples_a_round))


def _preference(pair) -> dict:
    prompt = pair.chosen[: pair.chosen_start]
    assert pair.rejected[: pair.rejected_start] == prompt, "TRL takes one prompt for both responses"
    return {
        "prompt_ids": prompt,
        "chosen_ids": pair.chosen[len(prompt) :],
        "rejected_ids": pair.rejected[len(prompt) :],
        "length": len(pair),
    }


def trl_grpo(setting: Setting, connection, lengths: range, **options) -> None:
    """TRL's GRPOTrainer on prompts of these lengths: generates responses, then learns from `learnt_responses`. options: of its
    config."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    prompts, responses = setting.grpo_prompts(lengths), setting.learnt_responses()
    expected_prompts = [prompt.tokens for prompt in prompts for _ in range(setting.group_size)]

    class OnGivenResponses(GRPOTrainer):
        position = 0  # in the round's responses

        def _generate_single_turn(self, prompt_ids, *args, **kwargs):
            drawn, logprobs = super()._generate_single_turn(prompt_ids, *args, **kwargs)
            begin, self.position = self.position, (self.position + len(drawn)) % len(responses)
            learnt = responses[begin : begin + len(drawn)]
            assert prompt_ids == expected_prompts[begin : begin + len(drawn)], (
                "TRL's tokens of a prompt are others"
            )
            assert list(map(len, drawn)) == list(map(len, learnt)), (
                "a response has not the length it was forced to"
            )
            return learnt, logprobs

    trainer = OnGivenResponses(
        model=str(as_transformers.saved(setting)),  # a folder, from which TRL also loads the reference
        reward_funcs=lambda completion_ids, **_: [reward(ids) for ids in completion_ids],
        args=GRPOConfig(**_on_prompts(setting, options)),
        train_dataset=Dataset.from_list([{"prompt": prompt.text} for prompt in prompts]),
        processing_class=as_transformers.tokenizer(setting),
    )
    _train(trainer, Rounds(setting, connection), ordered=True)


def _on_samples(setting: Setting, sampling: str) -> dict:
    """The arguments of TRL's trainers on samples."""
    return _arguments(setting, setting.global_batch, setting.micro_batch) | {
        "train_sampling_strategy": sampling,
        "max_length": setting.max_length,
    }


def _on_pairs(setting: Setting, options: dict) -> dict:
    """The arguments of TRL's trainers on pairs. The trainers would otherwise drop the column `length`, which batch_rebalance
    needs."""
    return _with(options, _on_samples(setting, "sequential") | {"remove_unused_columns": False})


def _on_prompts(setting: Setting, options: dict) -> dict:
    """The arguments of TRL's GRPOTrainer: the objective of `aligner grpo`."""
    return _with(
        options,
        _arguments(setting, setting.group_size, setting.group_size)
        | {
            "num_generations": setting.group_size,
            "max_completion_length": setting.new_tokens,
            "generation_kwargs": {"min_new_tokens": setting.new_tokens},
            "learning_rate": setting.grpo_lr,
            "beta": setting.grpo_beta,
            "loss_type": "grpo",
            "use_bias_correction_kl": False,
            "shuffle_dataset": False,
            "model_init_kwargs": {"dtype": "float32"},
        },
    )


def _with(options: dict, arguments: dict) -> dict:
    """The arguments changed by these options. The number of samples in an optimiser step stays the same."""
    samples = arguments["per_device_train_batch_size"] * arguments["gradient_accumulation_steps"]
    changed = arguments | options
    return changed | {"gradient_accumulation_steps": samples // changed["per_device_train_batch_size"]}


def _arguments(setting: Setting, global_batch: int, micro_batch: int) -> dict:
    """The common arguments of TRL's trainers: Aligner Lab's optimiser, batch and precision, without recomputation and
    saving."""
    return {
        "output_dir": str(setting.folder / "trl"),
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": global_batch // micro_batch,
        "learning_rate": setting.lr,
        "weight_decay": setting.weight_decay,
        "adam_beta1": setting.betas[0],
        "adam_beta2": setting.betas[1],
        "adam_epsilon": setting.optimizer()["eps"],
        "max_grad_norm": setting.clip,
        "lr_scheduler_type": "constant",
        "num_train_epochs": ENDLESS,
        "bf16": setting.precision == "bf16",
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": setting.seed,
        "use_cpu": not torch.cuda.is_available(),
    }


def _in_order(options: dict) -> bool:
    """Whether TRL's steps use the same samples as Aligner Lab's. batch_rebalance also fills micro batches unevenly, so that
    samples count unequally in its loss."""
    return "train_sampling_strategy" not in options


def _train(trainer, rounds: Rounds, ordered: bool) -> None:
    """Train, with an epoch as a round. TRL's own loop runs, and a callback waits for this side's turn. The tokens are TRL's
    count."""
    from transformers import PrinterCallback, TrainerCallback

    class TakeTurns(TrainerCallback):
        counted = 0

        def on_epoch_begin(self, *_, **__):
            self.losses, self.grad_norms, self.generated = [], [], 0.0
            rounds.begin()

        def on_log(self, args, *_, logs, **__):
            self.losses.append(logs["loss"])
            self.grad_norms.append(logs["grad_norm"])
            self.total = logs["num_tokens"]
            if "completions/mean_length" in logs:
                self.generated += logs["completions/mean_length"] * args.generation_batch_size

        def on_epoch_end(self, *_, **__):
            figures = (tuple(self.losses), tuple(self.grad_norms)) if ordered else (None, None)
            rounds.end(int(self.total) - self.counted, *figures, generated=round(self.generated))
            self.counted = int(self.total)

    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(TakeTurns())
    trainer.train()


# ---- transformers ---------------------------------------------------------------------------------------------------


def plain_sft(setting: Setting, connection) -> None:
    """Forward, backward, clip and AdamW without a trainer. Batches are padded in order of arrival."""
    model = as_transformers.causal_lm(setting).train().to(DEVICE)
    pad_id = as_transformers.tokenizer(setting).pad_token_id
    samples = setting.in_first_epoch(setting.answers(setting.samples_a_round))
    optimizer = _adamw(model, setting)
    rounds = Rounds(setting, connection)
    while True:
        rounds.begin()
        tokens, losses, grad_norms = 0, [], []
        for batch in _batches(samples, setting.global_batch):
            answers = sum(len(sample) - sample.answer_start for sample in batch)
            loss = 0.0
            for micro_batch in _batches(batch, setting.micro_batch):
                inputs = _padded(micro_batch, pad_id)
                with torch.autocast(DEVICE, torch.bfloat16, enabled=setting.precision == "bf16"):
                    part = model(**inputs, use_cache=False, num_items_in_batch=answers).loss
                part.backward()
                loss += part.item()
                tokens += int(inputs["attention_mask"].sum())
            grad_norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), setting.clip).item())
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss)
        rounds.end(tokens, tuple(losses), tuple(grad_norms))


def generation(setting: Setting, connection) -> None:
    """transformers' `generate`: left padding, a static batch that runs to its longest response."""
    dtype = torch.bfloat16 if setting.precision == "bf16" else torch.float32
    model = as_transformers.causal_lm(setting).eval().to(DEVICE, dtype)
    stop_id, pad_id = setting.tokenizer().eos_id, as_transformers.tokenizer(setting).pad_token_id
    samples = setting.answers(setting.prompts)
    rounds = Rounds(setting, connection)
    while True:
        rounds.begin()
        tokens = 0
        for batch in _batches(samples, setting.generation_batch):
            lengths = [len(sample) - sample.answer_start for sample in batch]
            inputs = _left_padded([sample.tokens[: sample.answer_start] for sample in batch], pad_id)
            width = inputs["input_ids"].shape[1]
            with torch.inference_mode():
                output = model.generate(
                    **inputs,
                    do_sample=True,
                    top_k=0,
                    max_new_tokens=max(lengths),
                    logits_processor=[StopsAtProcessor(lengths, width, stop_id)],
                    pad_token_id=pad_id,
                    eos_token_id=stop_id,
                )
            ends = (output[:, width:] == stop_id).int().argmax(dim=1) + 1
            assert ends.tolist() == lengths, "a response has not the length it was forced to"
            tokens += int(ends.sum())
        rounds.end(tokens, generated=tokens)


def _adamw(model, setting: Setting) -> torch.optim.AdamW:
    """Weight decay on matrices alone, as on the other sides."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, **setting.optimizer(), fused=True)


def _batches(items: list, size: int) -> list[list]:
    return [items[i : i + size] for i in range(0, len(items), size)]


def _padded(samples: list, pad_id: int) -> dict[str, torch.Tensor]:
    """Right-padded samples; labels are −100 on prompts and padding: int64 [B, S] each."""
    width = max(map(len, samples))
    columns = torch.arange(width)
    ids = torch.tensor([sample.tokens + [pad_id] * (width - len(sample)) for sample in samples])
    lengths = torch.tensor([len(sample) for sample in samples])[:, None]
    starts = torch.tensor([sample.answer_start for sample in samples])[:, None]
    labels = ids.masked_fill((columns < starts) | (columns >= lengths), -100)
    batch = {"input_ids": ids, "attention_mask": (columns < lengths).long(), "labels": labels}
    return {name: tensor.to(DEVICE) for name, tensor in batch.items()}


def _left_padded(prompts: list[list[int]], pad_id: int) -> dict[str, torch.Tensor]:
    width = max(map(len, prompts))
    padding = [width - len(prompt) for prompt in prompts]
    ids = [[pad_id] * left + prompt for left, prompt in zip(padding, prompts)]
    mask = [[0] * left + [1] * (width - left) for left in padding]
    return {
        "input_ids": torch.tensor(ids, device=DEVICE),
        "attention_mask": torch.tensor(mask, device=DEVICE),
    }
