// The state hashes on a device, bit for bit those of the crate pccl-hash.
//
// Nothing is included: NVRTC compiles this file as it is, and the stand-in driver for tests compiles it as C++ behind a
// header that says what threads, shared memory and barriers are there. All numbers are little-endian, as are all
// machines with a device. Whatever counts bytes, MiBs or vectors has 64 bits.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

// ---------------------------------------------------------------------------------------------------------------------
// XXH3-128 of at most 4096 bytes with a small seed

#define PRIME32_1 0x9E3779B1ull
#define PRIME32_2 0x85EBCA77ull
#define PRIME32_3 0xC2B2AE3Dull
#define PRIME64_1 0x9E3779B185EBCA87ull
#define PRIME64_2 0xC2B2AE3D27D4EB4Full
#define PRIME64_3 0x165667B19E3779F9ull
#define PRIME64_4 0x85EBCA77C2B2AE63ull
#define PRIME64_5 0x27D4EB2F165667C5ull
#define PRIME_MX1 0x165667919E3779F9ull
#define PRIME_MX2 0x9FB21C651E98DF25ull

#define SECRET_WORDS 24
#define STRIPE_BYTES 64
#define BLOCK_BYTES 1024
#define LONG_BYTES 240

/// The default secret of XXH3, as words.
__constant__ u64 SECRET[SECRET_WORDS] = {
    0xbe4ba423396cfeb8ull, 0x1cad21f72c81017cull, 0xdb979083e96dd4deull, 0x1f67b3b7a4a44072ull,
    0x78e5c0cc4ee679cbull, 0x2172ffcc7dd05a82ull, 0x8e2443f7744608b8ull, 0x4c263a81e69035e0ull,
    0xcb00c391bb52283cull, 0xa32e531b8b65d088ull, 0x4ef90da297486471ull, 0xd8acdea946ef1938ull,
    0x3f349ce33f76faa8ull, 0x1d4f0bc7c7bbdcf9ull, 0x3159b4cd4be0518aull, 0x647378d9c97e9fc8ull,
    0xc3ebd33483acc5eaull, 0xeb6313faffa081c5ull, 0x49daf0b751dd0d17ull, 0x9e68d429265516d3ull,
    0xfca1477d58be162bull, 0xce31d07ad1b8f88full, 0x280416958f3acb45ull, 0x7e404bbbcafbd7afull,
};

/// The accumulators of a long hash before its first stripe.
__constant__ u64 START[8] = {
    PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1,
};

/// Two halves of a digest.
struct Digest {
    u64 low;
    u64 high;
};

__device__ __forceinline__ u32 read32(const u8 *at) {
    return (u32)at[0] | (u32)at[1] << 8 | (u32)at[2] << 16 | (u32)at[3] << 24;
}

__device__ __forceinline__ u64 read64(const u8 *at) {
    return (u64)read32(at) | (u64)read32(at + 4) << 32;
}

/// Eight bytes of the secret from any byte on: two words that lie behind each other, shifted.
__device__ __forceinline__ u64 secret64(const u64 *secret, u32 at) {
    u32 shift = at % 8 * 8;
    u64 low = secret[at / 8];
    return shift == 0 ? low : low >> shift | secret[at / 8 + 1] << (64 - shift);
}

__device__ __forceinline__ u32 swap32(u32 x) {
    return x << 24 | (x & 0xff00u) << 8 | (x >> 8 & 0xff00u) | x >> 24;
}

__device__ __forceinline__ u64 swap64(u64 x) {
    return (u64)swap32((u32)x) << 32 | swap32((u32)(x >> 32));
}

__device__ __forceinline__ u64 multiply_fold(u64 a, u64 b) {
    return a * b ^ __umul64hi(a, b);
}

__device__ __forceinline__ u64 avalanche(u64 h) {
    h ^= h >> 37;
    h *= PRIME_MX1;
    return h ^ h >> 32;
}

__device__ __forceinline__ u64 avalanche64(u64 h) {
    h ^= h >> 33;
    h *= PRIME64_2;
    h ^= h >> 29;
    h *= PRIME64_3;
    return h ^ h >> 32;
}

