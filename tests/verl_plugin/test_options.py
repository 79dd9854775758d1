"""`+algorithm.ktae.*`"""

import logging

import pytest
from omegaconf import OmegaConf
from verl.trainer.config import AlgoConfig

from ktae import KTAEConfig
from ktae.integrations.verl.options import _warn_once, parse_options


def struct(**algorithm):
    config = OmegaConf.create(algorithm)
    OmegaConf.set_struct(config, True)
    return config


@pytest.mark.parametrize("algorithm", [None, {}, {"ktae": None}, {"ktae": {}}, struct(gamma=1.0), AlgoConfig()])
def test_no_options_are_the_defaults(algorithm):
    options = parse_options(algorithm)
    assert options.config == KTAEConfig()
    assert options.correct_key is None


@pytest.mark.parametrize("make", [dict, struct])
def test_every_option(make):
    given = {
        "preset": "paper",
        "fisher_weight": 2,
        "information_gain_weight": 3.0,
        "term_frequency_weight": 0,
        "scale": 0.25,
        "correct_threshold": 0.5,
        "ignore_token_ids": [7, 8],
        "norm_adv_by_std": False,
        "epsilon": 1e-5,
    }
    options = parse_options(make(ktae={**given, "correct_key": "acc", "chance_every": 3}))
    assert options.config == KTAEConfig(**given)
    assert options.chance_every == 3
    assert options.correct_key == "acc"


def test_names_of_the_published_scripts(caplog):
    _warn_once.cache_clear()
    script = {"alpha": 1, "beta_ig": 2, "gamma_tf": 1, "top": 1, "bottom": 0, "pad_token_id": 151643}
    with caplog.at_level(logging.WARNING):
        config = parse_options({"ktae": {**script, "ignore_token_ids": [5]}}).config
    assert config == KTAEConfig(information_gain_weight=2, ignore_token_ids=(5, 151643))
    assert "bottom has no effect" in caplog.text
    assert "beta_ig=2 takes effect: the published code ignores it" in caplog.text
    caplog.clear()
    parse_options({"ktae": script})
    assert caplog.text == ""  # once a process, not once a step


def test_null_is_as_if_not_given():
    names = ["preset", "beta_ig", "top", "pad_token_id", "ignore_token_ids", "correct_key", "epsilon"]
    assert parse_options({"ktae": dict.fromkeys(names)}).config == KTAEConfig()


def test_one_ignored_id_and_the_padding():
    assert parse_options({"ktae": {"ignore_token_ids": 5, "pad_token_id": 6}}).config.ignore_token_ids == (5, 6)
    assert parse_options({"ktae": {"ignore_token_ids": (4, 5), "pad_token_id": 6}}).config.ignore_token_ids == (4, 5, 6)


def test_verls_own_key_for_dr_grpo_is_honoured():
    assert parse_options({"norm_adv_by_std_in_grpo": False}).config.norm_adv_by_std is False
    assert parse_options(AlgoConfig(norm_adv_by_std_in_grpo=False)).config.norm_adv_by_std is False


@pytest.mark.parametrize(
    ("ktae", "message"),
    [
        (
            {"sclae": 2},
            r"Unknown option \+algorithm.ktae.sclae. Known options: preset, .*base_estimator, .*; .*scripts: alpha",
        ),
        ({"top": 1, "scale": 1}, r"\+algorithm.ktae.top and \+algorithm.ktae.scale are one option"),
        ({"scale": "two"}, "scale='two'"),
        ({"correct_key": 3}, "correct_key=3: give the name of a reward extra"),
        ({"chance_every": -1}, "chance_every=-1: give a whole number of steps, 0 for never"),
        ({"chance_every": True}, "chance_every=True: give a whole number of steps"),
        ({"dump_every": 2}, "dump_every has no effect without"),
        ({"dump_dir": "d", "dump_groups": 0}, "dump_groups=0: give a whole number from 1 on"),
        ({"correct_key": ""}, "correct_key='': give the name of a reward extra"),
        ({"ignore_token_ids": "5"}, "ignore_token_ids='5': give a tuple"),
        (2, r"algorithm.ktae=2: give options one by one"),
    ],
)
def test_bad_options(ktae, message):
    for algorithm in ({"ktae": ktae}, struct(ktae=ktae)):
        with pytest.raises(ValueError, match=message):
            parse_options(algorithm)
