"""Multiple choice: records are read and checked, options are scored as the literal sums say, and hooks are active."""

import copy
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import sinklens as sl
from sinklens.errors import HookNotFiredError, InputError, NoEffectError, ResultFileError
from sinklens.masking import mask_by_metric, multiple_choice
from sinklens.masking.records import choice_item, read_items
from sinklens.models.smollm2 import packaged_weights
from sinklens.results.multiple_choice import MultipleChoiceResult
from tests.captured import BACKENDS, load, n_hooks, new
from tests.tiny_tokenizer import tiny_tokenizer

MMLU = {"question": "Which animal sat on the mat?", "choices": ["the cat", "the dog", "a fox", "an apple"], "answer": 0}
WINOGRANDE = {
    "sentence": "The cat sat on the dog so _ slept on.",
    "option1": "the cat",
    "option2": "the dog",
    "answer": "2",
}
BOOLQ = {"question": "is the dog lazy", "answer": True, "passage": "The lazy dog sat."}
RECORDS: list[dict[str, Any]] = [
    MMLU,
    WINOGRANDE,
    BOOLQ,
    {**MMLU, "answer": "C"},
    {"question": "is it?", "answer": "no"},
]
QUIET: dict[str, Any] = {"progress": False, "n_bootstrap": 50}
DATA = Path(__file__).parents[2] / "shared" / "data"
[THE] = tiny_tokenizer()(" the", add_special_tokens=False)["input_ids"]


@pytest.fixture(scope="module")
def model() -> Any:
    return load(BACKENDS[0], "llama")


def test_each_form_asks_what_it_says() -> None:
    mmlu, winogrande, boolq, letter, bare = read_items(RECORDS)
    assert mmlu.contexts == ("Question: Which animal sat on the mat?\nAnswer:",) * 4
    assert mmlu.scored == (" the cat", " the dog", " a fox", " an apple")
    assert (mmlu.answer, letter.answer) == (0, 2)
    assert winogrande.contexts == ("The cat sat on the dog so the cat", "The cat sat on the dog so the dog")
    assert winogrande.scored == (" slept on.", " slept on.")
    assert winogrande.answer == 1
    assert boolq.contexts[0] == "The lazy dog sat.\nQuestion: is the dog lazy?\nAnswer:"
    assert boolq.scored == (" no", " yes")
    assert (boolq.answer, bare.answer) == (1, 0)
    assert bare.contexts[0] == "Question: is it?\nAnswer:"


Hooks = Callable[[Any, Tensor], Any]


def literal_score(model: Any, context: str, scored: str, per: str, hooks: Hooks = lambda model, tokens: []) -> float:
    """Σ log p(token) over the scored part's tokens, one sequence at a time, in float64; hooks made for that sequence."""
    encode = lambda text: model.tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
    before, whole = encode(context), encode(context + scored)
    assert whole[: len(before)] == before
    tokens = torch.tensor([[model.tokenizer.bos_token_id, *whole]])
    with torch.no_grad():
        log_p = model.run_with_hooks(tokens, fwd_hooks=list(hooks(model, tokens)))[0].double().log_softmax(-1)
    total = 0.0
    for position in range(1 + len(before), tokens.shape[1]):
        total += float(log_p[position - 1, tokens[0, position]])
    return total / {"tokens": len(whole) - len(before), "bytes": len(scored), "none": 1}[per]


@pytest.mark.parametrize("normalize", ["tokens", "bytes", "none"])
def test_scores_are_the_literal_sums(model: Any, normalize: str) -> None:
    result = multiple_choice(model, RECORDS, normalize=normalize, batch_size=3, **QUIET)
    for number, item in enumerate(read_items(RECORDS)):
        for option, (context, scored) in enumerate(zip(item.contexts, item.scored, strict=True)):
            expected = literal_score(model, context, scored, normalize)
            assert result.scores[number, option].item() == pytest.approx(expected, abs=1e-4)
    assert bool(result.scores[1, 2:].isnan().all())
    assert result.correct.tolist() == (result.predictions == torch.tensor([0, 1, 1, 2, 0])).tolist()
    assert result.chance == pytest.approx((0.25 + 0.5 + 0.5 + 0.25 + 0.5) / 5)
    assert result.provenance.n_documents == 5
    assert result.provenance.prepended_bos