__device__ Digest upto16(const u8 *in, u32 len, u64 seed) {
    Digest d;
    if (len > 8) {
        u64 low = read64(in), high = read64(in + len - 8);
        u64 keyed = low ^ high ^ ((SECRET[4] ^ SECRET[5]) - seed);
        u64 m_low = keyed * PRIME64_1 + ((u64)(len - 1) << 54), m_high = __umul64hi(keyed, PRIME64_1);
        high ^= (SECRET[6] ^ SECRET[7]) + seed;
        m_high += high + (u64)(u32)high * (PRIME32_2 - 1);
        m_low ^= swap64(m_high);
        d.low = avalanche(m_low * PRIME64_2);
        d.high = avalanche(__umul64hi(m_low, PRIME64_2) + m_high * PRIME64_2);
    } else if (len >= 4) {
        seed ^= (u64)swap32((u32)seed) << 32;
        u64 word = (u64)read32(in) + ((u64)read32(in + len - 4) << 32);
        u64 keyed = word ^ ((SECRET[2] ^ SECRET[3]) + seed);
        u64 factor = PRIME64_1 + ((u64)len << 2);
        u64 low = keyed * factor, high = __umul64hi(keyed, factor);
        high += low << 1;
        low ^= high >> 3;
        low ^= low >> 35;
        low *= PRIME_MX2;
        d.low = low ^ low >> 28;
        d.high = avalanche(high);
    } else if (len > 0) {
        u32 low = (u32)in[0] << 16 | (u32)in[len >> 1] << 24 | in[len - 1] | len << 8;
        u32 swapped = swap32(low);
        u32 high = swapped << 13 | swapped >> 19;
        u64 flip_low = ((u64)(u32)SECRET[0] ^ (SECRET[0] >> 32)) + seed;
        u64 flip_high = ((u64)(u32)SECRET[1] ^ (SECRET[1] >> 32)) - seed;
        d.low = avalanche64(low ^ flip_low);
        d.high = avalanche64(high ^ flip_high);
    } else {
        d.low = avalanche64(seed ^ SECRET[8] ^ SECRET[9]);
        d.high = avalanche64(seed ^ SECRET[10] ^ SECRET[11]);
    }
    return d;
}

__device__ __forceinline__ u64 mix16(const u8 *in, u32 secret, u64 seed) {
    return multiply_fold(read64(in) ^ (secret64(SECRET, secret) + seed),
                         read64(in + 8) ^ (secret64(SECRET, secret + 8) - seed));
}

__device__ void mix32(Digest *acc, const u8 *first, const u8 *second, u32 secret, u64 seed) {
    acc->low = (acc->low + mix16(first, secret, seed)) ^ (read64(second) + read64(second + 8));
    acc->high = (acc->high + mix16(second, secret + 16, seed)) ^ (read64(first) + read64(first + 8));
}

__device__ Digest upto240(const u8 *in, u32 len, u64 seed) {
    Digest acc = {len * PRIME64_1, 0};
    if (len <= 128) {
        for (u32 pairs = (len - 1) / 32 + 1; pairs > 0; pairs--) {
            u32 at = 16 * (pairs - 1);
            mix32(&acc, in + at, in + len - at - 16, 2 * at, seed);
        }
    } else {
        for (u32 at = 0; at < 128; at += 32) {
            mix32(&acc, in + at, in + at + 16, at, seed);
        }
        acc.low = avalanche(acc.low);
        acc.high = avalanche(acc.high);
        for (u32 at = 128; at + 32 <= len; at += 32) {
            mix32(&acc, in + at, in + at + 16, at - 128 + 3, seed);
        }
        mix32(&acc, in + len - 16, in + len - 32, 103, 0 - seed);
    }
    Digest d;
    d.low = avalanche(acc.low + acc.high);
    d.high = 0 - avalanche(acc.low * PRIME64_1 + acc.high * PRIME64_4 + ((u64)len - seed) * PRIME64_2);
    return d;
}

/// Two neighbouring words of the input, 16 bytes; `aligned` says that one load may take them.
__device__ __forceinline__ void load_pair(const u8 *at, bool aligned, u64 *first, u64 *second) {
    if (aligned) {
        ulonglong2 pair = *(const ulonglong2 *)at;
        *first = pair.x;
        *second = pair.y;
    } else {
        *first = read64(at);
        *second = read64(at + 8);
    }
}

/// The two accumulators 2j and 2j+1 of a long hash, which thread j of four holds: they exchange their inputs with each
/// other only.
struct Lanes {
    u64 even;
    u64 odd;
};

__device__ __forceinline__ void accumulate(Lanes *acc, u64 first, u64 second, u64 key_first, u64 key_second) {
    u64 a = first ^ key_first, b = second ^ key_second;
    acc->even += second + (u64)(u32)a * (a >> 32);
    acc->odd += first + (u64)(u32)b * (b >> 32);
}

__device__ __forceinline__ u64 scrambled(u64 acc, u64 key) {
    return (acc ^ acc >> 47 ^ key) * PRIME32_1;
}

