"""The harness's own tasks on a model under hooks: its numbers are those of plain passes, one text at a time."""

import copy
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import sinklens as sl
from sinklens.errors import HookNotFiredError, InputError, NoEffectError, UnsupportedAttentionError
from sinklens.masking.harness import harness_model
from tests.captured import BACKENDS, load, n_hooks, new
from tests.families import hf_model
from tests.tiny_tokenizer import BOS, EOS, tiny_tokenizer

lm_eval = pytest.importorskip("lm_eval")

RECORDS: list[dict[str, Any]] = [
    {"question": "Which animal sat on the mat?", "choices": ["the cat", "the dog", "a fox", "an apple"], "answer": 0},
    {"question": "Who sleeps?", "choices": ["the lazy dog while the cat sleeps", "a fox"], "answer": 1},
    {"question": "How many apples are there in total?", "choices": ["12", "3", "no fruits"], "answer": 0},
]
CONTEXT = "Question: {question}\nAnswer:"
TASK = """\
task: local_choice
dataset_path: json
dataset_kwargs:
  data_files: {{test: {folder}/task.jsonl}}
  cache_dir: {folder}/cache
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_choice: choices
doc_to_target: answer
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
metadata: {{version: 1}}
"""
QUIET: dict[str, Any] = {"progress": False}


@pytest.fixture(params=BACKENDS)
def model(request: pytest.FixtureRequest) -> Any:
    return load(request.param, "llama")


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A local task: the harness reads it without a network."""
    from lm_eval.tasks import TaskManager

    monkeypatch.setattr("datasets.config.HF_UPDATE_DOWNLOAD_COUNTS", False)
    (tmp_path / "task.jsonl").write_text("\n".join(json.dumps(record) for record in RECORDS))
    (tmp_path / "local_choice.yaml").write_text(TASK.format(folder=tmp_path))
    return TaskManager(include_path=str(tmp_path), include_defaults=False)


def evaluated(model: Any, hooks: Any, task: Any, **arguments: Any) -> Any:
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    return lm_eval.simple_evaluate(
        model=harness_model(model, hooks, **arguments, **QUIET),
        tasks=["local_choice"],
        task_manager=task,
        bootstrap_iters=0,
    )


def answers_of(results: Any) -> list[list[float]]:
    samples = sorted(results["samples"]["local_choice"], key=lambda sample: sample["doc_id"])
    return [[float(answer[0][0]) for answer in sample["resps"]] for sample in samples]


def literal(model: Any, context: str, continuation: str, hooks: Any = (), bos: bool = True) -> float:
    """Σ log p of the continuation's tokens: one text, no padding, the hooks put on by TransformerLens itself."""
    encode = lambda text: model.tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
    before, whole = encode(context), encode(context + continuation)
    assert whole[: len(before)] == before
    tokens = torch.tensor([[*([model.tokenizer.bos_token_id] * bos), *whole]])
    with torch.no_grad():
        log_p = model.run_with_hooks(tokens, fwd_hooks=list(hooks))[0].double().log_softmax(-1)
    n_scored = len(whole) - len(before)
    positions = range(tokens.shape[1] - n_scored, tokens.shape[1])
    return sum(float(log_p[position - 1, tokens[0, position]]) for position in positions)


def request(*arguments: Any) -> Any:
    return SimpleNamespace(args=arguments)


