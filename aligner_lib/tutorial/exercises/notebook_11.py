"""The exercises of notebook 11: the parts of a PPO loop that notebook 05 leaves out, and the step that calls all parts.

    B responses, P prompt length, S longest prompt + response, V vocabulary

A policy maps tokens (int64 [B, S]) to the log-probabilities of the next token (float [B, S, V]). A critic maps tokens to values
(float [B, S]).
"""

from __future__ import annotations

from types import SimpleNamespace

from aligner_lib.tutorial.exercises.draw import Draw
from aligner_lib.tutorial.exercises.exercise import Exercise, ImportedLate, Mistake
from aligner_lib.tutorial.exercises.notebook_05 import CLIPPED_LOSS, GAE, TOKEN_REWARDS

torch = ImportedLate("torch")

VOCABULARY, END = 6, 5  # not 0, so that an answer which fills rows with 0 is wrong

# ---- inputs ---------------------------------------------------------------------------------------------------------


def _policy(draw: Draw, scale: float = 1.0, end: float = -1.0):
    """A policy whose next token depends on the last token alone. end: added to the logit of the end token."""
    logits = draw.normal(VOCABULARY, VOCABULARY, scale=scale)
    logits[:, END] += end  # by default, most responses have more than one token
    return torch.nn.Sequential(
        torch.nn.Embedding.from_pretrained(logits, freeze=False), torch.nn.LogSoftmax(-1)
    )


def _critic(draw: Draw):
    values = torch.nn.Embedding.from_pretrained(draw.normal(VOCABULARY, 1), freeze=False)
    return torch.nn.Sequential(values, torch.nn.Flatten(-2))


def _optimizer(*models):
    return torch.optim.SGD([weight for model in models for weight in model.parameters()], lr=0.3)


def _draw_token(probabilities):
    """A token for each row, by the inverse of the cumulative distribution. Equal probabilities give equal tokens."""
    levels = (torch.arange(len(probabilities)) + 0.5) / len(probabilities)
    below = probabilities.cumsum(-1) < levels[:, None]
    return below.sum(-1).clamp(max=probabilities.shape[-1] - 1)


class _Shuffle:
    """Returns a new permutation at each call. Two copies that have not been called return the same sequence of permutations."""

    def __init__(self):
        self.calls = 0

    def __call__(self, count):
        self.calls += 1
        return torch.randperm(count, generator=torch.Generator().manual_seed(self.calls))


def _score(tokens, mask):
    response = tokens[:, 1:]
    return ((response == 1).float() - (response == 2).float()).mul(mask).sum(dim=1)


def _settings(draw: Draw) -> SimpleNamespace:
    return SimpleNamespace(
        length=draw.one_of((4, 5, 6)),
        end=END,
        draw=_draw_token,
        beta=draw.in_turn((0.1, 0.3)),
        discount=draw.in_turn((0.8, 0.9)),
        gae_lambda=draw.in_turn((0.6, 0.7)),
        epochs=draw.in_turn((2, 3)),
        minibatch=draw.in_turn((2, 2, 3)),  # not always equal to the number of epochs
        epsilon=draw.in_turn((0.1, 0.2)),
        shuffle=_Shuffle(),
    )


def logprobs_of(model, tokens):
    """The log-probability of each token after the first: float [B, S-1]."""
    return model(tokens)[:, :-1].gather(-1, tokens[:, 1:, None]).squeeze(-1)


# ---- rollout --------------------------------------------------------------------------------------------------------


def _rollout(policy, prompts, length, end, draw, fill=None):
    """The right rollout by default. fill: plants a mistake, another token than `end` after the end."""
    tokens, over = prompts, torch.zeros(len(prompts), dtype=torch.bool)
    mask = [over] * (prompts.shape[1] - 1)
    for _ in range(length):
        drawn = draw(policy(tokens)[:, -1].exp())
        tokens = torch.cat([tokens, torch.where(over, end if fill is None else fill, drawn)[:, None]], dim=1)
        mask.append(~over)
        over = over | (tokens[:, -1] == end)
    return tokens, torch.stack(mask, dim=1)


def _talks_on(policy, prompts, length, end, draw):
    """A rollout that continues to sample after the end token. The mask is right."""
    tokens = prompts
    for _ in range(length):
        tokens = torch.cat([tokens, draw(policy(tokens)[:, -1].exp())[:, None]], dim=1)
    return tokens, _rollout(policy, prompts, length, end, draw)[1]


