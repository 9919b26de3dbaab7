"""Resources, the batch scripts made of them, and the sizing table."""

import shlex
import subprocess
from contextlib import nullcontext

import pytest

from cluster import Resources, SubmissionRefused, check, checks, load_resources, submit, submit_sweep
from cluster.checks import Partition, complaints
from cluster.resources import CONFIGS, by_component, from_mapping, own_components, seconds_of
from cluster.sbatch import overriding_variables
from cluster.sizing import MODELS, Parallelism, fullest_shard, memory, smallest_parallelism, table


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("*.yaml")))
def test_every_example_loads_and_prints(name, tmp_path, capsys):
    loaded = load_resources(name)
    shares = loaded if isinstance(loaded, dict) else {"main": loaded}
    plan = submit({part: ["true"] for part in shares}, tmp_path / "run", "print", name)
    assert plan.nodes == sum(share.nodes for share in shares.values())
    assert plan.text.count("#SBATCH hetjob") == len(shares) - 1


def test_a_hetjobs_file_shares_what_stands_above_its_components(tmp_path):
    path = tmp_path / "het.yaml"
    path.write_text('time: "1:00:00"\naccount: me\ncomponents:\n  critic: {nodes: 2}\n  actor:\n')
    assert load_resources(path) == {
        "critic": Resources(nodes=2, time="1:00:00", account="me"),
        "actor": Resources(time="1:00:00", account="me"),
    }


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"gpus_per_nod": 8}, "unknown key 'gpus_per_nod'; did you mean 'gpus_per_node'"),
        ({"nodes": 0}, "nodes=0 must be a whole number of at least 1"),
        ({"nodes": "2"}, "nodes='2' must be a whole number"),
        ({"time": "4 hours"}, "time='4 hours' is not a Slurm time"),
        ({"time": 14400}, "time=14400"),
        ({"gpu_type": "h100"}, "set gpus_per_node, too"),
        ({"container_mounts": ["/a:/a"]}, "without a container_image: set container_image"),
        ({"gpus_per_node": 2, "tasks_per_node": 4}, "ranks cannot share a GPU"),
        ({"time": "3:59"}, "the job would be stopped as soon as it starts: set a time of 4 minutes or more"),
        ({"sbatch": {"time-min": "0:02:00"}}, "sbatch.time-min='0:02:00' leaves no time before the notice"),
        ({"linger_s": "60"}, "linger_s='60' must be a whole number"),
        ({"sbatch": {"signal": "B:USR1@60"}}, "is the notice before the time limit: set signal_delay_s"),
        ({"sbatch": {"ntasks_per_node": 4}}, "sbatch.ntasks_per_node follows from tasks_per_node"),
        ({"sbatch": {"cpus-per-task": 4}}, "sbatch.cpus-per-task has a key of its own: set cpus_per_task"),
        ({"sbatch": "reservation"}, "sbatch='reservation' must hold flags and values"),
        ({"mem": True}, "mem=True must be text: write the value in quotes"),
        ({"partition": ["a", "b"]}, "partition=['a', 'b'] must be text"),
        ({"sbatch": {"requeue": False}}, "set max_requeues: 0"),
        ({"sbatch": {"hold": None}}, "sbatch.hold has no value: write true"),
        ({"gpus_per_node": 8, "sbatch": {"gres": "nvme:1,gpu:h100:8"}}, "sbatch.gres='gpu:h100:8' beside"),
        ({"sbatch": {"comment": "project 7"}}, "comment is the mark"),
        (
            {"gpus_per_node": 1, "sbatch": {"gpus-per-node": "h100:2"}},
            "sbatch.gpus-per-node='h100:2' differs from gpus_per_node=1",
        ),
        ({"sbatch": {"clusters": "gpu"}}, "set the variable SLURM_CLUSTERS"),
        ({"sbatch": {"parsable": True}}, "parsable hides the job's id"),
        ({"sbatch": {"wait": True}}, "call job.wait()"),
    ],
)
def test_wrong_resources_are_refused_with_the_cure(values, words):
    with pytest.raises(ValueError) as refused:
        from_mapping(values)
    assert words in str(refused.value)


@pytest.mark.parametrize("flag", ["h100", "a100:1,h100", "a100:1,h100:1", 2])
def test_the_flag_gpus_per_node_is_compared_where_each_type_has_a_number(flag):
    assert Resources(gpus_per_node=2, sbatch={"gpus-per-node": flag}).sbatch == {"gpus-per-node": flag}