EDITS: dict[str, Any] = {
    "none": lambda model: [],
    "zero_sink_values": sl.zero_sink_values,
    "set_sink_mass of one head": lambda model: sl.set_sink_mass(model, 0.9, heads=[(1, 2)]),
    "mask_by_metric": lambda model: sl.mask_by_metric(model, "inter", 0.3),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_local_task_has_the_numbers_of_plain_passes(model: Any, task: Any, edit: str) -> None:
    before = n_hooks(model)
    hooks = EDITS[edit](model)
    results = evaluated(model, hooks, task, batch_size=4)
    found = answers_of(results)
    expected = [
        [literal(model, CONTEXT.format(**record), f" {choice}", EDITS[edit](model)) for choice in record["choices"]]
        for record in RECORDS
    ]
    for row, right in zip(found, expected, strict=True):
        assert row == pytest.approx(right, abs=2e-4)
    ours = sl.multiple_choice(model, RECORDS, hooks=EDITS[edit](model), normalize="none", n_bootstrap=10, **QUIET)
    for row, scores in zip(found, ours.scores, strict=True):
        assert row == pytest.approx(scores[: len(row)].tolist(), abs=2e-4)
    scores = results["results"]["local_choice"]
    assert scores["acc,none"] == pytest.approx(ours.accuracy)
    chosen = [max(range(len(row)), key=lambda place: right[place]) for row, right in zip(found, expected, strict=True)]
    right = [choice == record["answer"] for choice, record in zip(chosen, RECORDS, strict=True)]
    assert scores["acc,none"] == pytest.approx(sum(right) / 3)
    assert n_hooks(model) == before
    if edit != "none":
        plain = answers_of(evaluated(model, [], task))
        assert max(abs(a - b) for x, y in zip(found, plain, strict=True) for a, b in zip(x, y, strict=True)) > 1e-2


def test_what_was_done_stands_in_the_results(model: Any, task: Any) -> None:
    config = evaluated(model, sl.zero_sink_values(model, heads=[(1, 2)]), task)["config"]
    assert config["hooks"].startswith("zero_sink_values, head 1.2")
    assert config["backend"] == type(model).__name__
    assert config["prepended_bos"]
    assert evaluated(model, [], task)["config"]["hooks"] == "none"


def test_numbers_are_those_of_the_harness_own_model(task: Any) -> None:
    from lm_eval.models import huggingface

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    make: Any = huggingface.HFLM
    theirs = make(pretrained=hf_model("llama"), tokenizer=tiny_tokenizer(), batch_size=3, device="cpu")
    ours = harness_model(load("bridge", "llama"), batch_size=2, **QUIET)
    pairs = [request("The cat sat", " on the mat"), request("", "The dog"), request("The fox ", "jumps over"),
             request("The cat sat on", " the log, and the quick dog")]  # fmt: skip
    for found, expected in zip(ours.loglikelihood(pairs), theirs.loglikelihood(pairs, disable_tqdm=True), strict=True):
        assert found[0] == pytest.approx(expected[0], abs=1e-4)
        assert found[1] == expected[1]
    wanted = {"until": ["q"], "max_gen_toks": 8, "do_sample": False}
    texts = [request("The cat sat on", wanted), request("The", wanted), request("How many apples are", wanted)]
    assert ours.generate_until(texts) == theirs.generate_until(texts, disable_tqdm=True)


def test_a_chat_template_is_applied_and_bos_stands_once(task: Any) -> None:
    model = new(BACKENDS[0], "llama")
    model.tokenizer = copy.deepcopy(model.tokenizer)
    model.tokenizer.chat_template = (
        "{{ bos_token }}{% for message in messages %}<{{ message.content }}>{% endfor %}"
        "{% if add_generation_prompt %}:{% endif %}"
    )
    edited = harness_model(model, **QUIET)
    assert edited.apply_chat_template([{"role": "user", "content": "The cat"}]) == f"{BOS}<The cat>:"
    assert edited.tok_encode(f"{BOS}cat") == edited.tok_encode("cat") != edited.tok_encode("cat", False)
    assert edited.tokenizer_name == "tiny-llama"
    results = lm_eval.simple_evaluate(
        model=edited, tasks=["local_choice"], task_manager=task, bootstrap_iters=0, apply_chat_template=True
    )
    record = RECORDS[0]
    context = f"<{CONTEXT.format(**record)}>:"
    assert answers_of(results)[0][0] == pytest.approx(literal(model, context, record["choices"][0]), abs=2e-4)


@pytest.mark.parametrize("length", [1, 5, 63, 64, 65, 200])
def test_a_whole_text_is_predicted_once_in_windows(model: Any, length: int) -> None:
    context = model.cfg.n_ctx
    assert context == 64
    letters = "abcdefghijklmnopqrstuvwxyz"
    text = "".join(f"{letters[number % 23]}{letters[number % 7]}" for number in range(400))
    token_ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    text = model.tokenizer.decode(token_ids[:length])
    token_ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(token_ids) == length
    known = [model.tokenizer.bos_token_id, *token_ids]
    expected, done = 0.0, 0
    while done < length:
        end = min(done + context, length)
        start = max(end - context, 0)
        with torch.no_grad():
            log_p = model(torch.tensor([known[start:end]]))[0].double().log_softmax(-1)
        expected += sum(float(log_p[place - start, known[place + 1]]) for place in range(done, end))
        done = end
    [found] = harness_model(model, **QUIET).loglikelihood_rolling([request(text)])
    assert found == pytest.approx(expected, abs=1e-3)
    [with_bos, empty] = harness_model(model, **QUIET).loglikelihood_rolling([request(BOS + text), request("")])
    assert (with_bos, empty) == (pytest.approx(found, abs=1e-5), 0.0)


def test_generation_is_greedy_under_the_hooks_whatever_the_batch(model: Any) -> None:
    hooks = sl.zero_sink_values(model)
    wanted = {"until": [], "max_gen_toks": 6}
    texts = ["The cat sat on the", "How many apples", "The"]
    for edits in ([], hooks):
        expected = []
        for text in texts:
            token_ids = [model.tokenizer.bos_token_id, *model.tokenizer(text, add_special_tokens=False)["input_ids"]]
            start = len(token_ids)
            for _ in range(6):
                with torch.no_grad():
                    logits = model.run_with_hooks(torch.tensor([token_ids]), fwd_hooks=list(edits))
                token_ids.append(int(logits[0, -1].argmax()))
                if token_ids[-1] == model.tokenizer.eos_token_id:
                    break
            expected.append(model.tokenizer.decode(token_ids[start:], skip_special_tokens=True))
        asked = [request(text, wanted) for text in texts]
        assert harness_model(model, edits, batch_size=2, **QUIET).generate_until(asked) == expected
        assert harness_model(model, edits, batch_size=1, **QUIET).generate_until([request("", wanted)]) != [""]
    whole = expected[0]
    [stopped] = harness_model(model, hooks, **QUIET).generate_until([request(texts[0], {**wanted, "until": whole[2]})])
    assert stopped == whole.split(whole[2])[0]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"do_sample": True}, "request 1 asks for sampling"),
        ({"temperature": 0.7}, "request 1 asks for sampling"),
        ({"num_beams": 4}, "request 1 asks for 4 beams"),
        ({"max_gen_toks": 63}, "request 1 asks for 63 new tokens, the model's context has 64"),
        ({}, "request 1 asks for 256 new tokens"),
    ],
)
def test_generation_that_cannot_be_done_is_refused(wanted: dict[str, Any], message: str) -> None:
    model, passes = load(BACKENDS[0], "llama"), []
    edited = harness_model(model, [("blocks.0.hook_resid_pre", lambda tensor, hook: passes.append(1))], **QUIET)
    with pytest.raises(InputError, match=message):
        edited.generate_until([request("The", {"max_gen_toks": 2}), request("The", wanted)])
    assert passes == []


