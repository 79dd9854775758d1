"""Token-level credit assignment for reinforcement learning of language models. Start reading in `ktae.estimator`."""

from ktae.association import effect_size, fisher_exact_pvalue, information_gain, table_probability
from ktae.config import KTAEConfig
from ktae.estimator import KeyTokenTable, compute_ktae_advantage, key_token_table

__version__ = "0.1.0"

__all__ = [
    "KTAEConfig",
    "KeyTokenTable",
    "compute_ktae_advantage",
    "effect_size",
    "fisher_exact_pvalue",
    "information_gain",
    "key_token_table",
    "table_probability",
]