def test_flags_memory_and_names_of_a_yaml_file_reach_the_script_as_slurm_spells_them(tmp_path, capsys):
    path = tmp_path / "own.yaml"
    path.write_text(
        "mem: 0\npartition: 7\naccount:\nsbatch: {mail_type: [END, FAIL], overcommit: false, hold: true, requeue: true}\n"
    )
    text = submit(["true"], tmp_path / "run", "print", path).text
    for flag in ("mem=0", "partition=7", "mail-type=END,FAIL", "hold", "requeue"):
        assert f"#SBATCH --{flag}\n" in text
    for flag in ("wait", "quiet"):
        assert Resources(sbatch={flag: False}) == Resources()
    assert "overcommit" not in text and "\nexport SLURM_EXPORT_ENV=ALL\n" in text
    path.write_text("sbatch:\n")
    assert load_resources(path) == Resources()
    path.write_text("sbatch: {\n")
    with pytest.raises(ValueError, match=r"own\.yaml is not YAML: "):
        load_resources(path)


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("90", 5400), ("4:30", 270), ("1:00:05", 3605), ("1-2", 93_600), ("1-2:3:4", 93_784)],
)
def test_slurms_times_in_seconds(time, seconds):
    assert seconds_of(time) == seconds and Resources(time="0").time == "0", "0 is no limit"


def test_resources_belong_to_components():
    shares = {"critic": Resources(nodes=2), "actor": Resources()}
    assert by_component(shares, ["critic", "actor"]) == shares
    assert by_component({"critic": {"nodes": 2}, "actor": {}}, ["critic", "actor"]) == shares
    assert own_components({"critic": {"nodes": 2}, "actor": Resources()}) == shares
    for alone in ({"nodes": 3}, {"sbatch": {"hold": True}}):
        assert by_component(alone, ["main"]) == {"main": Resources(**alone)}
    with pytest.raises(ValueError, match="resources critic: unknown key 'node'"):
        by_component({"critic": {"node": 2}, "actor": {}}, ["critic", "actor"])
    with pytest.raises(ValueError, match="components"):
        by_component(shares, ["main", "other"])
    with pytest.raises(ValueError, match=r"known names are .*one_node"):
        load_resources("two_node")


def test_a_hetjob_has_one_time_limit_and_one_notice():
    """Slurm gives notice of the first component's limit alone, and any component's limit ends the job."""
    given = {
        "critic": {"signal_delay_s": 600},
        "actor": {"time": "60", "sbatch": {"time-min": 30}},
        "judge": {"time": "0", "sbatch": {"time-min": "0:20:00"}},
    }
    shares = by_component(given, list(given)).values()
    assert {(share.time, share.signal_delay_s) for share in shares} == {("60", 600)}
    assert [share.sbatch for share in shares] == [{"time-min": "0:20:00"}] * 3
    with pytest.raises(ValueError, match="time='10' leaves no time before the notice of signal_delay_s=600"):
        by_component({"critic": {"signal_delay_s": 600}, "actor": {"time": "10"}}, ["critic", "actor"])


@pytest.mark.parametrize(
    ("critic", "actor", "refusal"),
    [
        (
            {"mem": "50G"},
            {},
            "resources actor: without mem, Slurm would take the value of critic: set mem in",
        ),
        ({"sbatch": {"exclude": "n4"}}, {}, "without sbatch.exclude"),
        ({"sbatch": {"delay_boot": 5}}, {"sbatch": {"hint": "compute_bound"}}, "without sbatch.delay-boot"),
        ({"sbatch": {"time-min": "30"}}, {}, ""),
        ({"sbatch": {"exclude": "n4"}}, {"sbatch": {"exclude": ""}}, ""),
        ({}, {"mem": "50G"}, ""),
        ({"partition": "batch", "sbatch": {"nodelist": "n1"}}, {}, ""),  # sbatch forgets these itself
    ],
)
def test_a_value_that_a_later_component_would_inherit_is_refused(
    tmp_path, capsys, slurm, critic, actor, refusal
):
    commands, resources = {"critic": ["c"], "actor": ["a"]}, {"critic": critic, "actor": actor}
    with pytest.raises(SubmissionRefused, match=refusal) if refusal else nullcontext():
        submit(commands, tmp_path / "run", "print", resources)
    findings = checks.check_slurm(resources, tmp_path, probe=False)
    refused = [str(finding) for finding in findings if not finding.ok]
    assert bool(refused) == bool(refusal) and refusal in "".join(refused)


