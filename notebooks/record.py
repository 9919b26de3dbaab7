"""Make the recordings in widgets/recordings anew: `python notebooks/record.py`.

It trains what notebooks 05 and 07 show and have no minutes for: PPO on the bundled forms, with an SFT policy and a reward
model of its own, PPO on sums, GRPO on forms (three quarters of an hour on two quiet cores). A run that is there and over is
not made again.

    --profile laptop      whose models and settings
    --out runs/recordings where the runs lie
    --sweep               notebook 05's "Break it" in their place: PPO on the forms, then three times more with a setting
                          changed, which it stops as a reader does when the alarms sound; sixteen answers of the SFT
                          policy to a prompt. An hour
    --seeds               PPO, DPO and GRPO on the forms in their place, with three training seeds, on all held-out prompts: an
                          hour a seed and core; the figures go to OUT/seeds.json, for `build.py --record`
    --pairs               data/samples/drawn-{train,test}.jsonl in their place: an SFT policy's answers, judged by a program;
                          half an hour
    --rehearsal           data/samples/rehearsal.jsonl in their place: long answers of the downloaded model; ten minutes
    --drawn               SFT, reward model and PPO as in the tutorial, with four training seeds, in their place; prints what
                          they gained. Ten minutes a seed and two cores in bf16
    --changed             "Break it" of notebook 05 in their place: PPO of the first of these seeds with twelve steps, and the
                          same with a setting changed
    --attacked            notebook 12 in their place: GRPO against two judges, six minutes each
    --judged              notebook 13 in their place: GRPO with the downloaded model as judge, half an hour
    --second-round        pairs of this PPO policy's answers, a second reward model and a second PPO, in their place; prints what they
                          mend
    --long                PPO, DPO and GRPO with 48, 192 and 20 steps, for three of these seeds, in their place; prints what they
                          gained
    --rehearsed           SFT with 120 steps, of whose examples a third are those of --rehearsal, a reward model, and PPO with 48
                          steps, for three of these seeds, in their place; prints what PPO gained. An hour a seed and core
    --mistakes [EXERCISE …]
                          aligner_lib/tutorial/mistakes/trained.jsonl in their place: ten steps with each planted mistake of the exercises
                          that train, or of these alone, smoke; half an hour for all
    --hunt                notebook 10's runs in their place: seventeen, smoke, ten minutes
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean

from aligner_lib.config.kinds import kind_of
from aligner_lib.jobs.command_line import job_commands
from aligner_lib.jobs.inference import answering, scoring
from aligner_lib.rollouts.environments.registry import make
from aligner_lib.run_folder.alarms import Thresholds
from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.run_folder.turns import last_turn
from aligner_lib.tutorial import Workspace, compare_policies
from aligner_lib.tutorial.attack import judges
from aligner_lib.tutorial.attack.hacks import hacks
from aligner_lib.tutorial.attack.prompts import write_prompts
from aligner_lib.tutorial.comparison.gold import before_and_after, gained
from aligner_lib.tutorial.comparison.pair_faults import right_by_fault
from aligner_lib.tutorial.exercises.registry import exercises
from aligner_lib.tutorial.hunt import bug_hunt
from aligner_lib.tutorial.hunt.faults import FAULTS, UNLISTED
from aligner_lib.tutorial.judging.labelled import held_out_pairs, labelled_answers
from aligner_lib.tutorial.judging.rubric import RUBRIC, rubric_environment, turns_in, write_turns
from aligner_lib.tutorial.judging.served import ServedJudge, serve_judge
from aligner_lib.tutorial.judging.verdicts import record_verdicts
from aligner_lib.tutorial.mistakes.evidence import MistakenRun, evidence_of
from aligner_lib.tutorial.mistakes.recorded import function_text, write
from aligner_lib.tutorial.workspace.longer_runs import (
    ALL_HELD_OUT,
    ANSWERS_FOR_PAIRS,
    ATTACKED_JUDGE,
    BROKEN,
    CHANGED,
    DPO_ON_FORMS,
    GRPO_ON_FORMS,
    GRPO_WITH_REWARD_MODEL,
    HELD_OUT_OF_DRAWN,
    JUDGED,
    LEFT_TO_BREAK,
    LONG_DPO,
    LONG_GRPO,
    LONG_PPO,
    PPO_FOR_SEEDS,
    PPO_ON_FORMS,
    PPO_ON_SUMS,
    PROMPTS_FOR_PAIRS,
    REHEARSED_SFT,
    RM_FOR_FORMS,
    RM_FOR_SEEDS,
    SFT_FOR_FORMS,
    SIXTEEN_ANSWERS,
    TRAINING_SEEDS,
    TWELVE_STEPS,
)
from cluster import JobFailed, submit
from cluster.record import write_json
from data import format_hh
from data.sample_text import own_pairs, rehearsal
from data.sources import SAMPLES
from widgets import Pairs
from widgets.recordings.recording_file import SHIPPED, read, record

ROOT = Path(__file__).resolve().parents[1]
PPO_ON_SUMS_STOPPED_AFTER = 8  # steps
BROKEN_STOPPED_AFTER = 9  # one more than the validation, whose policy's KL is that of this step's answers
ROLLOUTS_A_STEP, ROLLOUTS_A_STEP_OF_THE_HUNT = 16, 2
SIDES = ("chosen", "rejected")
POLICIES = ("sft", "ppo", "dpo", "grpo")
ALL = 512  # 32 prompts, 16 answers each; PPO has 128 answers at most
TUTORIAL_SEEDS = 1234, 1, 2, 7  # the first is the notebooks'
RIGHT_SEEDS = 1234, 1, 2, 3, 4  # of runs beside those with a mistake, which have the first
TRAINING = [exercise.name for exercise in exercises().values() if exercise.trains]
MISTAKEN = {
    kind: {
        f"trainer.{kind}.max_steps": 10,
        f"trainer.{kind}.val_check_interval": 5,
        f"trainer.{kind}.save_interval": 10,
    }
    for kind in ("rm", "dpo", "ppo", "grpo")
}
MISTAKEN["ppo"]["trainer.ppo.max_init_policy_kl"] = None  # a policy that runs away is to be seen
MISTAKEN["grpo"]["model.grpo.scale"] = "group_std"  # the formula that the exercise replaces
FOUR_UPDATES = {"model.global_batch_size": 8, "model.micro_batch_size": 8}
"""For the clip: before the first update of a step the ratio is 1."""


def record_shown(out: Path, profile: str) -> None:
    """What notebooks 05 and 07 show."""
    lab = Workspace(out, profile)
    record_forms(out, profile)
    begins = {f"{of}pretrained_checkpoint.restore_from_path": lab.model() for of in ("", "critic.")}
    put(made(lab, "ppo", "ppo-sums", PPO_ON_SUMS | begins, stopped_after=PPO_ON_SUMS_STOPPED_AFTER))
    record_grpo(out, profile)


def record_forms(out: Path, profile: str) -> Workspace:
    """The three stages on the bundled forms with more steps than the tutorial has minutes for, in a workspace of their own."""
    lab = Workspace(out / "forms", profile, "forms")
    made(lab, "sft", "sft", SFT_FOR_FORMS)
    made(lab, "rm", "rm", RM_FOR_FORMS)
    put(made(lab, "ppo", "ppo-forms", PPO_ON_FORMS | lab.conversations()), ALL)
    return lab


def record_grpo(out: Path, profile: str) -> None:
    """GRPO with a program's reward, from the SFT policy of the drawn forms: prints what it gained."""
    lab = Workspace(out / "drawn", profile, "drawn")
    made(lab, "sft", "sft", {})
    begins = {"pretrained_checkpoint.restore_from_path": lab.policy()}
    grpo = made(lab, "grpo", "grpo-forms", GRPO_ON_FORMS | begins)
    put(grpo)
    print(before_and_after(grpo), flush=True)


