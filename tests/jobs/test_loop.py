"""The loop around every trainer, with a trainer that only counts."""

import json
import os
import signal
from contextlib import nullcontext, suppress
from dataclasses import replace

import pytest
import torch

from aligner_lib.config.compose import compose
from aligner_lib.config.kinds import kind_of
from aligner_lib.errors import Interruption, UnmatchedCheckpoint, UserError
from aligner_lib.jobs.run import check_ranking
from aligner_lib.run_folder.ranking import Ranking
from aligner_lib.run_folder.reader import RunFolder, step_of
from aligner_lib.run_folder.set_aside import undo_change
from aligner_lib.run_folder.writer import RunWriter

pytestmark = pytest.mark.usefixtures("here")


UNCHANGED = [1, 3, 6, 10, 15, 21, 28]  # the totals of seven steps with a weight of 1


class Counter:
    """Its state is the sum of the steps it did, times a weight. `at` does something within a step, `saving` while the
    checkpoint of a step is saved, and `validating` in the validation after a step."""

    def __init__(self, at=None, saving=None, validating=None, weight=1):
        self.total, self.weight, self.done = 0, weight, []
        self.controls = {"weight": weight}
        self.at, self.saving, self.validating = at or {}, saving or {}, validating or {}

    def step(self, step):
        self.at.get(step, lambda: None)()
        self.done.append(step)
        self.total += self.weight * step
        return {"train/total": self.total}

    def change(self, name, value):
        assert name == "weight"
        self.weight = value

    def validate(self, step):
        self.validating.get(step, lambda: None)()
        return {"validation/total": self.total}

    def save(self, folder):
        (folder / "total").write_text(str(self.total))
        self.saving.get(self.done[-1], lambda: None)()

    def load(self, folder):
        self.total = float((folder / "total").read_text()) if folder else 0


def go(path, trainer, max_steps=7, **changes) -> RunFolder:
    from aligner_lib.jobs.runtime import configure_logging
    from aligner_lib.trainers.loop import LoopSettings, TrainingLoop

    configure_logging()
    settings = LoopSettings(**{"max_steps": max_steps, "val_check_interval": 3, "save_interval": 2} | changes)
    folder = RunFolder(path)
    with RunWriter(path, kind="sft", config={}, seed=0, hashes={}, max_steps=max_steps) as run:
        latest = folder.latest_checkpoint() if settings.resume else None
        run.start(int(latest.name[5:]) if latest else 0)
        TrainingLoop(trainer, settings, run).run_to_end()
    return folder


@pytest.mark.parametrize(
    ("method", "returned", "words"),
    [
        ("step", None, r"Counter\.step returned None: return a dict of metrics"),
        ("validate", None, r"Counter\.validate returned None: return a dict of metrics"),
        ("step", {"toy/extra": torch.ones(1)}, r"toy/extra is a Tensor: write \.item\(\)"),
    ],
)
def test_metrics_of_another_form_are_refused_with_their_place(tmp_path, monkeypatch, method, returned, words):
    monkeypatch.setattr(Counter, method, lambda self, step: returned)
    with pytest.raises(TypeError, match=words):
        go(tmp_path, Counter())


def totals(run: RunFolder) -> list[float]:
    return run.series("train/total")[1]


def checkpoints(run: RunFolder) -> list[int]:
    return [step_of(path) for path in run.checkpoints()]


def fail():
    raise RuntimeError("no")


def stop(path):
    return RunFolder(path).request_stop


def control(path, name: str, text: str = ""):
    """A function that writes a control file."""
    return lambda: (path / "control" / name).write_text(text)


def note_message(path, messages: list[str]):
    """A function that notes what the run says of itself."""
    return lambda: messages.append(RunFolder(path).info["message"])


def change(path, **values):
    """A function that asks for a change of settings."""
    return control(path, "set.json", json.dumps(values))


def test_it_validates_saves_and_ends(tmp_path):
    run = go(tmp_path, Counter(), keep_checkpoints=2)
    assert run.status == "finished"
    assert run.series("train/total") == ([1, 2, 3, 4, 5, 6, 7], UNCHANGED)
    assert run.series("validation/total") == ([0, 3, 6, 7], [0, 6, 21, 28])
    assert checkpoints(run) == [6, 7]
    assert json.loads((run.latest_checkpoint() / "trainer.json").read_text())["step"] == 7
    assert run.info["controls"] == ["stop", "checkpoint", "weight"]
    again = Counter()
    assert (go(tmp_path, again).status, again.done) == ("finished", [])
    assert run.info["message"] == "7 steps, all of an earlier attempt: nothing was trained"