def test_a_job_s_own_values_win_over_the_site_s_which_win_over_those_of_an_included_file(tmp_path):
    site = {
        "partition": "batch",
        "exclusive": True,
        "setup": "module load cuda",
        "sbatch": {"mail_type": "END"},
    }
    own = {
        "partition": "debug",
        "exclusive": False,
        "setup": ["source me.sh"],
        "sbatch": {"mail-type": "ALL"},
    }
    (share,) = by_component(own, ["main"], site).values()
    expected = Resources(partition="debug", sbatch={"mail-type": "ALL"})
    assert share == expected.but(setup=("module load cuda", "source me.sh"))
    path = tmp_path / "het.yaml"
    path.write_text("components:\n  critic: {partition: cpu}\n  actor:\n")
    for given in (str(path), {"critic": Resources(partition="cpu"), "actor": {}}):
        shares = own_components(given, site)
        assert {name: share.partition for name, share in shares.items()} == {
            "critic": "cpu",
            "actor": "batch",
        }
    container = own_components("container", {"container_image": "/images/lab.sqsh", "sbatch": {"hold": True}})
    assert container["main"].container_image == "/images/lab.sqsh"
    assert container["main"].sbatch == {"mail-type": "END", "hold": True}


def test_a_script_s_own_options_win_over_sbatch_s_variables(tmp_path, capsys):
    share = Resources(partition="gpu", sbatch={"mail_type": "END", "switches": 1, "cpu-freq": "high"})
    names = overriding_variables(submit(["true"], tmp_path / "run", "print", share).text)
    there = "SBATCH_PARTITION SBATCH_TIMELIMIT SBATCH_NO_REQUEUE SBATCH_MAIL_TYPE SBATCH_SIGNAL"
    renamed = "SBATCH_REQ_SWITCH SBATCH_CPU_FREQ_REQ"
    unwanted = "SBATCH_CLUSTERS SBATCH_WAIT"
    assert {*there.split(), *renamed.split(), *unwanted.split()} <= set(
        names
    ) and "SBATCH_ACCOUNT" not in names


def test_the_seeds_hetjob_as_one_call(tmp_path, capsys):
    """Seed 002's script: one node of eight GPUs each, exclusive, four hours."""
    share = Resources(gpus_per_node=8, account="me", partition="batch", exclusive=True)
    actor = ["python", "-m", "aligner_lib", "ppo", "trainer.ppo.max_steps=15", "++model.optim.lr=9e-7"]
    text = submit({"critic": ["serve"], "actor": actor}, tmp_path / "run", "print", share, name="2p_ppo").text
    critic_block, actor_block = text.split("#SBATCH hetjob\n")
    flags = "nodes=1 ntasks-per-node=8 gres=gpu:8 account=me partition=batch time=4:00:00 exclusive"
    for flag in flags.split():
        assert all(f"#SBATCH --{flag}\n" in block for block in (critic_block, actor_block)), flag
    body = shlex.split(actor_block.replace("\\\n", " "), comments=True)
    assert body[body.index("aligner_lib") + 1 :][:3] == actor[3:]
    assert "--het-group=1" in body


def test_words_reach_the_command_as_they_are(tmp_path, capsys):
    odd = ["python", "-c", "print('a b')", "++data={train: [x], validation: [y]}", "$HOME", "it's"]
    text = submit(odd, tmp_path / "run", "print").text
    component = text[text.index("component main") : text.index("\nfinish")].replace("\\\n", " ")
    assert shlex.split(component)[-len(odd) :] == odd


@pytest.mark.parametrize("name", ["kl%join", "kl\\0.1"])
def test_a_folder_whose_name_slurm_would_change_is_refused(tmp_path, name):
    """%j is a job's id in the path of a log."""
    with pytest.raises(SubmissionRefused, match=r"/job/001: Slurm replaces % .*: choose a run folder"):
        submit(["true"], tmp_path / name, "print")


def test_the_pages_command_writes_into_the_run_folder_of_its_job():
    page = (CONFIGS.parents[1] / "docs" / "cluster.md").read_text()
    assert '"sft", "--run", "runs/sft",' in page and 'submit(command, run="runs/sft",' in page


