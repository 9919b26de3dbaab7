"""A scheduler: jobs on this machine at the lowest priority, so that other programs stay fast."""

from dataclasses import replace

from cluster.local import LocalScheduler


class NiceScheduler(LocalScheduler):
    """Starts the local scheduler's jobs through `nice`; their state, log and end are the same."""

    name = "nice"
    title = "this machine at the lowest priority"

    def submit(self, submission):
        return super().submit(_nice(submission))

    def script(self, submission):
        return super().script(_nice(submission))


def _nice(submission):
    member = submission.only_member
    commands = {name: ["nice", "-n", "19", *command] for name, command in member.components.items()}
    return replace(submission, members={submission.name: replace(member, components=commands)})


SCHEDULER = NiceScheduler
