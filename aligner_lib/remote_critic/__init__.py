"""PPO as two jobs: the actor and the reference in the first, the critic and the reward model in the second.

    trainers.ppo ── RewardSource, ValueModel ── client ── connections ── connection ── pytriton_client
                                                                                             ║  gRPC
    rollouts.critic ── worker ── command_loop ── request_queue ───────────────────── pytriton_server

    serialization     records as named arrays, and checks of the arrays that the jobs exchange
    discovery         the address of a server, and its token
    pytriton_cleanup  removes the remains of a killed server

The critic's train steps are called `updates` in this package, in messages and in status.json, because a step of PPO has several.
docs/remote-critic.md describes the whole protocol. Only the pytriton modules use PyTriton.
"""