def _ended_by_the_prompt(policy, prompts, length, end, draw):
    """A rollout that searches the end token in the whole row."""
    tokens, mask = prompts, [torch.zeros(len(prompts), dtype=torch.bool)] * (prompts.shape[1] - 1)
    for _ in range(length):
        over = (tokens == end).any(dim=1)
        drawn = draw(policy(tokens)[:, -1].exp())
        tokens = torch.cat([tokens, torch.where(over, end, drawn)[:, None]], dim=1)
        mask.append(~over)
    return tokens, torch.stack(mask, dim=1)


def _stops_with_the_first(policy, prompts, length, end, draw):
    """A rollout that stops all responses as soon as the first response ends."""
    for size in range(1, length + 1):
        tokens, mask = _rollout(policy, prompts, size, end, draw)
        if (tokens[:, -1] == end).any():
            break
    return tokens, mask


def _not_filled_up(policy, prompts, length, end, draw):
    """A rollout that stops when all responses have ended."""
    tokens, mask = _rollout(policy, prompts, length, end, draw)
    size = prompts.shape[1] + int(mask.sum(dim=1).max())
    return tokens[:, :size], mask[:, : size - 1]


def _with_mask(change):
    """The right tokens, with change(mask, tokens, prompts, end) as mask."""

    def answer(policy, prompts, length, end, draw):
        tokens, mask = _rollout(policy, prompts, length, end, draw)
        return tokens, change(mask, tokens, prompts, end)

    return answer


def _policy_and_prompts(draw: Draw) -> dict:
    """Inputs for which two responses have different lengths, and a response ends early. Other draws are rejected.

    In every second case, all responses end early; in the other cases, a response does not end. Without the stop, the policy
    would continue an early response with other tokens than the end token.
    """
    rows, size, length = draw.one_of((4, 6)), draw.in_turn((2, 1, 3)), draw.one_of((5, 6))
    all_end = draw.in_turn((False, True))
    while True:
        prompts = draw.integers(0, END, rows, size)
        prompts[0, : size - 1] = END  # a chat template ends each turn of a prompt with the stop token
        inputs = {
            "policy": _policy(draw, end=3.0 if all_end else -1.0),
            "prompts": prompts,
            "length": length,
            "end": END,
            "draw": _draw_token,
        }
        (tokens, mask), (talking, _) = _rollout(**inputs), _talks_on(**inputs)
        stops = bool(mask[:, -1].any()) != all_end and not torch.equal(tokens, talking)
        if stops and mask.sum(dim=1).unique().numel() > 1:
            return inputs


