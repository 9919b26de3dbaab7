"""One live server, without an actor: batching, refusals, the token."""

import stat

import pytest
import torch
from forks import until
from servers import Critic

from aligner_lib.datasets.batches import TokenBatch
from aligner_lib.errors import UserError
from aligner_lib.remote_critic import serialization
from aligner_lib.remote_critic.connection import Endpoint, ServerConnection
from aligner_lib.remote_critic.errors import NotReady, Refusal, from_words
from aligner_lib.remote_critic.pytriton_client import PyTritonConnection, ServerUnreachable

pytestmark = pytest.mark.remote_critic
LENGTHS = [30, 11, 17]


@pytest.fixture(scope="module")
def critic(jobs):
    """A critic with default settings; it waits for an actor."""
    critic = Critic(jobs, "live").start().until_it_serves()
    yield critic
    critic.process.terminate()
    critic.until_it_ended()


@pytest.fixture(scope="module")
def link(critic, jobs):
    """An actor that has begun."""
    link = ServerConnection(Endpoint("critic", "127.0.0.1", critic.port, None), "here#1")
    link.connect()
    begin(link, jobs.out / "here")
    return link


def begin(link: ServerConnection, run) -> dict:
    request = {"kind": "begin", "actor": link.actor, "actor_run": str(run)}
    return link.ask("checkpoint", serialization.text(request, "request"))


def batch() -> TokenBatch:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.int64)
    for row, length in enumerate(LENGTHS):
        tokens[row, :length] = torch.randint(4, 200, (length,), generator=generator)
    return TokenBatch(tokens=tokens, lengths=torch.tensor(LENGTHS))


def scores(link: ServerConnection, kind: str, length: int) -> torch.Tensor:
    arrays = link.wait_for(link.call(kind, serialization.pack_tokens(batch(), length), updates=0))
    return serialization.unpack_scores(kind, arrays, batch())


def counts(link: ServerConnection) -> dict:
    answer = link.wait_for(link.call("status", serialization.text({}, "request")))
    return serialization.value_of(answer)["counts"]


def test_requests_of_one_shape_are_answered_together_and_each_gets_its_own(link):
    alone, before = scores(link, "rewards", 32), counts(link)["merged"]

    def together() -> bool:
        calls = [
            link.call("rewards", serialization.pack_tokens(batch().rows([row]), 32))
            for row in range(3)
            for _ in range(3)
        ]
        for i, call in enumerate(calls):
            row = batch().rows([i // 3])
            own = serialization.unpack_scores("rewards", link.wait_for(call), row)
            assert torch.allclose(own, alone[[i // 3]], rtol=0, atol=1e-5)
        return counts(link)["merged"] > before

    until(together, "two requests to meet")


def test_a_request_that_cannot_be_answered_is_refused(link, critic, jobs):
    unknown = serialization.pack_tokens(batch(), 32)
    unknown["tokens"][2, 5] = 1 << 40
    for kind in ("values", "rewards"):
        refusal = problem(link.wait_for(link.call(kind, unknown, updates=0)))
        assert type(refusal) is Refusal
        assert "token 5 of sample 2 of 3 is 1099511627776" in str(refusal)
    early = problem(link.wait_for(link.call("values", serialization.pack_tokens(batch(), 32), updates=7)))
    assert type(early) is NotReady
    assert "the server has made 0 train steps, but 7 were expected" in str(early)
    request = {"kind": "load", "updates": 12, "actor": link.actor, "actor_run": str(jobs.out / "here")}
    with pytest.raises(UserError, match=r"no checkpoint after 12 train steps \(its checkpoints: none\)"):
        link.ask("checkpoint", serialization.text(request, "request"))
    second = ServerConnection(Endpoint("critic", "127.0.0.1", critic.port, None), "second#1")
    second.connect()
    with pytest.raises(UserError, match=r"the server serves another actor, .*/here, last heard"):
        begin(second, jobs.out / "second")
    second.close("done")


def problem(answer: dict) -> Exception:
    return from_words(answer["problem"][0, 0].decode())


# ---- safe -----------------------------------------------------------------------------------------------------------


def test_the_token_is_for_its_owner_only_and_the_server_listens_on_one_port_of_loopback(critic):
    token = critic.run.path / "token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert len(token.read_text()) >= 32
    assert critic.listening() == {("127.0.0.1", critic.port)}


@pytest.mark.parametrize("endpoint", ["values", "rewards", "train", "checkpoint", "status"])
def test_without_the_token_nothing_is_answered(critic, endpoint):
    name = next(iter(serialization.SIGNATURES[endpoint].inputs))
    is_text = endpoint in ("checkpoint", "status")
    arrays = serialization.text({}, name) if is_text else serialization.pack_tokens(batch(), 32)
    with pytest.raises(ServerUnreachable, match="refuses the token"):
        PyTritonConnection("127.0.0.1", critic.port, "guessed").call(endpoint, arrays, {}, timeout_s=10)


def test_whatever_can_be_closed_is_closed_without_the_token(critic):
    import tritonclient.grpc as grpc
    from tritonclient.utils import InferenceServerException

    client = grpc.InferenceServerClient(f"127.0.0.1:{critic.port}")
    for request in (
        client.get_server_metadata,
        client.get_model_repository_index,
        lambda: client.unload_model("train"),
        client.get_inference_statistics,
        client.get_trace_settings,
        client.get_log_settings,
        client.get_system_shared_memory_status,
    ):
        with pytest.raises(InferenceServerException, match="protocol is restricted"):
            request()
    client.close()
