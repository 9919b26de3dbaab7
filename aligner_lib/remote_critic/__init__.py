"""PPO as two jobs: actor and reference in one, critic and reward model in the other.

    trainers.ppo ── RewardSource, ValueModel ── client ── connections ── connection ── pytriton_client
                                                                                             ║  gRPC
    rollouts.critic ── worker ── command_loop ── request_queue ───────────────────── pytriton_server

    serialization     records as named arrays, with checks of what crosses between the jobs
    discovery         the address of a server, and its token
    pytriton_cleanup  removes what a killed server left behind

The critic's train steps are called `updates` here, in messages and in status.json: a step of PPO has several.
docs/remote-critic.md describes the whole protocol. Only the pytriton modules use PyTriton.
"""
