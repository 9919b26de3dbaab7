"""`aligner KIND --help`, `--print-config`, `--config`, and what a shell completes."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.completion import completion_init
from typer.testing import CliRunner

from aligner_lib.cli.completion import VARIABLE, script_of
from aligner_lib.cli.main import app
from aligner_lib.cli.settings_help import settings_help
from aligner_lib.config.compose import compose, read_overrides
from aligner_lib.config.kinds import kind_of, kinds
from aligner_lib.config.schema import settings
from aligner_lib.config.validation import without_effect
from aligner_lib.errors import ConfigError, UserError

KINDS = [kind.name for kind in kinds().values()]
ALIGNER = Path(sys.executable).with_name("aligner")


@pytest.mark.parametrize("name", KINDS)
def test_every_setting_with_an_effect_stands_in_the_help_with_its_value_and_a_sentence(name):
    kind, config = kind_of(name), compose(name, profile="laptop")
    shown = settings_help(kind, config)
    heads = re.findall(r"(?m)^(?:  )?(\w+) = ", shown)
    idle = without_effect(kind, config)
    entries = [(key, entry.metadata.get("without_effect")) for key, entry in settings(kind.schema)]
    expected = [key.rpartition(".")[2] for key, is_ignored in entries if key not in idle and not is_ignored]
    assert sorted(heads) == sorted(expected)
    assert max(map(len, shown.splitlines())) <= 80 or "data_prefix" in max(shown.splitlines(), key=len)
    helps = re.split(r"(?m)^(?=  \w+ = )", shown)[1:]
    assert [text.split()[0] for text in helps if not re.search(r"(?m)^ {6}\S", text)] == []


def test_words_choose_settings_and_the_profile_gives_the_values():
    result = CliRunner().invoke(app, ["ppo", "--profile", "laptop", "--help", "policy_kl_penalty"])
    lines = result.output.strip().splitlines()
    assert lines[0] == "trainer.ppo"
    penalty = compose("ppo", profile="laptop").trainer.ppo.initial_policy_kl_penalty
    assert lines[1].split() == ["initial_policy_kl_penalty", "=", str(penalty), "number,", "at", "least", "0"]
    assert lines[2].strip().startswith("The weight of the KL")
    with pytest.raises(UserError, match="no setting of `aligner ppo` has these words"):
        settings_help(kind_of("ppo"), compose("ppo"), ["nonsense"])


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_what_print_config_prints_can_be_given_back(name, tmp_path):
    file = tmp_path / "settings.yaml"
    command = kind_of(name).command
    printed = CliRunner().invoke(app, [command, "--profile", "laptop", "--print-config", "model.seed=7"])
    file.write_text(printed.output)
    again = CliRunner().invoke(app, [command, "--config", str(file), "--print-config"])
    assert again.output == printed.output and "seed: 7" in printed.output
    assert compose(name, [*read_overrides(name, file), "model.seed=8"]).model.seed == 8


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("- 1", "must map names to values"),
        ("trainer: {nothing: 1}", "nothing"),
        ("trainer: {nothing: 1, logger: True}\nother: 2", "(?s)'trainer.nothing'.*'trainer.logger'.*'other'"),
        ("defaults: [gpt_sft, _self_]", "another file, gpt_sft"),
        ("defaults: gpt_sft", "another file, gpt_sft"),
        ("defaults: 3", "has 3 under `defaults`"),
        ("defaults: [{a: 1, b: 2}]", "has {'a': 1, 'b': 2} under `defaults`"),
        (None, "can't be read"),
    ],
)
def test_a_file_without_settings_is_refused(tmp_path, text, reason):
    file = tmp_path / "settings.yaml"
    if text:
        file.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        compose("sft", read_overrides("sft", file))


OF_NEMO_ALIGNER = """
defaults: [optional tp_overlap@model.ub_tp_comm_overlap_cfg: , override hydra/job_logging: disabled]
hydra: {run: {dir: .}}
name: mine
pretrained_checkpoint: {restore_from_path: "???"}
trainer: {rm: {max_epochs: 2}, max_epochs: "${.rm.max_epochs}", accelerator: gpu, logger: False, max_time: null}
exp_manager: {exp_dir: null, name: "${name}", checkpoint_callback_params: {filename: "{step}"}}
model:
  regression: {num_attributes: 1, merge_attributes: False, attribute_weights: null, loss_mask_val: -100}
  optim: {bucket_cap_mb: 200}
  data: {splits_string: null, seq_length: "${model.encoder_seq_length}", data_prefix: null}