@pytest.mark.parametrize("how", ["control file", signal.SIGTERM, signal.SIGUSR2])
def test_a_stop_ends_it_after_the_step_with_a_checkpoint(tmp_path, how):
    ask = stop(tmp_path) if how == "control file" else lambda: os.kill(os.getpid(), how)
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGUSR2)
    run = go(tmp_path, Counter({3: ask}))
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGUSR2)) == before
    assert (run.status, checkpoints(run)[-1]) == ("stopped", 3)
    again = Counter({7: ask})  # a stop in the last step changes nothing
    run = go(tmp_path, again)
    assert (run.status, totals(run), again.done) == ("finished", UNCHANGED, [4, 5, 6, 7])


def test_sigterm_keeps_its_action_while_several_ranks_load(monkeypatch):
    """A launcher ends the other ranks of a failed rank with SIGTERM, and their run must not count as stopped."""
    from aligner_lib.trainers.loop import interrupting_signals

    monkeypatch.setenv("WORLD_SIZE", "2")
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGUSR2)
    with interrupting_signals("loading"):
        assert signal.getsignal(signal.SIGTERM) == before[0]
        assert signal.getsignal(signal.SIGUSR2) != before[1]


def test_a_run_stops_after_the_step_of_its_settings_whatever_it_has_done_before(tmp_path):
    run = go(tmp_path, Counter(), stop_after=5)
    assert (run.status, checkpoints(run)[-1]) == ("stopped", 5)
    for earlier in (5, 3):  # the same command again, and one with a smaller number
        again = Counter()
        assert (go(tmp_path, again, stop_after=earlier).status, again.done) == ("stopped", [])
    assert go(tmp_path, again, stop_after=7).status == "finished" and again.done == [6, 7]


def test_a_checkpoint_can_be_asked_for_also_during_one(tmp_path):
    ask = control(tmp_path, "checkpoint")
    run = go(tmp_path, Counter({3: ask}, saving={3: ask}), save_interval=6, keep_checkpoints=9)
    assert checkpoints(run) == [3, 4, 6, 7]
    assert list((tmp_path / "control").iterdir()) == []


def test_the_peak_of_memory_is_the_step_s_own(tmp_path, monkeypatch):
    from aligner_lib.megatron import cpu

    taken = []  # GiB since the last question

    def peak_memory() -> float:
        peak = max(taken, default=0)
        taken.clear()
        return peak

    def take(gib):
        return lambda: taken.append(gib)

    monkeypatch.setattr(cpu, "peak_memory", peak_memory)
    counter = Counter(at={step: take(1) for step in (1, 2, 3, 4)}, validating={0: take(5), 3: take(5)})
    assert go(tmp_path / "run", counter, max_steps=4).series("memory/peak")[1] == [1, 1, 1, 1]


# ---- changes of settings --------------------------------------------------------------------------------------------

FROM_3, FROM_4 = [1, 3, 33, 73, 123, 183, 253], [1, 3, 6, 46, 96, 156, 226]  # totals with a weight of 10


@pytest.mark.parametrize(
    ("trainer", "expected"),
    [
        pytest.param(lambda path: Counter({2: change(path, weight=10), 4: stop(path)}), FROM_3, id="stop"),
        pytest.param(
            lambda path: Counter({3: change(path, weight=10)}, saving={3: fail}),
            FROM_4,
            id="death while saving",
        ),
        pytest.param(  # 100 from step 4 on
            lambda path: Counter({2: change(path, weight=10)}, saving={2: change(path, weight=100)}),
            [1, 3, 33, 433, 933, 1533, 2233],
            id="another while the change is made",
        ),
        pytest.param(
            lambda path: Counter({2: control(path, "set.json"), 3: change(path, weight=10)}),
            FROM_4,
            id="an empty file is still being written",
        ),
    ],
)
def test_a_change_holds_from_the_next_step_on_whatever_happens(tmp_path, trainer, expected):
    with suppress(RuntimeError):
        go(tmp_path, trainer(tmp_path))
    assert totals(go(tmp_path, Counter())) == expected
    assert list((tmp_path / "control").iterdir()) == []


