//! Element types and operations as run-time values, with their public numbers.

use std::fmt;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DataType {
    /// Unsigned, 8 bits.
    Uint8 = 0,
    /// Signed, 8 bits.
    Int8 = 1,
    /// Signed, 16 bits.
    Int16 = 2,
    /// Unsigned, 16 bits.
    Uint16 = 3,
    /// Unsigned, 32 bits.
    Uint32 = 4,
    /// Signed, 32 bits.
    Int32 = 5,
    /// Unsigned, 64 bits.
    Uint64 = 6,
    /// Signed, 64 bits.
    Int64 = 7,
    /// IEEE 754 binary16.
    Float16 = 8,
    /// The upper half of a binary32.
    BFloat16 = 9,
    /// IEEE 754 binary32.
    Float32 = 10,
    /// IEEE 754 binary64.
    Float64 = 11,
}

impl DataType {
    /// All types, in the order of their codes.
    pub const ALL: [Self; 12] = [
        Self::Uint8,
        Self::Int8,
        Self::Int16,
        Self::Uint16,
        Self::Uint32,
        Self::Int32,
        Self::Uint64,
        Self::Int64,
        Self::Float16,
        Self::BFloat16,
        Self::Float32,
        Self::Float64,
    ];

    /// The public number of the type: the value of its C constant.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The type with this public number, if there is one.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Size of one element in bytes.
    #[must_use]
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::Uint8 | Self::Int8 => 1,
            Self::Int16 | Self::Uint16 | Self::Float16 | Self::BFloat16 => 2,
            Self::Uint32 | Self::Int32 | Self::Float32 => 4,
            Self::Uint64 | Self::Int64 | Self::Float64 => 8,
        }
    }

    /// The type's short name, as `f32` or `bf16`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uint8 => "u8",
            Self::Int8 => "i8",
            Self::Int16 => "i16",
            Self::Uint16 => "u16",
            Self::Uint32 => "u32",
            Self::Int32 => "i32",
            Self::Uint64 => "u64",
            Self::Int64 => "i64",
            Self::Float16 => "f16",
            Self::BFloat16 => "bf16",
            Self::Float32 => "f32",
            Self::Float64 => "f64",
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The operation that combines the ranks' elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum ReduceOp {
    /// Sum of all ranks.
    Sum = 0,
    /// Sum of all ranks, divided once by their number.
    Avg = 1,
    /// Product of all ranks.
    Prod = 2,
    /// Greatest of all ranks.
    Max = 3,
    /// Least of all ranks.
    Min = 4,
}

impl ReduceOp {
    /// All operations, in the order of their codes.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Avg, Self::Prod, Self::Max, Self::Min];

    /// The public number of the operation: the value of its C constant.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The operation with this public number, if there is one.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The operation's name, as `sum`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Avg => "avg",
            Self::Prod => "prod",
            Self::Max => "max",
            Self::Min => "min",
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers are public: C callers compiled against them.
    #[test]
    fn public_numbers() {
        let types =
            DataType::ALL.map(|data_type| (data_type.code(), data_type.name(), data_type.size_bytes()));
        let expected = [
            (0, "u8", 1),
            (1, "i8", 1),
            (2, "i16", 2),
            (3, "u16", 2),
            (4, "u32", 4),
            (5, "i32", 4),
            (6, "u64", 8),
            (7, "i64", 8),
            (8, "f16", 2),
            (9, "bf16", 2),
            (10, "f32", 4),
            (11, "f64", 8),
        ];
        assert_eq!(types, expected);
        let ops = ReduceOp::ALL.map(|op| (op.code(), op.name()));
        assert_eq!(ops, [(0, "sum"), (1, "avg"), (2, "prod"), (3, "max"), (4, "min")]);
    }

    #[test]
    fn codes_go_there_and_back() {
        for code in 0..=u8::MAX {
            assert_eq!(DataType::from_code(code).map(DataType::code), (code < 12).then_some(code));
            assert_eq!(ReduceOp::from_code(code).map(ReduceOp::code), (code < 5).then_some(code));
        }
    }
}
