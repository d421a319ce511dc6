"""mlx-lm as a peer: loads a model once, then answers jobs on standard input, one JSON object a line.

{"tokens": [..], "chunk": C, "decode": D} -> {"prefill_s": .., "decode_s": .., "cpu_s": .., "tokens": [..]}
The work is done by mlx-lm's own `generate_step`, greedy: prefill is the time to the first token, decode the D tokens after it.

{"prompts": [[..], ..], "decode": D} -> {"wall_s": .., "cpu_s": .., "tokens": [[..], ..]}
D tokens for each prompt, all in one batch, by mlx-lm's own `BatchGenerator`, greedy; no token ends a row.
"""
import json
import sys
import time
from pathlib import Path

import mlx.core as mx

mx.set_default_device(mx.cpu)
from mlx.utils import tree_map  # noqa: E402
from mlx_lm.generate import BatchGenerator, generate_step  # noqa: E402
from mlx_lm.utils import load_model  # noqa: E402

model, _ = load_model(Path(sys.argv[1]))
if sys.argv[2] == 'float32':
    model.update(tree_map(lambda v: v.astype(mx.float32) if mx.issubdtype(v.dtype, mx.floating) else v, model.parameters()))
    mx.eval(model.parameters())


def gflops(side=512, rounds=8):
    """Speed of a float32 product: tells which BLAS is in effect."""
    a = mx.ones((side, side))
    mx.eval(a @ a)
    best = 0.0
    for _ in range(rounds):
        start = time.perf_counter()
        mx.eval(a @ a)
        best = max(best, 2e-9 * side**3 / (time.perf_counter() - start))
    return best


def run(job):
    cpu = time.process_time()
    start = time.perf_counter()
    tokens, prefill = [], 0.0
    for token, _ in generate_step(mx.array(job['tokens']), model, max_tokens=job['decode'] + 1, prefill_step_size=job['chunk']):
        if not tokens:
            prefill = time.perf_counter() - start
            start = time.perf_counter()
        tokens.append(token if isinstance(token, int) else token.item())
    decode = time.perf_counter() - start
    return {'prefill_s': prefill, 'decode_s': decode, 'cpu_s': time.process_time() - cpu, 'tokens': tokens}


def run_batch(job):
    cpu = time.process_time()
    start = time.perf_counter()
    prompts = job['prompts']
    generator = BatchGenerator(model, completion_batch_size=len(prompts), prefill_batch_size=len(prompts))
    uids = generator.insert(prompts, [job['decode']] * len(prompts))
    rows = {uid: [] for uid in uids}
    while responses := generator.next_generated():
        for response in responses:
            rows[response.uid].append(response.token)
    wall = time.perf_counter() - start
    generator.close()
    return {'wall_s': wall, 'cpu_s': time.process_time() - cpu, 'tokens': [rows[uid] for uid in uids]}


print(json.dumps({'ready': True, 'mlx': mx.__version__, 'gflops': gflops()}), flush=True)
for line in sys.stdin:
    job = json.loads(line)
    print(json.dumps(run_batch(job) if 'prompts' in job else run(job)), flush=True)
