# %% [markdown]
# # RLHF in a hundred lines
#
# Write a whole PPO loop yourself, train a two-layer model with it in seconds, watch the model cheat, and then let your
# functions train SmolLM2.
#
# {{map}}
#
# | goal | a loop of your own that learns from a reward, and a feeling for what the KL penalty holds back |
# | --- | --- |
# | needs | PyTorch, and [notebook 05](05_ppo.ipynb), whose functions you write here again |
# | time for you | 60 to 90 minutes |
# | downloads | nothing further |
#
# {{card}}

# %% tags=["parameters"]
profile = "laptop"
out = "../runs/tutorial"
dataset = "sample"
where = "local"  # local: a process on this machine · slurm
seed = 1234  # for the pre-trained model, and for SmolLM2's prompts

# %%
import copy
import random
import re
from types import SimpleNamespace

import matplotlib.pyplot as plt
import torch
from torch import nn

from aligner_lib.tutorial import Diagram, Workspace, check

lab = Workspace(out, profile, dataset, where)
torch.set_num_threads(1)  # more threads make a model of this size slower
BLUE, ORANGE = "#0072B2", "#D55E00"

# %% [markdown]
# ## A language
#
# The loop needs a policy, and the policy needs a language. The language here has fifteen words and one kind of sentence:
# an animal or a child does something to another, as in "the old cat sees a happy child ." The dot ends a sentence.

# %%
PARTS = {
    "article": ["the", "a"],
    "adjective": ["happy", "sad", "old", "small"],
    "noun": ["cat", "dog", "child", "bird"],
    "verb": ["loves", "hates", "sees", "hears"],
}
WORDS = [word for words in PARTS.values() for word in words] + ["."]
NUMBER = {word: number for number, word in enumerate(WORDS)}
END, LENGTH = NUMBER["."], 10  # a response has at most 10 tokens


def sentence(random):
    """A sentence as a list of words; every second noun has an adjective."""
    adjectives = [[random.choice(PARTS["adjective"])] if random.random() < 0.5 else [] for _ in range(2)]
    subject, target = (
        [random.choice(PARTS["article"]), *own, random.choice(PARTS["noun"])] for own in adjectives
    )
    return [*subject, random.choice(PARTS["verb"]), *target, "."]


print(*(" ".join(sentence(random.Random(number))) for number in range(3)), sep="\n")

# %% [markdown]
# ## A model
#
# The policy is a transformer with two layers. It returns the log-probabilities of the next token at every position. The
# critic is a second transformer of the same size, with a single output at every position.


# %%
class Transformer(nn.Module):
    def __init__(self, outputs, width=32):
        super().__init__()
        self.words, self.places = nn.Embedding(len(WORDS), width), nn.Embedding(LENGTH + 1, width)
        layer = nn.TransformerEncoderLayer(
            width, 2, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, outputs)

    def forward(self, tokens):
        size = tokens.shape[1]
        causal = nn.Transformer.generate_square_subsequent_mask(size)
        hidden = self.words(tokens) + self.places(torch.arange(size))
        return self.head(self.layers(hidden, mask=causal, is_causal=True))


class Policy(Transformer):
    def forward(self, tokens):
        return super().forward(tokens).log_softmax(-1)  # float [B, S, V]


class Critic(Transformer):
    def forward(self, tokens):
        return super().forward(tokens).squeeze(-1)  # float [B, S]


# %% [markdown]
# Before reinforcement learning, the policy learns the language by predicting the next word of drawn sentences. For a
# language model, this stage is the pre-training and SFT of notebooks 01 to 03.


