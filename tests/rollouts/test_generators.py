"""Who generates the policy's responses. The server is a stand-in for vLLM: see vllm_stand_in.py, and test_vllm.py."""

import json
import socket
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from types import SimpleNamespace

import forks
import psutil
import pytest
import torch
from smoke_jobs import SmokeJobs, figures
from vllm_stand_in import VllmStandIn

from aligner_lib.config.compose import compose, notices
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.errors import ConfigError, UserError
from aligner_lib.kinds.policy_gradient import build
from aligner_lib.megatron.generate import Sampling
from aligner_lib.models.architecture import Architecture
from aligner_lib.models.families import from_hf
from aligner_lib.rollouts.generators import vllm_server, weight_stream
from aligner_lib.rollouts.generators.megatron import MegatronGenerator
from aligner_lib.rollouts.generators.vllm import VllmGenerator
from aligner_lib.rollouts.policy import Policy
from cluster.processes import identity
from cluster.record import read_json

PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13], [8]]
SEEDS = [3, 2**62, 5, 6]
SAMPLINGS = {
    "plain": Sampling(max_length=10),
    "greedy": Sampling(max_length=6, greedy=True),
    "cut": Sampling(max_length=10, min_length=4, temperature=1.3, top_k=9, top_p=0.9),
    "end strings": Sampling(max_length=24, end_strings=("e", "a")),
}


@pytest.fixture(scope="module")
def engine(smoke, one_rank):
    from aligner_lib.jobs.inference import load_engine

    return load_engine(smoke)


@pytest.fixture(scope="module")
def server(smoke, one_rank):
    with VllmStandIn(smoke, api_key="open sesame") as server:
        yield server


@pytest.fixture
def policy(engine, smoke, server):
    tokenizer = Tokenizer(smoke)
    generator = VllmGenerator(f"{server.url}/v1/", tokenizer.stop_ids, timeout=60, api_key="open sesame")
    return Policy(engine, tokenizer, Sampling(max_length=8), forward_micro_batch_size=4, generator=generator)


def responses(generator, prompts, seeds, sampling):
    batch = generator.batch(rows=len(prompts))
    added = [batch.add(prompt, seed, sampling) for prompt, seed in zip(prompts, seeds)]
    batch.run()
    assert all(response.is_over for response in added)
    return added


# ---- the two generators agree ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_a_server_with_the_policy_s_weights_says_what_the_policy_says(policy, sampling):
    policy.refresh_generator()
    ours = responses(MegatronGenerator(policy.engine, policy.tokenizer), PROMPTS, SEEDS, sampling)
    theirs = responses(policy.generator, PROMPTS, SEEDS, sampling)
    for here, there in zip(ours, theirs, strict=True):
        assert (there.tokens, there.finished) == (here.tokens, here.finished)
        assert there.logprobs == pytest.approx(here.logprobs, abs=1e-5)


def test_the_server_has_the_policy_s_weights_to_the_bit_after_each_step_and_no_old_prefixes(policy, server):
    policy.refresh_generator()
    refreshed, reset = server.worker.refreshed, server.caches_reset
    policy.refresh_generator()  # nothing has changed
    assert server.worker.refreshed == refreshed
    with torch.no_grad():
        for parameter in policy.engine.module.parameters():
            parameter.mul_(1.01)
    policy.engine.steps += 1
    policy.refresh_generator()
    assert (server.worker.refreshed, server.caches_reset) == (refreshed + 1, reset + 1)
    pairs = list(zip(policy.engine.module.parameters(), server.worker.module.parameters()))
    assert pairs and all(torch.equal(ours, theirs) for ours, theirs in pairs)


def test_a_request_says_all_that_the_sampling_says(policy, server, smoke):
    policy.refresh_generator()
    earlier = len(server.completions)
    stop_id = Tokenizer(smoke).eos_id
    generator = replace(policy.generator, stop_ids=(stop_id, 9))
    responses(generator, [[5, 6]], [7], SAMPLINGS["cut"])
    (request,) = server.completions[earlier:]
    assert request == {
        "prompt": [5, 6],
        "seed": 7,
        "max_tokens": 10,
        "min_tokens": 3,  # before the stop token
        "temperature": 1.3,
        "top_k": 9,
        "top_p": 0.9,
        "stop": [],
        "stop_token_ids": [stop_id, 9],
        "ignore_eos": True,
        "skip_special_tokens": False,
        "logprobs": 0,
        "return_token_ids": True,
    }


# ---- runs -----------------------------------------------------------------------------------------------------------

