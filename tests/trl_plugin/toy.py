"""A tiny model, its tokenizer and a task for GRPO trainers of TRL: write a 1."""

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig

WORDS = ["<pad>", "<eos>", *"0123456789", *"abcd"]
ONE = WORDS.index("1")
DATASET = Dataset.from_dict({"prompt": ["a", "b", "c", "d"] * 8})


def tokenizer():
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        eos_token="<eos>",
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
    )


def model(seed=0):
    torch.manual_seed(seed)
    settings = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), max_position_embeddings=64, **settings, **ids))


def writes_one(completion_ids, **_):
    return [float(ONE in ids) for ids in completion_ids]


def is_short(completion_ids, **_):
    return [-0.1 * len(ids) for ids in completion_ids]


def config(directory, **settings):
    defaults = {
        "output_dir": str(directory),
        "use_cpu": True,
        "bf16": False,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 6,
        "max_steps": 3,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 0,
    }
    return GRPOConfig(**{**defaults, **settings})


def make(trainer_class, directory, reward_funcs=writes_one, settings=None, **arguments):
    policy = model()
    policy.save_pretrained(directory / "policy")
    policy.config._name_or_path = str(directory / "policy")  # where TRL takes the reference model from, if beta > 0
    return trainer_class(
        model=policy,
        args=config(directory, **(settings or {})),
        reward_funcs=reward_funcs,
        train_dataset=DATASET,
        processing_class=tokenizer(),
        **arguments,
    )


def weights(trainer):
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
