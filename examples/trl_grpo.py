"""TRL's GRPO with token-level credit, on a CPU: python examples/trl_grpo.py

A tiny model made here is to write the number 1 somewhere in six tokens, and never a 9. For a real one, give
`KTAEGRPOTrainer` what you give `trl.GRPOTrainer`.
"""

import tempfile

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback, set_seed
from trl import GRPOConfig

from ktae.integrations.trl import KTAEGRPOTrainer

TOKENS = ["<pad>", "<eos>", *"0123456789", *"abcd"]
UPDATES = 60


def make_tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({token: i for i, token in enumerate(TOKENS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "padding_side": "left"}
    return PreTrainedTokenizerFast(tokenizer_object=words, model_input_names=["input_ids", "attention_mask"], **special)


def make_model() -> LlamaForCausalLM:
    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=len(TOKENS), pad_token_id=0, eos_token_id=1, bos_token_id=None, **size)
    )


def correct(completion_ids: list[list[int]], **_) -> list[float]:
    one, nine = TOKENS.index("1"), TOKENS.index("9")
    return [float(one in ids and nine not in ids) for ids in completion_ids]


def brief(completion_ids: list[list[int]], **_) -> list[float]:
    return [-0.01 * len(ids) for ids in completion_ids]


if __name__ == "__main__":
    set_seed(0)
    with tempfile.TemporaryDirectory() as directory:
        trainer = KTAEGRPOTrainer(
            model=make_model(),
            args=GRPOConfig(
                output_dir=directory,
                per_device_train_batch_size=32,
                num_generations=8,
                max_completion_length=6,
                max_steps=UPDATES,
                learning_rate=3e-3,
                logging_steps=10,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
                bf16=False,
            ),
            reward_funcs=[correct, brief],
            train_dataset=Dataset.from_dict({"prompt": ["a", "b", "c", "d"] * 8}),
            processing_class=make_tokenizer(),
            correct_key="correct",  # the reward function that tells right from wrong
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    for entry in trainer.state.log_history:
        if "ktae/mean_abs_value" in entry:
            share, value = entry["rewards/correct/mean"], entry["ktae/mean_abs_value"]
            print(f"update {entry['step']:3}: {share:.2f} correct, mean |key-token value| {value:.2f}")