# %%
def pretrain(steps=300, batch=64):
    """A policy that has learnt to write sentences."""
    torch.manual_seed(seed)
    drawn, policy = random.Random(seed), Policy(len(WORDS))
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    for _ in range(steps):
        rows = [torch.tensor([NUMBER[word] for word in sentence(drawn)]) for _ in range(batch)]
        tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
        logprobs = policy(tokens[:, :-1].clamp(min=0))
        loss = nn.functional.nll_loss(logprobs.transpose(1, 2), tokens[:, 1:], ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return policy.requires_grad_(False), loss.item()


reference, loss = pretrain()
print(f"mean loss of a word after pre-training: {loss:.2f} nats")

# %% [markdown]
# ## A reward
#
# Suppose that you want friendly sentences. The reward below counts friendly words and subtracts unfriendly words. A
# reward model for friendliness would be larger and would have the same weakness: the reward does not know what a
# sentence is.
#
# A second program does know. Training never asks the second program. You ask, after training, whether the policy still
# writes sentences.


# %%
def score(tokens, mask):
    """The reward of each response: friendly words minus unfriendly words. int64 [B, S], bool [B, S-1] → float [B]."""
    of_word = torch.zeros(len(WORDS))
    of_word[[NUMBER["happy"], NUMBER["loves"]]] = 1.0
    of_word[[NUMBER["sad"], NUMBER["hates"]]] = -1.0
    return (of_word[tokens[:, 1:]] * mask).sum(dim=1)


def texts(tokens):
    """The words of each row up to the dot."""
    rows = [" ".join(WORDS[number] for number in row) for row in tokens.tolist()]
    return [row.partition(" .")[0] + " ." * (" ." in row) for row in rows]


one_of = {part: f"({'|'.join(words)})" for part, words in PARTS.items()}
somebody = f"{one_of['article']} ({one_of['adjective']} )?{one_of['noun']}"
SENTENCE = re.compile(rf"{somebody} {one_of['verb']} {somebody} \.")
print(bool(SENTENCE.fullmatch("the cat loves a happy dog .")), bool(SENTENCE.fullmatch("the happy happy .")))

# %%
Diagram("loop")

# %% [markdown]
# ## Five functions
#
# A step of RLHF has five parts, and you write each of them: **draw** responses, turn scores into **rewards** of tokens,
# turn rewards into **advantages**, compute the clipped **loss**, and **update** the models.
#
# All tensors have the shapes of notebook 05. A text has S tokens, and index i of a tensor of [B, S-1] belongs to the
# prediction of token i + 1. In this notebook the prompt is the first word, but your functions must handle prompts of any
# length P, because three of them meet SmolLM2 later.
#
# Three of the five functions stand in notebook 05. You may copy the three. You learn more by writing them again from
# memory.


# %% tags=["solution"]
def rollout(policy, prompts, length, end, draw):
    """Responses to a batch of prompts, all of P tokens, and the mask of the predictions that count.

    policy: tokens, int64 [B, S] → log-probabilities of each next token, float [B, S, V]; prompts: int64 [B, P]; length: tokens
    of a response; end: the token that ends a response; draw: probabilities, float [B, V] → a drawn token of each row, int64 [B]
    → tokens, int64 [B, P + length]: after its first end token, a row has only end tokens; mask, bool [B, P + length - 1]: True for
    predictions of response tokens, the first end token included.
    """
    tokens, over = prompts, torch.zeros(len(prompts), dtype=torch.bool)
    mask = [over] * (prompts.shape[1] - 1)
    for _ in range(length):
        drawn = draw(policy(tokens)[:, -1].exp())
        tokens = torch.cat([tokens, torch.where(over, end, drawn)[:, None]], dim=1)
        mask.append(~over)
        over = over | (tokens[:, -1] == end)
    return tokens, torch.stack(mask, dim=1)


# %%
rollout_check = check("rollout", rollout)
display(rollout_check)

# %% [markdown]
# What does the policy write before reinforcement learning?

# %%
torch.manual_seed(seed)


def draw(probabilities):
    """A token of each row."""
    return torch.multinomial(probabilities, 1).squeeze(1)


tokens, mask = rollout_check.function(reference, torch.randint(2, (6, 1)), LENGTH, END, draw)
for text, reward in zip(texts(tokens), score(tokens, mask)):
    print(f"{reward:+.0f}  {text}")

# %% [markdown]
# The next function charges the KL penalty at every token, and adds the score at the last token.


# %% tags=["solution"]
def token_rewards(rewards, kl, mask, coefficient):
    """The reward of each token: a KL penalty at every response token, and the response's score at its last token.

    rewards: float [B]; kl: float [B, S-1] in nats, log π − log π_ref of each token, arbitrary outside the mask; mask: bool
    [B, S-1]; coefficient: float → float [B, S-1], 0 outside the mask.
    """
    penalties = -coefficient * kl * mask
    last = (mask * torch.arange(mask.shape[1])).argmax(dim=1)
    return penalties.scatter_add(1, last[:, None], rewards[:, None])


# %%
rewards_check = check("token_rewards", token_rewards)
display(rewards_check)

# %% [markdown]
# The advantage of a token says how much better the response became than the critic expected.


# %% tags=["solution"]
def gae(values, rewards, mask, discount, gae_lambda):
    """Generalized advantage estimates, and returns = advantages + values.

    values, rewards: float [B, S-1], arbitrary outside the mask; mask: bool [B, S-1], True in a single run per row; discount: γ;
    gae_lambda: λ → float [B, S-1] twice, 0 outside the mask. After the last response token, value and advantage are 0.
    """
    advantages = torch.zeros_like(values)
    next_value = next_advantage = torch.zeros(len(values))
    for t in reversed(range(values.shape[1])):
        error = rewards[:, t] + discount * next_value - values[:, t]
        advantages[:, t] = error + discount * gae_lambda * next_advantage
        next_value = torch.where(mask[:, t], values[:, t], next_value)
        next_advantage = torch.where(mask[:, t], advantages[:, t], next_advantage)
    return advantages * mask, (advantages + values) * mask


# %%
gae_check = check("gae", gae)
display(gae_check)

# %% [markdown]
# The loss makes good tokens likelier and bad tokens less likely, and stops where the ratio has moved far enough.


# %% tags=["solution"]
def clipped_loss(ratio, advantages, low, high):
    """PPO's clipped loss of each token, and the clipped ratio.

    ratio: float [...], above 0; advantages: float, same shape; low, high: the room for the ratio below and above 1 → float of
    the same shape twice, with a gradient to ratio.
    """
    clipped = ratio.clamp(1 - low, 1 + high)
    return torch.maximum(-advantages * ratio, -advantages * clipped), clipped


# %%
clipped_check = check("clipped_loss", clipped_loss)
display(clipped_check)

# %% [markdown]
# Drawing responses is expensive, so PPO uses them for several updates, in a new order in each epoch. The loss of a minibatch is the clipped loss plus
# half the squared error of the critic, and both are averaged over the response tokens of the minibatch:
#
# $$ L = \frac{1}{\sum_t m_t} \sum_t m_t \Bigl[ L_t^{clip} + \tfrac{1}{2} \bigl(V(x_{\le t}) - G_t\bigr)^2 \Bigr] $$
#
# $G_t$ is the return. The shape of the critic's output is [B, S]. Its last column stands behind the last token and predicts nothing.


# %% tags=["solution"]
def update(policy, critic, optimizer, batch, loss, settings):
    """Several passes of optimizer steps over the same responses, minibatch by minibatch.

    policy, critic: tokens, int64 [B, S] → log-probabilities of each next token, float [B, S, V], and values, float [B, S];
    optimizer: of both; batch: a tuple of tokens, int64 [B, S], and mask, old log-probabilities, advantages and returns,
    [B, S-1]; loss: the clipped loss (ratio, advantages, low, high); settings: has epochs, minibatch (rows), epsilon, and
    shuffle (a number of rows → a new order, int64) → the loss of each minibatch before its step, float [updates].
    """
    losses = []
    for _ in range(settings.epochs):
        for rows in settings.shuffle(len(batch[0])).split(settings.minibatch):
            tokens, mask, old_logprobs, advantages, returns = (part[rows] for part in batch)
            logprobs = policy(tokens)[:, :-1].gather(-1, tokens[:, 1:, None]).squeeze(-1)
            ratio = (logprobs - old_logprobs).exp()
            policy_loss, _ = loss(ratio, advantages, settings.epsilon, settings.epsilon)
            critic_loss = 0.5 * (critic(tokens)[:, :-1] - returns) ** 2
            mean = ((policy_loss + critic_loss) * mask).sum() / mask.sum()
            optimizer.zero_grad()
            mean.backward()
            optimizer.step()
            losses.append(mean.detach())
    return torch.stack(losses)


# %%
update_check = check("update", update)
display(update_check)

# %% [markdown]
# ## The step
#
# Now connect the parts. The advantages are **whitened**, as in notebook 05: subtract their mean over all response tokens
# of the batch, and divide by their standard deviation (the square root of the mean squared difference) plus 1e-8. Then
# the size of an update does not depend on the unit of the rewards. The returns stay as they are, because the critic
# predicts rewards.


# %% tags=["solution"]
def ppo_step(functions, policy, critic, reference, optimizer, prompts, score, settings):
    """One step of PPO.

    functions: has rollout, token_rewards, gae, clipped_loss and update; policy, critic, reference: as in update; optimizer: of
    policy and critic; prompts: int64 [B, P]; score: tokens and mask → float [B]; settings: has length, end, draw, beta (the KL
    coefficient), discount, gae_lambda, and what update needs → tokens, int64 [B, S]; scores, float [B]; the KL of each
    response, a sum over its tokens, float [B]; the losses of the update, float [updates].
    """
    with torch.no_grad():
        tokens, mask = functions.rollout(policy, prompts, settings.length, settings.end, settings.draw)
        logprobs, reference_logprobs = (
            model(tokens)[:, :-1].gather(-1, tokens[:, 1:, None]).squeeze(-1) for model in (policy, reference)
        )
        scores, kl = score(tokens, mask), (logprobs - reference_logprobs) * mask
        rewards = functions.token_rewards(scores, kl, mask, settings.beta)
        values = critic(tokens)[:, :-1]
        advantages, returns = functions.gae(values, rewards, mask, settings.discount, settings.gae_lambda)
        counted = advantages[mask]
        advantages = (advantages - counted.mean()) / (counted.std(correction=0) + 1e-8) * mask
    batch = tokens, mask, logprobs, advantages, returns
    losses = functions.update(policy, critic, optimizer, batch, functions.clipped_loss, settings)
    return tokens, scores, kl.sum(dim=1), losses


# %%
step_check = check("ppo_step", ppo_step)
display(step_check)

# %% [markdown]
# ## The loop
#
# The loop calls your step, and records what the step cannot optimise: the share of responses that are sentences, and the
# number of different texts among the 64 responses.

# %%
verdicts = [rollout_check, rewards_check, gae_check, clipped_check, update_check, step_check]
functions = SimpleNamespace(**{verdict.exercise.name: verdict.function for verdict in verdicts})


def train(beta, seed, steps=40):
    """The last step's responses, and each step's figures: score, KL, share of sentences, number of texts."""
    torch.manual_seed(seed)
    policy, critic = copy.deepcopy(reference).requires_grad_(), Critic(1)
    optimizer = torch.optim.Adam([*policy.parameters(), *critic.parameters()], lr=1e-3)
    settings = SimpleNamespace(length=LENGTH, end=END, draw=draw, beta=beta, discount=1.0, gae_lambda=0.95)
    settings.epochs, settings.minibatch, settings.epsilon, settings.shuffle = 4, 32, 0.2, torch.randperm
    history = []
    for _ in range(steps):
        prompts = torch.randint(2, (64, 1))  # "the" or "a"
        tokens, scores, kl, _ = functions.ppo_step(
            functions, policy, critic, reference, optimizer, prompts, score, settings
        )
        written = texts(tokens)
        sentences = sum(bool(SENTENCE.fullmatch(text)) for text in written) / len(written)
        history.append([scores.mean().item(), kl.mean().item(), sentences, len(set(written))])
    return written, torch.tensor(history)


# %% [markdown]
# Train with a penalty of $\beta = 0.3$, three times with different draws.

# %%
held = [train(beta=0.3, seed=number) for number in range(3)]
for written, history in held:
    first, last = history[0].tolist(), history[-5:].mean(0).tolist()
    print(f"score {first[0]:.2f} → {last[0]:.2f}, KL {last[1]:.1f}, sentences {last[2]:.2f}:", written[0])

# %% [markdown]
# Your loop learns: the score rises, and nearly all responses are still sentences. Is the result the best possible one?
# Notebook 04b derived the best policy for a KL penalty, and with the best policy the objective has the value
#
# $$ \max_\pi \; \mathbb{E}_{x \sim \pi}[r(x)] - \beta\, \mathrm{KL}(\pi \,\|\, \pi_{ref})
# = \beta \log \mathbb{E}_{x \sim \pi_{ref}}\bigl[e^{r(x)/\beta}\bigr] $$
#
# The right side needs no training: draw from the reference, and average.

# %%
drawn = [
    score(*rollout_check.function(reference, torch.randint(2, (2_000, 1)), LENGTH, END, draw))
    for _ in range(10)
]
best = 0.3 * (torch.cat(drawn) / 0.3).exp().mean().log().item()
values = [(history[-5:, 0] - 0.3 * history[-5:, 1]).mean().item() for _, history in held]
print(f"the best policy: {best:.2f}; your trainings:", *(f"{value:.2f}" for value in values))

# %% [markdown]
# Your policies are close to the best policy after 40 steps. Now take the penalty away. Before you run the next cell,
# predict what happens. Which text has the highest score?

# %%
free = [train(beta=0.0, seed=number) for number in range(3)]
for written, history in free:
    last = history[-5:].mean(0).tolist()
    print(f"score {last[0]:.2f}, KL {last[1]:.1f}, sentences {last[2]:.2f}, texts {last[3]:.0f}:", written[0])

# %%
figure, axes = plt.subplots(1, 4, figsize=(11, 2.4), layout="constrained")
titles = ("score", "KL of a response (nats)", "share of sentences", "texts among 64")
for place, (ax, title) in enumerate(zip(axes, titles)):
    for runs, colour, label in ((held, BLUE, "β = 0.3"), (free, ORANGE, "β = 0")):
        for number, (_, history) in enumerate(runs):
            ax.plot(history[:, place], color=colour, alpha=0.7, label=label if number == 0 else None)
    ax.set(title=title, xlabel="step")
    ax.set_ylim(bottom=0)
    ax.title.set_fontsize(9)
axes[0].legend(frameon=False, fontsize=8)
plt.show()


# %%
def spread(runs):
    """The lowest and the highest figure of the three trainings, each a mean over the last five steps."""
    last = torch.stack([history[-5:].mean(0) for _, history in runs])
    names = ("score", "kl", "sentences", "texts")
    return {name: [low, high] for name, low, high in zip(names, last.amin(0).tolist(), last.amax(0).tolist())}


before = torch.stack([history[0] for _, history in held]).mean(0).tolist()
toy = {
    "score_before": before[0],
    "sentences_before": before[2],
    "best": best,
    "values": [min(values), max(values)],
}
toy |= {"held": spread(held), "free": spread(free)}
lab.record("11", {"capstone": toy})
for name, figures in {"β = 0.3": toy["held"], "β = 0": toy["free"]}.items():
    print(name, {key: [round(value, 2) for value in pair] for key, pair in figures.items()})

# %% [markdown]
# ### What you should see
#
# With the penalty, the mean score rises from about 0 to a value between
# {{laptop.capstone.held.score.0:.1f}} and {{laptop.capstone.held.score.1:.1f}}, the KL stays between
# {{laptop.capstone.held.kl.0:.1f}} and {{laptop.capstone.held.kl.1:.1f}} nats, and
# {{laptop.capstone.held.sentences.0:.2f}} to {{laptop.capstone.held.sentences.1:.2f}} of the responses are sentences. The
# objective reaches {{laptop.capstone.values.0:.2f}} to {{laptop.capstone.values.1:.2f}}, and the best policy's value is
# about {{laptop.capstone.best:.2f}}. (All these figures are means of drawn responses, so a training may seem to exceed the
# best policy by a little.)
#
# Without the penalty, all three trainings end with the same response to every prompt: "happy" ten times. The score is
# {{laptop.capstone.free.score.0:.0f}}, the highest that ten words can have, the KL is
# {{laptop.capstone.free.kl.0:.0f}} nats, and no response is a sentence. The loop has done what the reward asked for.
# The reward alone cannot tell you that anything is wrong: of the four charts, the first one looks better than ever.
#
# | you see | meaning | change |
# | --- | --- | --- |
# | the score stays where it was | no gradient reaches the policy, or its sign is wrong | read the ratio and the loss in `update` |
# | the score rises, and the KL rises as fast | the penalty is too small for this reward | β up |
# | the score hardly rises, the KL stays near 0 | the penalty is too large | β down |
# | fewer and fewer texts | the policy collapses: one response wins everywhere | β up, or fewer epochs |

# %% [markdown]
# ## SmolLM2 with your functions
#
# The trainer of this project has the same stages as your loop. Its parts are larger, because they handle long texts,
# several processes and failures:
#
# | yours | in the trainer |
# | --- | --- |
# | `rollout` | a generator that keeps the keys and values of earlier tokens, so that each token is computed once |
# | `token_rewards`, `gae`, `clipped_loss` | **your functions**, in place of the library's |
# | `update` | the same loops over batches, with an optimizer each for actor and critic |
# | `ppo_step` | [`PolicyGradientTrainer.step`](../aligner_lib/kinds/policy_gradient/trainer.py), in the same four stages |
#
# A function that has passed its check replaces the library's function. The reward is yours, too. It asks for short
# answers, and like the reward of the toy it forgets something.


# %%
def reward(prompt: str, response: str, **others) -> float:
    """1 for an empty answer, 0 for 20 words, below 0 for more."""
    return 1 - len(response.split()) / 20


initial = lab.model()
settings = {
    "pretrained_checkpoint.restore_from_path": initial,
    "critic.pretrained_checkpoint.restore_from_path": initial,  # with a new head
    "model.seed": seed,
    "trainer.ppo.max_steps": 4,
    "trainer.ppo.val_check_interval": 4,
    "trainer.ppo.save_interval": 4,
    "trainer.ppo.initial_policy_kl_penalty": 0.05,
    "trainer.ppo.use_absolute_kl": False,
    "trainer.ppo.prompt_baseline": "none",  # your critic's values alone
    "trainer.ppo.missing_eos_penalty": 0.0,
    "trainer.ppo.reward_clip": None,
    "trainer.ppo.max_init_policy_kl": None,  # no limit: the run may cheat as far as it likes
    "model.global_batch_size": 16,  # two updates with the responses of a step
    "model.optim.sched.warmup_steps": 0,
    "model.ppo.num_rollout_samples": 32,
    "model.ppo.num_val_samples": 16,
    "model.ppo.length_params.max_length": 40,
}

# %%
from widgets import Monitor, Quiz, curves, show_completions

checked = {"token_rewards": rewards_check, "advantages": gae_check, "loss": clipped_check}
own = {name: verdict.function for name, verdict in checked.items() if verdict}
job = lab.submit("ppo", "capstone", reward=reward, **settings, **own)
monitor = Monitor(lab.run("capstone"), job=job)
display(monitor)

# %% [markdown]
# ### While it trains: how long is your loop?
#
# The next cell counts the lines of the model, the pre-training, your six functions and the loop, without docstrings and
# blank lines.

# %%
import ast
import inspect
import textwrap


def lines_of_code(function):
    """The number of lines of a function, without its docstring and blank lines."""
    source = textwrap.dedent(inspect.getsource(function))
    docstring = ast.get_docstring(ast.parse(source).body[0], clean=False)
    return len([line for line in source.replace(f'"""{docstring}"""', "").splitlines() if line.strip()])


models = [Transformer.__init__, Transformer.forward, Policy.forward, Critic.forward]
written = [*models, pretrain, *vars(functions).values(), train]
for function in written:
    print(f"{lines_of_code(function):4}  {function.__qualname__.lstrip('_')}")
print(f"{sum(map(lines_of_code, written)):4}  together")

# %%
Quiz("11")

# %%
await monitor

# %% [markdown]
# ### What you should see
#
# With the laptop profile, the mean reward of the training prompts rises within four steps from −0.43 to 0.55. The mean
# response becomes shorter, from 36 to 16 tokens, and 0.84 of the responses end, compared with 0.28 before. The reward asked
# for these changes. Now read the responses with the highest rewards:
#
# - `Honestly.` repeats the word with which the prompt wants the answer to begin, and ends there.
# - `Deal.` has one word, so its reward is 0.95. The user asked for an explanation.
# - `Definitely, please.` agrees to explain and explains nothing.
#
# The reward forgot that a short answer should still answer. The KL is 0.34 nats per token already. A larger penalty would
# slow the decay down, and a better reward would ask for more than shortness, as the program `data/gold.py` does.
#
# (The random `smoke` model hardly changes in four steps.)

# %%
run = lab.run("capstone")
curves(run, metrics=["train_rollouts/rewards", "train_rollouts/kl", "train_rollouts/generation_length"])

# %%
show_completions(run, n=6, sort="reward", split="train")

# %% [markdown]
# ## What you learnt
#
# - RLHF is a short program: draw, reward, compare, update. The rest of a trainer makes the program fast and safe.
# - A rising reward and a good policy are two different things. Have a judge that the training never asks.
# - The KL penalty stands for everything that the reward forgot and the reference knows about language.

# %% [markdown]
# ## Further reading
#
# - Stiennon et al. 2020, [*Learning to summarize from human feedback*](https://arxiv.org/abs/2009.01325): the whole
#   loop on a real task, with a study of what happens when the reward is optimised too far.
# - Schulman et al. 2017, [*Proximal policy optimization algorithms*](https://arxiv.org/abs/1707.06347): your `update`,
#   with minibatches and epochs.
# - Andrychowicz et al. 2021, [*What matters in on-policy reinforcement
#   learning?*](https://arxiv.org/abs/2006.05990): which details of such a loop count, from many thousand runs.
# - Skalse et al. 2022, [*Defining and characterizing reward hacking*](https://arxiv.org/abs/2209.13085): when a proxy
#   can be hacked at all.
# - Lambert 2025, [*Reinforcement learning from human feedback*](https://rlhfbook.com): the textbook on the subject.

# %% [markdown]
# Next: [12 · your judge, attacked](12_attacked_judge.ipynb), where a policy looks for what your reward forgot, or [10 · the
# bug hunt](10_bug_hunt.ipynb), where a single line of such a loop is wrong. [08 · compare](08_compare.ipynb) and [09 · scale
# out](09_scale_out.ipynb) are one click away, too.