def test_hooks_and_masking_are_active_and_gone_afterwards(model: Any) -> None:
    before = n_hooks(model)
    clean = multiple_choice(model, RECORDS, **QUIET)
    nothing = multiple_choice(model, RECORDS, hooks=mask_by_metric(model, "inter", 0.0), **QUIET)
    masked = multiple_choice(model, RECORDS, hooks=mask_by_metric(model, "inter", 0.3), **QUIET)
    one_by_one = multiple_choice(model, RECORDS, hooks=mask_by_metric(model, "inter", 0.3), batch_size=1, **QUIET)
    zeros = [("blocks.0.attn.hook_z", lambda z, hook: torch.zeros_like(z))]
    edited = multiple_choice(model, RECORDS, hooks=zeros, **QUIET)
    known = ~clean.scores.isnan()
    assert torch.equal(clean.scores[known], nothing.scores[known])
    torch.testing.assert_close(masked.scores[known], one_by_one.scores[known], atol=1e-4, rtol=0)
    for other in (masked, edited):
        assert (clean.scores[known] - other.scores[known]).abs().max() > 1e-3
    assert n_hooks(model) == before


# Each with the hooks for tasks, and those for one sequence alone.
EDITS: dict[str, Hooks] = {
    "none": lambda model, tokens: [],
    "zero": lambda model, tokens: sl.zero_sink_values(model),
    "mass of a head": lambda model, tokens: sl.set_sink_mass(model, 0.9, heads=[(0, 1), (1, 2)]),
    "sink by position": lambda model, tokens: sl.zero_sink_values(model, sink=[0, 3]),
    "sink by token": lambda model, tokens: sl.zero_sink_values(model, sink=f"token:{THE}", tokens=tokens),
    "detected sink": lambda model, tokens: sl.remove_sink_attention(model, sink="detect:0.2"),
    "random position": lambda model, tokens: sl.placebo(sl.zero_sink_values(model, tokens=tokens), "position", seed=3),
    "densify": lambda model, tokens: sl.densify_attention(model, 0.5),
    "inter, pairs": lambda model, tokens: told(sl.mask_by_metric(model, "inter", 0.3), tokens),
    "intra, tokens": lambda model, tokens: told(sl.mask_by_metric(model, "intra", 0.3, granularity="token"), tokens),
    "random terms": lambda model, tokens: told(sl.mask_by_metric(model, "random", 0.3), tokens),
    "a sum": lambda model, tokens: [
        *sl.placebo(sl.zero_sink_values(model, level="kv", tokens=tokens), "position", seed=3),
        *told(sl.mask_by_metric(model, "random", 0.3, granularity="token"), tokens),
    ],
}


def told(masking: Any, tokens: Tensor) -> Any:
    masking.use(tokens, torch.ones_like(tokens, dtype=torch.bool))
    return masking


