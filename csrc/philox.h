// Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw ("Parallel random
// numbers: as easy as 1, 2, 3", SC 2011): a number is a function of key and counter alone.
#pragma once

#include <cstdint>

#include "vec.h"

namespace evenflow::EVENFLOW_ISA {

struct PhiloxWords {
  uint32_t w[4];
};

EVENFLOW_INLINE PhiloxWords philox4x32(PhiloxWords c, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53u} * c.w[0], second = uint64_t{0xCD9E8D57u} * c.w[2];
    c = {{static_cast<uint32_t>(second >> 32) ^ c.w[1] ^ key0, static_cast<uint32_t>(second),
          static_cast<uint32_t>(first >> 32) ^ c.w[3] ^ key1, static_cast<uint32_t>(first)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}

// The uniform in [0, 1) of (seed, position): 53 bits from the first two words.
EVENFLOW_INLINE double philox_uniform(uint64_t seed, uint64_t position) {
  const PhiloxWords x =
      philox4x32({{static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0}},
                 static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  const double high = static_cast<double>(x.w[0] >> 5), low = static_cast<double>(x.w[1] >> 6);
  return (high * 67108864.0 + low) / 9007199254740992.0;
}

}  // namespace evenflow::EVENFLOW_ISA