/// The part of thread `j` of four in XXH3-128 of more than 240 bytes: what it adds to both halves of the digest.
__device__ Digest long_part(const u8 *in, u32 len, u32 j, const u64 *secret) {
    Lanes acc = {START[2 * j], START[2 * j + 1]};
    bool aligned = ((u64)in & 15) == 0;
    const u8 *own = in + 16 * j;
    u32 stripes = (len - 1) / STRIPE_BYTES;
    for (u32 stripe = 0; stripe < stripes; stripe++) {
        u32 key = stripe % 16;
        u64 first, second;
        load_pair(own + (u64)stripe * STRIPE_BYTES, aligned, &first, &second);
        accumulate(&acc, first, second, secret[key + 2 * j], secret[key + 2 * j + 1]);
        // A block that ends where the input ends is not scrambled.
        if (key == 15 && (u32)(stripe + 1) * STRIPE_BYTES <= (len - 1) / BLOCK_BYTES * BLOCK_BYTES) {
            acc.even = scrambled(acc.even, secret[16 + 2 * j]);
            acc.odd = scrambled(acc.odd, secret[17 + 2 * j]);
        }
    }
    const u8 *last = own + len - STRIPE_BYTES;
    u64 first, second;
    load_pair(last, ((u64)last & 15) == 0, &first, &second);
    accumulate(&acc, first, second, secret64(secret, 121 + 16 * j), secret64(secret, 129 + 16 * j));
    Digest part;
    part.low = multiply_fold(acc.even ^ secret64(secret, 11 + 16 * j), acc.odd ^ secret64(secret, 19 + 16 * j));
    part.high = multiply_fold(acc.even ^ secret64(secret, 117 + 16 * j), acc.odd ^ secret64(secret, 125 + 16 * j));
    return part;
}

/// The part of thread `j` of four in XXH3-128 of any length up to 4096.
__device__ __forceinline__ Digest node_part(const u8 *in, u32 len, u64 seed, u32 j, const u64 *secret) {
    if (len > LONG_BYTES) {
        return long_part(in, len, j, secret);
    }
    Digest none = {0, 0};
    return j != 0 ? none : len > 16 ? upto240(in, len, seed) : upto16(in, len, seed);
}

/// The digest from the parts of four threads.
__device__ Digest joined(const Digest *parts, u32 len) {
    Digest d = parts[0];
    if (len > LONG_BYTES) {
        d.low = avalanche(len * PRIME64_1 + parts[0].low + parts[1].low + parts[2].low + parts[3].low);
        d.high = avalanche(~(len * PRIME64_2) + parts[0].high + parts[1].high + parts[2].high + parts[3].high);
    }
    return d;
}

// ---------------------------------------------------------------------------------------------------------------------
// The tree: digests of level 1, one for each MiB

#define LEAF_BYTES 4096
#define LEAVES 256
#define MEBIBYTE (LEAF_BYTES * LEAVES)

/// Bytes of which the digests of level 1 are wanted.
struct Stretch {
    const u8 *start;
    u64 bytes;
    /// Number of its first MiB among those of all stretches of the launch.
    u64 first;
};