def test_a_setting_that_was_edited_between_two_attempts_replaces_the_change(tmp_path, caplog):
    go(tmp_path, Counter({2: change(tmp_path, weight=10), 4: stop(tmp_path)}))
    assert totals(go(tmp_path, Counter({5: stop(tmp_path)}, weight=100))) == [1, 3, 33, 73, 573]
    assert "the settings have changed weight to 100, so its change to 10 during" in caplog.text
    assert totals(go(tmp_path, Counter(weight=100))) == [1, 3, 33, 73, 573, 1173, 1873]


def test_a_change_is_undone_from_the_checkpoint_before_it(tmp_path):
    """The change, requested twice, makes the run fail; the checkpoint before it outlives later ones, and a new start goes on
    from there."""

    def undo_too_early():
        with pytest.raises(UserError, match="stop the run first"):
            undo_change(RunFolder(tmp_path))

    ask = change(tmp_path, weight=1000)
    at = {2: undo_too_early, 3: ask, 5: ask, 7: fail}
    with pytest.raises(RuntimeError):
        go(tmp_path, Counter(at), keep_checkpoints=1)
    run = RunFolder(tmp_path)
    assert checkpoints(run) == [3, 6], "6 is poisoned, 3 is the way back"
    with pytest.raises(RuntimeError):  # as it is, a new start goes on with the change
        go(tmp_path, Counter({7: fail}), keep_checkpoints=1)
    assert undo_change(run) == (tmp_path / "checkpoints" / "step_000003", {})
    again = Counter()
    assert go(tmp_path, again, keep_checkpoints=1).status == "finished"
    assert again.done == [4, 5, 6, 7] and totals(run) == UNCHANGED
    assert (tmp_path / "old-1" / "checkpoints" / "step_000006").is_dir()
    with pytest.raises(UserError, match="no checkpoint from before a change"):
        undo_change(run)


MADE = "changed from step 3 on: weight = 10 (the checkpoint of step 2 is the way back, by `aligner undo`)"
UNKNOWN = "not changed: height=3, for this run takes weight"


@pytest.mark.parametrize(
    ("text", "weight", "message"),
    [
        ('{"weight": "10"}', 1, 'not changed: weight="10", for it takes a number that is not negative'),
        ('{"weight": -1}', 1, "not changed: weight=-1, for it takes a number that is not negative"),
        ('{"weight": NaN}', 1, "not changed: weight=NaN, for it takes a number that is not negative"),
        ("[1]", 1, "not changed: set.json is not {name: number}"),
        ('{"wei', 1, "not changed: set.json is not {name: number}"),
        ('{"weight": 10, "height": 3}', 10, f"{MADE}; {UNKNOWN}"),
    ],
)
def test_a_request_is_granted_or_refused_with_a_message(tmp_path, text, weight, message):
    """The message is in run.json at the step after; the end of the run writes its own."""
    messages = []
    at = {2: control(tmp_path, "set.json", text), 4: note_message(tmp_path, messages)}
    run = go(tmp_path, Counter(at), keep_checkpoints=1)
    assert totals(run)[:4] == [1, 3, 3 + 3 * weight, 3 + 7 * weight]
    assert messages == [message]
    assert checkpoints(run) == ([7] if weight == 1 else [2, 7])


def test_without_checkpoints_none_is_written(tmp_path):
    """A change of settings has no way back then, and says so."""
    messages = []
    at = {3: change(tmp_path, weight=10), 4: note_message(tmp_path, messages)}
    run = go(tmp_path, Counter(at), save_checkpoints=False)
    assert "this run saves no checkpoints, so the change cannot be undone" in messages[0]
    assert checkpoints(run) == [] and totals(run) == FROM_4


# ---- ends and beginnings --------------------------------------------------------------------------------------------


class Killed(BaseException):
    pass


@pytest.mark.parametrize(
    ("trainer", "error", "status", "newest", "done"),
    [
        (lambda: Counter({6: fail}), RuntimeError, "failed", 4, [5, 6, 7]),
        (lambda: Counter(saving={4: raise_once(Killed())}), Killed, None, 2, [3, 4, 5, 6, 7]),
    ],
    ids=["an error within a step", "a kill while saving"],
)
def test_what_was_saved_is_gone_on_from(tmp_path, trainer, error, status, newest, done):
    with pytest.raises(error):
        go(tmp_path, trainer())
    run, again = RunFolder(tmp_path), Counter()
    assert checkpoints(run)[-1] == newest and status in (None, run.status)
    assert totals(go(tmp_path, again)) == UNCHANGED
    assert again.done == done