def of_seed(out: Path, profile: str, seed: int) -> Workspace:
    """The policies of one training seed, and what each answers to all held-out prompts."""
    lab = Workspace(out / f"forms-{seed}", profile, "forms")
    seeded, judged = {"model.seed": seed}, lab.conversations()
    made(lab, "sft", "sft", SFT_FOR_FORMS | seeded)
    made(lab, "rm", "rm", RM_FOR_SEEDS | seeded)
    made(lab, "ppo", "ppo", PPO_FOR_SEEDS | judged | seeded)
    made(lab, "dpo", "dpo", DPO_ON_FORMS | seeded)
    begins = {
        "pretrained_checkpoint.restore_from_path": lab.policy(),
        "reward_model.rm_model_file": lab.reward_model(),
    }
    made(lab, "grpo", "grpo", GRPO_WITH_REWARD_MODEL | begins | judged | seeded)
    for policy in POLICIES:
        answers = ALL_HELD_OUT | {"policy.restore_from_path": lab.run(policy).path}
        made(lab, "evaluate", f"evaluate-{policy}", answers | judged)
    return lab


def record_seeds(out: Path, profile: str) -> None:
    """Whether what PPO gains is more than chance: the same with three training seeds, DPO and GRPO beside it."""
    labs = {seed: of_seed(out, profile, seed) for seed in TRAINING_SEEDS}
    write_json(out / "seeds.json", figures_of_seeds(labs, POLICIES))