"""


def test_names_of_nemo_aligner_whose_values_change_nothing_are_left_out(tmp_path):
    file = tmp_path / "training_rm.yaml"
    file.write_text(OF_NEMO_ALIGNER)
    given = ["pretrained_checkpoint.restore_from_path=m", "trainer.rm.max_epochs=2"]
    assert compose("rm", [*read_overrides("rm", file), given[0]]) == compose("rm", given)
    assert compose("ppo", ["critic.model.hidden_dropout=0.0"]) == compose("ppo")


@pytest.mark.parametrize(
    ("kind", "name", "cure"),
    [
        ("rm", "trainer.max_epochs", "as trainer.rm.max_epochs"),
        ("critic", "trainer.ppo.max_steps", "the critic ends with its actor; model.optim.sched.max_steps"),
        ("ppo", "critic.model.hidden_dropout", "except critic.model.peft.lora_tuning.adapter_dropout"),
        ("sft", "trainer.ppo.max_steps", "did you mean trainer.sft.max_steps"),
        ("ppo", "trainer.grpo.samples_per_prompt", "there is no setting 'trainer.grpo.samples_per_prompt';"),
    ],
)
def test_a_cure_for_a_name_of_nemo_aligner_names_only_settings_of_the_kind(kind, name, cure):
    with pytest.raises(ConfigError, match=cure):
        compose(kind, [f"{name}=0.5"])


COMPLETED = {
    "aligner expl": ["explain"],
    "aligner ppo trainer.ppo.prompt_baseline=l": ["trainer.ppo.prompt_baseline=leave_one_out"],
    "aligner dpo ++model.data.chat_t": ["++model.data.chat_template=", "++model.data.chat_template_date="],
    "aligner sft --profile lap": ["laptop"],
    "aligner show mine": ["mine/ppo"],
}


@pytest.mark.parametrize("line", COMPLETED)
def test_commands_options_settings_and_their_values_are_completed(line, tmp_path, monkeypatch):
    (tmp_path / "runs" / "mine" / "ppo").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "ppo" / "run.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    completion_init()
    env = {VARIABLE: "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    assert CliRunner().invoke(app, prog_name="aligner", env=env).output.split() == COMPLETED[line]


@pytest.mark.parametrize(
    ("shell", "line", "completed"),
    [
        ("bash", "aligner ppo trainer.ppo.prompt_baseline=l", ["leave_one_out"]),
        ("zsh", "aligner ppo trainer.ppo.prompt_b", ["trainer.ppo.prompt_baseline=", "explain"]),
    ],
)
def test_a_shell_completes(shell, line, completed, tmp_path):
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    if shell == "bash":
        ask = f"COMP_LINE='{line}' COMP_POINT={len(line)}\n_aligner_completion 2>/dev/null\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
        command = ["bash", "-c", f"{script_of('bash')}COMP_WORDBREAKS=' ='\ncompopt() {{ :; }}\n{ask}"]
    else:
        stand_ins = "compdef() { : }\n_files() { : }\ncompadd() { print -l -- ${@:#-*} }\n"
        ask = f"words=({line})\nCURRENT={len(line.split())}\n_aligner_completion\n"
        ask += "another() { print explain }\nwords=(another expl)\nCURRENT=2\n_aligner_completion"
        command = ["zsh", "-fc", f"{stand_ins}{script_of('zsh')}{ask}"]
    env = os.environ | {"PATH": f"{ALIGNER.parent}{os.pathsep}{os.environ['PATH']}"}
    process = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, check=True)
    assert process.stdout.split() == completed


def test_another_shell_is_refused():
    with pytest.raises(UserError, match="only for bash and zsh"):
        script_of("fish")