def test_without_resuming_it_begins_anew(tmp_path):
    """Its own checkpoint is the newest; the run before is set aside."""
    go(tmp_path, Counter())
    again = Counter()
    run = go(tmp_path, again, resume=False, max_steps=2)
    assert again.done == [1, 2]
    assert run.series("train/total") == ([1, 2], [1, 3])
    assert checkpoints(run) == [2]
    assert (tmp_path / "old-1" / "checkpoints" / "step_000007" / "trainer.json").exists()
    assert totals(RunFolder(tmp_path / "old-1")) == UNCHANGED


# ---- a trainer whose other half is in another job -------------------------------------------------------------------


def raise_once(error=None):
    """A function whose first call raises the error."""
    errors = [error or Interruption("the critic was killed")]

    def call(*_):
        if errors:
            raise errors.pop()

    return call


@pytest.mark.parametrize(
    ("trainer", "settings", "done", "saved"),
    [
        (lambda: Counter({4: raise_once()}), {}, [1, 2, 3, 3, 4, 5], [2, 4, 5]),
        (lambda: Counter({4: raise_once()}), {"save_interval": 5}, [1, 2, 3, 1, 2, 3, 4, 5], [5]),
        (lambda: Counter({4: raise_once()}), {"save_checkpoints": False}, [1, 2, 3, 1, 2, 3, 4, 5], []),
        (lambda: Counter(validating={0: raise_once()}), {}, [1, 2, 3, 4, 5], [2, 4, 5]),
        (lambda: Counter(validating={5: raise_once()}), {}, [1, 2, 3, 4, 5, 5], [2, 4, 5]),
        (lambda: Counter(saving={5: raise_once()}), {}, [1, 2, 3, 4, 5, 5], [2, 4, 5]),
    ],
)
def test_an_interrupted_run_goes_back_to_its_checkpoint_and_does_the_steps_since_then_again(
    tmp_path, trainer, settings, done, saved
):
    trainer = trainer()
    run = go(tmp_path, trainer, max_steps=5, **{"keep_checkpoints": 9} | settings)
    assert (run.status, trainer.done) == ("finished", done)
    assert run.series("train/total") == ([1, 2, 3, 4, 5], UNCHANGED[:5])
    assert run.series("validation/total") == ([0, 3, 5], [0, 6, 15])
    assert checkpoints(run) == saved


def test_a_wait_in_vain_ends_the_run_and_keeps_its_checkpoint(tmp_path):
    trainer = Counter({4: raise_once()})
    trainer.load = raise_once(UserError("it did not come back"))
    with pytest.raises(UserError, match="it did not come back"):
        go(tmp_path, trainer)
    run = RunFolder(tmp_path)
    assert (run.status, checkpoints(run)) == ("failed", [2])
    assert run.series("train/total")[0] == [1, 2, 3]


@pytest.mark.parametrize("how", ["control file", "SIGTERM"])
def test_an_interrupted_run_that_was_asked_to_stop_does_not_wait(tmp_path, how):
    ask = stop(tmp_path) if how == "control file" else lambda: os.kill(os.getpid(), signal.SIGTERM)
    run = go(tmp_path, Counter({4: lambda: (ask(), raise_once()())}))
    assert (run.status, checkpoints(run)) == ("stopped", [2])
    assert run.info["message"] == "stopped after step 3 of 7, as asked; its checkpoint is of step 2"
    again = Counter()
    assert totals(go(tmp_path, again)) == UNCHANGED
    assert again.done == [3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("step", "way"),
    [
        (2, "after step 1: the same command begins anew"),
        (6, "after step 5: the same command goes on after step 4"),
    ],
)
def test_ctrl_c_says_which_steps_are_lost(tmp_path, capsys, step, way):
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, Counter({step: raise_once(KeyboardInterrupt())}))
    message = f"interrupted {way} (`aligner stop RUN` saves a checkpoint first)"
    assert (RunFolder(tmp_path).status, RunFolder(tmp_path).info["message"]) == ("stopped", message)
    assert message in capsys.readouterr().err