def figures_of_seeds(labs: dict[int, Workspace], policies: Sequence[str]) -> dict:
    """What each seed's policies answered, and all of them together, as a summary for `build.py --record`; printed, too."""
    figures: dict = {"profile": "forms", "seconds": {}, "memory_gib": {}}
    for name, some in {"all": [*labs.values()], **{str(seed): [lab] for seed, lab in labs.items()}}.items():
        answers = {policy: [lab.run(f"evaluate-{policy}") for lab in some] for policy in policies}
        table = compare_policies(answers, against="sft")
        accuracies = [lab.run("rm").series("validation/acc")[1][-1] for lab in some]
        figures[name] = table.figures | {"rm": {"val_acc": mean(accuracies)}}
        print(f"\ntraining seed: {name}; the reward model is right on {accuracies}\n{table}", flush=True)
        if len(some) == 1:
            print(gained(answers["sft"][0], answers["ppo"][0]), flush=True)
    return figures


def record_sweep(out: Path, profile: str) -> None:
    """Notebook 05's two by two, whose first corner is `ppo-forms`, and what best of n is computed from."""
    lab = record_forms(out, profile)
    for name in BROKEN:
        record_broken(lab, name)
    record_answers(lab)


def record_broken(lab: Workspace, name: str) -> None:
    """PPO on the bundled forms with a setting changed; name: of `longer_runs.BROKEN`."""
    settings = PPO_ON_FORMS | LEFT_TO_BREAK | BROKEN[name] | lab.conversations()
    put(made(lab, "ppo", f"ppo-forms-{name}", settings, stopped_after=BROKEN_STOPPED_AFTER), ALL)


def record_answers(lab: Workspace) -> None:
    """Sixteen answers of the SFT policy to each of half of PPO's held-out prompts, judged as PPO's are."""
    settings = SIXTEEN_ANSWERS | {"policy.restore_from_path": lab.policy()} | lab.conversations()
    put(made(lab, "evaluate", "sft-forms-answers", settings), ALL)


def record_pairs(out: Path, profile: str) -> None:
    """The bundled pairs of a policy's own answers, `data/samples/drawn-{train,test}.jsonl`."""
    lab = Workspace(out / "pairs", profile, "drawn")
    made(lab, "sft", "sft", {})
    for split in PROMPTS_FOR_PAIRS:
        answers = answers_for_pairs(lab, lab.policy(), f"answers-{split}", split)
        print(own_pairs.write_pairs(answers, split), flush=True)