STEPS = 2
SETTINGS = {
    "trainer__grpo__max_steps": STEPS,
    "trainer__grpo__val_check_interval": STEPS,
    "trainer__grpo__save_interval": STEPS,
    "model__grpo__num_prompts_per_step": 4,
    "model__grpo__num_generations_per_prompt": 4,
    "model__global_batch_size": 16,
    "model__micro_batch_size": 16,
    "model__grpo__rollout_micro_batch_size": 16,
    "model__grpo__num_val_samples": 8,
    "model__grpo__rollout_epochs": 1,
    "model__grpo__recompute_logprobs": "null",
    "trainer__grpo__max_policy_kl": "null",
    "model__generation__backend": "vllm",
}


@pytest.fixture(scope="module")
def jobs(smoke, formatted, tmp_path_factory):
    return SmokeJobs(smoke, formatted, tmp_path_factory.mktemp("vllm_jobs"))


def run_on(server: VllmStandIn, jobs: SmokeJobs, name: str, **more):
    return jobs.run("grpo", name, **SETTINGS | {"model__generation__vllm_cfg__url": f"'{server.url}'"} | more)


def test_training_on_a_server_s_responses_is_training_on_megatron_s_own(jobs, one_rank):
    """The server has the policy's weights at each step, so that its probabilities are training's."""
    with VllmStandIn(jobs.model) as server:
        run = run_on(server, jobs, "server")
    assert run.status == "finished" and server.worker.refreshed == STEPS + 1  # each step, and after the last
    for record in run.metrics()[1:]:
        assert record["train_rollouts/sampler_mismatch_max"] < 1e-4
        assert record["train_rollouts/sampler_effective_sample_size"] == pytest.approx(1, abs=1e-6)
    own = {"model__generation__backend": "megatron", "model__grpo__recompute_logprobs": True}
    compared = ("train_rollouts/rewards", "train_rollouts/generation_length", "train_optim/loss")
    assert all(record["train_optim/loss"] != 0 for record in run.metrics()[1:])
    for ours, theirs in zip(figures(jobs.run("grpo", "own", **SETTINGS | own)), figures(run), strict=True):
        assert ours.keys() == theirs.keys()
        for name in compared if ours["step"] else ():
            assert theirs[name] == pytest.approx(ours[name], rel=1e-3, abs=1e-5), name


def test_a_rounded_server_s_mismatch_is_reported_and_weighed(jobs, one_rank):
    with VllmStandIn(jobs.model, rounded=True) as server:
        settings = {"trainer__grpo__max_steps": 1, "model__grpo__sampler_correction": "truncated"}
        run = run_on(server, jobs, "rounded", **settings)
    record = run.metrics()[1]
    assert 1e-5 < record["train_rollouts/sampler_mismatch"] < 0.02
    assert record["train_rollouts/sampler_effective_sample_size"] < 1 - 1e-7
    assert record["train_rollouts/sampler_weight"] != 1
    assert record["train_rollouts/sampler_weight"] == pytest.approx(1, abs=0.01)


# ---- servers that fail ----------------------------------------------------------------------------------------------


def server_of(policy: Policy, url: str, timeout: float = 60) -> Policy:
    """The policy with a generator of this server, without a key."""
    policy.generator = VllmGenerator(url, [0], timeout)
    return policy


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"hangs": True}, r"has not answered for 0\.3 s: the server hangs"),
        ({"until": 2}, r"the vLLM server at http://127.* went away(?s:.*)start it again, then run the same command"),
    ],
    ids=["hangs", "dies"],
)  # fmt: skip
def test_a_server_that_dies_or_hangs_ends_generation_within_the_bound(policy, smoke, fault, message):
    with VllmStandIn(smoke, **fault) as server, pytest.raises(UserError, match=message):
        server_of(policy, server.url, timeout=0.3).respond(PROMPTS, SEEDS)


def test_a_server_that_is_not_there_or_wants_its_key_the_extension_or_token_ids(
    policy, server, smoke, monkeypatch
):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # does not listen
        for url, words in [
            (f"http://127.0.0.1:{taken.getsockname()[1]}", r"went away .*refused"),
            ("http://nowhere.invalid:80", "can't be found"),
        ]:
            with pytest.raises(UserError, match=words):
                server_of(policy, url).refresh_generator()
    with pytest.raises(UserError, match="requires its key: set VLLM_API_KEY"):
        server_of(policy, server.url).respond(PROMPTS, SEEDS)
    with VllmStandIn(smoke) as other:
        other.worker = object()
        message = r"can't receive weights: start it with VLLM_SERVER_DEV_MODE=1 and --worker"
        with pytest.raises(UserError, match=message):
            server_of(policy, other.url).refresh_generator()
        text = {"choices": [{"text": "hello", "finish_reason": "stop"}]}
        monkeypatch.setattr(other, "answer", lambda *_: text)
        with pytest.raises(UserError, match="answered without token ids"):
            server_of(policy, other.url).respond(PROMPTS, SEEDS)