/// One block of 1024 threads per MiB, four threads per leaf. Block 0 is the MiB `from` of all stretches, in their order;
/// its digest goes to the beginning of `digests`.
extern "C" __global__ void __launch_bounds__(1024)
    pccl_tree_level1(const Stretch *stretches, u32 count, u64 from, Digest *digests) {
    __shared__ u64 secrets[2][SECRET_WORDS + 1];
    __shared__ Digest parts[4 * LEAVES];
    __shared__ Digest leaves[LEAVES];
    u32 thread = threadIdx.x, j = thread % 4, leaf = thread / 4;
    if (thread < 2 * SECRET_WORDS) {
        u32 seed = thread / SECRET_WORDS, word = thread % SECRET_WORDS;
        // A long hash adds its seed to every other word of the secret, and takes it from those between.
        secrets[seed][word] = word % 2 == 0 ? SECRET[word] + seed : SECRET[word] - seed;
    } else if (thread < 2 * SECRET_WORDS + 2) {
        secrets[thread - 2 * SECRET_WORDS][SECRET_WORDS] = 0;
    }
    // The last stretch that does not begin behind this MiB.
    u64 number = from + blockIdx.x;
    u32 low = 0, high = count;
    while (high - low > 1) {
        u32 middle = low + (high - low) / 2;
        if (stretches[middle].first <= number) {
            low = middle;
        } else {
            high = middle;
        }
    }
    Stretch stretch = stretches[low];
    u64 offset = (number - stretch.first) * MEBIBYTE;
    u64 left = stretch.bytes - offset;
    u32 bytes = left < MEBIBYTE ? (u32)left : MEBIBYTE;
    u32 filled = bytes == 0 ? 1 : (bytes + LEAF_BYTES - 1) / LEAF_BYTES;
    u32 rest = leaf < filled ? bytes - leaf * LEAF_BYTES : 0;
    u32 len = rest < LEAF_BYTES ? rest : LEAF_BYTES;
    __syncthreads();
    if (leaf < filled) {
        parts[thread] = node_part(stretch.start + offset + (u64)leaf * LEAF_BYTES, len, 0, j, secrets[0]);
    }
    __syncthreads();
    if (leaf < filled && j == 0) {
        leaves[leaf] = joined(parts + thread, len);
    }
    __syncthreads();
    if (thread < 4) {
        parts[thread] = node_part((const u8 *)leaves, filled * 16, 1, j, secrets[1]);
    }
    __syncthreads();
    if (thread == 0) {
        digests[blockIdx.x] = joined(parts, filled * 16);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// simplehash

#define LANES 256
#define WARP 32

__device__ __forceinline__ u32 mix(u32 a, u32 b) {
    a ^= b + 0x9e3779b1u;
    a = a << 7 | a >> 25;
    return a * 0x85ebca6bu;
}

/// Joins the values of all 256 threads: first those of each 32, then the eight results padded with zeros. The result is
/// in `lanes[0]`.
__device__ void join_lanes(u32 *lanes, u32 *warps) {
    u32 thread = threadIdx.x;
    for (u32 offset = WARP / 2; offset > 0; offset /= 2) {
        u32 other = thread % WARP < offset ? lanes[thread + offset] : 0;
        __syncthreads();
        if (thread % WARP < offset) {
            lanes[thread] = mix(lanes[thread], other);
        }
        __syncthreads();
    }
    if (thread < WARP) {
        warps[thread] = thread < LANES / WARP ? lanes[thread * WARP] : 0;
    }
    __syncthreads();
    for (u32 offset = WARP / 2; offset > 0; offset /= 2) {
        if (thread < offset) {
            warps[thread] = mix(warps[thread], warps[thread + offset]);
        }
        __syncthreads();
    }
    if (thread == 0) {
        lanes[0] = warps[0];
    }
    __syncthreads();
}

/// The hashes of blocks of simplehash, one per block of 256 threads, from block `from` on. Each takes `per_block`
/// vectors of 16 bytes, as far as there are any.
extern "C" __global__ void __launch_bounds__(256)
    pccl_simplehash_blocks(const u8 *data, u64 vectors, u64 per_block, u64 from, u32 *hashes) {
    __shared__ u32 lanes[LANES];
    __shared__ u32 warps[WARP];
    u64 start = (from + blockIdx.x) * per_block;
    u64 end = start + per_block;
    end = end < vectors ? end : vectors;
    bool aligned = ((u64)data & 15) == 0;
    u32 lane = 0;
    for (u64 vector = start + threadIdx.x; vector < end; vector += LANES) {
        u64 first, second;
        load_pair(data + vector * 16, aligned, &first, &second);
        lane = mix(mix(lane, (u32)first), (u32)(first >> 32));
        lane = mix(mix(lane, (u32)second), (u32)(second >> 32));
    }
    lanes[threadIdx.x] = lane;
    __syncthreads();
    join_lanes(lanes, warps);
    if (threadIdx.x == 0) {
        hashes[blockIdx.x] = lanes[0];
    }
}

/// simplehash from the hashes of all blocks and the `tail_bytes` bytes (fewer than 16) after the last vector. One block.
extern "C" __global__ void __launch_bounds__(256)
    pccl_simplehash_end(const u32 *hashes, u32 blocks, const u8 *tail, u32 tail_bytes, u32 *result) {
    __shared__ u32 lanes[LANES];
    __shared__ u32 warps[WARP];
    u32 lane = 0;
    for (u32 block = threadIdx.x; block < blocks; block += LANES) {
        lane = mix(lane, hashes[block]);
    }
    lanes[threadIdx.x] = lane;
    __syncthreads();
    join_lanes(lanes, warps);
    if (threadIdx.x == 0) {
        u32 hash = blocks == 0 ? 0 : lanes[0];
        for (u32 at = 0; at < tail_bytes; at += 4) {
            u32 word = 0;
            for (u32 i = 0; i < 4 && at + i < tail_bytes; i++) {
                word |= (u32)tail[at + i] << (8 * i);
            }
            hash = mix(hash, word);
        }
        *result = hash;
    }
}