def test_other_gres_are_joined_to_the_gpus(tmp_path, capsys):
    share = Resources(gpus_per_node=8, gpu_type="h100", sbatch={"gres": ["nvme:100", "gpumem:80"]})
    text = submit(["true"], tmp_path / "run", "print", share).text
    assert "#SBATCH --gres=gpu:h100:8,nvme:100,gpumem:80\n" in text and text.count("--gres") == 1
    alone = share.but(gpus_per_node=0, gpu_type="")
    assert "#SBATCH --gres=nvme:100,gpumem:80\n" in submit(["true"], tmp_path / "run", "print", alone).text


def test_a_sweep_is_an_array_on_paper(tmp_path, capsys):
    plan = submit_sweep({"a": ["t", "kl=0.1"], "b": ["t", "kl=0.2"]}, tmp_path / "s", "print", parallel=1)
    assert "#SBATCH --array=0-1%1\n" in plan.text
    assert plan.nodes == 2
    assert not (tmp_path / "s").exists()
    with pytest.raises(ValueError, match="two or more runs, but has a: start a single run with submit"):
        submit_sweep({"a": ["t"]}, tmp_path / "s", "print")
    with pytest.raises(ValueError, match="run a has the components x, y, but Slurm has no arrays of hetjobs"):
        submit_sweep({"a": {"x": ["t"], "y": ["t"]}, "b": ["t"]}, tmp_path / "s", "print")


def test_a_refused_sweep_leaves_no_submission(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    sweep = {"a": ["t"], "b": ["t"]}
    with pytest.raises(SubmissionRefused, match="not on the machine's PATH"):
        submit_sweep(sweep, tmp_path / "s", "slurm")
    assert not list(tmp_path.rglob("001"))
    with pytest.raises(ValueError, match="name='a/b': a job's name must not contain"):
        submit_sweep(sweep, tmp_path / "s", "slurm", name="a/b")


THERE = [
    Partition("batch", 4, "infinite", "gpu:a100:4", True),
    Partition("batch", 2, "infinite", "gpu:h100:8,nvme:1", True),
    Partition("cpu", 99, "infinite", "", True),
    Partition("short", 9, "1:00:00", "gpu:v100:1", True),
]


@pytest.fixture
def slurm(monkeypatch):
    """Slurm's commands, of which sinfo lists THERE, and the others answer nothing."""
    answer = subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(checks.shutil, "which", lambda tool: tool)
    monkeypatch.setattr(checks.queue, "run_tool", lambda *words: answer)
    monkeypatch.setattr(checks, "partitions", lambda: THERE)


@pytest.mark.parametrize(
    ("user", "threads", "answer"),
    [(None, 1, "threads 1"), ("ada", 1, "threads unset"), ("ada", 4, "threads 4")],
)
def test_an_answer_of_sbatch_without_a_job_id_is_a_refusal(tmp_path, monkeypatch, user, threads, answer):
    """The answer shows the job's environment: JupyterHub's number of threads is not for the nodes."""
    for tool in ("sbatch", "srun"):
        (tmp_path / tool).write_text("#!/bin/sh\necho threads ${OMP_NUM_THREADS-unset}\n")
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    if user:
        monkeypatch.setenv("JUPYTERHUB_USER", user)
    monkeypatch.setattr(checks, "partitions", lambda: THERE)
    monkeypatch.setattr(checks.queue, "cluster_name", lambda: "")
    with pytest.raises(SubmissionRefused, match=f'sbatch output "{answer}'):
        submit(["true"], tmp_path / "run", "slurm")
    assert not list(tmp_path.rglob("001"))


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (Resources(nodes=6, gpus_per_node=4, partition="batch"), ""),
        (Resources(nodes=50), ""),
        (Resources(nodes=3, gpus_per_node=8), "3 such nodes are more than any partition has (2)"),
        (Resources(gpus_per_node=8, gpu_type="a100"), "gpu:a100:8 on a node is more than any node offers"),
        (Resources(gpus_per_node=1, partition="cpu"), "offers (none)"),
        (Resources(partition="cput"), "there are batch, cpu"),
        (
            Resources(partition="short"),
            "a time of 4:00:00 is more than any such partition allows (short: 1:00:00): set",
        ),
        (Resources(partition="short", time="0"), "a time of 0 is more"),
        (Resources(partition="short", time="60"), ""),
        (Resources(partition="short", qos="long"), ""),
        (Resources(partition="short", sbatch={"time-min": "0:30:00"}), ""),
        (Resources(partition="short,cpu"), ""),
    ],
)
def test_what_the_partitions_cannot_give(share, words):
    complained = list(complaints(share, THERE))
    assert bool(complained) == bool(words) and words in "".join(complained[:1])