@pytest.mark.parametrize("edit", [edit for edit in EDITS if edit != "none"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_edit_does_in_a_padded_batch_what_it_does_to_one_sequence(backend: str, edit: str) -> None:
    model = load(backend, "llama")
    clean = multiple_choice(model, RECORDS, **QUIET)
    elsewhere = torch.tensor([[0, THE]])  # what the hooks were made for before must not matter
    result = multiple_choice(model, RECORDS, hooks=EDITS[edit](model, elsewhere), batch_size=5, **QUIET)
    for number, item in enumerate(read_items(RECORDS)):
        for option, (context, scored) in enumerate(zip(item.contexts, item.scored, strict=True)):
            expected = literal_score(model, context, scored, "tokens", EDITS[edit])
            assert result.scores[number, option].item() == pytest.approx(expected, abs=2e-4)
    assert (result.scores - clean.scores).nan_to_num().abs().max() > 1e-3
    assert result.provenance.conventions["changed"]


def test_an_edit_around_the_call_knows_the_sequences_too(model: Any) -> None:
    control = sl.placebo(sl.zero_sink_values(model), "position", seed=3)
    inside = multiple_choice(model, RECORDS, hooks=control, batch_size=4, **QUIET)
    with sl.intervene(model, control):
        around = multiple_choice(model, RECORDS, batch_size=2, **QUIET)
    torch.testing.assert_close(around.scores, inside.scores, equal_nan=True, atol=1e-5, rtol=0)
    assert inside.provenance.conventions["hooks"].startswith("zero_sink_values")
    assert around.provenance.conventions["hooks"] == "none"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_tokenizer_that_pads_on_the_left_changes_nothing(backend: str, family: str) -> None:
    records = [*RECORDS, {**MMLU, "question": "<eos><eos>?"}]
    edit = EDITS["random position"]
    model = new(backend, family)
    model.tokenizer = copy.deepcopy(model.tokenizer)
    model.tokenizer.padding_side = "left"
    model.tokenizer.pad_token_id = model.tokenizer.bos_token_id
    plain = load(backend, family)
    result = multiple_choice(model, records, hooks=edit(model, torch.tensor([[0, 1]])), **QUIET)
    for number, item in enumerate(read_items(records)):
        for option, (context, scored) in enumerate(zip(item.contexts, item.scored, strict=True)):
            expected = literal_score(plain, context, scored, "tokens", edit)
            assert result.scores[number, option].item() == pytest.approx(expected, abs=2e-4)


def test_an_edit_that_cannot_be_or_does_nothing_is_told(model: Any) -> None:
    passes: list[int] = []
    count = [("blocks.0.hook_resid_pre", lambda tensor, hook: passes.append(1))]
    handle = model.hooks(fwd_hooks=count)
    with handle:
        with pytest.raises(InputError, match="sink position 40 lies beyond a sequence of"):
            multiple_choice(model, RECORDS, hooks=sl.zero_sink_values(model, sink=40), **QUIET)
        rows = sl.zero_sink_values(model, sink=torch.zeros(8, 1, dtype=torch.long))
        with pytest.raises(InputError, match="one row per sequence of a batch of yours"):
            multiple_choice(model, RECORDS, hooks=rows, **QUIET)
        assert passes == []
    absent = sl.zero_sink_values(model, sink="token:2", tokens=torch.tensor([[0, 2]]))
    with pytest.raises(NoEffectError, match=r"changed nothing.*; leave it out$"):
        multiple_choice(model, RECORDS, hooks=absent, **QUIET)
    assert not multiple_choice(model, RECORDS, **QUIET).provenance.conventions["changed"]


@pytest.fixture(scope="module")
def real_models() -> tuple[Any, Any]:
    """SmolLM2-135M-Instruct in float32 and in float64."""
    return sl.load_model("smollm2-135m"), sl.load_model("smollm2-135m", dtype="float64")


@pytest.mark.slow
@pytest.mark.skipif(packaged_weights() is None, reason="the package with SmolLM2-135M is not installed")
@pytest.mark.skipif(not DATA.is_dir(), reason="the task files are not there")
@pytest.mark.parametrize("name", ["mmlu_sample", "winogrande_dev", "boolq_dev_questions"])
def test_real_tasks_on_a_real_model(real_models: tuple[Any, Any], name: str) -> None:
    model, precise = real_models
    path, form = DATA / f"{name}.jsonl", name.split("_")[0]
    items = read_items(path)
    assert len(items) > 1000
    assert read_items(path, form) == items
    scores = []
    for edit in ("none", "zero", "inter, pairs"):
        hooks = EDITS[edit](model, torch.tensor([[1, 2]]))
        result = multiple_choice(model, path, hooks=hooks, max_items=2, batch_size=8, **QUIET)
        # Rounding swaps ranks near the boundary, so a masking is compared in the precision that ranked.
        reference = model if edit == "inter, pairs" else precise
        for number, item in enumerate(items[:2]):
            for option, (context, scored) in enumerate(zip(item.contexts, item.scored, strict=True)):
                expected = literal_score(reference, context, scored, "tokens", EDITS[edit])
                assert result.scores[number, option].item() == pytest.approx(expected, abs=2e-3)
        scores.append(result.scores)
    assert all((other - scores[0]).abs().max() > 0.02 for other in scores[1:])


def test_a_hook_that_does_not_fire_is_told(model: Any) -> None:
    with pytest.raises(HookNotFiredError, match=r"no hook 'blocks\.9"):
        multiple_choice(model, RECORDS, hooks=[("blocks.9.attn.hook_z", lambda z, hook: z)], **QUIET)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hook_behind_a_flag_is_told(backend: str) -> None:
    said = "fired 0 times in 1 forward passes" if backend == "hooked" else "a hook cannot fire.*use_hook_mlp_in"
    hooks = [("blocks.0.hook_mlp_in", lambda tensor, hook: None)]
    with pytest.raises(HookNotFiredError, match=said):
        multiple_choice(load(backend, "llama"), RECORDS, hooks=hooks, **QUIET)


def test_another_models_tokenizer_is_told() -> None:
    model = new(BACKENDS[0], "llama")
    model.cfg.d_vocab = 100
    with pytest.raises(InputError, match=r"the task has the token id \d+; the model's vocabulary has ids 0 to 99"):
        multiple_choice(model, RECORDS, **QUIET)


def test_the_harness_is_an_extra(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys, sinklens; sinklens.harness_model; print('lm_eval' in sys.modules)"
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
    for name in ("lm_eval", "lm_eval.api", "lm_eval.api.model"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=r"is not installed: pip install 'sinklens\[harness\]'$"):
        sl.harness_model(model)


def test_records_come_from_files_and_datasets(model: Any, tmp_path: Path) -> None:
    path = tmp_path / "task.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in RECORDS[:3]) + "\n\n")
    direct = multiple_choice(model, RECORDS[:3], **QUIET)
    assert torch.equal(multiple_choice(model, path, **QUIET).scores.nan_to_num(), direct.scores.nan_to_num())
    assert len(multiple_choice(model, str(path), max_items=2, **QUIET).answers) == 2
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list([MMLU, {**MMLU, "answer": 3}])
    assert multiple_choice(model, table, **QUIET).answers.tolist() == [0, 3]
    assert read_items(table.to_iterable_dataset()) == read_items(table)
    assert read_items(table.to_pandas().to_dict("records")) == read_items(table)
    with pytest.raises(InputError, match=r"several splits \('test'\); pass one of them"):
        read_items(datasets.DatasetDict({"test": table}))


def test_a_long_context_is_cut_on_the_left_and_counted(model: Any) -> None:
    long = {**MMLU, "question": "The dog sat. " * 40 + "Which?"}
    seen: list[Tensor] = []

    def look(tensor: Tensor, hook: Any) -> None:
        seen.append(tensor)

    result = multiple_choice(model, [long], hooks=[("blocks.0.hook_resid_pre", look)], **QUIET)
    assert result.provenance.n_cut == 4
    assert repr(result).endswith("4 contexts cut)")
    assert seen[0].shape[1] == model.cfg.n_ctx
    assert bool(result.scores.isfinite().all())
    with pytest.raises(InputError, match=r"item 0, option 1: its scored part takes \d+ tokens"):
        multiple_choice(model, [{**MMLU, "choices": ["a", "cat " * 90]}], **QUIET)


def without(record: dict[str, Any], field: str) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != field}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            without(MMLU, "answer"),
            "record 1 has no field 'answer'; a record of the mmlu form has question, choices, answer",
        ),
        (without(MMLU, "question"), "has no field 'question'"),
        (without(WINOGRANDE, "option2"), "has no field 'option2'; a record of the winogrande form"),
        (without(WINOGRANDE, "sentence"), "has no field 'sentence'"),
        ({"question": "what?", "answer": 3}, "has no field 'choices'"),
        ({**MMLU, "answer": 4}, "answer is 4; expected the index of a choice, 0 to 3"),
        ({**MMLU, "answer": "Z"}, "expected the index of a choice"),
        ({**MMLU, "choices": ["one"]}, "choices is ['one']; expected a list of at least two"),
        ({**MMLU, "question": " "}, "question is ' '; expected text"),
        ({**MMLU, "choices": ["one", " "]}, "choices[1] is ' '; expected text"),
        ({**MMLU, "choices": ["one", None]}, "choices[1] is None; expected text"),
        ({**MMLU, "answer": 1.0}, "answer is 1.0; expected the index of a choice"),
        ({**WINOGRANDE, "option1": ""}, "option1 is ''; expected text"),
        ({**WINOGRANDE, "sentence": "A _ or a _ here."}, "the sentence has several '_'"),
        ({"question": "", "answer": True}, "question is ''; expected text"),
        ({**MMLU, "question": "half \ud800"}, "cannot be encoded"),
        ({**WINOGRANDE, "answer": "3"}, "answer is '3'; expected '1' or '2'"),
        ({**WINOGRANDE, "sentence": "No blank."}, "the sentence has no '_'"),
        ("text", "record 1 is a str; expected a mapping"),
    ],
)
def test_a_broken_record_is_told_in_one_line_before_the_first_pass(model: Any, record: Any, message: str) -> None:
    passes: list[int] = []
    hooks = [("blocks.0.hook_resid_pre", lambda tensor, hook: passes.append(1))]
    with pytest.raises(InputError) as error:
        multiple_choice(model, [MMLU, record], hooks=hooks, **QUIET)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert passes == []


