"""Real runs of `python -m verl.trainer.main_ppo algorithm.adv_estimator=ktae` on the CPU rig."""

import pytest
from real_run import METRICS, PROMPTS, ROLLOUTS, STEPS, logged, train


@pytest.mark.parametrize(
    ("overrides", "process"),
    [
        ([], "TaskRunnerV1.run"),
        (["trainer.use_v1=False", "+algorithm.ktae.correct_key=acc"], "TaskRunner.run"),
    ],
    ids=["V1", "V0"],
)
def test_training(assets, tmp_path, overrides, process):
    returncode, output, calls = train(assets, tmp_path, *overrides)
    assert returncode == 0, output[-5000:]
    assert len(calls) == STEPS
    for call in calls:
        assert call["process"].endswith(process)
        assert call["mask_shape"] == call["responses_shape"]
        assert call["mask_shape"][0] == PROMPTS * ROLLOUTS
        assert call["groups"] == PROMPTS
        assert call["ids_dtype"] == "torch.int64"
        assert len(call["ids_under_the_mask"]) > 20  # sampled ids, not padding
    for name in METRICS:
        assert len(logged(output, name)) == STEPS, name
    mixed = logged(output, "ktae/mixed_group_share")
    assert any(mixed), "no group had both outcomes: the run shows nothing"
    assert [call["nonzero_values"] > 0 for call in calls] == [share > 0 for share in mixed]


def test_without_the_plug_in_verl_stops(assets, tmp_path):
    """The negative control: nothing but the entry point makes the runs above work."""
    returncode, output, calls = train(assets, tmp_path, VERL_USE_EXTERNAL_PLUGINS="none")
    assert returncode != 0
    assert "Unknown advantage estimator simply: ktae" in output
    assert calls == []


def test_a_mistyped_option_stops_the_run_before_it_starts(assets, tmp_path):
    returncode, output, _ = train(assets, tmp_path, "+algorithm.ktae.sclae=2")
    assert returncode != 0
    assert "Unknown option +algorithm.ktae.sclae. Known options: preset, fisher_weight" in output
    assert "TaskRunner" not in output
