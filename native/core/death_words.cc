// Words in shared memory that say that a thread is gone, written by native code because nothing in JavaScript runs in every ending: neither
// `finally` nor 'exit' listeners run on terminate(), and the parent's 'exit' event waits for the parent's event loop.
//
// Two moments. 'ending': first of all cleanup hooks, for those who wait for a lock of this thread. 'ended': when every hook has run, so that
// also MLX work of this thread has been drained and its arrays are dropped. A native store cannot wake Atomics.wait: waiters look at the word
// between slices of their wait.

#include <memory>
#include <vector>

#include "groups.h"

namespace tidemark {
namespace {

struct Word {
  int32_t* address;
  int32_t value;
  // Keeps the shared memory alive; plain references outlive hooks and instance data.
  Napi::Reference<Napi::Int32Array> memory;
};

struct Words {
  std::vector<Word> ending;
  std::vector<Word> ended;
  napi_env env;

  ~Words() { store(ended); }

  static void store(std::vector<Word>& words) {
    for (auto& word : words) {
      __atomic_store_n(word.address, word.value, __ATOMIC_SEQ_CST);
      // The environment is going away and takes the reference with it.
      word.memory.SuppressDestruct();
    }
    words.clear();
  }
};

void onEnding(void* words) {
  Words::store(static_cast<Words*>(words)->ending);
}

Words& wordsOf(Napi::Env env) {
  return *env.GetInstanceData<Words>();
}

/// Hooks run in the reverse order of their registration, so this one is made the newest. Called again after an addon has added its own hook.
void moveHookToFront(Words& words) {
  napi_remove_env_cleanup_hook(words.env, onEnding, &words);
  napi_add_env_cleanup_hook(words.env, onEnding, &words);
}

Napi::Value deathWord(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  if (info.Length() < 3 || !info[0].IsTypedArray() || info[0].As<Napi::TypedArray>().TypedArrayType() != napi_int32_array) {
    throw Napi::TypeError::New(env, "deathWord(words: Int32Array, index, value, moment?)");
  }
  auto words = info[0].As<Napi::Int32Array>();
  int64_t index = info[1].As<Napi::Number>().Int64Value();
  if (index < 0 || static_cast<size_t>(index) >= words.ElementLength()) throw Napi::RangeError::New(env, "deathWord: the index lies outside the array");
  bool ended = info.Length() > 3 && info[3].IsString() && info[3].As<Napi::String>().Utf8Value() == "ended";
  Words& all = wordsOf(env);
  (ended ? all.ended : all.ending).push_back(Word{words.Data() + index, info[2].As<Napi::Number>().Int32Value(), Napi::Reference<Napi::Int32Array>::New(words, 1)});
  moveHookToFront(all);
  return env.Undefined();
}

/// Takes back every word registered at this place: the thread left in an orderly way.
Napi::Value cancelDeathWord(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  auto words = info[0].As<Napi::Int32Array>();
  int32_t* address = words.Data() + info[1].As<Napi::Number>().Int64Value();
  Words& all = wordsOf(env);
  std::erase_if(all.ending, [&](Word& word) { return word.address == address; });
  std::erase_if(all.ended, [&](Word& word) { return word.address == address; });
  return env.Undefined();
}

Napi::Value deathWordsFirst(const Napi::CallbackInfo& info) {
  moveHookToFront(wordsOf(info.Env()));
  return info.Env().Undefined();
}

}  // namespace

void bindDeathWords(Napi::Env env, Napi::Object exports) {
  auto* words = new Words{};
  words->env = env;
  env.SetInstanceData<Words>(words);
  napi_add_env_cleanup_hook(env, onEnding, words);
  exports.Set("deathWord", Napi::Function::New(env, deathWord, "deathWord"));
  exports.Set("cancelDeathWord", Napi::Function::New(env, cancelDeathWord, "cancelDeathWord"));
  exports.Set("deathWordsFirst", Napi::Function::New(env, deathWordsFirst, "deathWordsFirst"));
}

}  // namespace tidemark