def test_a_broken_file_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "task.jsonl"
    path.write_text(json.dumps(MMLU) + "\n{broken\n")
    with pytest.raises(InputError, match=r"task.jsonl, line 2 is no JSON"):
        read_items(path)
    path.write_text(json.dumps(without(MMLU, "choices")) + "\n")
    with pytest.raises(InputError, match=r"task.jsonl, line 1 has no field 'choices'"):
        read_items(path)
    path.write_bytes(json.dumps(MMLU).encode() + b"\n\xff\xfe\n")
    with pytest.raises(InputError, match=r"task.jsonl cannot be read as UTF-8"):
        read_items(path)
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(MMLU).encode())
    assert len(read_items(path)) == 1
    path.write_text("")
    with pytest.raises(InputError, match="holds no record"):
        read_items(path)
    with pytest.raises(InputError, match="no file"):
        read_items(tmp_path / "missing.jsonl")
    with pytest.raises(InputError, match=r"is no \.jsonl file"):
        read_items("task.txt")
    with pytest.raises(InputError, match="the records are a str"):
        read_items("what is this")
    with pytest.raises(InputError, match="form is 'arc'"):
        read_items(RECORDS, "arc")
    with pytest.raises(InputError, match="max_items is 0"):
        read_items(RECORDS, max_items=0)
    with pytest.raises(InputError, match="has no field 'sentence'"):
        choice_item(MMLU, "winogrande", "here")