def record_rehearsal(out: Path, profile: str) -> None:
    """The bundled examples of rehearsal, `data/samples/rehearsal.jsonl`."""
    model = Workspace(out / "rehearsal", profile, "drawn").model()
    tasks = rehearsal.tasks()
    answers = answering(model, rehearsal.LONGEST, temperature=rehearsal.TEMPERATURE).of_all(tasks)
    print(
        rehearsal.write((task, answer, answer.finished) for task, answer in zip(tasks, answers)), flush=True
    )


def answers_for_pairs(
    lab: Workspace, policy: Path, name: str, split: str
) -> dict[str, list[own_pairs.PolicyAnswer]]:
    """A policy's answers to the prompts of a split, by the user's turn. name: of the run that draws them."""
    prompts = lab.out / "data" / f"{split}_prompts.jsonl"
    turns = [*own_pairs.prompts_of(split)][: PROMPTS_FOR_PAIRS[split]]
    prompts.write_text("".join(json.dumps({"text": f"User: {turn}\n\nAssistant:"}) + "\n" for turn in turns))
    environment = {
        "use": "instructions",
        "args": {"prompts": {"train": str(prompts), "validation": str(prompts)}},
    }
    settings = ANSWERS_FOR_PAIRS | {
        "policy.restore_from_path": policy,
        "pretrained_checkpoint.restore_from_path": policy,
        "model.environments": {"instructions": environment},
        "model.ppo.num_val_samples": len(turns),
    }
    run = lab.run(name)
    if not run.is_over:
        # not by the workspace, which would first train a reward model on the pairs that are to be made
        job = submit(job_commands("evaluate", run.path, settings, None, lab.profile), run.path)
        print(job.wait(), flush=True)
    answers: dict[str, list[own_pairs.PolicyAnswer]] = {turn: [] for turn in turns}
    for rollout in run.rollouts():
        turn = last_turn(rollout["prompt"])
        answers[turn].append(own_pairs.PolicyAnswer(rollout["response"], rollout["finished"]))
    return answers


def begun(out: Path, profile: str, seed: int) -> tuple[Workspace, dict]:
    """SFT with a seed: the workspace, and the settings of a further run with this seed."""
    lab, seeded = Workspace(out / f"drawn-{seed}", profile, "drawn"), {"model.seed": seed}
    made(lab, "sft", "sft", seeded)
    return lab, seeded


def chain(out: Path, profile: str, seed: int) -> tuple[Workspace, dict]:
    """The tutorial's three stages with a seed: the workspace, and the settings of a further run with this seed."""
    lab, seeded = begun(out, profile, seed)
    made(lab, "rm", "rm", seeded)
    made(lab, "ppo", "ppo", lab.conversations() | seeded)
    return lab, seeded


def record_drawn(out: Path, profile: str) -> None:
    """The tutorial's three stages with each of its seeds: prints what PPO gained."""
    for seed in TUTORIAL_SEEDS:
        lab, _ = chain(out, profile, seed)
        ppo = lab.run("ppo")
        accuracy = lab.run("rm").series("validation/acc")[1][-1]
        print(
            f"seed {seed}: the reward model is right on {accuracy:.3f} of the held-out pairs\n{before_and_after(ppo)}",
            flush=True,
        )


def record_changed(out: Path, profile: str) -> None:
    """Notebook 05's "Break it": PPO with twelve steps, and the same with a setting changed."""
    lab, seeded = chain(out, profile, TUTORIAL_SEEDS[0])
    changes = {"ppo-drawn": {}} | {f"ppo-drawn-{name}": change for name, change in CHANGED.items()}
    for name, change in changes.items():
        run = made(lab, "ppo", name, lab.conversations() | seeded | TWELVE_STEPS | change)
        put(run, validation_rollouts=ALL)
        print(before_and_after(run), flush=True)


