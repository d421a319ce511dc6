/**
 * persist 'finish' of requests that decode together. Must not happen: the prompt's end, kept from before the sequence joined the
 * others, that cannot be stored because its rows lie in other caches by then.
 */
import { expect, test } from 'vitest';
import { cacheIn, GREEDY, listen, openEngine, promptIds, TINY, watchEngines } from '../helpers/engines.ts';
import { familyDir } from '../helpers/families.ts';
import { tempDir } from '../helpers/temp.ts';

watchEngines();

test.each([
  ['a hybrid', TINY],
  ['attention alone', familyDir('llama')],
])('%s: an exact repeat of each prompt costs one token, and nothing is warned of', async (_, model) => {
  const engine = await openEngine({ model, maxNumSeqs: 2, cache: cacheIn(tempDir(), { persist: 'finish' }) });
  const heard = listen(engine);
  const requests = [1, 2].map((step) => ({ tokens: promptIds(75 + step, step), ...GREEDY, maxTokens: 40 }));
  const answers = await Promise.all(requests.map((request) => engine.complete(request)));
  // Together: fewer passes than tokens.
  expect(engine.stats().passes.decode).toBeLessThan(70);
  await engine.flush();
  expect(heard.warning).toEqual([]);
  for (const [i, request] of requests.entries()) {
    const again = await engine.complete(request);
    expect(again.usage.cachedTokens).toBe(request.tokens.length - 1);
    expect(again.tokenIds).toEqual(answers[i]!.tokenIds);
  }
});
