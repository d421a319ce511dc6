/*
 * `bufferAccess`, the leaf (src/engine-thread/mlx/metal-sync.ts, src/shared/session/leases.ts): the engine hands two jobs over
 * whose bytes lie in MLX buffers, waits in save() for room that only these jobs give, clears the allocator's cache at a step's
 * end, and ends the step; the store worker copies each job's bytes out in two slices. The device runs what was submitted.
 *
 * Shown: engine and store worker both end; nobody copies while the cache is cleared; both jobs complete while the engine is
 * blocked in save().
 *
 * Seeded bugs:
 *   NAIVE_ORDER        a job's bytes are made by the rest of the step, and the job waits for the engine's stream with the lock held:
 *                      the known deadlock (the engine needs the lock to come to the rest of its step)
 *   UNLOCKED_COPY      a job copies without the lock
 *   SAVE_UNDER_LOCK    the engine waits for room with bufferAccess held
 *   NOT_A_LEAF         a job gives its bytes back (lock `pending`) under bufferAccess, and the engine takes it under `pending`
 *   NOT_REENTRANT      the clear inside a section that holds the lock already waits for itself
 */
#include "protocol-sync.inc"

#define JOBS 2
#define SLICES 2

byte bufferAccess, depth;
byte pending;
byte held;
byte submitted, executed;       /* the engine's stream: steps given to the device, and done */
bool restOfStep;                /* what the naive order's jobs wait for */
bool copying, clearing;
byte jobsDone;
bool engineDone;

chan jobs = [JOBS] of { byte };

inline enter() {
#ifdef BUG_NOT_REENTRANT
  take(bufferAccess);
#else
  atomic {
    bufferAccess == 0 || bufferAccess == _pid + 1 -> bufferAccess = _pid + 1
  }
#endif
  depth++
}

inline leave() {
  d_step {
    assert(bufferAccess == _pid + 1 && depth > 0);
    depth--;
    if
    :: depth == 0 -> bufferAccess = 0
    :: else -> skip
    fi
  }
}

/* Everything submitted so far. Only the engine does this, on its own stream. */
inline drain() {
  executed == submitted
}

inline clearCache() {
  drain();
  enter();
  drain();
  clearing = true;
  assert(!copying);
  clearing = false;
  leave()
}

proctype device() {
end_idle:
  do
  :: executed < submitted -> executed++
  od
}

proctype engine() {
  byte ticket, job;
  submitted++;
#ifndef BUG_NAIVE_ORDER
  drain(); /* everything that a job names is evaluated before it is handed over */
#endif
  do
  :: job < JOBS ->
     take(pending);
     held++;
#ifdef BUG_NOT_A_LEAF
     enter(); leave();
#endif
     drop(pending);
     jobs!job;
     job++
  :: else -> break
  od;
  clearCache(); /* at a step's end, while the jobs are being done */
  submitted++;
  drain();
  restOfStep = true;
  /* save(): no room until both jobs have given their bytes back. */
#ifdef BUG_SAVE_UNDER_LOCK
  enter();
#endif
  take(pending);
  do
  :: true ->
     ticket = sequence;
     if
     :: held == 0 -> break
     :: else -> waitFor(pending, ticket)
     fi
  od;
  held++;
  drop(pending);
#ifdef BUG_SAVE_UNDER_LOCK
  leave();
#endif
  clearCache();
  /* materializeCacheStorage: a section of its own, and a clear inside it. */
  enter();
  clearCache();
  leave();
  engineDone = true
}

proctype storeWorker() {
  byte job, slice;
  do
  :: jobsDone < JOBS ->
     jobs?job;
     slice = 0;
#ifdef BUG_NAIVE_ORDER
     enter();
     restOfStep; /* synchronize(the engine's stream): the array is ready when the step is */
#endif
     do
     :: slice < SLICES ->
#ifndef BUG_UNLOCKED_COPY
        enter();
#endif
        copying = true;
        assert(!clearing);
        copying = false;
#ifdef BUG_NOT_A_LEAF
        if
        :: slice == SLICES - 1 -> take(pending); held--; broadcast(); drop(pending)
        :: else -> skip
        fi;
#endif
#ifndef BUG_UNLOCKED_COPY
        leave();
#endif
        slice++
     :: else -> break
     od;
#ifdef BUG_NAIVE_ORDER
     leave();
#endif
#ifndef BUG_NOT_A_LEAF
     take(pending); held--; broadcast(); drop(pending);
#endif
     jobsDone++
  :: else -> break
  od
}

init {
  atomic { run device(); run engine(); run storeWorker() }
  engineDone && jobsDone == JOBS;
  assert(bufferAccess == 0 && depth == 0 && held == 1)
}

ltl both_end { <> (engineDone && jobsDone == JOBS) }