@pytest.mark.parametrize(
    ("arguments", "message"), [({"normalize": "words"}, "normalize is 'words'"), ({"batch_size": 0}, "batch_size is 0")]
)
def test_other_mistakes_are_told(model: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        multiple_choice(model, RECORDS, **{**QUIET, **arguments})


def made_result(scores: list[list[float]], answers: list[int]) -> MultipleChoiceResult:
    return MultipleChoiceResult(
        torch.tensor(scores).double(), torch.tensor(answers), sl.Provenance("tiny", seed=0), 400
    )


def test_accuracy_interval_and_comparison_are_over_items(tmp_path: Path) -> None:
    nan = math.nan
    scores = [[-1.0, -2.0, nan], [-3.0, -2.0, -1.0], [-1.0, -1.5, nan], [-2.0, -1.0, -3.0]]
    result = made_result(scores, [0, 2, 1, 1])
    assert result.correct.tolist() == [True, True, False, True]
    assert result.accuracy == 0.75
    low, high = result.interval
    assert 0.25 <= low < 0.75 < high == 1.0
    same = result.compare(result)
    assert (same["difference"], same["low"], same["high"]) == (0.0, 0.0, 0.0)
    flipped = made_result([[-row[1], -row[0], nan] for row in scores], [0, 2, 1, 1])
    assert result.compare(flipped)["difference"] == result.accuracy - flipped.accuracy
    with pytest.raises(InputError, match="other items"):
        result.compare(made_result(scores, [0, 0, 0, 0]))
    table = result.to_dataframe()
    assert table.margin.tolist() == [1.0, 1.0, -0.5, 1.0]
    loaded = MultipleChoiceResult.load(result.save(tmp_path / "a.safetensors"))
    assert loaded.to_dataframe().equals(table)
    assert loaded.interval == result.interval
    assert repr(loaded).startswith("MultipleChoiceResult(tiny: accuracy 0.750 [")
    with pytest.raises(ResultFileError):
        MultipleChoiceResult.load(tmp_path / "b.safetensors")


def test_results_on_other_questions_are_not_compared(model: Any) -> None:
    one, other = ({**MMLU, "question": question} for question in ("Which animal sat?", "Which animal ran?"))
    first, second = (multiple_choice(model, [record], progress=False) for record in (one, other))
    assert first.compare(multiple_choice(model, [one], progress=False))["difference"] == 0
    for result in (second, multiple_choice(model, [one], normalize="bytes", progress=False)):
        with pytest.raises(InputError, match="cannot compare results on other items"):
            first.compare(result)


def test_a_model_that_gives_nan_has_no_accuracy(model: Any) -> None:
    def overflow(residual: Tensor, hook: Any) -> Tensor:
        return residual * torch.inf

    with pytest.raises(InputError, match=r"a log-likelihood is NaN.*load it in float32"):
        multiple_choice(model, [MMLU], hooks=[("blocks.1.hook_resid_pre", overflow)], progress=False)