def test_a_key_is_read_without_its_line_break_and_no_message_contains_a_key(policy, server, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "open sesame\n")
    server_of(policy, server.url).respond(PROMPTS, SEEDS)
    monkeypatch.setenv("VLLM_API_KEY", "open\nsesame")
    with pytest.raises(UserError, match="the environment variable VLLM_API_KEY has a line break") as error:
        server_of(policy, server.url)
    assert "sesame" not in str(error.value)


# ---- a server of the run's own --------------------------------------------------------------------------------------


@pytest.fixture
def settings(tmp_path):
    """start's settings with an executable of this text."""

    def made(script: str):
        path = tmp_path / "vllm"
        path.write_text(f"#!{sys.executable}\n{script}")
        path.chmod(path.stat().st_mode | stat.S_IEXEC)
        given = [f"model.generation.vllm_cfg.executable='{path}'", "model.generation.vllm_cfg.timeout=30"]
        return compose("grpo", [VLLM, *given]).model.generation.vllm_cfg

    return made


ANSWERS = """
import http.server, sys
folder, port = sys.argv[2], int(sys.argv[sys.argv.index("--port") + 1])
print(sys.argv)
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", port), Health).serve_forever()
"""


@pytest.fixture
def start(settings, smoke, tmp_path):
    def started(vllm_cfg):
        return vllm_server.start(vllm_cfg, Architecture.load(smoke), Tokenizer(smoke), 64, tmp_path / "run")

    return started


def test_a_run_s_own_server_gets_the_architecture_without_weights_and_ends_with_it(
    start, settings, smoke, tmp_path
):
    """A killed run's server, which would hold the GPU's memory, is ended by the next one."""
    left = start(settings(ANSWERS))
    server = start(settings(ANSWERS))
    try:
        assert left.process.pid != server.process.pid and not psutil.pid_exists(left.process.pid)
        assert server.process.poll() is None
        assert from_hf(json.loads((tmp_path / "run" / "config.json").read_text())) == Architecture.load(smoke)
        assert not list((tmp_path / "run").glob("*.safetensors"))
        assert Tokenizer(tmp_path / "run").eos_id == Tokenizer(smoke).eos_id
    finally:
        server.close()
    assert not psutil.pid_exists(server.process.pid)


def test_the_engine_of_a_server_that_was_killed_ends_with_the_run(start, settings):
    server = start(settings(f"import subprocess\nsubprocess.Popen(['sleep', '60'])\n{ANSWERS}"))
    (engine,) = psutil.Process(server.process.pid).children()
    server.process.kill()
    server.process.wait()
    server.close()
    forks.until(lambda: identity(engine.pid) is None, "the engine's end", 30)


def start_server(vllm_cfg, smoke, folder) -> None:
    vllm_server.start(vllm_cfg, Architecture.load(smoke), Tokenizer(smoke), 64, folder)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the children of a process that dies")
def test_a_server_ends_with_a_job_that_is_killed_while_the_server_starts(settings, smoke, tmp_path):
    run, silent = tmp_path / "run", SimpleNamespace(**settings("import time; time.sleep(600)"))
    job = forks.start(start_server, silent, smoke, run, log=tmp_path / "log")
    server = forks.until(lambda: read_json(run / vllm_server.NOTE), "the server's note")
    job.kill()
    forks.until(lambda: identity(server["pid"]) != server["mark"], "the server's end")


def test_a_generator_of_the_run_s_own_server_has_its_last_output(settings, smoke, tmp_path, one_rank):
    config = compose("grpo", [VLLM, f"exp_manager.explicit_log_dir={tmp_path}/run"])
    config.model.generation.vllm_cfg = settings(ANSWERS)
    with ExitStack() as opened:
        generator = build._vllm(config, Architecture.load(smoke), Tokenizer(smoke), opened)
        assert "--port" in generator.last_output()


def test_a_server_that_can_t_start_is_told_with_its_last_words_or_what_to_do(start, settings):
    broken = settings("import sys; sys.exit('no kernel for this machine')")
    with pytest.raises(
        UserError, match=r"vLLM ended before the first answer(?s:.*)no kernel for this machine"
    ):
        start(broken)
    config = compose("grpo", [VLLM, "model.generation.vllm_cfg.executable=no_vllm"])
    with pytest.raises(UserError, match=r"there is no command 'no_vllm' here. Install vLLM"):
        start(config.model.generation.vllm_cfg)