def test_a_context_that_is_too_long_is_cut_after_the_bos(model: Any) -> None:
    seen: list[list[int]] = []
    edited = harness_model(
        model, [("blocks.0.hook_resid_pre", lambda tensor, hook: seen.append(list(tensor.shape)))], **QUIET
    )
    context = "The dog sat on the log. " * 20
    [(found, _)] = edited.loglikelihood([request(context, " Cat sat")])
    token_ids = model.tokenizer(context.rstrip() + "  Cat sat", add_special_tokens=False)["input_ids"]
    n_scored = len(token_ids) - len(model.tokenizer(context.rstrip(), add_special_tokens=False)["input_ids"])
    kept = [model.tokenizer.bos_token_id, *token_ids[-64:]]
    with torch.no_grad():
        log_p = model(torch.tensor([kept[:64]]))[0].double().log_softmax(-1)
    expected = sum(float(log_p[place - 1, kept[place]]) for place in range(65 - n_scored, 65))
    assert found == pytest.approx(expected, abs=1e-4)
    assert (seen[0][1], edited.n_cut) == (64, 1)
    with pytest.raises(InputError, match=r"request 1: the continuation takes \d+ tokens, the model's context has 64"):
        edited.loglikelihood([request("The", " cat"), request("The", " cat dog" * 90)])
    with pytest.raises(InputError, match="request 0: the continuation is empty"):
        edited.loglikelihood([request("The", "")])
    assert len(seen) == 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_tokenizer_that_pads_on_the_left_changes_nothing(backend: str, family: str) -> None:
    # A text that begins with what is padding elsewhere is where a mask guessed from the tokens goes wrong.
    pairs = [("The cat sat on the", " mat"), ("A", " fox jumps"), (f"{EOS}{EOS} dog sat", f" on{EOS}")]
    plain = load(backend, family)
    expected = [literal(plain, *pair, sl.zero_sink_values(plain), bos=False) for pair in pairs]
    model = new(backend, family)
    model.tokenizer = copy.deepcopy(model.tokenizer)
    model.tokenizer.padding_side = "left"
    model.tokenizer.pad_token_id = model.tokenizer.eos_token_id
    edited = harness_model(model, sl.zero_sink_values(model), prepend_bos=False, **QUIET)
    found = edited.loglikelihood([request(*pair) for pair in pairs])
    assert [each[0] for each in found] == pytest.approx(expected, abs=1e-4)


def test_mistakes_are_told_before_the_harness_reads_its_tasks() -> None:
    model = load(BACKENDS[0], "llama")
    with pytest.raises(InputError, match="batch_size is 0"):
        harness_model(model, batch_size=0)
    with pytest.raises(HookNotFiredError, match=r"no hook 'blocks\.9"):
        harness_model(model, [("blocks.9.attn.hook_z", lambda z, hook: z)])
    with pytest.raises(UnsupportedAttentionError, match="sees later tokens"):
        harness_model(load("bridge", "bert"))
    idle = harness_model(model, [("blocks.0.attn.hook_z", lambda z, hook: z)], **QUIET)
    with pytest.raises(NoEffectError, match=r"the edit at 'blocks\.0\.attn\.hook_z' changed nothing"):
        idle.loglikelihood([request("The", " cat")])


def test_the_cache_of_the_harness_is_refused_under_hooks(tmp_path: Path) -> None:
    from lm_eval.api.model import CachingLM

    model = load(BACKENDS[0], "llama")
    with pytest.raises(InputError, match="leave use_cache out"):
        CachingLM(harness_model(model, sl.zero_sink_values(model), **QUIET), str(tmp_path / "edited.db"))
    cached = CachingLM(harness_model(model, **QUIET), str(tmp_path / "plain.db"))
    first, again = (cached.loglikelihood([request("The", " cat")]) for _ in range(2))
    assert first == again
    cached.dbdict.close()
