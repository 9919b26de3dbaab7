"""PPO as two jobs: the actor and its reference in one, the critic and the reward model in the other.

    trainers.ppo ── RewardSource, ValueModel ── client ── connections ── connection ── pytriton_client
                                                                                             ║  gRPC
    rollouts.critic ── worker ── command_loop ── request_queue ───────────────────── pytriton_server

    serialization     records as named arrays, and what may not cross
    discovery         where a server answers, and the token that opens it
    pytriton_cleanup  what a server that was killed leaves, for the next one to clear up

The critic's train steps are `updates` here, on the wire and in status.json: a step of PPO has several.
docs/remote-critic.md tells the whole story. Only the pytriton modules know PyTriton.
"""