def record_attacked(out: Path, profile: str) -> None:
    """Notebook 12: GRPO against a judge with holes, and against the mended judge."""
    lab, seeded = begun(out, profile, TUTORIAL_SEEDS[0])
    prompts = {
        split: str(
            write_prompts(
                Pairs(lab.preference_data() / file).pairs, lab.out / "data" / f"attack_{split}.jsonl"
            )
        )
        for split, file in (("train", "train_comparisons.jsonl"), ("validation", "test_comparisons.jsonl"))
    }
    for judge in (judges.naive, judges.mended):
        settings = (
            ATTACKED_JUDGE
            | seeded
            | {
                "pretrained_checkpoint.restore_from_path": lab.policy(),
                "model.environments.judged.use": judge,
                "model.environments.judged.args.prompts": prompts,
            }
        )
        run = made(lab, "grpo", f"attacked-{judge.__name__}", settings)
        put(run, ALL)  # hacks are counted among all responses of a step
        print(*hacks(run), sep="\n", flush=True)


def record_judged(out: Path, profile: str) -> None:
    """Notebook 13: GRPO with the downloaded model as judge."""
    lab, seeded = begun(out, profile, TUTORIAL_SEEDS[0])
    with serve_judge(lab.model_name) as judge:
        begins = {"pretrained_checkpoint.restore_from_path": lab.policy()}
        files = {
            split: write_turns(
                turns_in(lab.preference_data() / name), lab.out / "data" / f"judged_{split}.jsonl"
            )
            for split, name in (("train", "train_prompts.jsonl"), ("validation", "test_prompts.jsonl"))
        }
        environment = rubric_environment(files, judge.args())
        record_verdicts_of(judge, lab)
        run = made(lab, "grpo", "judged-rubric", JUDGED | seeded | begins | environment)
    put(run, ALL)  # hacks are counted among all responses of a step
    print(*hacks(run), sep="\n", flush=True)


def record_verdicts_of(judge: ServedJudge, lab: Workspace) -> None:
    """The verdicts that notebook 13 shows."""
    answers = labelled_answers()
    turns = write_turns([answer.turn for answer in answers], lab.out / "data" / "judged.jsonl")
    of_judge = {"prompts": {"train": turns, "validation": turns}, "rubric": RUBRIC, "cache": False}
    by_word = make("judge", **of_judge, **judge.args(), timeout=600.0, verdict="logprobs")
    print(f"{record_verdicts(by_word, answers, held_out_pairs())} verdicts", flush=True)


def record_second_round(out: Path, profile: str) -> None:
    """Pairs of the PPO policy's own answers, a reward model of both rounds' pairs, and PPO with it: prints what they mend."""
    lab, seeded = chain(out, profile, TUTORIAL_SEEDS[0])
    folder = lab.out / "data" / "second"
    folder.mkdir(exist_ok=True)
    for split, earlier in (("train", [SAMPLES / "drawn-train.jsonl"]), ("test", [])):
        answers = answers_for_pairs(lab, lab.run("ppo").path, f"second-answers-{split}", split)
        pairs = own_pairs.write_pairs(answers, split, folder)
        print(format_hh([*earlier, pairs], folder, split), flush=True)
    files = {
        "model.data.data_prefix.train": [str(folder / "train_comparisons.jsonl")],
        "model.data.data_prefix.validation": [str(folder / "test_comparisons.jsonl")],
    }
    second = made(lab, "rm", "rm-second", files | seeded)
    with_second = {"critic.pretrained_checkpoint.restore_from_path": second.path}
    ppo = made(lab, "ppo", "ppo-second", lab.conversations() | seeded | with_second)
    for name in ("rm", "rm-second"):
        score = scoring(lab.run(name).path)
        for of_round, of_pairs in (("first", lab.preference_data()), ("second", folder)):
            pairs = Pairs(of_pairs / "test_comparisons.jsonl").pairs
            sides = (score.of_all([(pair["prompt"], pair[side]) for pair in pairs]) for side in SIDES)
            table = right_by_fault(pairs, [*zip(*sides)])
            print(f"{name} on the pairs of the {of_round} policy\n{table}", flush=True)
    print(before_and_after(lab.run("ppo")), before_and_after(ppo), sep="\n", flush=True)