def test_accounting_that_hangs_hides_neither_the_checks_nor_sbatchs_refusal(monkeypatch):
    def hangs(*words):
        raise checks.Unreachable(f"{words[0]} did not answer")

    monkeypatch.setattr(checks, "partitions", lambda: THERE)
    monkeypatch.setattr(checks.queue, "run_tool", hangs)
    assert str(checks._accounting()).startswith("note  accounting: none")
    refusal = checks.explain_refusal("Invalid account", {"main": Resources(account="me")})
    assert refusal == "Slurm refused the job: Invalid account (account 'me'; yours are none)"


def test_a_time_that_a_qos_may_allow_is_a_note(tmp_path, slurm):
    marks = []
    for qos in ("long", ""):
        (*_, finding) = checks.check_slurm(Resources(partition="short", qos=qos), tmp_path, probe=False)
        assert finding.detail.startswith("a time of 4:00:00 is more")
        marks.append(str(finding)[:4])
    assert marks == ["note", "FAIL"]


def test_sbatchs_variables_hold_in_a_check_where_no_component_sets_the_key(tmp_path, monkeypatch, slurm):
    probed = []
    monkeypatch.setattr(checks, "_probe", lambda shared, share: probed.append(share) or [])
    monkeypatch.setenv("SBATCH_PARTITION", "short")
    monkeypatch.setenv("SBATCH_ACCOUNT", "me")
    with pytest.raises(SubmissionRefused, match=r"main: a time of 4:00:00 .* allows \(short: 1:00:00\)"):
        checks.refuse_impossible({"main": Resources()})
    assert "account 'me'" in checks.explain_refusal("Invalid account", {"main": Resources()})
    monkeypatch.setenv("SBATCH_QOS", "long")
    checks.refuse_impossible({"main": Resources()})
    checks.check_slurm(Resources(partition="cpu"), tmp_path, probe=True)
    assert probed == [Resources(partition="cpu", account="me", qos="long")]
    monkeypatch.delenv("SBATCH_QOS")
    checks.refuse_impossible({"critic": Resources(partition="batch"), "actor": Resources()})


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ("cpu", "FAIL  resources: where='local' is a single node, but the resources ask for more (main: 2)"),
        (Resources(gpus_per_node=2), "FAIL  resources: where='local': this machine has 1 GPUs"),
        (Resources(gpus_per_node=1), "ok    resources main: 1 nodes, 1 GPUs"),
        (None, "ok    this machine: jobs can be submitted"),
    ],
)
def test_a_check_of_this_machine_compares_the_resources_with_it(monkeypatch, resources, words):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert str(check(resources, where="local")[-1]).startswith(words)


def test_sockets_in_a_gres_hide_no_gpu_and_no_partition_is_hidden(monkeypatch):
    line = "batch|2|infinite|gpumem:80,gpu:a100:4(S:0-1),gpu:v100:2(S:0)|up\n"

    def run_tool(*words):
        return subprocess.CompletedProcess([], 0, line if "-a" in words else "", "")

    monkeypatch.setattr(checks.queue, "run_tool", run_tool)
    (there,) = checks.partitions()
    assert there.gres == "gpumem:80,gpu:a100:4,gpu:v100:2"
    assert not list(complaints(Resources(gpus_per_node=6), [there]))
    assert list(complaints(Resources(gpus_per_node=7), [there]))


@pytest.mark.parametrize(
    ("errors", "finding"),
    [
        ("srun: error: Unable to allocate resources: Invalid qos", "FAIL  compute node: Slurm refused the probe: Unable to"),
        ("srun: error: Unable to allocate resources: Requested nodes are busy", "note  compute node: no node was free within 90 s"),
        ("srun: unrecognized option '--container-image=x'\nTry srun --help", "Slurm refused the probe: unrecognized option"),
        ("srun: error: n1: task 0: Exited with exit code 1\nbash: no such folder", "cannot be written from a node (bash: no"),
    ],
)  # fmt: skip
def test_a_refused_probe_does_not_blame_the_folder(tmp_path, monkeypatch, errors, finding):
    flags = {"reservation": "course", "nodelist": ["n1", "n2"], "hold": True}
    share = Resources(gpus_per_node=8, gpu_type="h100", sbatch=flags)
    scripts = []

    def run(words, **options):
        scripts.append(words[-1])
        return subprocess.CompletedProcess([], 1, "", errors)

    monkeypatch.setattr(checks.subprocess, "run", run)
    assert finding in str(next(checks._probe(tmp_path, share)))
    for option in ("--immediate=90", "--gres=gpu:h100:1", "--reservation=course", "--nodelist=n1,n2"):
        assert f" {option} " in scripts[0]
    assert "hold" not in scripts[0]