ROLLOUT = Exercise(
    name="rollout",
    notebook="11",
    title="draw responses, token by token",
    minutes=12,
    difficulty=3,
    hint="`policy(tokens)[:, -1]` has the log-probabilities of the next token of each row, and `draw` takes probabilities. "
    "Carry a bool vector `over`, True for each row that has drawn `end`. Append `~over` to the mask *before* you update "
    "`over`, so that the end token itself counts. The prompt has P − 1 columns in the mask.",
    reference=_rollout,
    inputs=_policy_and_prompts,
    outputs=("tokens", "mask"),
    mistakes=(
        Mistake(
            "greedy",
            "Each token is the likeliest one in place of a drawn one. Equal prompts then get equal responses, and the policy never "
            "learns whether another token would have been better.",
            lambda policy, prompts, length, end, draw: _rollout(
                policy, prompts, length, end, lambda probabilities: probabilities.argmax(-1)
            ),
        ),
        Mistake(
            "logprobs_drawn_from",
            "`draw` takes probabilities, and it was given their logarithms. Take the exponential.",
            lambda policy, prompts, length, end, draw: _rollout(
                policy, prompts, length, end, lambda probabilities: draw(probabilities.log())
            ),
        ),
        Mistake(
            "first_position",
            "The next token is drawn from the prediction at the first position. The last position predicts the next token.",
            lambda policy, prompts, length, end, draw: _rollout(
                lambda tokens: policy(tokens).flip(1), prompts, length, end, draw
            ),
        ),
        Mistake(
            "talks_on",
            "Tokens are drawn after the end, too. Fill the row with `end`: what follows the end is no part of the response.",
            _talks_on,
        ),
        Mistake(
            "filled_with_zero",
            "After the end, the row is filled with 0, which is an ordinary token of this vocabulary. Fill the row with `end`.",
            lambda *inputs: _rollout(*inputs, fill=0),
        ),
        Mistake(
            "ended_by_the_prompt",
            "A response ends at once if its prompt contains the end token, as a chat's prompt does after each turn. Only drawn tokens "
            "end a response.",
            _ended_by_the_prompt,
        ),
        Mistake(
            "stops_with_the_first",
            "All responses stop when the first one ends, so the others are cut off.",
            _stops_with_the_first,
        ),
        Mistake(
            "not_filled_up",
            "Nothing is added after all responses have ended, so the width depends on what was drawn. Fill the rows up to `length` "
            "tokens with `end`, and the mask with False.",
            _not_filled_up,
        ),
        Mistake(
            "end_not_in_the_mask",
            "The mask leaves out the end token. The policy has drawn it, and must learn when to end.",
            _with_mask(lambda mask, tokens, prompts, end: mask & (tokens[:, 1:] != end)),
        ),
        Mistake(
            "end_repeated_in_the_mask",
            "The mask contains what follows the end. Update `over` with each drawn token, and mark a column only for rows that were "
            "not over before.",
            _with_mask(
                lambda mask, tokens, prompts, end: (
                    mask | (torch.arange(mask.shape[1]) >= prompts.shape[1] - 1)
                )
            ),
        ),
        Mistake(
            "prompt_in_the_mask",
            "The mask contains the prompt. Index i belongs to token i + 1, so the first P − 1 columns predict tokens of the prompt.",
            _with_mask(
                lambda mask, tokens, prompts, end: mask | (torch.arange(mask.shape[1]) < prompts.shape[1] - 1)
            ),
        ),
        Mistake(
            "response_alone",
            "The tokens lack the prompt. The update needs the whole text, because each prediction reads what stands before it.",
            lambda policy, prompts, length, end, draw: (
                _rollout(policy, prompts, length, end, draw)[0][:, prompts.shape[1] :],
                _rollout(policy, prompts, length, end, draw)[1],
            ),
        ),
    ),
)

# ---- update ---------------------------------------------------------------------------------------------------------


def _loss_of_minibatch(policy, critic, batch, loss, settings):
    """The sum of the clipped loss and the critic's loss, averaged over the response tokens of the minibatch."""
    tokens, mask, old_logprobs, advantages, returns = batch
    ratio = (logprobs_of(policy, tokens) - old_logprobs).exp()
    policy_loss, _ = loss(ratio, advantages, settings.epsilon, settings.epsilon)
    value_loss = 0.5 * (critic(tokens)[:, :-1] - returns) ** 2
    return ((policy_loss + value_loss) * mask).sum() / mask.sum()


def _update(policy, critic, optimizer, batch, loss, settings, loss_of=_loss_of_minibatch):
    losses = []
    for _ in range(settings.epochs):
        for rows in settings.shuffle(len(batch[0])).split(settings.minibatch):
            of_minibatch = loss_of(policy, critic, [part[rows] for part in batch], loss, settings)
            optimizer.zero_grad()
            of_minibatch.backward()
            optimizer.step()
            losses.append(of_minibatch.detach())
    return torch.stack(losses)


def _updated_with(loss_of):
    """The right loop with another loss function for a minibatch."""
    return lambda *inputs: _update(*inputs, loss_of=loss_of)


def _with_settings(**changes):
    """The right loop with changed settings. changes: by the setting's name, a function of batch and settings."""

    def answer(policy, critic, optimizer, batch, loss, settings):
        others = {name: change(batch, settings) for name, change in changes.items()}
        return _update(policy, critic, optimizer, batch, loss, SimpleNamespace(**vars(settings) | others))

    return answer


def _one_order(batch, settings):
    order = settings.shuffle(len(batch[0]))
    return lambda count: order


def _without(*steps):
    """The right loop with an optimizer whose methods `steps` do nothing."""

    def answer(policy, critic, optimizer, batch, loss, settings):
        methods = {name: getattr(optimizer, name) for name in ("zero_grad", "step")}
        mute = SimpleNamespace(**methods | dict.fromkeys(steps, lambda: None))
        return _update(policy, critic, mute, batch, loss, settings)

    return answer


