# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Runs of benchmarks: files of results, wrong arguments, a run that fails."""

import time

import pytest
import torch

from fedpeft.core.settings import build
from fedpeft.methods.settings import MethodSettings


def test_a_line_that_was_not_written_to_its_end_is_run_again(benchmark, tmp_path):
    lines, file = benchmark("json_lines"), tmp_path / "results" / "runs.jsonl"
    assert lines.read(file) == []
    lines.append(file, {"seed": 0})
    with file.open("a") as opened:
        opened.write('{"seed": 1, "meth')
    assert lines.read(file) == [{"seed": 0}]
    lines.append(file, {"seed": 1})
    assert lines.read(file) == [{"seed": 0}, {"seed": 1}]


def test_a_last_line_without_its_line_break_is_kept(benchmark, tmp_path):
    lines, file = benchmark("json_lines"), tmp_path / "runs.jsonl"
    file.write_text('{"seed": 0}\n{"seed": 1}')
    assert lines.read(file) == [{"seed": 0}, {"seed": 1}]
    lines.append(file, {"seed": 2})
    assert lines.read(file) == [{"seed": 0}, {"seed": 1}, {"seed": 2}]


@pytest.mark.slow
def test_where_a_run_fails_those_that_have_not_begun_are_cancelled(benchmark):
    with pytest.raises(TypeError), benchmark("parallel").processes(1) as pool:  # noqa: PT012
        futures = [pool.submit(int, None), *(pool.submit(time.sleep, 0.1) for _ in range(50))]
        futures[0].result()
    assert any(future.cancelled() for future in futures)


@pytest.mark.parametrize("program", ["learning", "cases"])
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--processes", "0"], "'0' is not a whole number of at least 1"),
        (["--set", "training.epochs"], "--set: "),
        (["--set", "training.rounds=no"], "--set: "),
    ],
)
def test_wrong_arguments_are_a_sentence_before_any_run(benchmark, monkeypatch, capsys, program, arguments, sentence):
    monkeypatch.setattr("sys.argv", [program, *arguments])
    with pytest.raises(SystemExit) as ended:
        benchmark(program).main()
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_ours_is_the_method_that_the_jobs_have(benchmark):
    learning = benchmark("learning")
    configs = learning.ROOT / "app_configs"
    job, ours = (learning.compose(configs, "fedpia_task1", own)["method"] for own in ([], learning.KNOWN["ours"]))
    assert build(MethodSettings, job, section="method") == build(MethodSettings, ours, section="method")


@pytest.mark.slow
def test_pooled_sites_train_one_adapter_and_answer_with_heads_of_their_own(benchmark, monkeypatch):
    learning, ended = benchmark("learning"), {}
    pooled = learning.pooled
    monkeypatch.setattr(learning, "pooled", lambda learners, seed: ended.update(learners) or pooled(learners, seed))
    small = [f"data.{split}_size=4" for split in ("train", "validation", "test")]
    chosen = ["federation.sites=[slake, vqa-rad]", "training.sampling=balanced", "training.head_learning_rate=0.02"]
    rounds = ["training.rounds=1", "training.local_epochs=1"]
    result = learning.run_with(learning.settings_of("pooled"), "pooled", 0, [*chosen, *small, *rounds])
    assert [sorted(sites) for sites in result["rounds"]] == [["slake", "vqa-rad"]]
    first, second = ended.values()
    assert first.trainable is second.trainable
    assert first.answering.backbone is second.answering.backbone
    assert first.head is not second.head
    own = first.values.first_head
    assert any(not torch.equal(tensor, own[name]) for name, tensor in first.head.state_dict().items())