def test_a_checkpoint_without_its_other_half_is_passed_over_until_none_is_left(tmp_path, capsys):
    go(tmp_path, Counter(), max_steps=6, keep_checkpoints=3)

    def trainer_that_loads(*names):
        trainer = Counter()

        def load(folder):
            if folder.name not in names:
                raise UnmatchedCheckpoint(f"the critic has none for {folder.name}")
            Counter.load(trainer, folder)

        trainer.load = load
        return trainer

    refusing = trainer_that_loads()
    with pytest.raises(UnmatchedCheckpoint, match="none for step_000002"):
        go(tmp_path, refusing)
    assert refusing.done == []
    trainer = trainer_that_loads("step_000004")
    run = go(tmp_path, trainer, max_steps=7, keep_checkpoints=3)
    assert trainer.done == [5, 6, 7]
    assert run.series("train/total") == ([1, 2, 3, 4, 5, 6, 7], UNCHANGED)
    assert checkpoints(run) == [4, 6, 7]
    assert (tmp_path / "old-1" / "checkpoints" / "step_000006").exists()  # its critic's half is gone
    assert "step_000006 can't be gone on from (the critic has none" in capsys.readouterr().err


class Ranked(Counter):
    """Its validations have given values, by step."""

    def __init__(self, values):
        super().__init__()
        self.values = values

    def validate(self, step):
        return {"validation/loss": self.values.get(step, float("nan"))}


@pytest.mark.parametrize(
    ("values", "smallest", "kept", "best"),
    [
        ({0: 5, 1: 3, 2: 1, 3: 2, 4: 4}, True, [2, 4], 2),
        ({0: 5, 1: 3, 2: 1, 3: 2, 4: 4}, False, [4], None),  # step 0 was the best, and has no checkpoint
        ({0: 0, 1: 3, 2: 3, 4: 1}, False, [1, 4], 1),  # the first of equal ones; NaN is never the best
    ],
)
def test_the_best_checkpoint_stays_beside_the_newest(tmp_path, values, smallest, kept, best):
    ranking = Ranking("validation/loss", smallest)
    run = go(tmp_path, Ranked(values), 4, val_check_interval=1, save_interval=4, save_best=ranking)
    assert checkpoints(run) == kept
    assert ranking.best_step(run.metrics()) == (best or 0)


def test_a_run_that_goes_on_remembers_its_best_checkpoint_and_an_unknown_metric_ends_it_at_once(tmp_path):
    ranking = Ranking("validation/loss", smallest=True)
    options = {"val_check_interval": 1, "save_interval": 9, "save_best": ranking}
    go(tmp_path / "run", Ranked({0: 5, 1: 1, 2: 2}), 2, **options)
    run = go(tmp_path / "run", Ranked({3: 3, 4: 4}), 4, **options)
    assert checkpoints(run) == [1, 4]
    with pytest.raises(UserError, match=r"save_best=validation/gold: .* known metrics: validation/loss"):
        go(tmp_path / "other", Ranked({0: 1}), 2, save_best=Ranking("validation/gold", False))


@pytest.mark.parametrize(
    ("given", "ranking"),
    [
        ({}, None),
        ({"monitor": "validation_loss"}, Ranking("validation/loss", True)),  # as NeMo-Aligner's tutorial has it
        ({"monitor": "val_rollouts/good"}, Ranking("val_rollouts/good", False)),
        ({"monitor": "val_global_rewards", "mode": "max"}, Ranking("val_rollouts/rewards", False)),
        ({"monitor": "val_rewards"}, Ranking("val_rollouts/rewards", False)),
        ({"monitor": "val_loss", "save_best": "validation/loss", "mode": "max"}, Ranking("validation/loss", False)),
    ],
)  # fmt: skip
def test_monitor_is_another_name_of_save_best(given, ranking):
    assert Ranking.of(given) == ranking
    with pytest.raises(UserError, match=r"save_best=a and .*monitor=b are two names of one setting"):
        Ranking.of({"save_best": "a", "monitor": "b"})


@pytest.mark.parametrize(("monitor", "is_known"), [("val_rewards", False), ("validation/acc", True)])
def test_a_metric_that_the_kind_does_not_declare_is_refused_before_models_are_loaded(
    monitor, is_known, monkeypatch
):
    config = compose("rm", [f"exp_manager.checkpoint_callback_params.monitor={monitor}"])
    ranking = Ranking.of(config.exp_manager.checkpoint_callback_params)
    with (
        nullcontext()
        if is_known
        else pytest.raises(UserError, match=r"monitor=val_rollouts/rewards: .*/acc, ")
    ):
        check_ranking("rm", config, ranking)
    monkeypatch.setattr("aligner_lib.jobs.run.kind_of", lambda _: replace(kind_of("rm"), metrics=()))
    check_ranking("own", config, ranking)  # the first validation shows what an own kind has
