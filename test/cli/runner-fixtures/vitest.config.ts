import { defineConfig } from 'vitest/config';

/** Small runs for the test of scripts/test.mjs; the name given as a filter picks one. */
export default defineConfig({ test: { root: import.meta.dirname, include: ['*.fixture.ts'], pool: 'forks', maxWorkers: 1 } });
