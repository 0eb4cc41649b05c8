//! Division of integers by a number that stays the same, as a multiplication, since processors multiply vectors of
//! integers but do not divide them.
//!
//! The method is that of T. Granlund and P. Montgomery (Division by Invariant Integers using Multiplication, figure
//! 4.1), which is exact for all numbers and divisors of the width of the type.

/// The factor and the shifts by which an unsigned number of type `U` is divided.
#[derive(Clone, Copy, Debug)]
pub struct Reciprocal<U> {
    factor: U,
    first_shift: u32,
    second_shift: u32,
}

/// An unsigned type that is divided.
pub(crate) trait Unsigned: Copy {
    /// The reciprocal of `divisor`, which is at least 1.
    fn reciprocal(divisor: u32) -> Reciprocal<Self>;
    /// The quotient, rounded down.
    fn quotient(self, by: Reciprocal<Self>) -> Self;
}

/// `$lane` is the type to calculate in, `$wide` that of products. Bytes are calculated with as 16 bits, for which there
/// are shifts.
macro_rules! unsigned {
    ($type:ident, $lane:ident, $wide:ident) => {
        impl Unsigned for $type {
            fn reciprocal(divisor: u32) -> Reciprocal<Self> {
                if u128::from(divisor) >> Self::BITS != 0 {
                    // Greater than every number: all bits are shifted out.
                    return Reciprocal { factor: 0, first_shift: 1, second_shift: Self::BITS - 1 };
                }
                let log = 32 - (divisor - 1).leading_zeros();
                let excess = (1_u128 << log) - u128::from(divisor);
                let factor = ((excess << Self::BITS) / u128::from(divisor) + 1) as Self;
                Reciprocal { factor, first_shift: log.min(1), second_shift: log.saturating_sub(1) }
            }

            #[inline(always)]
            fn quotient(self, by: Reciprocal<Self>) -> Self {
                let number = self as $lane;
                let high = (($wide::from(by.factor) * $wide::from(self)) >> Self::BITS) as $lane;
                ((high + ((number - high) >> by.first_shift)) >> by.second_shift) as Self
            }
        }
    };
}

unsigned!(u8, u16, u16);
unsigned!(u16, u16, u32);
unsigned!(u32, u32, u64);
unsigned!(u64, u64, u128);

#[cfg(test)]
mod tests {
    use super::*;

    fn check<U: Unsigned + TryFrom<u64> + Into<u64> + std::fmt::Debug>(number: u64, divisor: u32) {
        let Ok(number) = U::try_from(number) else { return };
        let expected = number.into() / u64::from(divisor);
        assert_eq!(number.quotient(U::reciprocal(divisor)).into(), expected, "{number:?} / {divisor}");
    }

    #[test]
    fn every_byte_by_every_divisor() {
        for (number, divisor) in (0..256).flat_map(|number| (1..600).map(move |divisor| (number, divisor))) {
            check::<u8>(number, divisor);
        }
    }

    #[test]
    fn every_16_bit_number_by_many_divisors() {
        for divisor in (1..300).chain((300..70_000).step_by(997)).chain([65_535, 65_536, 65_537, u32::MAX]) {
            (0..65_536).for_each(|number| check::<u16>(number, divisor));
        }
    }

    /// Where a quotient changes: at multiples of the divisor and just below.
    #[test]
    fn wide_numbers_around_multiples() {
        let divisors = (1..2000).chain((0..32).flat_map(|bit| [1_u32 << bit, u32::MAX >> bit]));
        for divisor in divisors {
            for greatest in [u64::from(u32::MAX), u64::MAX, 1 << 31, 1 << 63] {
                let quotient = greatest / u64::from(divisor);
                for quotient in [quotient, quotient / 2, quotient / 3, quotient.saturating_sub(1), 1, 0] {
                    let multiple = quotient * u64::from(divisor);
                    for number in [multiple, multiple.wrapping_sub(1), multiple.saturating_add(1), greatest] {
                        check::<u32>(number, divisor);
                        check::<u64>(number, divisor);
                    }
                }
            }
        }
    }
}