def test_parameters_are_the_published_ones():
    published = {"SmolLM2-135M": 134_515_008, "Llama-2-7B": 6_738_415_616, "Llama-2-70B": 68_976_648_192}
    published |= {"Meta-Llama-3-8B": 8_030_261_248}
    assert {name: MODELS[name].parameters for name in published} == published


def test_bytes_a_parameter_worked_by_hand():
    """One GPU: 2 + 4 + 12 = 18 bytes a parameter; two data parallel ranks: 2 + 4 + 6 = 12."""
    model = MODELS["Llama-2-7B"]
    parameters_gib = model.parameters / 2**30
    alone, shared = (memory(model, Parallelism(1, 1, dp), "sft") for dp in (1, 2))
    assert alone.weights + alone.gradients + alone.optimizer == pytest.approx(18 * parameters_gib)
    assert shared.weights + shared.gradients + shared.optimizer == pytest.approx(12 * parameters_gib)
    # A token's keys and values: 2 x 2 bytes x 32 layers x 32 heads x 128 = 0.5 MiB; 8 rollouts of 4096 tokens: 16 GiB.
    assert memory(model, Parallelism(1, 1, 1), "actor").kv_cache == 16
    assert memory(model, Parallelism(2, 1, 1), "actor").kv_cache == 8


def test_a_pipelines_ends_hold_an_embedding_each_and_critics_no_output_layer():
    """Llama-2-7B: 32 layers of 202.4 M weights, and two embeddings of 131.1 M."""
    model = MODELS["Llama-2-7B"]
    million = {(1, "sft"): 32 * 202.4 + 2 * 131.1, (1, "critic"): 32 * 202.4 + 131.1}
    million[2, "sft"] = 16 * 202.4 + 131.1
    for (pp, role), expected in million.items():
        assert fullest_shard(model, Parallelism(1, pp, 1), role) / 1e6 == pytest.approx(expected, rel=1e-3)
    norms = 65 * 4096  # two a layer and the final one: every rank of TP has them whole
    assert fullest_shard(model, Parallelism(4, 1, 1), "sft") == (model.parameters - norms) / 4 + norms


def test_activations_worked_by_hand():
    """4096 tokens x 4096 x 34 bytes x 32 layers = 17 GiB; logits in fp32 with their gradient: 1 GB."""
    model, single = MODELS["Llama-2-7B"], Parallelism(1, 1, 1)
    layers, logits = 34 * 4096 * 4096 * 32, 8 * 4096 * 32_000
    assert memory(model, single, "sft").activations * 2**30 == layers + logits
    assert memory(model, single, "critic").activations * 2**30 == layers
    assert memory(model, single, "reward model").activations * 2**30 == 2 * layers  # a pair
    eight = Parallelism(8, 1, 1)
    assert memory(model, eight, "critic").activations * 2**30 == layers / 8
    # without sequence parallelism 10 of the 34 bytes are not divided: 10 + 24 / 8 = 13
    alone = memory(model, eight, "critic", sequence_parallel=False).activations
    assert alone * 2**30 == layers * 13 / 34


def test_the_smallest_layout_fits_and_half_of_it_does_not():
    model = MODELS["Llama-2-70B"]
    parallelism = smallest_parallelism(model, "actor")
    assert memory(model, parallelism, "actor").total <= 80
    powers = (1, 2, 4, 8, 16)
    layouts = [Parallelism(tp, pp, dp) for tp in powers[:4] for pp in powers for dp in powers]
    smaller = [layout for layout in layouts if layout.gpus < parallelism.gpus]
    assert all(memory(model, layout, "actor").total > 80 for layout in smaller)


def test_the_table_has_every_model_in_every_role():
    rows = table(["SmolLM2-135M", "Llama-2-7B"])
    assert len(rows) == 8
    assert all(row["gpus"] == row["tp"] * row["pp"] * row["dp"] and row["gib"] <= 80 for row in rows)
    with pytest.raises(ValueError, match="does not fit with any parallelism"):
        table(["Llama-2-70B"], gpu_gib=4)
