#pragma once

#include <vector>

#include "bind.h"

namespace tidemark {

/// `size` bytes from byte `from` of an array, to byte `at` of a target. The array is the table's: it may go with its handle.
struct Piece {
  const mx::array* array;
  size_t from, size, at;
};

/// Pieces as they come from JavaScript, four doubles each (handle, from, size, at): every one lies inside an array whose bytes can be read
/// now, and inside the target, or this throws.
std::vector<Piece> piecesOf(Call& c, Bytes packed, size_t targetSize);

}  // namespace tidemark
