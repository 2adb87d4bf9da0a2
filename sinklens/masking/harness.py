"""EleutherAI's lm-evaluation-harness on a model with any hooks: its own tasks, its own metrics."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tqdm.auto import tqdm

from sinklens.ablation.passes import require_causal
from sinklens.errors import InputError
from sinklens.interventions import intervene
from sinklens.masking.likelihoods import (
    EditedPasses,
    Likelihood,
    Scored,
    described_hooks,
    edited_passes,
    padded,
    require_batch_size,
    require_in_vocabulary,
    require_rows,
)
from sinklens.models.attention import ModelAttention
from sinklens.models.capture import Hook
from sinklens.models.encoding import text_encoder, usable_bos

if TYPE_CHECKING:
    from lm_eval.api.model import TemplateLM as _Base
else:
    _Base = object  # the harness is an extra; harness_model puts its class in

_DEFAULT_LENGTH = 256
_LENGTH_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


def harness_model(
    model: Any,
    hooks: Sequence[Hook] = (),
    *,
    batch_size: int = 8,
    prepend_bos: bool | None = None,
    progress: bool = True,
) -> "HarnessModel":
    """The model under an intervention, as EleutherAI's lm-evaluation-harness takes it: for its own tasks and metrics.

    The hooks are on the model in every forward pass that the harness asks for, and off it in between. Interventions and
    maskings know which tokens of a batch are real, so numbers do not depend on ``batch_size``. Tokens are split into context
    and continuation as the harness does it; BOS stands once before each text where the model's tokenizer puts it, also
    before a context that had to be cut on the left. Generation is greedy and runs the whole text for each token, without a
    cache of keys and values: an intervention needs whole sequences.

    Args:
        model: a TransformerBridge or HookedTransformer with causal attention and a tokenizer; it is not changed.
        hooks: ``(hook_name, function)`` pairs that are active: an intervention, or :func:`sinklens.mask_by_metric`.
        batch_size: sequences per forward pass.
        prepend_bos: True or False overrides what the model's tokenizer does. TransformerLens puts a BOS before texts that
            the harness's own Hugging Face models may take without one: compare like with like.
        progress: whether to show a progress bar.

    Returns:
        An ``lm_eval.api.model.LM``, for ``lm_eval.simple_evaluate(model=..., tasks=[...])``. What is done to the model is
        recorded under ``config`` of the results.

    Raises:
        InputError: the extra is not installed, or an argument cannot be used.
        HookNotFiredError: the model has no such hook; in a pass, a hook did not fire exactly once.
        NoEffectError: after the requests of a kind, an edit has changed nothing in any pass.
        UnsupportedAttentionError: the model is not causal.

    Example::

        edited = sl.harness_model(model, sl.zero_sink_values(model))
        lm_eval.simple_evaluate(model=edited, tasks=["winogrande"])["results"]["winogrande"]
    """
    try:
        from lm_eval.api.model import TemplateLM
    except ImportError as error:
        raise InputError(
            "this needs EleutherAI's lm-evaluation-harness, which is not installed: pip install 'sinklens[harness]'"
        ) from error
    kind: Any = type("HarnessModel", (HarnessModel, TemplateLM), {"__doc__": HarnessModel.__doc__})
    return kind(model, hooks, batch_size, prepend_bos, progress)


class _Wish(NamedTuple):
    """A text to go on from, how far at most, and the texts that end it."""

    token_ids: list[int]
    n_tokens: int
    until: tuple[str, ...]


class HarnessModel(_Base):
    """A model under hooks with what the harness asks of one; made by :func:`harness_model`.

    Attributes:
        hooks: what is done to the model.
        batch_size: sequences per forward pass.
        n_cut: contexts that were cut so far.
    """

    def __init__(self, model: Any, hooks: Sequence[Hook], batch_size: int, prepend_bos: bool | None, progress: bool):
        super().__init__()
        require_batch_size(batch_size)
        self._attention = ModelAttention(model)
        require_causal(self._attention)
        self._attention.require_no_dropout()
        with intervene(model, hooks):
            pass  # names that the model does not have are told now, not after the harness has read its tasks
        self._encoder = text_encoder(model, prepend_bos)
        self.tokenizer = model.tokenizer
        self.hooks, self.batch_size, self.progress = hooks, batch_size, progress
        self.n_cut = 0
        self._device = self._attention.device

    @property
    def max_length(self) -> int:
        """The model's context."""
        return self._attention.model.cfg.n_ctx

    @property
    def eot_token_id(self) -> Any:
        """The token that ends a text."""
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text that has no context: BOS, or the end of another text.

        Raises:
            InputError: the tokenizer has neither.
        """
        bos = usable_bos(self._attention.model)
        prefix = self.eot_token_id if bos is None else bos
        if prefix is None:
            raise InputError("the tokenizer has neither BOS nor EOS to stand before a text without context; set one")
        return int(prefix)

    @property
    def tokenizer_name(self) -> str:
        """The tokenizer's name, or the model's, for the harness's cache of chat prompts."""
        return str(self.tokenizer.name_or_path or self._attention.name).replace("/", "__")

    def get_model_info(self) -> dict[str, Any]:
        """What the harness records with its results."""
        attention = self._attention
        return {
            "sinklens_model": attention.name, "sinklens_weights": attention.checksum, "backend": attention.backend,
            "frame": attention.frame, "dtype": attention.dtype, "hooks": described_hooks(self.hooks),
            "prepended_bos": bool(self._encoder.prefix),
        }  # fmt: skip

    def set_cache_hook(self, cache_hook: Any) -> None:
        """Take the harness's cache of answers.

        Raises:
            InputError: there are hooks: that cache knows a request by its text, not by what is done to the model.
        """
        if self.hooks and getattr(cache_hook, "dbdict", None) is not None:
            raise InputError(
                "the harness's cache of answers does not know one intervention from another; leave use_cache out"
            )
        super().set_cache_hook(cache_hook)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as the text that the model reads."""
        return self.tokenizer.apply_chat_template(
            chat_history, tokenize=False, add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )  # fmt: skip

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids of a text; BOS stands once before it unless ``add_special_tokens`` is False."""
        if add_special_tokens is False:
            return list(self.tokenizer(string, add_special_tokens=False, verbose=False)["input_ids"])
        return [*self._encoder.prefix, *self._encoder.body(string)]

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Log-likelihood in nats of each continuation after its context, and whether it is what greedy decoding gives.

        Raises:
            InputError: a continuation is empty or longer than the model's context; before the first pass.
        """
        for number, request in enumerate(requests):
            if not request.args[1]:
                raise InputError(f"request {number}: the continuation is empty; expected text to score")
        return super().loglikelihood(list(requests), disable_tqdm=disable_tqdm or not self.progress)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **settings: Any
    ) -> list[tuple[float, bool]]:
        sequences = [self._scored(number, before, after) for number, (_, before, after) in enumerate(requests)]
        found = self._likelihoods(sequences, disable_tqdm)
        answers = [(each.total, each.is_greedy) for each in found]
        for (texts, _, _), answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("loglikelihood", texts, answer)
        return answers

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood in nats of each whole text, in the harness's windows: the first begins with BOS, every token is
        predicted once.
        """
        from lm_eval.utils import get_rolling_token_windows

        windows: list[Scored] = []
        texts: list[int] = []
        for number, request in enumerate(requests):
            token_ids = self._encoder.body(request.args[0])
            for before, predicted in get_rolling_token_windows(token_ids, self.prefix_token_id, self.max_length, 1):
                windows.append(self._checked(number, Scored([*before, predicted[-1]], len(predicted))))
                texts.append(number)
        totals = [0.0] * len(requests)
        for text, likelihood in zip(texts, self._likelihoods(windows, disable_tqdm), strict=True):
            totals[text] += likelihood.total
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The most probable token, again and again, until a stop text, the end token or the length that is asked for.

        Raises:
            InputError: sampling or beams are asked for, or the length does not fit; before the first pass.
        """
        wishes = [self._wish(number, *request.args) for number, request in enumerate(requests)]
        require_rows(self.hooks, [Scored(wish.token_ids, 1) for wish in wishes])
        found = self._in_batches(wishes, lambda wish: len(wish.token_ids), self._continued, disable_tqdm)
        for request, text in zip(requests, found, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, text)
        return found

    def _likelihoods(self, sequences: Sequence[Scored], quiet: bool) -> list[Likelihood]:
        require_rows(self.hooks, sequences)
        return self._in_batches(sequences, lambda each: len(each.token_ids), EditedPasses.likelihoods, quiet)

    def _in_batches(
        self, items: Sequence[Any], length: Callable[[Any], int], run: Callable[[EditedPasses, list[Any]], Iterable[Any]],
        quiet: bool,
    ) -> list[Any]:  # fmt: skip
        """What a function gives for each item, in their order; batches are of like lengths, longest first."""
        order = sorted(range(len(items)), key=lambda number: length(items[number]), reverse=True)
        found: list[Any] = [None] * len(items)
        name = self._attention.name
        with (
            tqdm(total=len(items), disable=quiet or not self.progress, unit=" texts", desc=name, leave=False) as bar,
            edited_passes(self._attention, self.hooks) as passes,
        ):
            for start in range(0, len(items), self.batch_size):
                chunk = order[start : start + self.batch_size]
                for number, result in zip(chunk, run(passes, [items[number] for number in chunk]), strict=True):
                    found[number] = result
                bar.update(len(chunk))
        return found

    def _scored(self, number: int, context: list[int], continuation: list[int]) -> Scored:
        """A context and its continuation, cut on the left after the BOS where they are too long."""
        # The last token is only predicted, so it may lie one beyond the model's context.
        token_ids = self._cut([*context, *continuation], self.max_length + 1)
        if not 0 < len(continuation) < len(token_ids):
            raise InputError(
                f"request {number}: the continuation takes {len(continuation)} tokens, the model's context has "
                f"{self.max_length}; leave the text out"
            )
        return self._checked(number, Scored(token_ids, len(continuation)))

    def _checked(self, number: int, sequence: Scored) -> Scored:
        require_in_vocabulary(self._attention, sequence.token_ids, f"request {number}")
        return sequence

    def _cut(self, token_ids: list[int], longest: int) -> list[int]:
        if len(token_ids) <= longest:
            return token_ids
        self.n_cut += 1
        prefix = list(self._encoder.prefix)
        prefix = prefix if token_ids[: len(prefix)] == prefix else []
        return [*prefix, *token_ids[-(longest - len(prefix)) :]]

    def _wish(self, number: int, context: str, arguments: dict[str, Any]) -> _Wish:
        temperature = float(arguments.get("temperature") or 0)
        if arguments.get("do_sample") or (temperature > 0 and arguments.get("do_sample") is None):
            raise InputError(
                f"request {number} asks for sampling (do_sample, temperature); expected greedy decoding: "
                "set do_sample=False in the task's generation_kwargs"
            )
        if int(arguments.get("num_beams") or 1) > 1:
            raise InputError(f"request {number} asks for {arguments['num_beams']} beams; expected greedy decoding")
        n_tokens = int(next((arguments[name] for name in _LENGTH_NAMES if arguments.get(name)), _DEFAULT_LENGTH))
        room = self.max_length - n_tokens
        if room < 1 + len(self._encoder.prefix):
            raise InputError(
                f"request {number} asks for {n_tokens} new tokens, the model's context has {self.max_length}; "
                "set max_gen_toks in the task's generation_kwargs"
            )
        until = arguments.get("until") or []
        stops = (until,) if isinstance(until, str) else tuple(stop for stop in until if stop)
        token_ids = self._cut(self.tok_encode(context) or [self.prefix_token_id], room)
        require_in_vocabulary(self._attention, token_ids, f"request {number}")
        return _Wish(token_ids, n_tokens, stops)

    def _continued(self, passes: EditedPasses, wishes: Sequence[_Wish]) -> list[str]:
        new: list[list[int]] = [[] for _ in wishes]
        unfinished = list(range(len(wishes)))
        while unfinished:
            rows = [[*wishes[number].token_ids, *new[number]] for number in unfinished]
            logits = passes.logits(padded(rows))
            for place, number in enumerate(unfinished):
                new[number].append(int(logits[place, len(rows[place]) - 1].argmax()))
            unfinished = [number for number in unfinished if not self._is_done(wishes[number], new[number])]
        return [self._text(wish, token_ids) for wish, token_ids in zip(wishes, new, strict=True)]

    def _is_done(self, wish: _Wish, new: Sequence[int]) -> bool:
        if len(new) >= wish.n_tokens or new[-1] == self.eot_token_id:
            return True
        text = self.tokenizer.decode(new)
        return any(stop in text for stop in wish.until)

    def _text(self, wish: _Wish, new: Sequence[int]) -> str:
        text = self.tokenizer.decode(new, skip_special_tokens=True)
        for stop in wish.until:
            text = text.split(stop)[0]
        return text
