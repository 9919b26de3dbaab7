"""All stop tokens of a model end its answers: in a rollout, in a notebook's chat, and in the server's thread.

Every token of the vocabulary but one is a stop token here, so answers have one token, whatever a random model says.
"""

import asyncio
import json
import shutil

import pytest

from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.jobs.generation_thread import GenerationThread, PendingResponse, ResponseEnd
from aligner_lib.jobs.inference import answering, load_engine
from aligner_lib.megatron.generate import Sampling
from aligner_lib.rollouts.generators.megatron import MegatronGenerator
from aligner_lib.rollouts.policy import Policy

PROMPT = "User: Hello.\n\nAssistant:"


@pytest.fixture(scope="module")
def folder(smoke, tmp_path_factory):
    copy = tmp_path_factory.mktemp("stops") / "model"
    shutil.copytree(smoke, copy)
    ids = [token_id for token_id in range(Tokenizer(smoke).vocab_size) if token_id != 1]
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    return copy


def test_a_rollout_and_a_chat_obey_them_and_say_that_it_has_ended(folder, here):
    tokenizer, engine = Tokenizer(folder), load_engine(folder)
    policy = Policy(engine, tokenizer, Sampling(max_length=9), forward_micro_batch_size=2)
    prompt = tokenizer.encode(PROMPT)
    rollouts = policy.rollout([prompt, prompt], [3, 4], [0, 1])
    assert rollouts.finished.tolist() == [True, True]
    assert rollouts.lengths.tolist() == [len(prompt) + 1] * 2
    assert rollouts.response_mask.sum(dim=1).tolist() == [1, 1]
    batch = MegatronGenerator(engine, tokenizer).batch(1)
    shortest = batch.add(prompt, 3, Sampling(max_length=9, min_length=3))
    batch.run()
    # only token 1 may come before the third
    assert shortest.tokens[:2] == [1, 1] and len(shortest.tokens) == 3
    answer = answering(folder, max_length=9)("Hello.")
    assert answer.finished and len(answer.tokens) == 1


def test_the_server_obeys_them(folder, here):
    tokenizer = Tokenizer(folder)

    async def events() -> list:
        thread = GenerationThread(load_engine(folder).module, 2, tokenizer.stop_ids)
        thread.start()
        generation = PendingResponse(tokenizer.encode(PROMPT), 3, Sampling(max_length=9))
        thread.begin(generation)
        received = [await asyncio.wait_for(generation.events.get(), 60) for _ in range(2)]
        thread.close()
        await asyncio.get_running_loop().run_in_executor(None, thread.join)
        return received

    _, end = asyncio.run(events())
    assert end == ResponseEnd(finished=True)
