"""KTAE in TRL: `KTAEGRPOTrainer(..., ktae_config=KTAEConfig())` in place of `trl.GRPOTrainer`."""

from typing import Any

import torch
import trl  # pyright: ignore[reportMissingImports]
from packaging.version import Version
from torch import Tensor
from trl.trainer.grpo_trainer import GRPOTrainer  # pyright: ignore[reportMissingImports]

from ktae.config import KTAEConfig
from ktae.estimator import estimate
from ktae.validation import check_config, exceeds

OLDEST = "0.26"


class KTAEMixin:
    """Adds the key-token value of each token to the advantage that TRL gives its completion.

    For a trainer of your own that derives from GRPOTrainer: ``class Mine(KTAEMixin, MyGRPOTrainer)``. If it has a
    `_compute_loss` of its own, that has to take advantages [B, T], as TRL's does since 0.26. The advantage of
    a completion stays TRL's: reward weights, `scale_rewards` and its groups. A completion whose correctness is None or
    NaN is left out of the statistics; its tokens get no value.

    Args:
        ktae_config: settings; `norm_adv_by_std` and `epsilon` are TRL's business and stay at their defaults.
        correct_key: name of the reward function whose reward, greater than `ktae_config.correct_threshold`, says that
            a completion is correct. May be left out where there is one reward function.
        *args, **kwargs: as for the trainer.

    Raises:
        ValueError: the label is not clear, or this trainer would drop or distort the credit of tokens.

    Source:
        Sun et al., arXiv 2505.16826.
    """

    def __init__(
        self: Any, *args: Any, ktae_config: KTAEConfig | None = None, correct_key: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.ktae_config = check_config(ktae_config)
        _check_settings(self.ktae_config)
        _check_trainer(self)
        self.correct_column = _correct_column(self.reward_func_names, correct_key)

    def _calculate_rewards(self: Any, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        arguments = (inputs, prompts, completions, completion_ids_list)
        rewards = super()._calculate_rewards(*arguments)  # pyright: ignore[reportAttributeAccessIssue]
        self._rewards = rewards  # [rows of all processes, reward functions]
        self._rewarded = completion_ids_list  # the rows of this process
        return rewards

    def _generate_and_score_completions(self: Any, inputs: Any) -> dict[str, Any]:
        training = self.model.training  # now: continuous batching leaves the model in training mode
        batch = super()._generate_and_score_completions(inputs)  # pyright: ignore[reportAttributeAccessIssue]
        if batch["advantages"].ndim != 1:
            raise ValueError(
                f"{type(self).__name__} has advantages of shape {list(batch['advantages'].shape)} before KTAE adds to "
                "them: KTAE needs one a completion. Let no other class give credit to tokens."
            )
        learnt = batch["completion_ids"].tolist()
        same = (row[: len(ids)] == list(ids) for row, ids in zip(learnt, self._rewarded, strict=False))
        if len(learnt) != len(self._rewarded) or not all(same):
            raise ValueError(
                f"{type(self).__name__} learns from other completions than those that it has just rewarded, such as a "
                "replay buffer's: KTAE does not know which of them are correct, or which groups they form."
            )
        batch["advantages"] = batch["advantages"].unsqueeze(1) + self._key_token_values(batch, training)
        return batch

    def _key_token_values(self: Any, batch: dict[str, Any], training: bool) -> Tensor:
        """Key-token values of this process's completions [B, T]; their groups may be on several processes."""
        ids, mask = batch["completion_ids"], batch["completion_mask"]
        if "tool_mask" in batch:
            mask = mask * batch["tool_mask"]
        group_size = self.num_generations if training else self.num_generations_eval
        if group_size == 1:  # an evaluation that has nothing to compare a completion with
            return torch.zeros(mask.shape, device=ids.device)
        label = self._rewards[:, self.correct_column]
        group = torch.arange(len(label)) // group_size
        every_mask = self._gather(mask)
        result = estimate(
            torch.zeros(every_mask.shape, device=ids.device),  # the rewards: TRL's advantages are what is added to
            every_mask * ~label.isnan()[:, None],
            self._gather(ids),
            group,
            is_correct=exceeds(label.double(), self.ktae_config.correct_threshold, label.dtype),
            config=self.ktae_config,
        )
        name = self.reward_func_names[self.correct_column]
        result.warn_if_all_one_sided(
            f"the reward {name!r} > {self.ktae_config.correct_threshold:g}", "correct_key or correct_threshold"
        )
        for metric, value in result.metrics().items():
            self._metrics["train" if training else "eval"][metric].append(value)
        first = self.accelerator.process_index * len(ids)
        return result.advantages[first : first + len(ids), : ids.shape[1]]

    def _gather(self: Any, matrix: Tensor) -> Tensor:
        """The rows of all processes, in their order, padded with 0 to one width."""
        return self.accelerator.gather(self.accelerator.pad_across_processes(matrix.long().contiguous(), dim=1))


class KTAEGRPOTrainer(KTAEMixin, GRPOTrainer):
    """`trl.GRPOTrainer` with token-level credit: see :class:`KTAEMixin` for the arguments."""


def _check_settings(config: KTAEConfig) -> None:
    defaults = KTAEConfig()
    for name in ("norm_adv_by_std", "epsilon"):
        if getattr(config, name) != getattr(defaults, name):
            raise ValueError(
                f"KTAEConfig({name}={getattr(config, name)}) has no effect in TRL, whose own advantage of the "
                "completion stays. Use `scale_rewards` of GRPOConfig."
            )


def _check_trainer(trainer: Any) -> None:
    """Raise where the credit of tokens would be dropped or distorted."""
    if not isinstance(trainer, GRPOTrainer):
        raise ValueError(f"KTAE does not work with this trainer.\n- {type(trainer).__name__} is no GRPOTrainer of TRL.")
    version, arguments = trl.__version__, trainer.args
    # TRL's experimental trainers have losses of their own, for one advantage a completion.
    own_loss = [
        base.__name__
        for base in type(trainer).__mro__
        if base is not GRPOTrainer and base.__module__.startswith("trl.") and "_compute_loss" in vars(base)
    ]
    has_seams = all(hasattr(GRPOTrainer, name) for name in ("_calculate_rewards", "_generate_and_score_completions"))
    checks = [
        (
            Version(version) < Version(OLDEST),
            f"TRL {version}: its loss takes advantages [B, T] for something else; {OLDEST} is the oldest that fits",
        ),
        (bool(own_loss), f"{', '.join(own_loss)} of TRL: a loss of its own, for one advantage a completion"),
        (not has_seams, f"TRL {version}: its trainer no longer has the methods that KTAE extends"),
        (
            getattr(arguments, "importance_sampling_level", "token") != "token",
            'importance_sampling_level="sequence": one ratio a completion averages the credit of its tokens away',
        ),
        (
            arguments.loss_type == "vespo",
            'loss_type="vespo": it weighs a completion by the sign of its advantage, which its tokens no longer share',
        ),
        (arguments.loss_type == "luspo", 'loss_type="luspo": its loss is one of whole sequences'),
        (
            arguments.loss_type == "sapo" and hasattr(trainer, "get_sapo_token_loss"),
            f'loss_type="sapo": TRL {version} has it for one advantage a completion only; 0.29 has it for one a token',
        ),
        (
            getattr(trainer, "use_liger_kernel", False),
            "use_liger_kernel: its fused loss does not split advantages [B, T] as it splits the logits",
        ),
        (
            getattr(arguments, "off_policy_mask_threshold", None) is not None,
            "off_policy_mask_threshold: it keeps or drops completions by the sign of their advantage, which the tokens "
            "of a completion no longer share",
        ),
    ]
    found = [reason for holds, reason in checks if holds]
    if found:
        raise ValueError("KTAE does not work with this trainer.\n" + "\n".join(f"- {reason}" for reason in found))


def _correct_column(names: list[str], correct_key: str | None) -> int:
    """Column of the rewards that says which completions are correct."""
    if correct_key is None and len(names) == 1:
        return 0
    if names.count(correct_key or "") != 1:
        raise ValueError(
            f"correct_key={correct_key!r}: KTAE needs one reward function that says which completions are correct, "
            f"out of {names}. Rewards for format or length do not: give the name of the one that checks the answer."
        )
    return names.index(correct_key or "")
