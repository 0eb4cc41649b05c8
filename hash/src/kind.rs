//! Which hash a digest on the wire is made with.

use crate::{Digest128, crc32c, simplehash, tree_hash_parallel};

/// The hash functions, with the numbers that stand for them on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HashKind {
    /// The 32-bit hash of PCCL v1, for peers of that version.
    SimpleHash,
    /// CRC-32C.
    Crc32c,
    /// The tree of XXH3-128.
    #[default]
    Tree,
    // Number 3 is reserved for BLAKE3. The tree with a key ([`crate::Tree::Keyed`]) has no number: the key says it.
}

impl HashKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::SimpleHash, Self::Crc32c, Self::Tree];

    /// The number on the wire.
    pub const fn code(self) -> u32 {
        match self {
            Self::SimpleHash => 0,
            Self::Crc32c => 1,
            Self::Tree => 2,
        }
    }

    /// The kind with the number `code`; `None` for a number that this version does not know.
    pub const fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::SimpleHash),
            1 => Some(Self::Crc32c),
            2 => Some(Self::Tree),
            _ => None,
        }
    }

    /// Hashes `data` with up to `threads` threads (only the tree uses more than one); 32-bit results are widened
    /// with zeros.
    pub fn hash(self, data: &[u8], threads: usize) -> Digest128 {
        match self {
            Self::SimpleHash => Digest128::from_u128(u128::from(simplehash(data))),
            Self::Crc32c => Digest128::from_u128(u128::from(crc32c(data))),
            Self::Tree => tree_hash_parallel(data, threads),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::HashKind;
    use crate::Digest128;

    #[test]
    fn codes_are_fixed_and_round_trip() {
        assert_eq!(HashKind::ALL.map(HashKind::code), [0, 1, 2]);
        for kind in HashKind::ALL {
            assert_eq!(HashKind::from_code(kind.code()), Some(kind));
        }
        for unknown in [3, 4, 255, u32::MAX] {
            assert_eq!(HashKind::from_code(unknown), None);
        }
        assert_eq!(HashKind::default(), HashKind::Tree);
    }

    #[test]
    fn hashes_with_the_named_function() {
        let data = b"123456789";
        assert_eq!(HashKind::Crc32c.hash(data, 1), Digest128::from_u128(0xe306_9283));
        assert_eq!(HashKind::SimpleHash.hash(data, 1).to_u128(), u128::from(crate::simplehash(data)));
        assert_eq!(HashKind::Tree.hash(data, 4), crate::tree_hash(data));
    }
}
