"""Text or ids -> tokens: with a tokenizer, else words."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ktae.report.rollouts import FormatError, Group

# Words and single other characters, each with the white space before it, so that the text is the tokens' sum.
WORDS = re.compile(r"\s*(?:\w+|[^\w\s])|\s+$")


class Tokens(NamedTuple):
    """The tokens of a group's rollouts."""

    ids: list[Sequence[int]]  # of each rollout
    texts: list[list[str]]  # what is shown for each of them


def load_tokenizer(path: str | None) -> Any:
    """The tokenizer in this file, or directory with a tokenizer.json; None for None."""
    if path is None:
        return None
    from tokenizers import Tokenizer

    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise FormatError(f"--tokenizer {path}: there is no {file.name}. Give a tokenizer.json, or its directory.")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises a bare Exception
        raise FormatError(f"--tokenizer {path}: {error}") from error


def unit(group: Group, tokenizer: Any) -> str:
    """What the tokens of the group are, for the report."""
    if any(rollout.token_ids is not None for rollout in group.rollouts):
        if group.token_text:
            return "token ids, with the texts that the file gives"
        return "token ids" if tokenizer is None else "token ids, decoded with the tokenizer"
    return "words" if tokenizer is None else "text, tokenised again with the tokenizer"


def tokens_of(group: Group, tokenizer: Any) -> Tokens:
    """Tokens of a group. Ids of words count from 0 in each group."""
    vocabulary: dict[str, int] = {}
    decoded = dict(group.token_text)
    ids, texts = [], []
    for rollout in group.rollouts:
        text = rollout.text or ""
        if rollout.token_ids is not None:
            for token_id in set(rollout.token_ids) - decoded.keys():
                decoded[token_id] = _decode(token_id, tokenizer)
            ids.append(rollout.token_ids)
            texts.append([decoded[token_id] for token_id in rollout.token_ids])
        elif tokenizer is not None:
            encoding = tokenizer.encode(text, add_special_tokens=False)
            ids.append(encoding.ids)
            texts.append([text[start:end] for start, end in encoding.offsets])
        else:
            words = WORDS.findall(text)
            # The white space is shown, but does not tell one word from another.
            ids.append([vocabulary.setdefault(word.strip(), len(vocabulary)) for word in words])
            texts.append(words)
    return Tokens(ids, texts)


def _decode(token_id: int, tokenizer: Any) -> str:
    if tokenizer is None or token_id < 0 or tokenizer.id_to_token(token_id) is None:
        return f"⟨{token_id}⟩"
    return tokenizer.decode([token_id], skip_special_tokens=False) or tokenizer.id_to_token(token_id)
