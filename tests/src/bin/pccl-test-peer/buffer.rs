//! Tensors whose type is known at run time only, as the typed calls of the library see them.

use half::{bf16, f16};
use pccl::{
    AsyncReduce, Communicator, DataType, Error, ReduceInfo, ReduceOp, ReduceOptions, Scope, SharedState,
    Tensor,
};
use pccl_tests::spec::StateSpec;

/// The bytes of plain numbers.
fn view<T: pccl::Element>(data: &[T]) -> &[u8] {
    // SAFETY: every `Element` is a plain number without padding; the length is that of the slice in bytes.
    unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), size_of_val(data)) }
}

/// The bytes of plain numbers, to write to.
fn view_mut<T: pccl::Element>(data: &mut [T]) -> &mut [u8] {
    // SAFETY: as in `view`; any bytes make a valid number.
    unsafe { std::slice::from_raw_parts_mut(data.as_mut_ptr().cast(), size_of_val(data)) }
}

macro_rules! buffer {
    ($($variant:ident($type:ty)),*) => {
        /// A tensor's memory.
        #[derive(Debug, Clone)]
        pub(crate) enum Buffer {
            $($variant(Vec<$type>)),*
        }

        impl Buffer {
            /// Memory with this content.
            pub(crate) fn new(data_type: DataType, content: &[u8]) -> Self {
                match data_type {
                    $(DataType::$variant => {
                        let zero = <$type>::from_le_bytes([0; size_of::<$type>()]);
                        let mut data = vec![zero; content.len() / size_of::<$type>()];
                        view_mut(&mut data).copy_from_slice(content);
                        Self::$variant(data)
                    })*
                }
            }

            /// The content.
            pub(crate) fn bytes(&self) -> &[u8] {
                match self { $(Self::$variant(data) => view(data)),* }
            }

            /// A tensor that is reduced in place.
            pub(crate) fn in_place(&mut self, op: ReduceOp) -> Tensor<'_> {
                match self { $(Self::$variant(data) => Tensor::in_place(data, op)),* }
            }

            /// A tensor that is reduced from here into `recv`.
            pub(crate) fn out_of_place<'a>(&'a self, recv: &'a mut Self, op: ReduceOp) -> Result<Tensor<'a>, Error> {
                match (self, recv) {
                    $((Self::$variant(send), Self::$variant(recv)) => Tensor::out_of_place(send, recv, op),)*
                    _ => Err(Error::InvalidArgument("different types".into())),
                }
            }

            /// The blocking call in place.
            pub(crate) fn all_reduce(
                &mut self,
                comm: &Communicator,
                options: ReduceOptions,
            ) -> Result<ReduceInfo, Error> {
                match self { $(Self::$variant(data) => comm.all_reduce(data, options)),* }
            }

            /// The blocking call from here into `recv`.
            pub(crate) fn all_reduce_into(
                &self,
                recv: &mut Self,
                comm: &Communicator,
                options: ReduceOptions,
            ) -> Result<ReduceInfo, Error> {
                match (self, recv) {
                    $((Self::$variant(send), Self::$variant(recv)) => comm.all_reduce_into(send, recv, options),)*
                    _ => Err(Error::InvalidArgument("different types".into())),
                }
            }

            /// The asynchronous call in place.
            pub(crate) fn launch<'scope, 'env>(
                &'env mut self,
                scope: &'scope Scope<'scope, 'env>,
                options: ReduceOptions,
            ) -> Result<AsyncReduce<'scope>, Error> {
                match self { $(Self::$variant(data) => scope.all_reduce(data, options)),* }
            }

            /// The asynchronous call from here into `recv`.
            pub(crate) fn launch_into<'scope, 'env>(
                &'env self,
                recv: &'env mut Self,
                scope: &'scope Scope<'scope, 'env>,
                options: ReduceOptions,
            ) -> Result<AsyncReduce<'scope>, Error> {
                match (self, recv) {
                    $((Self::$variant(send), Self::$variant(recv)) => scope.all_reduce_into(send, recv, options),)*
                    _ => Err(Error::InvalidArgument("different types".into())),
                }
            }

            /// Adds what lies behind the first `spec.skip` elements to a state.
            pub(crate) fn add_to<'a>(&'a mut self, state: &mut SharedState<'a>, spec: &StateSpec) -> Result<(), Error> {
                match self {
                    $(Self::$variant(data) => {
                        let data = &mut data[spec.skip..];
                        if spec.loose {
                            state.tensor_allowing_inequality(&spec.key, data).map(drop)
                        } else {
                            state.tensor(&spec.key, data).map(drop)
                        }
                    })*
                }
            }
        }
    };
}

buffer!(
    Uint8(u8),
    Int8(i8),
    Int16(i16),
    Uint16(u16),
    Uint32(u32),
    Int32(i32),
    Uint64(u64),
    Int64(i64),
    Float16(f16),
    BFloat16(bf16),
    Float32(f32),
    Float64(f64)
);
