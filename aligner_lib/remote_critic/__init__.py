"""PPO as two jobs: the actor and its reference in one, the critic and the reward model in the other.

    trainers.ppo ── CriticService ── client ── servers ── link ── pytriton_client
                                                                        ║  gRPC
    critic.InProcessCritic ── worker ── server ── request_queue ─────────── pytriton_server

    wire       records as named arrays, and what may not cross
    address    where a server answers, and the token that opens it
    job        `aligner serve-critic` and `aligner serve-rm`
    leftovers  what a server that was killed leaves, for the next one to clear up

The critic's train steps are `updates` here, on the wire and in status.json: a step of PPO has several.
docs/remote-critic.md tells the whole story. Only the two pytriton modules and `leftovers` know PyTriton.
"""
