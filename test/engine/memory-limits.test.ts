/**
 * Limits of MLX's allocator as options of an engine. What must not happen: a limit that is taken and does nothing, a wired limit above
 * what Metal takes, limits of an engine that outlive it.
 */
import { describe, expect, test } from 'vitest';
import { mlx } from '../../dist/engine-thread/mlx/binding.js';
import { applyMemoryLimits, wiredLimitFor } from '../../src/engine-thread/memory-limits.ts';
import { GREEDY, openEngine, promptIds, watchEngines } from '../helpers/engines.ts';

watchEngines();

const METAL = { device: 'gpu', device_name: 'Apple M2', max_recommended_working_set_size: 22_000 };
const CPU = { device: 'cpu', device_name: 'Some CPU' };

function setters(start = { memory: 1000, cache: 2000, wired: 0 }) {
  const now = { ...start };
  const setter = (name: 'memory' | 'cache' | 'wired') => (bytes: number) => {
    const former = now[name];
    now[name] = bytes;
    return former;
  };
  return { now, setMemoryLimit: setter('memory'), setCacheLimit: setter('cache'), setWiredLimit: setter('wired') };
}

describe('the wired limit', () => {
  test('is what Metal recommends, unless something else is asked for', () => {
    expect(wiredLimitFor(null, METAL)).toBe(22_000);
    expect(wiredLimitFor(5_000, METAL)).toBe(5_000);
    expect(wiredLimitFor(0, METAL)).toBe(0);
  });

  test('above that is refused before anything is set', () => {
    const native = setters();
    expect(() => applyMemoryLimits({ memory: 5, cache: 5, wired: 22_001 }, METAL, native)).toThrow('options.wiredLimitBytes must be at most 22000');
    expect(native.now).toEqual({ memory: 1000, cache: 2000, wired: 0 });
  });

  test('is not set where there is none, which is said when it was asked for', () => {
    const native = setters();
    expect(applyMemoryLimits({ memory: null, cache: null, wired: null }, CPU, native).warning).toBeNull();
    expect(applyMemoryLimits({ memory: null, cache: null, wired: 7 }, CPU, native).warning).toContain('wiredLimitBytes does nothing');
    expect(native.now.wired).toBe(0);
  });
});

describe('restoring', () => {
  test('puts back what was there', () => {
    const native = setters();
    const limits = applyMemoryLimits({ memory: 10, cache: 0, wired: null }, METAL, native);
    expect(native.now).toEqual({ memory: 10, cache: 0, wired: 22_000 });
    limits.restore();
    limits.restore();
    expect(native.now).toEqual({ memory: 1000, cache: 2000, wired: 0 });
  });

  test('leaves what somebody else has set since', () => {
    const native = setters();
    const first = applyMemoryLimits({ memory: 10, cache: 20, wired: null }, CPU, native);
    native.setCacheLimit(77);
    first.restore();
    expect(native.now).toEqual({ memory: 1000, cache: 77, wired: 0 });
  });
});

describe('an engine', () => {
  const request = { tokens: promptIds(300), ...GREEDY, maxTokens: 4 };

  test('keeps no freed memory with a cache limit of 0, and has the memory limit it was given; both end with it', async () => {
    // Process-wide words of the allocator: main reads them and does nothing else with MLX.
    const before = mlx().memoryLimit();
    const usual = await openEngine();
    await usual.complete(request);
    expect(usual.stats().memory.cacheBytes).toBeGreaterThan(0);
    await usual.close();

    const engine = await openEngine({ cacheLimitBytes: 0, memoryLimitBytes: 3_000_000_000 });
    await engine.complete(request);
    expect(mlx().memoryLimit()).toBe(3_000_000_000);
    expect(engine.stats().memory.cacheBytes).toBe(0);
    await engine.close();
    expect(mlx().memoryLimit()).toBe(before);
    const next = await openEngine();
    await next.complete(request);
    expect(next.stats().memory.cacheBytes).toBeGreaterThan(0);
  });

  test.runIf(process.platform === 'linux')('warns of a wired limit where there is none', async () => {
    const engine = await openEngine({ device: 'cpu', wiredLimitBytes: 1_000_000 });
    const warnings: string[] = [];
    engine.on('warning', ({ code }) => warnings.push(code));
    await engine.complete(request);
    expect(warnings).toEqual(['MEMORY_LIMITS']);
  });

  test.each([
    ['memoryLimitBytes', 1_000],
    ['cacheLimitBytes', -1],
    ['wiredLimitBytes', 1.5],
  ])('%s of %s is refused', async (field, value) => {
    await expect(openEngine({ [field]: value })).rejects.toMatchObject({ code: 'INVALID_ARGUMENT', details: { field: `options.${field}` } });
  });
});