def _without_the_last_step(policy, critic, optimizer, batch, loss, settings):
    minibatches = -(-len(batch[0]) // settings.minibatch)
    steps = iter([optimizer.step] * (settings.epochs * minibatches - 1))
    short = SimpleNamespace(zero_grad=optimizer.zero_grad, step=lambda: next(steps, lambda: None)())
    return _update(policy, critic, short, batch, loss, settings)


def _one_step_an_epoch(policy, critic, optimizer, batch, loss, settings):
    losses = []
    for _ in range(settings.epochs):
        optimizer.zero_grad()
        for rows in settings.shuffle(len(batch[0])).split(settings.minibatch):
            of_minibatch = _loss_of_minibatch(policy, critic, [part[rows] for part in batch], loss, settings)
            of_minibatch.backward()
            losses.append(of_minibatch.detach())
        optimizer.step()
    return torch.stack(losses)


def _padding_counts(policy, critic, batch, loss, settings):
    tokens, mask, *others = batch
    return _loss_of_minibatch(policy, critic, (tokens, torch.ones_like(mask), *others), loss, settings)


def _mean_of_responses(policy, critic, batch, loss, settings):
    rows = [[part[row : row + 1] for part in batch] for row in range(len(batch[0]))]
    return torch.stack([_loss_of_minibatch(policy, critic, row, loss, settings) for row in rows]).mean()


def _upside_down(policy, critic, batch, loss, settings):
    return _loss_of_minibatch(
        policy, critic, batch, lambda ratio, *others: loss(1 / ratio, *others), settings
    )


def _ratio_of_the_present(policy, critic, batch, loss, settings):
    tokens, mask, _, *others = batch
    present = logprobs_of(policy, tokens).detach()
    return _loss_of_minibatch(policy, critic, (tokens, mask, present, *others), loss, settings)


def _not_clipped(policy, critic, batch, loss, settings):
    return _loss_of_minibatch(
        policy, critic, batch, lambda ratio, advantages, *_: (-ratio * advantages, ratio), settings
    )


def _without_a_critic(policy, critic, batch, loss, settings):
    *others, returns = batch
    nothing = (*others, torch.zeros_like(returns))
    return _loss_of_minibatch(policy, lambda tokens: torch.zeros(tokens.shape), nothing, loss, settings)


def _critic_twice(policy, critic, batch, loss, settings):
    tokens, mask, *_, returns = batch
    half = 0.5 * (critic(tokens)[:, :-1] - returns) ** 2
    return _loss_of_minibatch(policy, critic, batch, loss, settings) + (half * mask).sum() / mask.sum()


def _an_experience(draw: Draw) -> dict:
    policy, critic = _policy(draw), _critic(draw)
    rows, size = draw.one_of((5, 7)), 6
    mask = draw.response_mask(rows, size)
    tokens = draw.integers(0, END, rows, size + 1)
    with torch.no_grad():
        old_logprobs = logprobs_of(policy, tokens) + draw.normal(rows, size, scale=0.3)
    advantages, returns = draw.normal(rows, size), draw.normal(rows, size, scale=draw.in_turn((1.0, 20.0)))
    bad = int(mask[0].int().argmax())  # a token with a negative advantage and a ratio of about 20
    old_logprobs[0, bad], advantages[0, bad] = old_logprobs[0, bad] - 3.0, -1.0
    batch = tokens, mask, old_logprobs, advantages, returns
    return {
        "policy": policy,
        "critic": critic,
        "optimizer": _optimizer(policy, critic),
        "batch": batch,
        "loss": CLIPPED_LOSS.reference,
        "settings": _settings(draw),
    }


UPDATE = Exercise(
    name="update",
    notebook="11",
    title="several updates with the same responses",
    minutes=15,
    difficulty=4,
    hint="Two loops: over the epochs, and over `settings.shuffle(B).split(settings.minibatch)`, which gives the rows of each "
    "minibatch. Inside: `part[rows] for part in batch`; the ratio from the policy's present log-probabilities and the old ones; "
    "the loss of policy plus critic, averaged over the tokens of the mask; `zero_grad`, `backward`, `step`.",
    reference=_update,
    inputs=_an_experience,
    outputs=("losses",),
    mistakes=(
        Mistake(
            "gradients_add_up",
            "`zero_grad` is missing, so each update repeats the gradients of all updates before it.",
            _without("zero_grad"),
        ),
        Mistake(
            "no_step",
            "The gradients are computed, and the optimizer never steps: the models stay as they were.",
            _without("step"),
        ),
        Mistake(
            "last_step_left_out",
            "The losses are right, but the last minibatch changes no weight. Step after each minibatch, the last one included.",
            _without_the_last_step,
        ),
        Mistake(
            "one_step_an_epoch",
            "The gradients of all minibatches are added up, and the optimizer steps once an epoch. Step after each minibatch.",
            _one_step_an_epoch,
        ),
        Mistake(
            "one_epoch",
            "The responses are used once. Drawing them was the expensive part: use them for `settings.epochs` passes.",
            _with_settings(epochs=lambda batch, settings: 1),
        ),
        Mistake(
            "one_minibatch",
            "All responses form a single minibatch. Split the shuffled rows into parts of `settings.minibatch`.",
            _with_settings(minibatch=lambda batch, settings: len(batch[0])),
        ),
        Mistake(
            "not_shuffled",
            "The minibatches are the same in every epoch: the rows in their order. Use `settings.shuffle`.",
            _with_settings(shuffle=lambda batch, settings: torch.arange),
        ),
        Mistake(
            "shuffled_once",
            "The rows are shuffled once, so every epoch has the same minibatches. Shuffle at the beginning of each epoch.",
            _with_settings(shuffle=_one_order),
        ),
        Mistake(
            "padding_counts",
            "The mean runs over all positions, prompt and padding included. Sum over the mask, and divide by the number of its tokens.",
            _updated_with(_padding_counts),
        ),
        Mistake(
            "mean_of_responses",
            "Each response is averaged first, so a token of a long response counts less. Average over all tokens of the minibatch.",
            _updated_with(_mean_of_responses),
        ),
        Mistake(
            "ratio_upside_down",
            "The ratio is old over new. It should be new over old.",
            _updated_with(_upside_down),
        ),
        Mistake(
            "ratio_of_the_present",
            "The old log-probabilities are computed again from the present policy, so the ratio is always 1 and nothing is ever "
            "clipped. The old ones are those of the policy that drew the responses: they are in the batch.",
            _updated_with(_ratio_of_the_present),
        ),
        Mistake(
            "not_clipped",
            "The ratio is not clipped, so several updates with the same responses may move the policy without limit. Use `loss`.",
            _updated_with(_not_clipped),
        ),
        Mistake(
            "no_critic",
            "The critic has no loss and never learns, so its values stay random.",
            _updated_with(_without_a_critic),
        ),
        Mistake(
            "critic_counts_twice",
            "The factor ½ of the critic's squared error is missing.",
            _updated_with(_critic_twice),
        ),
    ),
)

# ---- ppo_step -------------------------------------------------------------------------------------------------------


def _whiten(values, mask):
    counted = values[mask]
    return (values - counted.mean()) / (counted.std(correction=0) + 1e-8) * mask


def _ppo_step(
    functions,
    policy,
    critic,
    reference,
    optimizer,
    prompts,
    score,
    settings,
    kl_of=None,
    whiten=_whiten,
    old_of=None,
    with_gradients=False,
):
    """The right step by default. The keyword arguments plant mistakes: kl_of(logprobs, reference_logprobs),
    whiten(advantages, mask), old_of(logprobs, reference_logprobs) and with_gradients."""
    with torch.set_grad_enabled(with_gradients):
        tokens, mask = functions.rollout(policy, prompts, settings.length, settings.end, settings.draw)
        logprobs, reference_logprobs = (logprobs_of(model, tokens) for model in (policy, reference))
        scores = score(tokens, mask)
        kl = (kl_of(logprobs, reference_logprobs) if kl_of else logprobs - reference_logprobs) * mask
        rewards = functions.token_rewards(scores, kl, mask, settings.beta)
        values = critic(tokens)[:, :-1]
        advantages, returns = functions.gae(values, rewards, mask, settings.discount, settings.gae_lambda)
        old = old_of(logprobs, reference_logprobs) if old_of else logprobs
    batch = tokens, mask, old, whiten(advantages, mask), returns
    losses = functions.update(policy, critic, optimizer, batch, functions.clipped_loss, settings)
    return tokens, scores, kl.sum(dim=1), losses


def _with_part(**changes):
    """The right step with changed parts. changes: by the part's name, a function from the right part to the changed part."""

    def answer(functions, *others):
        changed = {name: change(getattr(functions, name)) for name, change in changes.items()}
        return _ppo_step(SimpleNamespace(**vars(functions) | changed), *others)

    return answer


def _changed_step(**changes):
    return lambda *inputs: _ppo_step(*inputs, **changes)


def _whole_step(draw: Draw) -> dict:
    policy, critic = _policy(draw), _critic(draw)
    return {
        "functions": SimpleNamespace(
            rollout=_rollout,
            token_rewards=TOKEN_REWARDS.reference,
            gae=GAE.reference,
            clipped_loss=CLIPPED_LOSS.reference,
            update=_update,
        ),
        "policy": policy,
        "critic": critic,
        "reference": _policy(draw, scale=draw.in_turn((1.0, 6.0))),
        "optimizer": _optimizer(policy, critic),
        "prompts": draw.integers(0, END, draw.one_of((5, 7)), draw.in_turn((1, 2))),
        "score": _score,
        "settings": _settings(draw),
    }


PPO_STEP = Exercise(
    name="ppo_step",
    notebook="11",
    title="the step of the loop",
    minutes=15,
    difficulty=4,
    hint="In this order: rollout; log-probabilities of the tokens under policy and reference; scores; KL; token rewards; values; "
    "advantages and returns; whitened advantages; update. All but the update belongs into `with torch.no_grad():`. "
    "`advantages[mask]` has the advantages of the response tokens alone.",
    reference=_ppo_step,
    inputs=_whole_step,
    outputs=("tokens", "scores", "kl", "losses"),
    mistakes=(
        Mistake(
            "kl_reversed",
            "The KL is log π_ref − log π, so the policy is rewarded for moving away from the reference.",
            _changed_step(kl_of=lambda logprobs, reference: reference - logprobs),
        ),
        Mistake(
            "absolute_kl",
            "The KL is an absolute value, so it cannot average to the KL. Keep its sign.",
            _changed_step(kl_of=lambda logprobs, reference: (logprobs - reference).abs()),
        ),
        Mistake(
            "policy_as_reference",
            "The policy is compared with itself: the KL is always 0, and nothing holds the policy near the reference.",
            _changed_step(kl_of=lambda logprobs, reference: 0 * logprobs),
        ),
        Mistake(
            "penalty_forgotten",
            "The KL is measured, and no reward contains it.",
            _with_part(
                token_rewards=lambda right: lambda scores, kl, mask, beta: right(scores, kl, mask, 0.0)
            ),
        ),
        Mistake(
            "not_whitened",
            "The advantages are not whitened, so the size of a step depends on the unit of the scores.",
            _changed_step(whiten=lambda advantages, mask: advantages),
        ),
        Mistake(
            "padding_whitened",
            "Mean and deviation of the advantages are taken over all positions. The zeros of prompt and padding belong to no token.",
            _changed_step(whiten=lambda advantages, mask: _whiten(advantages, torch.ones_like(mask)) * mask),
        ),
        Mistake(
            "divided_alone",
            "The advantages are divided by their deviation, and their mean is kept. Subtract the mean, too.",
            _changed_step(
                whiten=lambda advantages, mask: advantages / (advantages[mask].std(correction=0) + 1e-8)
            ),
        ),
        Mistake(
            "deviation_of_a_sample",
            "The deviation divides by n − 1. Here it is the root of the mean squared difference: `std(correction=0)`.",
            _changed_step(
                whiten=lambda advantages, mask: _whiten(advantages, mask) * (1 - 1 / mask.sum()).sqrt()
            ),
        ),
        Mistake(
            "returns_whitened",
            "The returns are whitened. The critic predicts rewards in their own unit, so only the advantages are whitened.",
            _with_part(
                gae=lambda right: (
                    lambda values, rewards, mask, *others: (
                        right(values, rewards, mask, *others)[0],
                        _whiten(right(values, rewards, mask, *others)[1], mask),
                    )
                )
            ),
        ),
        Mistake(
            "ratio_to_the_reference",
            "The update compares with the reference's log-probabilities. The clipped ratio compares with the policy that drew the "
            "responses; only the KL penalty compares with the reference.",
            _changed_step(old_of=lambda logprobs, reference: reference),
        ),
        Mistake(
            "discount_and_lambda_exchanged",
            "γ and λ are exchanged in the call of `gae`.",
            _with_part(
                gae=lambda right: (
                    lambda values, rewards, mask, discount, gae_lambda: right(
                        values, rewards, mask, gae_lambda, discount
                    )
                )
            ),
        ),
        Mistake(
            "gradients_before_the_update",
            "The advantages carry gradients of policy and critic, and the second update reads a graph that the first one has freed. "
            "Everything before the update belongs into `with torch.no_grad():`.",
            _changed_step(with_gradients=True),
        ),
    ),
)

EXERCISES = (ROLLOUT, UPDATE, PPO_STEP)
