import { defineConfig } from 'vitest/config';

const long = process.env.TIDEMARK_LONG === '1';

export default defineConfig({
  test: {
    // A native crash or a lock left held ends one file, not the run; and a test file is a main thread, as an app is.
    pool: 'forks',
    // Tests start threads of their own: two files at a time is what two cores carry.
    maxWorkers: 2,
    globals: false,
    include: ['test/**/*.test.ts'],
    exclude: long ? [] : ['test/**/*.long.test.ts'],
    // A test blocked in Atomics.wait is not ended by this limit: blocking code runs in Workers that the test ends itself.
    testTimeout: long ? 600_000 : 60_000,
    hookTimeout: 60_000,
    teardownTimeout: 20_000,
  },
});