def record_long(out: Path, profile: str) -> None:
    """PPO, DPO and GRPO with more steps than the tutorial has, for three of its seeds: prints what each gained."""
    for seed in TUTORIAL_SEEDS[:3]:
        lab, seeded = chain(out, profile, seed)
        begins = {"pretrained_checkpoint.restore_from_path": lab.policy()}
        ppo = made(lab, "ppo", "ppo-long", LONG_PPO | lab.conversations() | seeded)
        made(lab, "dpo", "dpo-long", LONG_DPO | seeded)
        grpo = made(lab, "grpo", "grpo-long", LONG_GRPO | begins | seeded)
        for policy in ("sft", "dpo-long"):
            answers = HELD_OUT_OF_DRAWN | {"policy.restore_from_path": lab.run(policy).path}
            made(lab, "evaluate", f"evaluate-{policy}", answers | lab.conversations() | seeded)
        dpo = gained(lab.run("evaluate-sft"), lab.run("evaluate-dpo-long"))
        print(f"seed {seed}\n{before_and_after(ppo)}\n{dpo}\n{before_and_after(grpo)}", flush=True)


def record_rehearsed(out: Path, profile: str) -> None:
    """SFT with rehearsal, a reward model, and PPO with more steps than the tutorial has, for three of its seeds: prints what PPO
    gained."""
    for seed in TUTORIAL_SEEDS[:3]:
        lab, seeded = Workspace(out / f"rehearsed-{seed}", profile, "drawn"), {"model.seed": seed}
        files = [str(lab.sft_data() / "train.jsonl"), str(SAMPLES / "rehearsal.jsonl")]
        made(lab, "sft", "sft", REHEARSED_SFT | seeded | {"model.data.train_ds.file_path": files})
        made(lab, "rm", "rm", seeded)
        ppo = made(lab, "ppo", "ppo-long", LONG_PPO | lab.conversations() | seeded)
        print(f"seed {seed}\n{before_and_after(ppo)}", flush=True)


def short(prompt, response):
    """A reward that a random model can raise: groups of sums would all have the reward 0, and no gradient."""
    return -len(response) / 100


def record_mistakes(out: Path, names: Sequence[str]) -> None:
    """Ten steps with each planted mistake of the exercises that train, beside right runs of RIGHT_SEEDS.

    names: of the exercises; empty: TRAINING. The runs of an exercise are written before the next exercise trains. Raises
    RuntimeError if the exercise's own solution does not give the right run's figures.
    """
    lab = Workspace(out / "mistakes", "smoke")
    for kind in ("sft", "rm"):
        made(lab, kind, kind, {})
    (lab.out / "functions").mkdir(exist_ok=True)
    for exercise in (exercises()[name] for name in names or TRAINING):
        shown: dict[str, MistakenRun] = {}
        kind, function = exercise.trains
        settings = MISTAKEN[kind] | ({"reward": short} if kind == "grpo" else {})
        settings |= FOUR_UPDATES if exercise.name == "clipped_loss" else {}
        right, *others = (
            made(lab, kind, f"{exercise.name}-right-{seed}", settings | {"model.seed": seed})
            for seed in RIGHT_SEEDS
        )
        for name in ("", *(mistake.name for mistake in exercise.mistakes)):
            file = lab.out / "functions" / f"{exercise.name}-{name or 'right'}.py"
            file.write_text(function_text(exercise, name))
            run = lab.run(file.stem)
            if not run.is_over:
                own = {"model.seed": RIGHT_SEEDS[0], f"functions.{function}": str(file)}
                job = lab.submit(kind, run.name, **settings | own)
                with suppress(JobFailed):  # a job that ends with an error is what the mistake does
                    job.wait()
            steps = settings[f"trainer.{kind}.max_steps"]
            of_one = evidence_of(run, right, others, kind_of(kind).charts, steps)
            print(f"{run.name}: {of_one.sentence}", flush=True)
            if name:
                shown[name] = of_one
            elif of_one.ended or of_one.differs_at is not None:
                raise RuntimeError(
                    f"the solution of {exercise.name} does not train as the library does: {of_one.sentence}"
                )
        write(exercise.name, shown)


