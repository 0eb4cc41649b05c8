// The block schemes and casts of quantisation on a device, bit for bit those of the crate pccl-quant.
//
// As in hash.cu nothing is included, and the stand-in driver for tests compiles this file as C++. Every operation on
// floats is one of the functions that round to nearest by themselves, so that no compiler fuses two of them.

namespace quantise {

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

// ---------------------------------------------------------------------------------------------------------------------
// The type of calculations: float, or double for elements of double

template <class W> struct Work;

template <> struct Work<float> {
    typedef int Key;
    typedef u32 Bits;
    static const u32 MANTISSA_BITS = 23;
    static const u32 INFINITE = 0x7F800000u;
    static const u32 GREATEST = 0x7F7FFFFFu;
    static const u32 LEAST_NORMAL = 0x00800000u;
    static const u32 QUIET_NAN = 0x7FC00000u;
    static const int MOST = 0x7FFFFFFF;
    static __device__ __forceinline__ u32 bits(float x) { return __float_as_uint(x); }
    static __device__ __forceinline__ float of_bits(u32 bits) { return __uint_as_float(bits); }
    static __device__ __forceinline__ float of(float x) { return x; }
    static __device__ __forceinline__ float of_count(u32 count) { return __uint2float_rn(count); }
    static __device__ __forceinline__ float as_float(float x) { return x; }
    /// The nearest integer, ties to even, modulo 256: at that size the last bit of the mantissa is worth 1.
    static __device__ __forceinline__ u8 nearest_byte(float x) { return (u8)bits(__fadd_rn(x, 12582912.0f)); }
    /// The number times 2^15, to the nearest integer.
    static __device__ __forceinline__ u32 fixed15(float x) { return bits(__fadd_rn(x, 256.0f)) & 0x7FFFFFu; }
};

template <> struct Work<double> {
    typedef long long Key;
    typedef u64 Bits;
    static const u32 MANTISSA_BITS = 52;
    static const u64 INFINITE = 0x7FF0000000000000ull;
    static const u64 GREATEST = 0x7FEFFFFFFFFFFFFFull;
    static const u64 LEAST_NORMAL = 0x0010000000000000ull;
    static const u64 QUIET_NAN = 0x7FF8000000000000ull;
    static const long long MOST = 0x7FFFFFFFFFFFFFFFll;
    static __device__ __forceinline__ u64 bits(double x) { return (u64)__double_as_longlong(x); }
    static __device__ __forceinline__ double of_bits(u64 bits) { return __longlong_as_double((long long)bits); }
    static __device__ __forceinline__ double of(float x) { return (double)x; }
    static __device__ __forceinline__ double of_count(u32 count) { return (double)count; }
    static __device__ __forceinline__ float as_float(double x) { return __double2float_rn(x); }
    static __device__ __forceinline__ u8 nearest_byte(double x) {
        return (u8)bits(__dadd_rn(x, 6755399441055744.0));
    }
    static __device__ __forceinline__ u32 fixed15(double x) {
        return (u32)bits(__dadd_rn(x, 206158430208.0)) & 0x7FFFFFu;
    }
};

__device__ __forceinline__ float add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float sub(float a, float b) { return __fadd_rn(a, -b); }
__device__ __forceinline__ float mul(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float div(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ double add(double a, double b) { return __dadd_rn(a, b); }
__device__ __forceinline__ double sub(double a, double b) { return __dadd_rn(a, -b); }
__device__ __forceinline__ double mul(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ double div(double a, double b) { return __ddiv_rn(a, b); }

template <class W> __device__ __forceinline__ bool finite(W x) {
    return (Work<W>::bits(x) & Work<W>::INFINITE) != Work<W>::INFINITE;
}

/// An integer that orders numbers as their values, -0 before +0; and back.
template <class W> __device__ __forceinline__ typename Work<W>::Key ordered(W x) {
    typename Work<W>::Key key = (typename Work<W>::Key)Work<W>::bits(x);
    return key < 0 ? key ^ Work<W>::MOST : key;
}

template <class W> __device__ __forceinline__ W of_ordered(typename Work<W>::Key key) {
    return Work<W>::of_bits((typename Work<W>::Bits)(key < 0 ? key ^ Work<W>::MOST : key));
}

/// The least number at least `x` with this number of bits of the mantissa less, of a positive one.
template <class W> __device__ __forceinline__ W coarse(W x, u32 count) {
    typename Work<W>::Bits low = ((typename Work<W>::Bits)1 << count) - 1;
    return Work<W>::of_bits((Work<W>::bits(x) + low) & ~low);
}

template <class W> __device__ __forceinline__ W previous_coarse(W x, u32 count) {
    return Work<W>::of_bits(Work<W>::bits(x) - ((typename Work<W>::Bits)1 << count));
}

template <class W> __device__ __forceinline__ W at_least(W value, W bound) { return value > bound ? value : bound; }
template <class W> __device__ __forceinline__ W at_most(W value, W bound) { return value < bound ? value : bound; }

// ---------------------------------------------------------------------------------------------------------------------
// Elements

__device__ __forceinline__ float f16_to_f32(u32 half) {
    u32 sign = (half & 0x8000u) << 16, magnitude = (half & 0x7FFFu) << 13;
    u32 exponent = magnitude & 0x0F800000u, rebiased = magnitude + (112u << 23);
    // Zero and subnormals are read with an implicit one, which is then taken away.
    u32 subnormal = __float_as_uint(__fadd_rn(__uint_as_float(rebiased + (1u << 23)), -__uint_as_float(113u << 23)));
    u32 bits = exponent == 0x0F800000u ? rebiased + (112u << 23) : exponent == 0 ? subnormal : rebiased;
    return __uint_as_float(bits | sign);
}

/// The nearest one, ties to even; beyond its range infinity, and one NaN for all.
__device__ __forceinline__ u32 f32_to_f16(float value) {
    const u32 ALIGN = (112u + 13u + 1u) << 23;
    u32 bits = __float_as_uint(value), sign = (bits & 0x80000000u) >> 16, magnitude = bits & 0x7FFFFFFFu;
    u32 subnormal = __float_as_uint(__fadd_rn(__uint_as_float(magnitude), __uint_as_float(ALIGN))) - ALIGN;
    u32 normal = (magnitude - (112u << 23) + 0xFFFu + (magnitude >> 13 & 1)) >> 13;
    u32 number = magnitude >= 143u << 23 ? 0x7C00u : magnitude < 113u << 23 ? subnormal : normal;
    return magnitude > 0x7F800000u ? 0x7E00u : number | sign;
}

__device__ __forceinline__ u32 f32_to_bf16(float value) {
    u32 bits = __float_as_uint(value);
    u32 rounded = (bits + 0x7FFFu + (bits >> 16 & 1)) >> 16;
    return (bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0u : rounded;
}

/// A little-endian number of this number of bytes, at any address.
template <class B> __device__ __forceinline__ B load(const u8 *at) {
    if ((u64)at % sizeof(B) == 0) {
        return *(const B *)at;
    }
    B bits = 0;
    for (u32 i = sizeof(B); i > 0; i--) {
        bits = (B)(bits << 8 % (8 * sizeof(B)) | at[i - 1]);
    }
    return bits;
}

template <class B> __device__ __forceinline__ void store(u8 *at, B bits) {
    if ((u64)at % sizeof(B) == 0) {
        *(B *)at = bits;
        return;
    }
    for (u32 i = 0; i < sizeof(B); i++) {
        at[i] = (u8)(bits >> (8 * i));
    }
}

/// A type of elements: its bits, the type to calculate in, the greatest number, and the ways there and back.
struct F32 {
    typedef float W;
    typedef u32 Bits;
    static __device__ __forceinline__ float greatest() { return __uint_as_float(0x7F7FFFFFu); }
    static __device__ __forceinline__ float widen(u32 bits) { return __uint_as_float(bits); }
    static __device__ __forceinline__ u32 narrow(float x) { return x != x ? 0x7FC00000u : __float_as_uint(x); }
};

struct F64 {
    typedef double W;
    typedef u64 Bits;
    static __device__ __forceinline__ double greatest() { return Work<double>::of_bits(Work<double>::GREATEST); }
    static __device__ __forceinline__ double widen(u64 bits) { return Work<double>::of_bits(bits); }
    static __device__ __forceinline__ u64 narrow(double x) {
        return x != x ? Work<double>::QUIET_NAN : Work<double>::bits(x);
    }
};

struct F16 {
    typedef float W;
    typedef unsigned short Bits;
    static __device__ __forceinline__ float greatest() { return __uint_as_float(0x477FE000u); }
    static __device__ __forceinline__ float widen(Bits bits) { return f16_to_f32(bits); }
    static __device__ __forceinline__ Bits narrow(float x) { return (Bits)f32_to_f16(x); }
};

struct BF16 {
    typedef float W;
    typedef unsigned short Bits;
    static __device__ __forceinline__ float greatest() { return __uint_as_float(0x7F7F0000u); }
    static __device__ __forceinline__ float widen(Bits bits) { return __uint_as_float((u32)bits << 16); }
    static __device__ __forceinline__ Bits narrow(float x) { return (Bits)f32_to_bf16(x); }
};

// ---------------------------------------------------------------------------------------------------------------------
// Random numbers of stochastic rounding

#define SEGMENT 64
#define NOISE_BITS 15

__device__ __forceinline__ u64 mixed(u64 value) {
    value += 0x9E3779B97F4A7C15ull;
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9ull;
    value = (value ^ value >> 27) * 0x94D049BB133111EBull;
    return value ^ value >> 31;
}

/// That of an element, by its number from the start of segment `first` on.
__device__ __forceinline__ u32 noise(u64 key, u64 first, u32 element) {
    u64 own = mixed(key + (first + element / SEGMENT) * 0x9E3779B97F4A7C15ull);
    u32 index = element % SEGMENT;
    u32 value = (u32)own + index % (SEGMENT / 2) * 0x9E3779B9u;
    value = (value ^ value >> 16) * 0x7FEB352Du;
    value = (value ^ value >> 15 ^ (u32)(own >> 32)) * 0x846CA68Bu;
    value ^= value >> 16;
    return index < SEGMENT / 2 ? value >> (32 - NOISE_BITS) : value & ((1u << NOISE_BITS) - 1);
}

// ---------------------------------------------------------------------------------------------------------------------
// Codes

/// The step of a block. An inverse of 0: all elements have the code of a constant.
template <class W> struct Step {
    W scale;
    W middle;
    W inverse;
};

template <class W> __device__ __forceinline__ u8 up_or_down(W position, u32 noise) {
    return (u8)((Work<W>::fixed15(position) + noise) >> NOISE_BITS);
}

template <class W> __device__ __forceinline__ Step<W> constant(W value) {
    Step<W> step = {add(value, W(0)), add(value, W(0)), W(0)};
    return step;
}

template <u32 DISTANCES> struct Affine {
    static const bool HAS_MIDDLE = true;
    static const u32 BITS = DISTANCES == 15 ? 4 : 8;
    static const u8 OF_CONSTANT = 0;

    template <class W> static __device__ __forceinline__ W half() { return Work<W>::of(DISTANCES / 2.0f); }

    template <class S> static __device__ __forceinline__ Step<typename S::W> step(typename S::W min, typename S::W max) {
        typedef typename S::W W;
        if (min == max) {
            // The scale of a constant is zero.
            Step<W> step = constant(min);
            step.scale = W(0);
            return step;
        }
        W middle = add(mul(min, W(0.5)), mul(max, W(0.5)));
        W radius = at_least(sub(max, middle), sub(middle, min));
        W least = Work<W>::of_bits(Work<W>::LEAST_NORMAL);
        W scale = coarse(at_least(div(radius, half<W>()), least), BITS);
        W reach = mul(half<W>(), scale);
        if (!(finite(add(middle, reach)) && finite(sub(middle, reach)))) {
            scale = previous_coarse(scale, BITS);
        }
        Step<W> step = {scale, middle, div(W(1), scale)};
        return step;
    }

    template <class W> static __device__ __forceinline__ W position(W element, Step<W> step) {
        return add(mul(sub(element, step.middle), step.inverse), half<W>());
    }

    template <class W> static __device__ __forceinline__ u8 nearest(W element, Step<W> step) {
        return Work<W>::nearest_byte(position(element, step));
    }

    template <class W> static __device__ __forceinline__ u8 stochastic(W element, Step<W> step, u32 noise) {
        return up_or_down(at_most(at_least(position(element, step), W(0)), W(DISTANCES)), noise);
    }

    template <class W> static __device__ __forceinline__ W value(u32 code, W scale, W middle) {
        return add(middle, mul(sub(W(code), half<W>()), scale));
    }
};

struct Symmetric {
    static const bool HAS_MIDDLE = false;
    static const u32 BITS = 8;
    static const u8 OF_CONSTANT = 1;

    template <class S> static __device__ __forceinline__ Step<typename S::W> step(typename S::W min, typename S::W max) {
        typedef typename S::W W;
        if (min == max) {
            return constant(min);
        }
        W magnitude = at_least(max, sub(W(0), min)), codes = W(127);
        W scale = coarse(at_least(div(magnitude, codes), Work<W>::of_bits(Work<W>::LEAST_NORMAL)), BITS);
        if (!finite(mul(codes, scale))) {
            scale = previous_coarse(scale, BITS);
        }
        Step<W> step = {scale, W(0), div(W(1), scale)};
        return step;
    }

    template <class W> static __device__ __forceinline__ u8 nearest(W element, Step<W> step) {
        return Work<W>::nearest_byte(mul(element, step.inverse));
    }

    template <class W> static __device__ __forceinline__ u8 stochastic(W element, Step<W> step, u32 noise) {
        W shifted = add(mul(element, step.inverse), W(127));
        return (u8)(up_or_down(at_most(at_least(shifted, W(0)), W(254)), noise) - 127);
    }

    template <class W> static __device__ __forceinline__ W value(u32 code, W scale, W) {
        return mul(W((int)(signed char)code), scale);
    }
};

/// Floats of 8 bits, by the number of bits of their mantissa.
template <u32 MANTISSA_BITS> struct Float8 {
    static const bool HAS_MIDDLE = false;
    static const u32 BITS = 8;
    static const u32 BIAS = MANTISSA_BITS == 3 ? 7 : 15;
    static const u8 OF_CONSTANT = BIAS << MANTISSA_BITS;
    static const u32 SHIFT = 23 - MANTISSA_BITS;
    static const u32 LEAST_NORMAL = (127 + 1 - BIAS) << 23;
    static const u32 ALIGN = LEAST_NORMAL + (SHIFT << 23);

    static __device__ __forceinline__ u8 narrowed(float value) {
        u32 bits = __float_as_uint(value), magnitude = bits & 0x7FFFFFFFu;
        u32 subnormal = __float_as_uint(__fadd_rn(__uint_as_float(magnitude), __uint_as_float(ALIGN))) - ALIGN;
        u32 rounded = (magnitude + (1u << (SHIFT - 1)) - 1 + (magnitude >> SHIFT & 1)) >> SHIFT;
        u32 normal = rounded - ((127 - BIAS) << MANTISSA_BITS);
        return (u8)((magnitude < LEAST_NORMAL ? subnormal : normal) | (bits >> 24 & 0x80u));
    }

    static __device__ __forceinline__ float widened(u32 code) {
        u32 magnitude = code & 0x7Fu, sign = (code & 0x80u) << 24;
        u32 normal = (magnitude << SHIFT) + ((127 - BIAS) << 23);
        float with_one = __uint_as_float(normal + (1u << 23));
        u32 subnormal = __float_as_uint(__fadd_rn(with_one, -__uint_as_float(LEAST_NORMAL)));
        u32 bits = magnitude >> MANTISSA_BITS == 0 ? subnormal : normal;
        if (MANTISSA_BITS == 3 && magnitude == 0x7Fu) {
            bits = 0x7FC00000u;
        } else if (MANTISSA_BITS == 2 && magnitude >= 0x7Cu) {
            bits = normal | 0x7F800000u;
        }
        return __uint_as_float(bits | sign);
    }

    template <class S> static __device__ __forceinline__ Step<typename S::W> step(typename S::W min, typename S::W max) {
        typedef typename S::W W;
        if (min == max) {
            return constant(min);
        }
        const u32 BITS_OF_WORK = Work<W>::MANTISSA_BITS;
        W least = Work<W>::of_bits(Work<W>::LEAST_NORMAL);
        W greatest = at_least(at_least(max, sub(W(0), min)), least);
        W power = Work<W>::of_bits(Work<W>::bits(greatest) >> BITS_OF_WORK << BITS_OF_WORK);
        // A division by a power of two.
        W scale = at_least(mul(power, W(MANTISSA_BITS == 3 ? 1.0 / 256 : 1.0 / 32768)), least);
        if (!(greatest <= mul(scale, W(MANTISSA_BITS == 3 ? 448 : 57344)))) {
            scale = add(scale, scale);
        }
        W inverse = div(W(1), scale);
        // The greatest code to be used: the one that rounding up to would make an element infinite is left out.
        u8 top = narrowed(Work<W>::as_float(mul(greatest, inverse)));
        bool reaches = mul(Work<W>::of(widened(top)), scale) <= S::greatest();
        Step<W> step = {scale, Work<W>::of(widened((u8)(top - (reaches ? 0 : 1)))), inverse};
        return step;
    }

    template <class W> static __device__ __forceinline__ u8 nearest(W element, Step<W> step) {
        W scaled = at_least(at_most(mul(element, step.inverse), step.middle), sub(W(0), step.middle));
        return narrowed(Work<W>::as_float(scaled));
    }

    template <class W> static __device__ __forceinline__ u8 stochastic(W element, Step<W> step, u32) {
        return nearest(element, step);
    }

    template <class W> static __device__ __forceinline__ W value(u32 code, W scale, W) {
        return mul(Work<W>::of(widened(code)), scale);
    }
};

// ---------------------------------------------------------------------------------------------------------------------
// Blocks: each becomes a record of scale, for some codes the middle, and the codes

template <class S, class C> __device__ __forceinline__ u32 meta_bytes() {
    return sizeof(typename S::W) * (C::HAS_MIDDLE ? 2 : 1);
}

template <class S, class C> __device__ __forceinline__ u32 record_bytes(u32 block) {
    return meta_bytes<S, C>() + block * C::BITS / 8;
}

/// The value of element `i` of a record; NaN if the record's numbers are not finite, which `is_good` says then.
template <class S, class C>
__device__ __forceinline__ typename S::W decoded(const u8 *record, u32 i, bool *is_good) {
    typedef typename S::W W;
    typedef typename Work<W>::Bits Bits;
    W scale = Work<W>::of_bits(load<Bits>(record));
    W middle = C::HAS_MIDDLE ? Work<W>::of_bits(load<Bits>(record + sizeof(W))) : W(0);
    *is_good = finite(scale) && finite(middle);
    const u8 *codes = record + meta_bytes<S, C>();
    u32 code = C::BITS == 4 ? codes[i / 2] >> (i % 2 * 4) & 15u : codes[i];
    W value = C::value(code, scale, middle);
    return *is_good ? value : Work<W>::of_bits(Work<W>::QUIET_NAN);
}

/// The addend of a rank to what it has received.
struct Hop {
    /// The record that was received; null: none.
    const u8 *received;
    /// The divisor of the sum; 0: none.
    u32 divisor;
};

template <class S> __device__ __forceinline__ typename S::Bits averaged(typename S::Bits sum, u32 divisor) {
    typedef typename S::W W;
    if (divisor == 0) {
        return sum;
    }
    return S::narrow(div(S::widen(sum), Work<W>::of_count(divisor)));
}

/// Element `i` of a block, or the sum that takes its place.
template <class S, class C>
__device__ __forceinline__ typename S::W element(const u8 *elements, u32 i, Hop hop) {
    typedef typename S::Bits Bits;
    Bits own = load<Bits>(elements + (u64)i * sizeof(Bits));
    if (hop.received == nullptr) {
        return S::widen(own);
    }
    bool is_good;
    typename S::W value = decoded<S, C>(hop.received, i, &is_good);
    Bits sum = S::narrow(is_good ? add(S::widen(own), value) : value);
    return S::widen(averaged<S>(sum, hop.divisor));
}

struct Rounding {
    bool is_stochastic;
    u64 key;
    u64 segment;
};

template <class S, class C>
__device__ __forceinline__ u8 code_of(const u8 *elements, u32 i, Hop hop, Step<typename S::W> step, Rounding rounding) {
    typename S::W x = element<S, C>(elements, i, hop);
    return rounding.is_stochastic ? C::stochastic(x, step, noise(rounding.key, rounding.segment, i))
                                  : C::nearest(x, step);
}

#define GROUP 64
#define GROUPS 4

/// Encodes `count` elements, or what they become when what was received is added to them. A group of 64 threads for
/// each record.
template <class S, class C>
__device__ void encode(const u8 *elements, u64 count, u32 block, u8 *records, const u8 *received, u32 divisor,
                       u32 is_stochastic, u64 key, u64 first_segment) {
    typedef typename S::W W;
    typedef typename Work<W>::Key Key;
    __shared__ Key least[GROUPS * GROUP];
    __shared__ Key greatest[GROUPS * GROUP];
    __shared__ u32 bad[GROUPS * GROUP];
    __shared__ Step<W> steps[GROUPS];
    u32 thread = threadIdx.x, group = thread / GROUP, lane = thread % GROUP;
    u64 number = (u64)blockIdx.x * GROUPS + group, first = number * block;
    u32 len = first >= count ? 0 : count - first < block ? (u32)(count - first) : block;
    elements += first * sizeof(typename S::Bits);
    u64 offset = number * record_bytes<S, C>(block);
    Hop hop = {received == nullptr ? nullptr : received + offset, divisor};
    Key low = ordered(Work<W>::of_bits(Work<W>::GREATEST)), high = ordered(-Work<W>::of_bits(Work<W>::GREATEST));
    u32 is_bad = 0;
    for (u32 i = lane; i < len; i += GROUP) {
        W x = element<S, C>(elements, i, hop);
        is_bad |= finite(x) ? 0 : 1;
        Key order = ordered(x);
        low = order < low ? order : low;
        high = order > high ? order : high;
    }
    least[thread] = low;
    greatest[thread] = high;
    bad[thread] = is_bad;
    for (u32 half = GROUP / 2; half > 0; half /= 2) {
        __syncthreads();
        if (lane < half) {
            Key other_low = least[thread + half], other_high = greatest[thread + half];
            least[thread] = other_low < least[thread] ? other_low : least[thread];
            greatest[thread] = other_high > greatest[thread] ? other_high : greatest[thread];
            bad[thread] |= bad[thread + half];
        }
    }
    if (lane == 0 && len > 0) {
        W nan = Work<W>::of_bits(Work<W>::QUIET_NAN);
        Step<W> poisoned = {nan, nan, W(0)};
        Step<W> step = bad[thread] ? poisoned : C::template step<S>(of_ordered<W>(least[thread]),
                                                                    of_ordered<W>(greatest[thread]));
        steps[group] = step;
        store(records + offset, Work<W>::bits(step.scale));
        if (C::HAS_MIDDLE) {
            store(records + offset + sizeof(W), Work<W>::bits(step.middle));
        }
    }
    __syncthreads();
    if (len == 0) {
        return;
    }
    Step<W> step = steps[group];
    u8 *codes = records + offset + meta_bytes<S, C>();
    u32 bytes = C::BITS == 4 ? (len + 1) / 2 : len;
    Rounding rounding = {is_stochastic != 0, key, first_segment + number * (block / SEGMENT)};
    for (u32 at = lane; at < bytes; at += GROUP) {
        if (step.inverse == W(0)) {
            codes[at] = C::OF_CONSTANT;
        } else if (C::BITS == 4) {
            u32 low_code = code_of<S, C>(elements, 2 * at, hop, step, rounding);
            u32 high_code = 2 * at + 1 < len ? code_of<S, C>(elements, 2 * at + 1, hop, step, rounding) : 0;
            codes[at] = (u8)(low_code | high_code << 4);
        } else {
            codes[at] = code_of<S, C>(elements, at, hop, step, rounding);
        }
    }
}

/// Puts what records stand for in the place of `count` elements.
template <class S, class C> __device__ void decode(const u8 *records, u64 count, u32 block, u8 *elements) {
    u64 at = (u64)blockIdx.x * (GROUPS * GROUP) + threadIdx.x;
    if (at < count) {
        bool is_good;
        const u8 *record = records + at / block * record_bytes<S, C>(block);
        typename S::W value = decoded<S, C>(record, (u32)(at % block), &is_good);
        store(elements + at * sizeof(typename S::Bits), S::narrow(value));
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Casts: each element by itself

template <class S, class T>
__device__ void encode_cast(const u8 *elements, u64 count, u8 *encoded, const u8 *received, u32 divisor) {
    typedef typename S::Bits Bits;
    typedef typename S::W W;
    u64 at = (u64)blockIdx.x * (GROUPS * GROUP) + threadIdx.x;
    if (at < count) {
        Bits bits = load<Bits>(elements + at * sizeof(Bits));
        if (received != nullptr) {
            W value = Work<W>::of(T::widen(load<typename T::Bits>(received + at * sizeof(typename T::Bits))));
            bits = averaged<S>(S::narrow(add(S::widen(bits), value)), divisor);
        }
        store(encoded + at * sizeof(typename T::Bits), T::narrow(Work<W>::as_float(S::widen(bits))));
    }
}

template <class S, class T> __device__ void decode_cast(const u8 *encoded, u64 count, u8 *elements) {
    u64 at = (u64)blockIdx.x * (GROUPS * GROUP) + threadIdx.x;
    if (at < count) {
        float value = T::widen(load<typename T::Bits>(encoded + at * sizeof(typename T::Bits)));
        store(elements + at * sizeof(typename S::Bits), S::narrow(Work<typename S::W>::of(value)));
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// The kernels, of which all have the same parameters: one for each way, type of elements and scheme

#define PCCL_ENCODE_PARAMETERS                                                                                         \
    const u8 *elements, u64 count, u32 block, u8 *encoded, const u8 *received, u32 divisor, u32 is_stochastic,        \
        u64 key, u64 first_segment
#define PCCL_DECODE_PARAMETERS const u8 *encoded, u64 count, u32 block, u8 *elements

#define PCCL_BLOCKS(type, name, S, ...)                                                                                \
    extern "C" __global__ void __launch_bounds__(256) pccl_encode_##type##_##name(PCCL_ENCODE_PARAMETERS) {            \
        encode<S, __VA_ARGS__>(elements, count, block, encoded, received, divisor, is_stochastic, key, first_segment); \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) pccl_decode_##type##_##name(PCCL_DECODE_PARAMETERS) {            \
        decode<S, __VA_ARGS__>(encoded, count, block, elements);                                                       \
    }

#define PCCL_CAST(type, name, S, T)                                                                                    \
    extern "C" __global__ void __launch_bounds__(256) pccl_encode_##type##_##name(PCCL_ENCODE_PARAMETERS) {            \
        encode_cast<S, T>(elements, count, encoded, received, divisor);                                                \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) pccl_decode_##type##_##name(PCCL_DECODE_PARAMETERS) {            \
        decode_cast<S, T>(encoded, count, elements);                                                                   \
    }

#define PCCL_ALL_SCHEMES(type, S)                                                                                      \
    PCCL_BLOCKS(type, affine_u8, S, Affine<255>)                                                                       \
    PCCL_BLOCKS(type, affine_u4, S, Affine<15>)                                                                        \
    PCCL_BLOCKS(type, symmetric_i8, S, Symmetric)                                                                      \
    PCCL_BLOCKS(type, e4m3, S, Float8<3>)                                                                              \
    PCCL_BLOCKS(type, e5m2, S, Float8<2>)                                                                              \
    PCCL_CAST(type, bf16, S, BF16)                                                                                     \
    PCCL_CAST(type, f16, S, F16)

PCCL_ALL_SCHEMES(f32, F32)
PCCL_ALL_SCHEMES(f64, F64)
PCCL_ALL_SCHEMES(f16, F16)
PCCL_ALL_SCHEMES(bf16, BF16)

}