def test_a_run_takes_no_other_program_on_its_port_for_its_own_server(start, settings, monkeypatch):
    monkeypatch.setattr(vllm_server, "open_url", lambda *_: nullcontext())  # another program answers at once
    with pytest.raises(UserError, match=r"vLLM ended before the first answer(?s:.*)address already in use"):
        start(settings("import sys; sys.exit('address already in use')"))


# ---- settings -------------------------------------------------------------------------------------------------------

VLLM = "model.generation.backend=vllm"
URL = "model.generation.vllm_cfg.url=http://there:8000"
PRECISION = "model.generation.vllm_cfg.precision=float32"


NO_TENSORRT = "TensorRT-LLM is not used here; model.generation.backend=vllm"


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        ("grpo", [PRECISION], "backend=megatron: the policy itself generates"),
        ("ppo", [VLLM, URL, PRECISION], "runs already"),
        ("ppo", ["++trainer.ppo.trt_llm.enable=True", "trainer.ppo.trt_llm.model_type=gptnext"], NO_TENSORRT),
        ("grpo", ["++trainer.grpo.trt_llm.enable=True"], NO_TENSORRT),
        ("ppo", ["trainer.trt_llm.model_type=gptnext"], NO_TENSORRT),
        ("ppo", ["trainer.ppo.batch_iterator.use_flask=True"], "no server balances"),
    ],
)
def test_what_does_nothing_is_told_tensorrt_llm_by_its_name(kind, settings, words):
    assert len([line for line in notices(kind, compose(kind, settings)) if words in line]) == 1


def test_several_nodes_need_a_server_that_all_of_them_reach():
    many = [VLLM, "trainer.num_nodes=2", "trainer.devices=1"]
    with pytest.raises(ConfigError, match="start a server within reach of all nodes"):
        compose("grpo", many)
    compose("grpo", [*many, URL])


@pytest.mark.parametrize(
    "url", ["there:8000", "there", "http://", "http://there:80a", "http://there:99999", "ftp://a"]
)
def test_an_address_that_no_request_can_use_is_refused(url):
    words = rf"vllm_cfg\.url={url}: the value must be an address such as http://node7:8000"
    with pytest.raises(ConfigError, match=words):
        compose("grpo", [VLLM, f"model.generation.vllm_cfg.url={url}"])
    compose("grpo", [VLLM, "model.generation.vllm_cfg.url='https://[::1]:8000/v1'"])


# ---- the stream of weights ------------------------------------------------------------------------------------------


def send_to_receivers(weights, receivers: int, strangers: list[bytes] = ()) -> list:
    """What each receiver got. strangers: what other programs send to the port first."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as opened:
        port = listener.getsockname()[1]
        opened.enter_context(socket.create_connection(("127.0.0.1", port)))  # says nothing
        for content in strangers:
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(content)

        def receive(_: int) -> list:
            return list(weight_stream.receive("127.0.0.1", port, "token", receivers, 10))

        with ThreadPoolExecutor(receivers) as threads:
            received = threads.map(receive, range(receivers))
            weight_stream.send(weights, listener, "token", 30, lambda: None)
            return list(received)


def test_every_receiver_gets_every_weight_in_blocks(monkeypatch):
    monkeypatch.setattr(weight_stream, "BLOCK_BYTES", 100)
    whole = torch.arange(24.0).view(6, 4)
    weights = [("a", whole[:3]), ("b", whole[3:]), ("c", torch.ones(3).bfloat16()), ("d", whole.t())]
    for received in map(dict, send_to_receivers(weights, receivers=2)):
        assert received.keys() == set("abcd")
        assert all(torch.equal(tensor, received[name]) for name, tensor in weights)
        assert received["c"].dtype == torch.bfloat16


def test_strangers_get_no_weights_and_delay_no_receiver():
    strangers = [b"", b"GET / HTTP/1.1\n", b'{"token": "wrong", "receivers": 1}\n', b"[]\n"]
    (((_, received),),) = send_to_receivers([("a", torch.ones(2))], 1, strangers)
    assert torch.equal(received, torch.ones(2))


def test_half_a_stream_is_no_model():
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as threads:

        def go_away():
            connection, _ = listener.accept()
            with connection:
                connection.sendall((1000).to_bytes(8, "big") + b"half")

        threads.submit(go_away)
        with pytest.raises(weight_stream.StreamError, match=r"the trainer went away|stopped coming"):
            list(weight_stream.receive("127.0.0.1", listener.getsockname()[1], "token", 1, 30))


def test_a_server_that_fetches_no_weights_is_waited_for_no_longer_than_the_bound():
    bounded = pytest.raises(weight_stream.StreamError, match=r"did not fetch the weights within 0\.2 s")
    with socket.create_server(("127.0.0.1", 0)) as listener, bounded:
        weight_stream.send([], listener, "token", 0.2, lambda: None)
