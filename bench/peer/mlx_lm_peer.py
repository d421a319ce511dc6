"""mlx-lm as a peer: loads a model once, then answers commands on standard input, one JSON object a line.

{"prefill": N, "chunk": C, "decode": D} -> {"prefill_s": .., "decode_s": ..}
Prefill is done as mlx_lm.generate does it (chunks, the cache evaluated after each); decode is greedy, one token a step, each evaluated.
"""
import json
import random
import sys
import time
from pathlib import Path

import mlx.core as mx

mx.set_default_device(mx.cpu)
from mlx.utils import tree_flatten, tree_map  # noqa: E402
from mlx_lm.models.cache import make_prompt_cache  # noqa: E402
from mlx_lm.utils import load_model  # noqa: E402

model, config = load_model(Path(sys.argv[1]))
if sys.argv[2] == 'float32':
    model.update(tree_map(lambda v: v.astype(mx.float32) if mx.issubdtype(v.dtype, mx.floating) else v, model.parameters()))
    mx.eval(model.parameters())
vocab = config.get('text_config', config)['vocab_size']


def arrays(cache):
    return [v for _, v in tree_flatten([c.state for c in cache]) if isinstance(v, mx.array)]


def run(job):
    rng = random.Random(1)
    ids = [rng.randrange(4, vocab) for _ in range(job['prefill'])]
    cache = make_prompt_cache(model)
    start = time.perf_counter()
    for i in range(0, len(ids), job['chunk']):
        logits = model(mx.array([ids[i:i + job['chunk']]]), cache=cache)
        mx.eval(arrays(cache))
    mx.eval(logits)
    prefill = time.perf_counter() - start
    token = mx.argmax(logits[0, -1])
    mx.eval(token)
    start = time.perf_counter()
    for _ in range(job['decode']):
        logits = model(token[None, None], cache=cache)
        token = mx.argmax(logits[0, -1])
        mx.eval(token)
    return {'prefill_s': prefill, 'decode_s': time.perf_counter() - start}


print(json.dumps({'ready': True, 'mlx': mx.__version__}), flush=True)
for line in sys.stdin:
    print(json.dumps(run(json.loads(line))), flush=True)
