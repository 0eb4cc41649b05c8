//! The fold of values that lie side by side, in the order of a step.

use crate::collective::coding::Stop;
use pccl_quant::{DataType, KernelError, ReduceOp, finish_average, fold_into};
use pccl_schedule::Step;

/// Bytes that are folded at once: they stay in the first-level cache. A multiple of every element size.
pub(super) const BLOCK_BYTES: usize = 16 << 10;

/// How elements are folded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    pub(super) data_type: DataType,
    pub(super) op: ReduceOp,
    /// Ranks among which the sum is divided, if it is the whole sum of an average.
    pub(super) ranks: Option<u32>,
}

/// Memory for what is folded on the way to a value: of the list so far, of the lists before, and of what comes next.
pub(super) type Scratch = [Vec<u8>; 3];

/// A value on the way: an input, or in that memory, or where the value of the step goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Input(usize),
    Scratch(usize),
    Out,
}

/// Folds the inputs of a step into `out`; `input` gives them by their number, as many bytes of each. Each list is
/// folded by itself, and then one list after the other.
pub(super) fn fold_inputs<'a>(
    kind: Kind,
    step: &Step,
    input: impl Fn(usize) -> &'a [u8],
    out: &mut [u8],
    scratch: &mut Scratch,
) -> Result<(), Stop> {
    let mut left = step.inputs.len();
    let mut fold = |before: At, value: At, kept: Option<At>| -> Result<At, KernelError> {
        left -= 1;
        let is_free = |index: &usize| ![Some(before), Some(value), kept].contains(&Some(At::Scratch(*index)));
        // Two of the three are in use at most: beside an input only one of the others is in scratch memory.
        let free = (0..scratch.len()).find(is_free).unwrap_or(0);
        let mut room = std::mem::take(&mut scratch[free]);
        let of = |at: At| match at {
            At::Input(number) => input(number),
            At::Scratch(index) => &scratch[index],
            At::Out => &[],
        };
        let folded = if left == 1 {
            fold_into(kind.data_type, kind.op, out, of(value), of(before)).map(|()| At::Out)
        } else {
            room.resize(out.len(), 0);
            fold_into(kind.data_type, kind.op, &mut room, of(value), of(before)).map(|()| At::Scratch(free))
        };
        scratch[free] = room;
        folded
    };
    let (mut number, mut total) = (0, None);
    for list in step.lists() {
        let mut partial = At::Input(number);
        for next in number + 1..number + list.len() {
            partial = fold(partial, At::Input(next), total)?;
        }
        number += list.len();
        total = Some(total.map_or(Ok(partial), |total| fold(total, partial, None))?);
    }
    if let Some(At::Input(only)) = total {
        out.copy_from_slice(input(only));
    }
    if let Some(ranks) = kind.ranks {
        finish_average(kind.data_type, out, ranks)?;
    }
    Ok(())
}