def record_hunt(out: Path, _: str) -> None:
    """The runs of notebook 10, in their folders named as their recordings: those say nothing of the faults."""
    lab = Workspace(out, "smoke")
    for kind in ("sft", "rm"):
        made(lab, kind, kind, {})
    runs = {name: {"model.seed": seed} for name, seed in bug_hunt.HEALTHY.items()}
    for name, hidden in bug_hunt.HUNTED.items():
        fault = UNLISTED if hidden.fault == UNLISTED.name else FAULTS.get(hidden.fault)
        runs[name] = {"model.seed": hidden.seed} | (dict(fault.functions) if fault else {})
    for name, changed in runs.items():
        put(made(lab, "ppo", name, bug_hunt.SETTINGS | changed), ROLLOUTS_A_STEP_OF_THE_HUNT)


def made(lab: Workspace, kind: str, name: str, settings: dict, stopped_after: int = 0) -> RunFolder:
    """The run of this name, which is over; stopped_after: steps, 0: it goes to its end. Raises RuntimeError for one that
    ended before."""
    run = lab.run(name)
    if not run.is_over:
        job = lab.submit(kind, name, **settings)
        if stopped_after:
            stop_within(job, run, stopped_after)
        print(f"{name}: {job.wait()}", flush=True)
    step = run.info.get("heartbeat", {}).get("step", 0)  # a run may fail before its first heartbeat
    if run.status not in ("finished", "stopped") or step < stopped_after:
        raise RuntimeError(f"{name} is {run.status} after step {step}: remove {run.path} to make it again")
    return run


def put(
    run: RunFolder, rollouts_a_step: int = ROLLOUTS_A_STEP, validation_rollouts: int | None = None
) -> None:
    """A run as a recording of its name."""
    path = record(run, SHIPPED / run.name, run.name, rollouts_a_step, validation_rollouts, Thresholds())
    alarms = ", ".join(f"{alarm['name']} at step {alarm['step']}" for alarm in read(path).alarms)
    print(f"{path}: {path.stat().st_size / 1024:.0f} KB, alarms: {alarms or 'none'}", flush=True)


def stop_within(job, run: RunFolder, step: int) -> None:
    """Ask a run to end after this step when it is in it; returns when its job has ended."""
    while not job.state.final:
        if run.info.get("heartbeat", {}).get("step", 0) >= step - 1:
            run.request_stop()
        time.sleep(1)


IN_PLACE = {
    "sweep": record_sweep,
    "seeds": record_seeds,
    "pairs": record_pairs,
    "rehearsal": record_rehearsal,
    "drawn": record_drawn,
    "changed": record_changed,
    "attacked": record_attacked,
    "judged": record_judged,
    "second-round": record_second_round,
    "long": record_long,
    "rehearsed": record_rehearsed,
    "hunt": record_hunt,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", default="laptop")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "recordings")
    in_place = parser.add_mutually_exclusive_group()
    for name, function in IN_PLACE.items():
        in_place.add_argument(
            f"--{name}", dest="make", action="store_const", const=function, default=record_shown
        )
    in_place.add_argument("--mistakes", nargs="*", choices=TRAINING, metavar="EXERCISE")
    arguments = parser.parse_args()
    if arguments.mistakes is None:
        arguments.make(arguments.out, arguments.profile)
    else:
        record_mistakes(arguments.out, arguments.mistakes)
