//! Element types and reduce kernels: the arithmetic of a collective, on raw bytes of a type known at run time.
//!
//! **Purpose.** A peer of a ring all-reduce receives a partial result and folds it into its own data, one hop after the
//! other. The functions here do that one step for each of the [twelve types](DataType) and [five operations](ReduceOp),
//! from and to memory at any address, about as fast as memory delivers it.
//!
//! [`quantise`] turns floats into fewer bits and back, for the wire.
//!
//! **Limits.** No buffers, no threads, no knowledge of rings.
//!
//! # The result of a fold
//!
//! `own = own OP received`, element by element, little-endian, in this operand order. Each rule holds on every
//! [`Level`] of processor features to the last bit; the crate `pccl-quant-reference`, which tests use, states them a
//! second time, independently.
//!
//! - **Sum, Prod**: the plain operator. Integers wrap around.
//! - **Avg** folds as Sum. [`finish_average`] then divides once by the number of ranks: f16, bf16 and f32 divide in
//!   f32, f64 in f64, each rounded once to the type. An integer's (wrapped) sum is divided in 64 bits and truncated
//!   towards zero, so a number of ranks beyond the type's range is no problem.
//! - **f16 and bf16**: each fold converts both operands to f32 (exact), applies the operator in f32, and rounds once to
//!   the type, to nearest, ties to even. Since f32 has more than twice their digits, the result is the same as if
//!   the exact sum or product were rounded.
//! - **Max, Min**: `maximum` and `minimum` of IEEE 754-2019: -0 is less than +0, and NaN wins. If the left operand
//!   is NaN the result is that NaN, else if the right one is NaN the result is that one; in either case made quiet (its
//!   topmost mantissa bit set), sign and payload kept.
//! - **NaN in Sum, Prod and Avg**: Neither Rust nor IEEE 754 says which sign and payload a computed NaN has, and
//!   compilers may swap the operands. So every NaN result becomes *the* quiet NaN of its type: sign and payload zero
//!   (`0x7E00`, `0x7FC0`, `0x7FC0_0000`, `0x7FF8_0000_0000_0000`). It costs a compare and a select next to two loads
//!   and a store.
//!
//! Subnormal numbers count as what they are, if the thread runs in the processor's usual mode (no flush to zero).
//!
//! Modules from top to bottom, each of which uses only those below it: `quantise`, `kernels`, `element`, `weigh`,
//! `norm`, `copy`, `finite`, `float16`, `level`, `reciprocal`, `types`.

#![deny(unsafe_code)]

mod copy;
mod element;
mod finite;
mod float16;
mod kernels;
mod level;
mod norm;
pub mod quantise;
mod reciprocal;
mod types;
mod weigh;

pub use copy::copy_streaming;
pub use element::Element;
pub use finite::first_non_finite;
pub use kernels::{KernelError, Kernels, finish_average, fold_in_place, fold_in_place_saving, fold_into};
pub use level::Level;
pub use norm::{norm, scale, sum_of_squares};
pub use types::{DataType, ReduceOp};
pub use weigh::{unweigh, weigh, weighted_type};
